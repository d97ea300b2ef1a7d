// ECS services: the list, and one service with its deployments, tasks and events.

import { action } from "./actions.js";
import { all, call, isDenied } from "./api.js";
import { go, link } from "./app.js";
import { awsCommand } from "./commands.js";
import { facts, h, reason, section, state, table } from "./dom.js";
import { ago, clock, last, plural, short } from "./format.js";

const denied = new Set(); // services that policies hide: they are not asked for again, because each denied call is in the audit

// Describe those of at most ten services that the caller may see.
export async function describeServices(cluster, arns) {
  const wanted = arns.filter((arn) => !denied.has(arn));
  if (!wanted.length) return [];
  try {
    return (await call("ecs", "DescribeServices", { cluster, services: wanted })).services;
  } catch (error) {
    if (!isDenied(error)) throw error;
    if (wanted.length === 1) {
      denied.add(wanted[0]);
      return [];
    }
  }
  return (await Promise.all(wanted.map((arn) => describeServices(cluster, [arn])))).flat();
}

async function load() {
  const clusters = (await all("ecs", "ListClusters", {}, "clusterArns")).map(last);
  const found = await Promise.all(
    clusters.map(async (cluster) => {
      const arns = await all("ecs", "ListServices", { cluster, maxResults: 100 }, "serviceArns", "nextToken", 500);
      const parts = [];
      for (let at = 0; at < arns.length; at += 10) parts.push(describeServices(cluster, arns.slice(at, at + 10)));
      return (await Promise.all(parts)).flat();
    }),
  );
  return found.flat();
}

export function services() {
  return {
    title: "Services",
    parts: { services: { topics: ["services", "tasks"], load } },
    draw: ({ services }) => [
      h("h1", {}, "Services"),
      section(
        "ECS services",
        {},
        table(
          [
            [
              "Service",
              (one) => h("a", { href: link("services", last(one.clusterArn), one.serviceName) }, one.serviceName),
              "name",
            ],
            ["Cluster", (one) => last(one.clusterArn), "nowrap"],
            ["Status", (one) => state(one.status)],
            ["Running", (one) => `${one.runningCount} of ${one.desiredCount}`, "right"],
            ["Definition", (one) => last(one.taskDefinition), "nowrap"],
            ["Rollout", (one) => state(one.deployments[0]?.rolloutState)],
            ["Last event", (one) => one.events[0]?.message, "wide"],
          ],
          services ?? [],
          { key: (one) => one.serviceArn, label: "Services", empty: services ? "No service." : "Loading …" },
        ),
      ),
    ],
  };
}

export function service(cluster, name) {
  return {
    title: name,
    parts: {
      service: {
        topics: ["services", "tasks"],
        load: async () => {
          const {
            services: [found],
          } = await call("ecs", "DescribeServices", { cluster, services: [name] });
          if (!found)
            throw Object.assign(new Error(`The service ${name} does not exist in the cluster ${cluster}.`), {
              status: 404,
              code: "NotFound",
            });
          return found;
        },
      },
      tasks: {
        topics: ["services", "tasks"],
        load: async () => {
          const { taskArns } = await call("ecs", "ListTasks", { cluster, serviceName: name, maxResults: 100 });
          return taskArns.length ? (await call("ecs", "DescribeTasks", { cluster, tasks: taskArns })).tasks : [];
        },
      },
    },
    draw: ({ service: found, tasks = [] }) =>
      found ? drawService(found, tasks, cluster, name) : [h("h1", {}, name), h("p", { class: "empty" }, "Loading …")],
  };
}

function drawService(found, tasks, cluster, name) {
  return [
    h("p", { class: "path" }, h("a", { href: link("services") }, "Services"), ` / ${cluster}`),
    h(
      "div",
      { class: "head" },
      h(
        "div",
        {},
        h("h1", {}, name),
        h("p", {}, state(found.status), ` ${found.runningCount} of ${plural(found.desiredCount, "task")} running`),
      ),
      h("div", { class: "buttons" }, found.status === "ACTIVE" ? actions(found, cluster, name) : null),
    ),
    section(
      "Service",
      { "data-key": "facts" },
      facts([
        ["Definition", last(found.taskDefinition)],
        ["Desired", found.desiredCount],
        ["Pending", found.pendingCount],
        ["Strategy", found.schedulingStrategy],
        [
          "Capacity",
          found.capacityProviderStrategy?.map(({ capacityProvider }) => capacityProvider).join(", ") || found.launchType,
        ],
        ["Created", clock(found.createdAt)],
        [
          "Minimum and maximum",
          `${found.deploymentConfiguration?.minimumHealthyPercent ?? ""}% to ${found.deploymentConfiguration?.maximumPercent ?? ""}%`,
        ],
      ]),
    ),
    section(
      "Deployments",
      { "data-key": "deployments" },
      table(
        [
          ["Definition", (one) => last(one.taskDefinition), "nowrap"],
          ["Status", (one) => one.status],
          ["Rollout", (one) => state(one.rolloutState)],
          ["Running", (one) => `${one.runningCount} of ${one.desiredCount}`, "right"],
          ["Failed", (one) => one.failedTasks ?? 0, "right"],
          ["Started", (one) => h("span", { title: clock(one.createdAt) }, ago(one.createdAt)), "nowrap"],
          ["", (one) => one.rolloutStateReason, "wide"],
        ],
        found.deployments ?? [],
        { key: (one) => one.id, label: "Deployments", empty: "No deployment." },
      ),
    ),
    section(
      "Tasks",
      { "data-key": "tasks" },
      table(
        [
          ["Task", (one) => h("a", { href: link("tasks", cluster, last(one.taskArn)) }, short(last(one.taskArn))), "name"],
          ["State", (one) => state(one.lastStatus)],
          ["Definition", (one) => last(one.taskDefinitionArn), "nowrap"],
          ["Health", (one) => (one.healthStatus === "UNKNOWN" ? "" : one.healthStatus)],
          ["Since", (one) => ago(one.startedAt ?? one.createdAt), "nowrap"],
        ],
        tasks,
        { key: (one) => one.taskArn, label: "Tasks", empty: "No task." },
      ),
    ),
    section(
      "Events",
      { "data-key": "events" },
      h(
        "ol",
        { class: "timeline" },
        (found.events ?? []).slice(0, 50).map((event) =>
          h(
            "li",
            { "data-key": event.id },
            h("time", {}, clock(event.createdAt)),
            h(
              "span",
              {},
              reason(event.message, (id) => link("tasks", cluster, id)),
            ),
          ),
        ),
      ),
    ),
  ];
}

function actions(found, cluster, service) {
  return [
    found.schedulingStrategy === "DAEMON"
      ? null
      : action("Scale …", {
          title: `Scale ${service}`,
          fields: [
            {
              name: "count",
              label: "Desired tasks",
              type: "number",
              min: 0,
              step: 1,
              value: String(found.desiredCount),
              required: true,
            },
          ],
          command: ({ count }) => awsCommand("ecs", "UpdateService", { cluster, service, desiredCount: Number(count) }),
          run: async ({ count }) => {
            await call("ecs", "UpdateService", { cluster, service, desiredCount: Number(count) });
            return `${service} gets ${plural(Number(count), "task")}.`;
          },
        }),
    action("Deploy again", {
      title: `Deploy ${service} again?`,
      question: "Its tasks are replaced by new ones of the same definition.",
      command: () => awsCommand("ecs", "UpdateService", { cluster, service, forceNewDeployment: true }),
      run: async () => {
        await call("ecs", "UpdateService", { cluster, service, forceNewDeployment: true });
        return `${service} is deployed again.`;
      },
    }),
    action("Delete", {
      danger: true,
      title: `Delete ${service}?`,
      question: "All its tasks are stopped.",
      command: () => awsCommand("ecs", "DeleteService", { cluster, service, force: true }),
      run: async () => {
        await call("ecs", "DeleteService", { cluster, service, force: true });
        go("services");
        return `${service} is deleted.`;
      },
    }),
  ];
}
