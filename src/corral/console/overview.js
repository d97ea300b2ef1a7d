// The overview: hosts and GPUs, the line, a day of use, and everything that needs attention.

import { all, call } from "/static/api.js";
import { link } from "/static/app.js";
import { cached, h, reason, section, state, table } from "/static/dom.js";
import { ago, clock, label, last, mib, number, percent, plural, until } from "/static/format.js";
import { graph, readMetrics, sparkline } from "/static/graph.js";
import { runButton } from "/static/run.js";
import { describeServices } from "/static/services.js";

const TILES_MAX = 64; // with more GPUs, they are small squares
const DAY_S = 86400;
const SLOW_MS = 2000; // what is below the line changes less often

export function overview() {
  const memory = new Map();
  return {
    title: "Overview",
    parts: {
      hosts: { topics: ["hosts", "gpus"], load: async () => (await call("corral", "DescribeHosts")).hosts },
      line: { topics: ["tasks", "jobs", "instances"], every: 500, load: () => call("corral", "GetStatus", { tasks: 50 }) },
      clusters: { topics: ["tasks", "services", "instances"], every: SLOW_MS, load: clusters },
      groups: {
        topics: ["groups", "instances"],
        every: SLOW_MS,
        load: async () => (await call("autoscaling", "DescribeAutoScalingGroups")).AutoScalingGroups,
      },
      queues: { topics: ["queues"], every: SLOW_MS, load: queues },
      alarms: { topics: ["alarms"], load: () => call("cloudwatch", "DescribeAlarms", { StateValue: "ALARM" }) },
      ended: { topics: ["tasks"], every: SLOW_MS, load: async () => (await call("corral", "GetHistory", { limit: 8 })).tasks },
      events: {
        topics: ["services", "groups", "stacks", "queues"],
        every: SLOW_MS,
        load: async () => (await call("cloudtrail", "LookupEvents", { MaxResults: 8 })).Events,
      },
      day: { topics: [], load: day },
    },
    draw: (data) => draw(data, memory),
  };
}

async function clusters() {
  const arns = await all("ecs", "ListClusters", {}, "clusterArns");
  if (!arns.length) return [];
  const found = (await call("ecs", "DescribeClusters", { clusters: arns.slice(0, 100) })).clusters;
  return Promise.all(
    found.map(async (cluster) => ({
      ...cluster,
      services: cluster.activeServicesCount ? await services(cluster.clusterName) : [],
    })),
  );
}

async function services(cluster) {
  const { serviceArns } = await call("ecs", "ListServices", { cluster, maxResults: 10 });
  return describeServices(cluster, serviceArns);
}

export async function queues() {
  const urls = (await call("sqs", "ListQueues", { MaxResults: 100 })).QueueUrls ?? [];
  return Promise.all(
    urls.map(async (url) => {
      const { Attributes } = await call("sqs", "GetQueueAttributes", { QueueUrl: url, AttributeNames: ["All"] });
      return { url, name: last(url), ...Attributes };
    }),
  );
}

async function day() {
  const to = Date.now() / 1000;
  const { clusterArns } = await call("ecs", "ListClusters");
  const clusters = clusterArns.map(last).slice(0, 3);
  const series = await readMetrics(
    call,
    clusters.flatMap((name) => [
      {
        label: clusters.length > 1 ? `reserved in ${name}` : "GPUs reserved",
        namespace: "AWS/ECS",
        name: "GPUReservation",
        dimensions: { ClusterName: name },
      },
      {
        label: clusters.length > 1 ? `busy in ${name}` : "GPUs busy",
        namespace: "Corral/GPU",
        name: "DCGM_FI_DEV_GPU_UTIL",
        dimensions: { ClusterName: name },
      },
    ]),
    to - DAY_S,
    to,
  );
  return { from: to - DAY_S, to, series: series.map((one) => ({ ...one, area: true })) };
}

function draw({ hosts = [], line, clusters = [], groups = [], queues = [], alarms, ended = [], events = [], day }, memory) {
  const part = (key, values, build) => cached(memory, key, values, build);
  const gpus = hosts.flatMap((host) => host.gpus);
  const used = gpus.filter((gpu) => gpu.task || gpu.instance);
  const firing = [...(alarms?.MetricAlarms ?? []), ...(alarms?.CompositeAlarms ?? [])];
  const tasks = line?.tasks ?? {};
  return [
    h(
      "div",
      { class: "head" },
      h(
        "div",
        {},
        h("h1", {}, "Overview"),
        line
          ? h(
              "p",
              {},
              `${plural(hosts.length, "host")}, ${plural(gpus.length, "GPU")}`,
              gpus.some((gpu) => gpu.simulated) ? " (simulated)" : "",
              ` · Corral ${line.build}`,
            )
          : null,
      ),
      h("div", { class: "buttons" }, runButton()),
    ),
    (line?.problems ?? []).map(({ part, host, problem }) =>
      h("p", { class: "problem" }, `${part}${host ? ` on ${host}` : ""}: ${problem}`),
    ),
    h(
      "div",
      { class: "numbers" },
      figure("GPUs in use", `${used.length} / ${gpus.length}`, "#/"),
      figure("tasks running", number(tasks.RUNNING ?? 0), link("tasks")),
      figure("waiting in line", number(line?.waiting.reduce((sum, claim) => sum + (claim.jobs || 1), 0) ?? 0), link("tasks")),
      figure(
        "messages",
        number(queues.reduce((sum, queue) => sum + Number(queue.ApproximateNumberOfMessages ?? 0), 0)),
        link("queues"),
      ),
      figure("alarms", number(firing.length), link("metrics"), firing.length),
    ),
    part("gpus", [hosts], () =>
      section(
        "GPUs",
        {},
        hosts.length
          ? h(
              "div",
              { class: gpus.length > TILES_MAX ? "hosts many" : "hosts" },
              hosts.map((host) => drawHost(host, gpus.length > TILES_MAX)),
            )
          : h("p", { class: "empty" }, "No host yet."),
      ),
    ),
    line?.paused?.length ? part("paused", [line], () => section("Paused tasks", {}, drawPaused(line.paused))) : null,
    part("line", [line], () => section("Waiting line", {}, drawLine(line?.waiting ?? []))),
    part("day", [day], () =>
      section(
        "A day of GPU use",
        {},
        day
          ? graph({ title: "GPU use in the last 24 hours", ...day, unit: "%", most: 100, gap: 1200 })
          : h("p", { class: "empty" }, "Loading …"),
      ),
    ),
    h(
      "div",
      { class: "columns" },
      part("alarms", [alarms], () =>
        section(
          "Alarms in ALARM",
          {},
          firing.length
            ? h(
                "ul",
                { class: "timeline" },
                firing.map((alarm) =>
                  h(
                    "li",
                    { "data-key": alarm.AlarmName },
                    h("time", {}, clock(alarm.StateUpdatedTimestamp)),
                    h(
                      "span",
                      {},
                      h("a", { href: link("metrics", "alarm", alarm.AlarmName) }, alarm.AlarmName),
                      ` ${alarm.StateReason}`,
                    ),
                  ),
                ),
              )
            : h("p", { class: "empty" }, "None."),
        ),
      ),
      part("clusters", [clusters], () => section("Clusters and services", {}, drawClusters(clusters))),
      part("groups", [groups], () =>
        section(
          "Groups",
          {},
          table(
            [
              [
                "Group",
                (group) => h("a", { href: link("groups", group.AutoScalingGroupName) }, group.AutoScalingGroupName),
                "name",
              ],
              ["Instances", (group) => `${group.Instances.length} of ${group.DesiredCapacity}`, "right"],
              ["Sizes", (group) => `${group.MinSize}–${group.MaxSize}`, "right"],
            ],
            groups.slice(0, 12),
            { key: (group) => group.AutoScalingGroupName, label: "Groups", empty: "No Auto Scaling group." },
          ),
        ),
      ),
      part("queues", [queues], () =>
        section(
          "Queues",
          {},
          table(
            [
              ["Queue", (queue) => h("a", { href: link("queues", queue.name) }, queue.name), "name"],
              ["Messages", (queue) => number(queue.ApproximateNumberOfMessages), "right"],
              ["In flight", (queue) => number(queue.ApproximateNumberOfMessagesNotVisible), "right"],
            ],
            queues.slice(0, 12),
            { key: (queue) => queue.name, label: "Queues", empty: "No queue." },
          ),
        ),
      ),
      part("ended", [ended], () =>
        section(
          "Ended last",
          {},
          h(
            "ul",
            { class: "timeline" },
            ended.map((task) =>
              h(
                "li",
                { "data-key": task.taskArn },
                h("time", {}, clock(task.stoppedAt)),
                h(
                  "span",
                  {},
                  h("a", { href: link("tasks", last(task.clusterArn), last(task.taskArn)) }, label(task)),
                  " ",
                  state(task.failed ? "FAILED" : "SUCCEEDED", outcome(task)),
                ),
              ),
            ),
          ),
          ended.length ? null : h("p", { class: "empty" }, "No task has ended yet."),
        ),
      ),
      part("events", [events], () =>
        section(
          "Last changes",
          {},
          h(
            "ul",
            { class: "timeline" },
            events.map((event) =>
              h(
                "li",
                { "data-key": event.EventId },
                h("time", {}, clock(event.EventTime)),
                h(
                  "span",
                  {},
                  `${event.Username ?? ""} `,
                  h("b", {}, event.EventName),
                  ` ${last(event.Resources?.[0]?.ResourceName ?? "")}`,
                ),
              ),
            ),
          ),
        ),
      ),
    ),
  ];
}

function figure(text, value, href, alert) {
  return h("a", { href, class: alert ? "alert" : null, "data-key": text }, h("b", {}, value), h("span", {}, text));
}

export function outcome(task) {
  if (task.exitCode !== null && task.exitCode !== undefined) return `exit code ${task.exitCode}`;
  return task.stoppedReason || task.stopCode || "ended";
}

function drawHost(host, many) {
  const free = (amount, unit) => (amount ? `${unit(amount.free)} of ${unit(amount.total)} free` : "");
  return h(
    "div",
    { class: "host", "data-key": host.id },
    h(
      "div",
      { class: "host-head" },
      h("h3", {}, host.name),
      state(host.state),
      host.cluster && !many ? h("span", { class: "dim" }, `cluster ${host.cluster}`) : null,
      host.rack ? h("span", { class: "dim" }, `rack ${host.rack}`) : null,
      many
        ? null
        : h(
            "p",
            {},
            `${plural(host.tasks ?? 0, "task")} · CPU ${free(host.cpuUnits, (units) => number(units / 1024, 1))}`,
            ` · memory ${free(host.memoryMiB, mib)}`,
            host.docker ? ` · ${host.docker}` : "",
            host.connected ? "" : ` · seen ${ago(host.seenS)}`,
          ),
      host.reason ? h("p", {}, host.reason) : null,
    ),
    host.gpus.length
      ? h(
          "ul",
          { class: many ? "gpus many" : "gpus", "aria-label": `GPUs of ${host.name}` },
          host.gpus.map((gpu) => h("li", { "data-key": gpu.id }, many ? square(gpu, host) : tile(gpu, host))),
        )
      : h("p", { class: "empty" }, "This host has no GPU."),
  );
}

function kind(gpu) {
  if (gpu.fault) return "sick";
  if (gpu.task || gpu.instance) return "held";
  if (gpu.held || gpu.excluded || gpu.reservedFor || gpu.foreign?.length) return "kept";
  return "free";
}

function holders(gpu, host) {
  const tasks = gpu.sharedBy?.length ? gpu.sharedBy : gpu.task ? [gpu] : [];
  return tasks.map((task) =>
    h("a", { href: link("tasks", task.cluster || host.cluster || "-", task.task), class: "who" }, label(task)),
  );
}

function tile(gpu, host) {
  const shared = gpu.sharedBy?.length > 1;
  const marks = [
    shared ? h("span", { class: "mark" }, `shared by ${gpu.sharedBy.length}`) : null,
    gpu.fault ? h("span", { class: "mark bad" }, "sick") : null,
    gpu.excluded ? h("span", { class: "mark" }, "excluded") : null,
    gpu.reservedFor ? h("span", { class: "mark wait" }, "reserved") : null,
    gpu.foreign?.length ? h("span", { class: "mark wait" }, "used by others") : null,
  ];
  const free = !gpu.task && !gpu.sharedBy?.length;
  return h(
    "div",
    { class: `gpu ${kind(gpu)}`, title: `${gpu.model}\n${gpu.id}` },
    h("div", { class: "line1" }, h("span", { class: "dim" }, `GPU ${gpu.index}`), h("b", {}, percent(gpu.utilizationPercent))),
    sparkline(gpu.history?.utilizationPercent),
    holders(gpu, host),
    gpu.instance ? h("a", { class: "who", href: link("groups", "instance", gpu.instance) }, gpu.instance) : null,
    free && !gpu.instance
      ? h("span", { class: "who dim" }, gpu.fault || gpu.held ? "" : gpu.reservedFor ? `for ${label(gpu.reservedFor)}` : "free")
      : null,
    h(
      "small",
      {},
      `${mib(gpu.memoryUsedMiB ?? 0)} of ${mib(gpu.memoryMiB)}${gpu.allocatedMiB ? `, ${mib(gpu.allocatedMiB)} reserved` : ""}`,
    ),
    (gpu.temperatureC !== null && gpu.temperatureC !== undefined) || gpu.powerW
      ? h(
          "small",
          {},
          [
            gpu.temperatureC !== undefined && gpu.temperatureC !== null ? `${Math.round(gpu.temperatureC)} °C` : null,
            gpu.powerW ? `${Math.round(gpu.powerW)} W` : null,
          ]
            .filter(Boolean)
            .join(" · "),
        )
      : null,
    gpu.owner && gpu.owner !== "root" ? h("small", {}, gpu.owner) : null,
    gpu.fault || gpu.held ? h("small", {}, gpu.fault || gpu.held) : null,
    (gpu.foreign ?? []).map(({ pid, name }) => h("small", {}, `${name} (process ${pid})`)),
    marks.some(Boolean) ? h("div", {}, marks) : null,
  );
}

function square(gpu, host) {
  const tasks = gpu.sharedBy?.length ? gpu.sharedBy : gpu.task ? [gpu] : [];
  const holder = gpu.fault || gpu.held || tasks.map(label).join(", ") || gpu.instance || "free";
  const text = `GPU ${gpu.index}: ${percent(gpu.utilizationPercent)}, ${holder}`;
  const href = gpu.task ? link("tasks", gpu.cluster || host.cluster || "-", gpu.task) : null;
  return h(
    href ? "a" : "span",
    { href, class: kind(gpu), title: text, "aria-label": text, role: href ? null : "img" },
    Math.round(gpu.utilizationPercent ?? 0),
  );
}

// Claims in the order in which they will start.
function drawLine(waiting) {
  return table(
    [
      ["Place", (claim) => claim.place ?? "–", "right"],
      ["Name", (claim) => claimLink(claim), "name"],
      ["Needs", (claim) => needs(claim.needs), "nowrap"],
      ["Waits because", (claim) => reason(claim.reason, (id) => link("tasks", claim.cluster || "-", id)), "wide"],
      [
        "Start",
        (claim) => (claim.startsAtS ? h("span", { title: clock(claim.startsAtS) }, until(claim.startsAtS)) : "–"),
        "nowrap",
      ],
      ["Since", (claim) => ago(claim.sinceS), "nowrap"],
      ["Owner", (claim) => claim.owner, "nowrap"],
    ],
    waiting,
    { key: (claim) => claim.task ?? claim.job ?? claim.instance, label: "Waiting line", empty: "Nothing waits." },
  );
}

// Tasks whose memory is in the memory of the host. Others have their GPUs.
function drawPaused(paused) {
  return table(
    [
      ["Name", (task) => claimLink(task), "name"],
      ["State", (task) => state(task.state)],
      ["Why, and what it waits for", (task) => reason(task.reason, (id) => link("tasks", task.cluster || "-", id)), "wide"],
      ["Since", (task) => ago(task.sinceS), "nowrap"],
      ["Owner", (task) => task.owner, "nowrap"],
    ],
    paused,
    { key: (task) => task.task, label: "Paused tasks", empty: "No task is paused." },
  );
}

function claimLink(claim) {
  if (claim.task) return h("a", { href: link("tasks", claim.cluster || "-", claim.task) }, label(claim));
  if (claim.job) return h("a", { href: link("batch", claim.jobQueue) }, `${plural(claim.jobs ?? 1, "job")} of ${claim.jobQueue}`);
  return `${claim.instance} (${claim.instanceType})`;
}

export function needs(of) {
  if (!of) return "";
  const gpus = of.gpus === -1 ? "all GPUs" : of.gpus ? plural(of.gpus, "GPU") : null;
  return [
    gpus,
    of.gpuMemoryMiB ? `${mib(of.gpuMemoryMiB)} of it` : null,
    of.cpuUnits ? `${number(of.cpuUnits / 1024, 2)} CPU` : null,
    mib(of.memoryMiB ?? 0),
  ]
    .filter(Boolean)
    .join(", ");
}

function drawClusters(clusters) {
  if (!clusters.length) return h("p", { class: "empty" }, "No cluster.");
  return clusters.map((cluster) =>
    h(
      "div",
      { "data-key": cluster.clusterName },
      h(
        "p",
        { class: "path" },
        h("b", {}, cluster.clusterName),
        ` · ${plural(cluster.runningTasksCount, "task")} running, ${cluster.pendingTasksCount} pending`,
      ),
      cluster.services.length
        ? table(
            [
              [
                "Service",
                (service) => h("a", { href: link("services", cluster.clusterName, service.serviceName) }, service.serviceName),
                "name",
              ],
              ["Running", (service) => `${service.runningCount} of ${service.desiredCount}`, "right"],
              ["Rollout", (service) => state(service.deployments[0]?.rolloutState ?? service.status)],
            ],
            cluster.services,
            { key: (service) => service.serviceArn, label: `Services of ${cluster.clusterName}` },
          )
        : null,
    ),
  );
}
