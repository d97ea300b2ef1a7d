// Start tasks: the form of a new run, and the rerun of an earlier one with changes.

import { action } from "./actions.js";
import { call } from "./api.js";
import { go } from "./app.js";
import { awsCommand, quote } from "./commands.js";
import { last, label } from "./format.js";

const GROUP = "/corral/run";

export function runButton(cluster = "default") {
  return action("Run …", {
    main: true,
    wide: true,
    title: "Run a task",
    question:
      "The task starts when its GPUs are free. An image of corral/host is a process on a host; any other image runs in a container.",
    fields: [
      {
        name: "command",
        label: "Command",
        type: "textarea",
        rows: 2,
        placeholder: "python train.py --lr 0.1",
        hint: "A line of a shell. With an image of your own it may be empty.",
      },
      {
        name: "name",
        label: "Name",
        value: "",
        placeholder: "train",
        required: true,
        hint: "Letters, digits, hyphens and underscores.",
      },
      { name: "image", label: "Image", value: "corral/host", required: true },
      { name: "gpus", label: "GPUs", type: "number", min: 0, step: 1, value: "1" },
      { name: "memory", label: "Memory (MiB)", type: "number", min: 4, step: 1, value: "128" },
      { name: "folder", label: "Working directory", placeholder: "/home/you/project" },
      { name: "priority", label: "Priority", type: "number", min: -1000, max: 1000, step: 1, value: "0" },
      {
        name: "time",
        label: "Time limit (minutes)",
        type: "number",
        min: 0,
        hint: "A short run may start before a large one that still waits.",
      },
      { name: "cluster", label: "Cluster", value: cluster },
      {
        name: "environment",
        label: "Environment",
        type: "textarea",
        rows: 2,
        placeholder: "SEED=1",
        hint: "One NAME=VALUE in each line.",
      },
      { name: "hold", label: "Hold until it is released", type: "checkbox" },
    ],
    command: (values) =>
      [
        "corral run -d",
        `-g ${values.gpus || 0}`,
        `-n ${quote(values.name || "NAME")}`,
        values.memory !== "128" ? `--memory ${values.memory}m` : "",
        values.image !== "corral/host" ? `--image ${quote(values.image)}` : "",
        values.folder ? `-w ${quote(values.folder)}` : "",
        Number(values.priority) ? `--priority ${values.priority}` : "",
        values.time ? `-t ${values.time}m` : "",
        values.cluster !== "default" ? `--cluster ${quote(values.cluster)}` : "",
        ...Object.entries(environment(values.environment)).map(([name, value]) => `-e ${quote(`${name}=${value}`)}`),
        values.hold ? "--hold" : "",
        values.command ? `-- sh -c ${quote(values.command)}` : "",
      ]
        .filter(Boolean)
        .join(" "),
    run: async (values) => {
      const { taskDefinition } = await call("ecs", "RegisterTaskDefinition", definitionOf(values));
      const answer = await call("ecs", "RunTask", {
        cluster: values.cluster,
        taskDefinition: taskDefinition.taskDefinitionArn,
        count: 1,
        enableExecuteCommand: true,
        tags: tagsOf(values),
      });
      return started(answer, values.cluster);
    },
  });
}

function definitionOf(values) {
  const gpus = Number(values.gpus || 0);
  return {
    family: values.name,
    containerDefinitions: [
      {
        name: "main",
        image: values.image,
        memoryReservation: Number(values.memory || 128),
        ...(values.command ? { command: ["sh", "-c", values.command] } : {}),
        ...(values.folder ? { workingDirectory: values.folder } : {}),
        environment: Object.entries(environment(values.environment)).map(([name, value]) => ({ name, value })),
        ...(gpus ? { resourceRequirements: [{ type: "GPU", value: String(gpus) }] } : {}),
        logConfiguration: {
          logDriver: "awslogs",
          options: { "awslogs-group": GROUP, "awslogs-create-group": "true", "awslogs-stream-prefix": values.name },
        },
      },
    ],
  };
}

function tagsOf({ priority, time, hold }) {
  return [
    Number(priority) ? ["corral:priority", String(priority)] : null,
    time ? ["corral:time-limit", String(Math.round(Number(time) * 60))] : null,
    hold ? ["corral:hold", "true"] : null,
    ["corral:refuse-unfit", "true"],
  ]
    .filter(Boolean)
    .map(([key, value]) => ({ key, value }));
}

function environment(text) {
  return Object.fromEntries(
    (text ?? "")
      .split("\n")
      .map((line) => line.trim())
      .filter((line) => line.includes("="))
      .map((line) => [line.slice(0, line.indexOf("=")), line.slice(line.indexOf("=") + 1)]),
  );
}

function started({ tasks, failures }, cluster) {
  if (failures?.length)
    throw Object.assign(new Error(`The task was not started: ${failures[0].detail ?? failures[0].reason}`), { status: 400 });
  go("tasks", cluster, last(tasks[0].taskArn));
  return `Started ${last(tasks[0].taskArn).slice(0, 8)}.`;
}

// These tags belong to the earlier run alone.
const NOT_REPEATED = /^(aws:|corral:(hold|not-before|after|array|requeued-as|requeue-of|git|shipped))/;

export function rerunButton(task, definition) {
  const container = definition.containerDefinitions.find((one) => one.essential !== false) ?? definition.containerDefinitions[0];
  const override = task.overrides?.containerOverrides?.find((one) => one.name === container.name) ?? {};
  const command = override.command ?? container.command ?? [];
  const requirements = override.resourceRequirements ?? container.resourceRequirements ?? [];
  const gpus = requirements.find(({ type }) => type === "GPU")?.value ?? "0";
  const cluster = last(task.clusterArn),
    id = last(task.taskArn);
  const input = (values) => {
    const changed = { name: container.name };
    const words = JSON.parse(values.command || "[]");
    if (JSON.stringify(words) !== JSON.stringify(container.command ?? [])) changed.command = words;
    if (values.gpus !== (container.resourceRequirements?.find(({ type }) => type === "GPU")?.value ?? "0"))
      changed.resourceRequirements = [{ type: "GPU", value: values.gpus }];
    const extra = environment(values.environment);
    const merged = [
      ...(override.environment ?? []).filter(({ name }) => !(name in extra)),
      ...Object.entries(extra).map(([name, value]) => ({ name, value })),
    ];
    if (merged.length) changed.environment = merged;
    if (override.environmentFiles) changed.environmentFiles = override.environmentFiles;
    return {
      cluster,
      taskDefinition: task.taskDefinitionArn,
      count: 1,
      enableExecuteCommand: true,
      overrides: { containerOverrides: Object.keys(changed).length > 1 ? [changed] : [] },
      tags: (task.tags ?? []).filter(({ key }) => !NOT_REPEATED.test(key)),
    };
  };
  return action("Run again …", {
    title: `Run ${label({ ...task, task: id, name: definition.family })} again`,
    wide: true,
    question: "The same task definition is run again, with the changes that you make here.",
    fields: [
      {
        name: "command",
        label: "Command",
        type: "textarea",
        rows: 3,
        value: JSON.stringify(command),
        hint: "A JSON list of words.",
      },
      { name: "gpus", label: "GPUs", value: gpus, hint: "A number, or ALL." },
      {
        name: "environment",
        label: "More environment",
        type: "textarea",
        rows: 2,
        placeholder: "SEED=2",
        hint: "One NAME=VALUE in each line.",
      },
    ],
    command: (values) => {
      try {
        const alike = values.command === JSON.stringify(command) && values.gpus === gpus;
        const extra = Object.entries(environment(values.environment))
          .map(([name, value]) => ` -e ${quote(`${name}=${value}`)}`)
          .join("");
        return alike ? `corral rerun -d${extra} ${id.slice(0, 8)}` : awsCommand("ecs", "RunTask", input(values));
      } catch {
        return "";
      }
    },
    run: async (values) => {
      let request;
      try {
        request = input(values);
      } catch {
        throw Object.assign(new Error('The command is not valid: write a JSON list such as ["python", "train.py"].'), {
          status: 400,
        });
      }
      return started(await call("ecs", "RunTask", request), cluster);
    },
  });
}
