// The page of one task: its states, containers, GPUs, events, metrics and log, and what can be done with it.

import { action } from "./actions.js";
import { all, call } from "./api.js";
import { link } from "./app.js";
import { awsCommand, commandBox, quote } from "./commands.js";
import { facts, h, reason, section, state } from "./dom.js";
import { clock, duration, label, last, seconds, short, until } from "./format.js";
import { graph, readMetrics } from "./graph.js";
import { LogView } from "./logview.js";
import { needs } from "./overview.js";
import { rerunButton } from "./run.js";

export function task(cluster, id) {
  let logs = [];
  let container = null;
  const page = {
    title: `Task ${short(id)}`,
    parts: {
      task: {
        topics: ["tasks"],
        load: async () => {
          const found = await find(cluster, id);
          const { taskDefinition } = await call("ecs", "DescribeTaskDefinition", { taskDefinition: found.taskDefinitionArn }).catch(
            () => ({ taskDefinition: null }),
          );
          return { ...found, definition: taskDefinition };
        },
      },
      run: {
        topics: ["tasks", "jobs"],
        load: async ({ task: found, run }) => {
          const place = cluster === "-" ? last((found ?? (await find(cluster, id))).clusterArn) : cluster;
          if (run?.state === "RUNNING" && !(await isPaused(place, id))) return run; // it keeps its GPUs and its host
          const runs = await call("corral", "ListRuns", { cluster: place, maxWaiting: 500 });
          return { ...[...runs.running, ...runs.waiting].find((run) => run.task === id), indexes: runs.gpuIndexes };
        },
      },
      metrics: { topics: ["gpus"], every: 3000, load: async ({ task: found }) => metrics(found ?? (await find(cluster, id))) },
      events: {
        topics: ["tasks"],
        load: async ({ task: found, events }) => {
          const { createdAt, version } = found ?? (await find(cluster, id));
          if (events && events.version === version) return events; // a search in the audit is expensive
          const { Events } = await call("cloudtrail", "LookupEvents", {
            LookupAttributes: [{ AttributeKey: "ResourceName", AttributeValue: id }],
            StartTime: createdAt ? seconds(createdAt) - 60 : undefined,
            MaxResults: 10,
          });
          return { rows: Events, version };
        },
      },
    },
    topics: [],
    changed: (topics) => {
      for (const log of logs) if (topics.includes(`logs:${log.source.group}:${log.source.stream}`)) log.refresh();
    },
    close: () => {
      logs.forEach((log) => log.close());
    },
    draw: (data) => {
      if (!data.task) return [h("h1", {}, `Task ${short(id)}`), h("p", { class: "empty" }, "Loading …")];
      page.title = `${data.task.name ?? data.task.definition?.family ?? "Task"} ${short(id)}`;
      const sources = sourcesOf(data.task, id);
      container ??= sources[0]?.container;
      const chosen = sources.find((source) => source.container === container);
      const key = chosen ? `log-${chosen.stream}` : null;
      const choose =
        sources.length > 1
          ? h(
              "label",
              {},
              "Container ",
              h(
                "select",
                {
                  onchange: (event) => {
                    container = event.target.value;
                    logs.forEach((log) => log.close());
                    logs = [];
                    page.view.draw();
                  },
                },
                sources.map((source) =>
                  h("option", { value: source.container, selected: source.container === container }, source.container),
                ),
              ),
            )
          : null;
      if (chosen && !page.topics.includes(`logs:${chosen.group}:${chosen.stream}`)) {
        page.topics = [`logs:${chosen.group}:${chosen.stream}`];
        queueMicrotask(() => page.view.listen());
      }
      return drawTask(
        data,
        id,
        chosen
          ? section(
              "Log",
              { "data-key": "log" },
              choose,
              h("div", {
                class: "log",
                "data-keep": "log",
                "data-key": key,
                mount: (element) => {
                  logs = [new LogView(chosen, element)];
                },
              }),
              h(
                "p",
                { class: "note" },
                h("a", { href: link("logs", chosen.group, chosen.stream) }, "Open the log on a page of its own"),
              ),
            )
          : data.task.definition
            ? section(
                "Log",
                { "data-key": "no-log" },
                h("p", { class: "empty" }, "Its containers have no log: their definition has no logConfiguration with awslogs."),
              )
            : null,
      );
    },
  };
  return page;
}

// A list of all tasks is expensive on a large cluster, so it is read only if the task is paused.
function isPaused(cluster, task) {
  return call("corral", "DescribeTaskPause", { cluster, task }).then(
    ({ phase }) => phase !== "running",
    () => false, // the task has ended, or the user may not see it
  );
}

async function find(cluster, id) {
  const clusters = cluster === "-" ? (await all("ecs", "ListClusters", {}, "clusterArns")).map(last) : [cluster];
  for (const one of clusters) {
    const { tasks } = await call("ecs", "DescribeTasks", { cluster: one, tasks: [id], include: ["TAGS"] }).catch((error) => {
      if (error.code === "ClusterNotFoundException") return { tasks: [] };
      throw error;
    });
    if (tasks.length) return tasks[0];
  }
  const { tasks } = await call("corral", "GetHistory", { id, limit: 1 });
  if (tasks.length) return tasks[0];
  throw Object.assign(new Error(`Task ${id} does not exist, or its record has expired.`), { status: 404, code: "NotFound" });
}

// The log of each container. Without a prefix, its stream is the runtimeId of the container.
function sourcesOf({ definition, containers = [] }, id) {
  return (definition?.containerDefinitions ?? []).flatMap(({ name, logConfiguration }) => {
    const options = logConfiguration?.options ?? {};
    const prefix = options["awslogs-stream-prefix"];
    const stream = prefix ? `${prefix}/${name}/${id}` : containers.find((one) => one.name === name)?.runtimeId;
    return logConfiguration?.logDriver === "awslogs" && stream
      ? [{ container: name, group: options["awslogs-group"], stream }]
      : [];
  });
}

async function metrics(found) {
  const from = seconds(found.startedAt),
    gpus = (found.containers ?? []).flatMap((one) => one.gpuIds ?? []).length || found.gpus;
  if (from === null || !gpus) return null;
  const to = seconds(found.stoppedAt) ?? Date.now() / 1000;
  const dimensions = { ClusterName: last(found.clusterArn), TaskId: last(found.taskArn) };
  const [busy, used] = await readMetrics(
    call,
    [
      { label: "GPU utilization", namespace: "Corral/GPU", name: "DCGM_FI_DEV_GPU_UTIL", dimensions },
      { label: "GPU memory used", namespace: "Corral/GPU", name: "DCGM_FI_DEV_FB_USED", dimensions },
    ],
    from,
    Math.max(to, from + 30),
    200,
  );
  return { from, to: Math.max(to, from + 30), busy: { ...busy, area: true }, used: { ...used, area: true } };
}

// ListRuns lists the first tasks in line only. What it says of another one that waits, DescribeTasks says, too, but not its place.
function runOf(found, run) {
  if (run?.state || found.lastStatus !== "PROVISIONING") return run;
  const gpus = (found.definition?.containerDefinitions ?? [])
    .flatMap(({ resourceRequirements = [] }) => resourceRequirements)
    .find(({ type }) => type === "GPU")?.value;
  return {
    ...run,
    state: "WAITING",
    held: tag(found, "corral:hold") === "true",
    reason: (found.containers ?? []).map(({ reason }) => reason).find(Boolean),
    needs: { gpus: gpus === "ALL" ? -1 : Number(gpus ?? 0), cpuUnits: Number(found.cpu), memoryMiB: Number(found.memory) },
  };
}

function drawTask({ task: found, run: listed, metrics: use, events }, id, log) {
  const { definition } = found;
  const run = runOf(found, listed);
  const cluster = last(found.clusterArn),
    name = label({
      task: id,
      name: run?.taskName ?? found.name ?? definition?.family,
      arrayIndex: run?.arrayIndex ?? found.arrayIndex,
    });
  const waiting = run?.state === "WAITING",
    over = found.lastStatus === "STOPPED";
  const gpuIds = (found.containers ?? []).flatMap((one) => one.gpuIds ?? []);
  const paused = !over && PAUSED.includes(run?.state);
  const shown = run?.held
    ? "HELD"
    : waiting
      ? "WAITING"
      : over
        ? isFailed(found)
          ? "FAILED"
          : "SUCCEEDED"
        : paused
          ? run.state
          : found.lastStatus;
  return [
    h("p", { class: "path" }, h("a", { href: link("tasks") }, "Tasks"), ` / ${cluster}`),
    h(
      "div",
      { class: "head" },
      h("div", {}, h("h1", {}, name), h("p", {}, state(shown, over ? `STOPPED · ${codes(found)}` : shown), " ", h("code", {}, id))),
      h("div", { class: "buttons" }, actions(found, run, cluster, id, name, definition)),
    ),
    waiting || paused
      ? h(
          "p",
          {
            class: "mark wait",
            role: "status",
            "data-key": "why",
            style: { padding: "8px 12px", display: "block", whiteSpace: "normal", fontSize: "13px", marginBottom: "14px" },
          },
          h("b", {}, paused ? "Paused. " : "", run.held ? "Held. " : run.place ? `Place ${run.place} in line. ` : paused ? "" : "Waiting. "),
          reason(run.reason, (one) => link("tasks", cluster, one)),
          run.startsAtS ? ` Expected start: ${clock(run.startsAtS)} (${until(run.startsAtS)}).` : "",
        )
      : null,
    found.stoppedReason && isFailed(found) ? h("p", { class: "problem", "data-key": "reason" }, found.stoppedReason) : null,
    h(
      "div",
      { class: "columns" },
      section(
        "Task",
        { "data-key": "facts" },
        facts([
          ["Definition", definition ? `${definition.family}:${definition.revision}` : last(found.taskDefinitionArn)],
          ["Cluster", cluster],
          ["Owner", run?.owner ?? found.owner],
          ["Group", found.group],
          ["Started by", found.startedBy],
          [
            "GPUs",
            gpuIds.length
              ? gpuIds.map((gpu) => h("span", { class: "mono", title: gpu }, `${run?.indexes?.[gpu] ?? ""} ${gpu.slice(0, 12)} `))
              : waiting
                ? needs(run.needs)
                : found.gpus || "none",
          ],
          ["Host", run?.host],
          ["Waited", found.waitingSeconds ? duration(found.waitingSeconds) : null],
          ["Ran", ran(found)],
          ["Paused", found.pausedSeconds ? duration(found.pausedSeconds) : paused ? `since ${clock(run.sinceS)}` : null],
          ["Launch type", found.launchType],
          ["Job", found.jobId ? h("a", { href: link("batch", "job", found.jobId) }, found.jobId) : batchJob(found)],
        ]),
        (found.tags ?? []).length ? [h("h3", {}, "Tags"), facts(found.tags.map(({ key, value }) => [key, value]))] : null,
      ),
      section(
        "What happened",
        { "data-key": "events" },
        h(
          "ol",
          { class: "timeline" },
          timeline(found, events?.rows ?? []).map(([time, text]) => h("li", {}, h("time", {}, clock(time)), h("span", {}, text))),
        ),
      ),
    ),
    section(
      "Containers",
      { "data-key": "containers" },
      (found.containers ?? []).map((container) => drawContainer(container, definition, found)),
    ),
    use
      ? section(
          "Its GPUs while it ran",
          { "data-key": "metrics" },
          h(
            "div",
            { class: "graphs" },
            graph({
              title: "GPU utilization",
              series: [use.busy],
              from: use.from,
              to: use.to,
              unit: "%",
              most: 100,
              height: 150,
              columns: 2,
            }),
            graph({ title: "GPU memory", series: [use.used], from: use.from, to: use.to, unit: " MiB", height: 150, columns: 2 }),
          ),
        )
      : null,
    log,
    over
      ? null
      : section(
          "Terminal",
          { "data-key": "terminal" },
          h("p", { class: "note" }, "A command in this task, from a terminal:"),
          commandBox(`corral exec -i ${short(id)} -- bash`),
        ),
  ];
}

const PAUSED = ["PAUSING", "PAUSED", "RESUMING"];

const isFailed = (found) => found.failed ?? (found.containers ?? []).some(({ exitCode }) => exitCode) ?? false;

function codes(found) {
  const known = (found.containers ?? []).map(({ exitCode }) => exitCode).filter((code) => code !== null && code !== undefined);
  return known.length ? `exit code ${known.join(", ")}` : (found.stopCode ?? "");
}

function ran(found) {
  const from = seconds(found.startedAt);
  return from === null ? null : duration((seconds(found.stoppedAt) ?? Date.now() / 1000) - from);
}

function batchJob({ startedBy }) {
  const job = /^batch:(.+)$/.exec(startedBy ?? "")?.[1];
  return job ? h("a", { href: link("batch", "job", job) }, job) : null;
}

function timeline(found, events) {
  const steps = [
    ["createdAt", "Created"],
    ["pullStartedAt", "Image pull started"],
    ["pullStoppedAt", "Image pull ended"],
    ["startedAt", "Started"],
    ["stoppingAt", "Stopping"],
    ["executionStoppedAt", "Execution stopped"],
    ["stoppedAt", `Stopped${found.stoppedReason ? `: ${found.stoppedReason}` : ""}`],
  ];
  const own = steps.filter(([name]) => found[name]).map(([name, text]) => [seconds(found[name]), text]);
  return [...own, ...events.map((event) => [seconds(event.EventTime), `${event.EventName} by ${event.Username}`])].sort(
    (one, other) => one[0] - other[0],
  );
}

const SECRET = /secret|token|key|pass|pwd|credential|auth|private/i;
const WITH_PASSWORD = /:\/\/[^/\s@]*:[^/\s@]+@/; // a URL with one

function drawContainer(container, definition, found) {
  const own = definition?.containerDefinitions.find(({ name }) => name === container.name) ?? {};
  const override = found.overrides?.containerOverrides?.find(({ name }) => name === container.name) ?? {};
  const environment = new Map(
    [...(own.environment ?? []), ...(override.environment ?? [])].map(({ name, value }) => [name, value]),
  );
  const command = override.command ?? own.command ?? found.command;
  const files = [...(own.environmentFiles ?? []), ...(override.environmentFiles ?? [])];
  return h(
    "div",
    { "data-key": container.name },
    h("h3", {}, container.name, " ", state(container.exitCode ? "FAILED" : container.lastStatus, container.lastStatus)),
    facts([
      ["Image", container.image ?? own.image],
      ["Exit code", container.exitCode],
      ["Reason", container.reason],
      ["Command", command?.length ? h("code", {}, command.join(" ")) : null],
      ["Folder", own.workingDirectory],
      ["Health", container.healthStatus === "UNKNOWN" ? null : container.healthStatus],
      [
        "Ports",
        (container.networkBindings ?? []).map(({ hostPort, containerPort }) => `${hostPort} → ${containerPort}`).join(", "),
      ],
    ]),
    environment.size || own.secrets?.length || files.length
      ? h(
          "details",
          { "data-key": "environment" },
          h("summary", {}, `Environment (${environment.size + (own.secrets?.length ?? 0) + files.length})`),
          facts([
            ...[...environment].map(([name, value]) => [name, SECRET.test(name) || WITH_PASSWORD.test(value) ? hidden(value) : h("code", {}, value)]),
            ...(own.secrets ?? []).map(({ name, valueFrom }) => [name, h("span", { class: "dim" }, `secret from ${valueFrom}`)]),
            ...files.map(({ value }) => ["from a file", h("code", {}, value)]),
          ]),
        )
      : null,
  );
}

function hidden(value) {
  const toggle = (event) => {
    const box = event.currentTarget.previousElementSibling;
    const shown = box.textContent === "••••••";
    box.textContent = shown ? value : "••••••";
    event.currentTarget.textContent = shown ? "Hide" : "Show";
  };
  return h(
    "span",
    { "data-keep": "hidden" },
    h("code", {}, "••••••"),
    h("button", { type: "button", class: "quiet", onclick: toggle }, "Show"),
  );
}

function actions(found, run, cluster, id, name, definition) {
  const waiting = run?.state === "WAITING",
    over = found.lastStatus === "STOPPED";
  const owned = /^(ecs-svc\/|batch:)/.test(found.startedBy ?? "");
  const change = (input) => call("corral", "UpdateWaitingTasks", { tasks: [id], cluster, ...input });
  return [
    waiting && !owned && !run.held
      ? action("Hold", {
          title: `Hold ${name}?`,
          question: "It keeps waiting until it is released, and others may start before it.",
          command: () => `corral set --hold ${short(id)}`,
          run: async () => {
            await change({ held: true });
            return `${name} is held.`;
          },
        })
      : null,
    waiting && !owned && run.held
      ? action("Release", {
          main: true,
          title: `Release ${name}?`,
          question: "It starts when its GPUs are free.",
          command: () => `corral release ${short(id)}`,
          run: async () => {
            await change({ held: false });
            return `${name} is released.`;
          },
        })
      : null,
    waiting && !owned
      ? action("Change …", {
          title: `Change ${name}`,
          fields: [
            {
              name: "priority",
              label: "Priority",
              type: "number",
              step: 1,
              min: -1000,
              max: 1000,
              value: tag(found, "corral:priority") ?? "0",
              hint: "Higher numbers start first.",
            },
            { name: "gpus", label: "GPUs", value: String(run.needs.gpus === -1 ? "ALL" : run.needs.gpus) },
          ],
          command: ({ priority, gpus }) =>
            `corral set --priority ${priority || 0}${gpus === String(run.needs.gpus) ? "" : ` --gpus ${gpus}`} ${short(id)}`,
          run: async ({ priority, gpus }) => {
            const { tasks } = await change({
              priority: Number(priority || 0),
              ...(gpus === String(run.needs.gpus) ? {} : { gpus }),
            });
            return tasks[0]?.place ? `${name} has place ${tasks[0].place} in line.` : `${name} is changed.`;
          },
        })
      : null,
    !waiting && !over && !PAUSED.includes(run?.state) && found.lastStatus === "RUNNING"
      ? action("Pause", {
          title: `Pause ${name}?`,
          question: "Its processes stop, what they have on GPUs moves to the memory of the host, and its GPUs become free.",
          fields: [{ name: "reason", label: "Reason", hint: "Lists show it while the task is paused." }],
          command: ({ reason: why }) => `corral pause ${why ? `--reason ${quote(why)} ` : ""}${short(id)}`,
          run: async ({ reason: why }) => {
            await call("corral", "PauseTask", { task: id, cluster, ...(why ? { reason: why } : {}) });
            return `${name} is being paused.`;
          },
        })
      : null,
    run?.state === "PAUSED"
      ? action("Resume", {
          main: true,
          title: `Let ${name} continue?`,
          question: "It continues as soon as its own GPUs are free.",
          command: () => `corral resume ${short(id)}`,
          run: async () => {
            const { waitsFor } = await call("corral", "ResumeTask", { task: id, cluster });
            return waitsFor ? `${name} waits for its GPUs.` : `${name} continues.`;
          },
        })
      : null,
    definition && !owned ? rerunButton(found, definition) : null,
    over
      ? null
      : action("Stop", {
          danger: true,
          title: `Stop ${name}?`,
          command: () => `corral stop ${short(id)}\n${awsCommand("ecs", "StopTask", { cluster, task: id })}`,
          question: [
            waiting ? "It leaves the line." : "Its program gets SIGTERM, then SIGKILL, and its GPUs become free.",
            owned ? "Its service or job may start another task." : "",
          ].join(" "),
          run: async () => {
            await call("ecs", "StopTask", { cluster, task: id, reason: "Stopped in the console" });
            return `${name} stops.`;
          },
        }),
  ];
}

const tag = (found, key) => found.tags?.find((one) => one.key === key)?.value;
