// The overview: hosts and GPUs, the line, a day of use, and everything that needs attention.

import { all, call } from "./api.js";
import { link } from "./app.js";
import { allGroups } from "./groups.js";
import { age, cached, h, reason, section, state, table } from "./dom.js";
import { ago, clock, label, last, mib, number, percent, plural, until } from "./format.js";
import { graph, readMetrics, sparkline } from "./graph.js";
import { readAlarms } from "./metrics.js";
import { runButton } from "./run.js";
import { describeServices } from "./services.js";
import { Squares, heat, kindOf } from "./squares.js";

const SQUARES_MIN = 64; // with so many GPUs, they are small squares
const DAY_S = 86400;
const SLOW_MS = 2000; // what is below the line changes less often
const DAY_MS = 60_000;

export function overview() {
  const memory = { parts: new Map(), line: new Map() }; // of `cached`
  const squares = new Squares();
  return {
    title: "Overview",
    parts: {
      hosts: { topics: ["hosts", "gpus"], load: ({ hosts }) => readHosts(hosts, squares) },
      line: {
        name: "the waiting line",
        topics: ["tasks", "jobs", "instances"],
        every: 500,
        load: () => call("corral", "GetStatus", { tasks: 50, hosts: false }),
      },
      clusters: { topics: ["tasks", "services", "instances"], every: SLOW_MS, load: clusters },
      groups: {
        topics: ["groups", "instances"],
        every: SLOW_MS,
        load: allGroups,
      },
      queues: { topics: ["queues"], every: SLOW_MS, load: queues },
      alarms: { topics: ["alarms"], load: () => readAlarms({ StateValue: "ALARM" }) },
      ended: {
        name: "ended tasks",
        topics: ["tasks"],
        every: SLOW_MS,
        load: async () => (await call("corral", "GetHistory", { limit: 8 })).tasks,
      },
      events: {
        name: "last changes",
        topics: ["services", "groups", "stacks", "queues"],
        every: SLOW_MS,
        load: async () => (await call("cloudtrail", "LookupEvents", { MaxResults: 8 })).Events,
      },
      day: { name: "a day of GPU use", topics: ["gpus"], every: DAY_MS, load: day },
    },
    draw: (data) => draw(data, memory, squares),
  };
}

const isMany = (hosts) => hosts.reduce((sum, host) => sum + host.gpus.length, 0) >= SQUARES_MIN;

// Only tiles show the last minutes of a GPU. `before` are the hosts as they were read last.
async function readHosts(before, squares) {
  const history = before !== undefined && !isMany(before);
  const { hosts } = await call("corral", "DescribeHosts", { history });
  if (isMany(hosts)) squares.show(hosts);
  return history || isMany(hosts) ? hosts : (await call("corral", "DescribeHosts", { history: true })).hosts;
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
  const queries = clusters.flatMap((name) => [
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
  ]);
  let from = to - DAY_S;
  let series = await readMetrics(call, queries, from, to);
  const first = Math.min(...series.flatMap(({ points }) => points.slice(0, 1).map(([time]) => time)));
  if (first > to - DAY_S / 4 && first < to) {
    from = first; // a new Corral has a few points of a day, which would be a dot
    series = await readMetrics(call, queries, from, to);
  }
  return { from, to, series: series.map((one) => ({ ...one, area: true })) };
}

function draw({ hosts, line, clusters, groups, queues, alarms, ended, events, day }, memory, squares) {
  const tenSeconds = Math.floor(Date.now() / 10_000); // parts that show ages such as "3 min ago" are built again
  const part = (key, values, build) => cached(memory.parts, key, values, build);
  const loading = () => h("p", { class: "empty" }, "Loading …");
  const gpus = (hosts ?? []).flatMap((host) => host.gpus);
  const many = hosts && isMany(hosts);
  const used = gpus.filter((gpu) => gpu.task || gpu.instance);
  const tasks = line?.tasks ?? {};
  return [
    h(
      "div",
      { class: "head" },
      h(
        "div",
        {},
        h("h1", {}, "Overview"),
        line && hosts
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
      figure("GPUs in use", hosts ? `${used.length} / ${gpus.length}` : "–", "#/"),
      figure("tasks running", line ? number(tasks.RUNNING ?? 0) : "–", link("tasks")),
      figure("waiting in line", line ? number(waitingIn(line)) : "–", link("tasks")),
      figure(
        "messages",
        queues ? number(queues.reduce((sum, queue) => sum + Number(queue.ApproximateNumberOfMessages ?? 0), 0)) : "–",
        link("queues"),
      ),
      figure("alarms", alarms ? number(alarms.length) : "–", link("metrics"), alarms?.length),
    ),
    part("gpus", [hosts, many ? 0 : tenSeconds], () =>
      section(
        "GPUs",
        {},
        many
          ? h("div", { class: "hosts many", "data-keep": "squares", mount: (element) => squares.mount(element) })
          : hosts?.length
            ? h("div", { class: "hosts" }, hosts.map(drawHost))
            : hosts
              ? h("p", { class: "empty" }, "No host yet.")
              : loading(),
      ),
    ),
    line?.paused?.length ? part("paused", [line, tenSeconds], () => section("Paused tasks", {}, drawPaused(line.paused))) : null,
    part("line", [line, tenSeconds], () => section("Waiting line", {}, line ? drawLine(line, memory.line) : loading())),
    part("day", [day], () =>
      section(
        "A day of GPU use",
        {},
        day
          ? graph({ title: "GPU use in the last 24 hours", ...day, unit: "%", most: 100, gap: 1200 })
          : loading(),
      ),
    ),
    h(
      "div",
      { class: "columns" },
      part("alarms", [alarms], () =>
        section(
          "Alarms in ALARM",
          {},
          alarms?.length
            ? h(
                "ul",
                { class: "timeline" },
                alarms.map((alarm) =>
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
            : alarms
              ? h("p", { class: "empty" }, "None.")
              : loading(),
        ),
      ),
      part("clusters", [clusters], () => section("Clusters and services", {}, clusters ? drawClusters(clusters) : loading())),
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
            (groups ?? []).slice(0, 12),
            {
              key: (group) => group.AutoScalingGroupName,
              label: "Groups",
              empty: groups ? "No Auto Scaling group." : "Loading …",
            },
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
            (queues ?? []).slice(0, 12),
            { key: (queue) => queue.name, label: "Queues", empty: queues ? "No queue." : "Loading …" },
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
            (ended ?? []).map((task) =>
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
          !ended ? loading() : ended.length ? null : h("p", { class: "empty" }, "No task has ended yet."),
        ),
      ),
      part("events", [events], () =>
        section(
          "Last changes",
          {},
          h(
            "ul",
            { class: "timeline" },
            (events ?? []).map((event) =>
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
          events ? null : loading(),
        ),
      ),
    ),
  ];
}

// GetStatus lists the first tasks of a line only, and counts all.
const waitingIn = ({ waiting, tasks }) =>
  waiting.reduce((sum, claim) => sum + (claim.task ? 0 : claim.jobs || 1), tasks.PROVISIONING ?? 0);

function figure(text, value, href, alert) {
  return h("a", { href, class: alert ? "alert" : null, "data-key": text }, h("b", {}, value), h("span", {}, text));
}

export function outcome(task) {
  if (task.exitCode !== null && task.exitCode !== undefined) return `exit code ${task.exitCode}`;
  return task.stoppedReason || task.stopCode || "ended";
}

function drawHost(host) {
  const free = (amount, unit) => (amount ? `${unit(amount.free)} of ${unit(amount.total)} free` : "");
  return h(
    "div",
    { class: "host", "data-key": host.id },
    h(
      "div",
      { class: "host-head" },
      h("h3", {}, host.name),
      state(host.state),
      host.cluster ? h("span", { class: "dim" }, `cluster ${host.cluster}`) : null,
      host.rack ? h("span", { class: "dim" }, `rack ${host.rack}`) : null,
      h(
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
          { class: "gpus", "aria-label": `GPUs of ${host.name}` },
          host.gpus.map((gpu) => h("li", { "data-key": gpu.id }, tile(gpu, host))),
        )
      : h("p", { class: "empty" }, "This host has no GPU."),
  );
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
    { class: `gpu ${kindOf(gpu)}`, title: `${gpu.model}\n${gpu.id}` },
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
    heat(gpu) ? h("small", {}, heat(gpu)) : null,
    gpu.owner && gpu.owner !== "root" ? h("small", {}, gpu.owner) : null,
    gpu.fault || gpu.held ? h("small", {}, gpu.fault || gpu.held) : null,
    (gpu.foreign ?? []).map(({ pid, name }) => h("small", {}, `${name} (process ${pid})`)),
    marks.some(Boolean) ? h("div", {}, marks) : null,
  );
}

// Claims in the order in which they will start.
function drawLine({ waiting, tasks }, memory) {
  const more = (tasks.PROVISIONING ?? 0) - waiting.filter((claim) => claim.task).length;
  const rows = table(
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
      ["Since", (claim) => age(claim.sinceS), "nowrap"],
      ["Owner", (claim) => claim.owner, "nowrap"],
    ],
    waiting,
    {
      key: (claim) => claim.task ?? claim.job ?? claim.instance,
      label: "Waiting line",
      empty: "Nothing waits.",
      memory,
      text: (claim) => JSON.stringify(claim) + until(claim.startsAtS),
    },
  );
  return more > 0 ? [rows, h("p", { class: "note" }, `${plural(more, "more task")} behind them.`)] : rows;
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
