// AWS Batch: queues, the jobs of a queue, one job, and the children of an array.

import { action } from "./actions.js";
import { all, call } from "./api.js";
import { go, link } from "./app.js";
import { awsCommand } from "./commands.js";
import { facts, h, reason, s, section, state, table } from "./dom.js";
import { ago, clock, duration, last, number, plural, seconds, short } from "./format.js";
import { LogView } from "./logview.js";

const STATUSES = ["SUBMITTED", "PENDING", "RUNNABLE", "STARTING", "RUNNING", "SUCCEEDED", "FAILED"];
const OVER = ["SUCCEEDED", "FAILED"];
const GROUP = "/aws/batch/job";
const SQUARES_MAX = 2000;

const JOBS_MAX = 500;

const jobs = (queue) =>
  all(
    "batch",
    "ListJobs",
    { jobQueue: queue, filters: [{ name: "JOB_NAME", values: ["*"] }] },
    "jobSummaryList",
    "nextToken",
    JOBS_MAX,
  );

export function queues() {
  return {
    title: "Batch",
    parts: {
      queues: {
        topics: ["jobs"],
        load: async () =>
          Promise.all(
            (await all("batch", "DescribeJobQueues", {}, "jobQueues")).map(async (queue) => ({
              ...queue,
              jobs: await jobs(queue.jobQueueName),
            })),
          ),
      },
      environments: { topics: ["jobs"], load: () => all("batch", "DescribeComputeEnvironments", {}, "computeEnvironments") },
    },
    draw: ({ queues, environments }) => [
      h("h1", {}, "Batch"),
      section(
        "Job queues",
        { "data-key": "queues" },
        table(
          [
            ["Queue", (queue) => h("a", { href: link("batch", queue.jobQueueName) }, queue.jobQueueName), "name"],
            ["State", (queue) => state(queue.state)],
            ["Priority", (queue) => queue.priority, "right"],
            ...["RUNNABLE", "RUNNING", "SUCCEEDED", "FAILED"].map((status) => [
              status,
              (queue) => {
                const least = number(queue.jobs.reduce((sum, job) => sum + countOf(job, status), 0));
                return queue.jobs.length < JOBS_MAX ? least : `≥ ${least}`;
              },
              "right",
            ]),
          ],
          queues ?? [],
          { key: (queue) => queue.jobQueueName, label: "Job queues", empty: queues ? "No job queue." : "Loading …" },
        ),
      ),
      section(
        "Compute environments",
        { "data-key": "environments" },
        table(
          [
            ["Environment", (one) => one.computeEnvironmentName, "name"],
            ["Type", (one) => one.type],
            ["State", (one) => state(one.state)],
            ["Status", (one) => state(one.status)],
            ["", (one) => (one.statusReason === "ComputeEnvironment Healthy" ? "" : one.statusReason), "wide"],
          ],
          environments ?? [],
          {
            key: (one) => one.computeEnvironmentName,
            label: "Compute environments",
            empty: environments ? "No compute environment." : "Loading …",
          },
        ),
      ),
    ],
  };
}

function countOf(job, status) {
  if (job.arrayProperties?.statusSummary) return job.arrayProperties.statusSummary[status] ?? 0;
  return job.status === status ? 1 : 0;
}

export function inside(first, second) {
  return second === undefined ? queue(first) : job(second);
}

function queue(name) {
  let wanted = "";
  const page = {
    title: name,
    parts: {
      jobs: {
        topics: ["jobs"],
        load: async () => {
          const listed = await jobs(name);
          const details = [];
          for (let at = 0; at < Math.min(200, listed.length); at += 100)
            details.push(
              ...(await call("batch", "DescribeJobs", { jobs: listed.slice(at, at + 100).map(({ jobId }) => jobId) })).jobs,
            );
          const known = new Map(details.map((one) => [one.jobId, one]));
          return listed.map((one) => ({ ...one, dependsOn: known.get(one.jobId)?.dependsOn ?? [] }));
        },
      },
    },
    draw: ({ jobs }) => [
      h("p", { class: "path" }, h("a", { href: link("batch") }, "Batch")),
      h("h1", {}, name),
      jobs?.some((one) => one.dependsOn.length) ? section("Pipeline", { "data-key": "pipeline" }, pipeline(jobs)) : null,
      section(
        "Jobs",
        { "data-key": "jobs" },
        h(
          "div",
          { class: "filters", role: "search" },
          h(
            "label",
            {},
            "Show ",
            h(
              "select",
              {
                onchange: (event) => {
                  wanted = event.target.value;
                  page.view.draw();
                },
              },
              ["", ...STATUSES].map((one) => h("option", { value: one, selected: one === wanted }, one || "all")),
            ),
          ),
        ),
        table(
          [
            ["Job", (one) => h("a", { href: link("batch", "job", one.jobId) }, one.jobName), "name"],
            ["Status", (one) => state(one.status)],
            ["Children", (one) => (one.arrayProperties?.size ? summary(one.arrayProperties) : ""), "nowrap"],
            ["Created", (one) => h("span", { title: clock(one.createdAt) }, ago(one.createdAt)), "nowrap"],
            ["Ran", ran, "nowrap"],
            ["Reason", (one) => reason(one.statusReason, (id) => link("tasks", "-", id)), "wide"],
            ["Id", (one) => h("code", {}, short(one.jobId)), "nowrap"],
          ],
          (jobs ?? []).filter((one) => !wanted || one.status === wanted || countOf(one, wanted)),
          { key: (one) => one.jobId, label: "Jobs", empty: jobs ? "No job." : "Loading …" },
        ),
        jobs?.length >= JOBS_MAX ? h("p", { class: "note" }, `The last ${number(jobs.length)} jobs.`) : null,
      ),
    ],
  };
  return page;
}

function ran(job) {
  const from = seconds(job.startedAt);
  return from === null ? "–" : duration((seconds(job.stoppedAt) ?? Date.now() / 1000) - from);
}

function summary({ size, statusSummary }) {
  const parts = STATUSES.filter((status) => statusSummary?.[status]).map(
    (status) => `${statusSummary[status]} ${status.toLowerCase()}`,
  );
  return parts.length ? parts.join(", ") : plural(size, "child", "children");
}

// Jobs with dependencies as a graph: a column for each step, from left to right.
function pipeline(jobs) {
  const known = new Map(jobs.map((one) => [one.jobId, one]));
  const used = new Set(
    jobs.flatMap((one) => (one.dependsOn.length ? [one.jobId, ...one.dependsOn.map(({ jobId }) => jobId)] : [])),
  );
  const rows = jobs.filter((one) => used.has(one.jobId)).slice(0, 60);
  const depth = (one, seen = 0) =>
    seen > 30
      ? 0
      : Math.max(
          0,
          ...one.dependsOn
            .map(({ jobId }) => known.get(jobId))
            .filter(Boolean)
            .map((before) => depth(before, seen + 1) + 1),
        );
  const columns = [];
  const place = new Map();
  for (const one of rows.toReversed()) {
    const column = depth(one);
    const at = (columns[column] ??= []).push(one) - 1;
    place.set(one.jobId, [column * 200 + 4, at * 50 + 4]);
  }
  const width = columns.length * 200,
    height = Math.max(...columns.map((column) => column?.length ?? 0)) * 50 + 4;
  return h(
    "div",
    { class: "table", tabindex: 0, role: "region", "aria-label": "Pipeline" },
    s(
      "svg",
      { width, height, viewBox: `0 0 ${width} ${height}`, class: "dag" },
      rows.flatMap((one) =>
        one.dependsOn.map(({ jobId }) => {
          const from = place.get(jobId),
            to = place.get(one.jobId);
          if (!from || !to) return null;
          const [x, y, x2, y2] = [from[0] + 160, from[1] + 19, to[0], to[1] + 19];
          return s("path", { d: `M${x} ${y}C${x + 25} ${y} ${x2 - 25} ${y2} ${x2} ${y2}` });
        }),
      ),
      rows.map((one) => {
        const [x, y] = place.get(one.jobId);
        return s(
          "a",
          { href: link("batch", "job", one.jobId) },
          s("rect", { x, y, width: 160, height: 38, rx: 6, class: one.status }),
          s("text", { x: x + 10, y: y + 16 }, one.jobName.slice(0, 20)),
          s(
            "text",
            { x: x + 10, y: y + 31, class: "small" },
            `${one.status.toLowerCase()}${one.arrayProperties?.size ? ` · ${one.arrayProperties.size} children` : ""}`,
          ),
        );
      }),
    ),
  );
}

// ---------------------------------------------------------------------------------------------------------------------

function job(id) {
  let view = null;
  const page = {
    title: `Job ${short(id)}`,
    topics: [],
    parts: {
      job: {
        topics: ["jobs"],
        load: async () => {
          const [found] = (await call("batch", "DescribeJobs", { jobs: [id] })).jobs;
          if (!found)
            throw Object.assign(new Error(`Job ${id} does not exist, or its record has expired.`), {
              status: 404,
              code: "NotFound",
            });
          const parent = /^(.+):\d+$/.exec(id)?.[1];
          const size = parent
            ? (await call("batch", "DescribeJobs", { jobs: [parent] })).jobs[0]?.arrayProperties?.size
            : found.arrayProperties?.size;
          return { ...found, size, children: found.arrayProperties?.size ? await children(found) : [] };
        },
      },
    },
    changed: (topics) => {
      if (page.topics.some((topic) => topics.includes(topic))) view?.refresh();
    },
    close: () => view?.close(),
    draw: ({ job: found }) => {
      if (!found) return [h("h1", {}, `Job ${short(id)}`), h("p", { class: "empty" }, "Loading …")];
      page.title = found.jobName;
      const stream = found.container?.logStreamName ?? found.attempts?.at(-1)?.container?.logStreamName;
      const group = found.container?.logConfiguration?.options?.["awslogs-group"] ?? GROUP;
      if (stream && page.topics[0] !== `logs:${group}:${stream}`) {
        page.topics = [`logs:${group}:${stream}`];
        queueMicrotask(() => page.view.listen());
      }
      return drawJob(
        found,
        stream
          ? section(
              "Log",
              { "data-key": "log" },
              h("div", {
                class: "log",
                "data-keep": "log",
                "data-key": stream,
                mount: (element) => {
                  view?.close();
                  view = new LogView({ group, stream }, element);
                },
              }),
            )
          : null,
      );
    },
  };
  return page;
}

async function children({ jobId, arrayProperties: { statusSummary = {} } }) {
  const found = await Promise.all(
    STATUSES.filter((status) => statusSummary[status]).map((status) =>
      all("batch", "ListJobs", { arrayJobId: jobId, jobStatus: status }, "jobSummaryList", "nextToken", 10_000),
    ),
  );
  return found.flat().sort((one, other) => one.arrayProperties.index - other.arrayProperties.index);
}

function drawJob(found, log) {
  const container = found.container ?? {},
    task = last(container.taskArn);
  const parent = /^(.+):(\d+)$/.exec(found.jobId);
  const gpus = container.resourceRequirements?.find(({ type }) => type === "GPU")?.value;
  return [
    h(
      "p",
      { class: "path" },
      h("a", { href: link("batch") }, "Batch"),
      " / ",
      h("a", { href: link("batch", last(found.jobQueue)) }, last(found.jobQueue)),
      parent ? [" / ", h("a", { href: link("batch", "job", parent[1]) }, "array")] : null,
    ),
    h(
      "div",
      { class: "head" },
      h(
        "div",
        {},
        h("h1", {}, parent ? `${found.jobName}:${parent[2]}` : found.jobName),
        h("p", {}, state(found.status), " ", h("code", {}, found.jobId)),
      ),
      h("div", { class: "buttons" }, actions(found)),
    ),
    found.statusReason
      ? h(
          "p",
          { class: found.status === "FAILED" ? "problem" : "note", "data-key": "reason" },
          reason(found.statusReason, (id) => link("tasks", "-", id)),
        )
      : null,
    section(
      "Job",
      { "data-key": "facts" },
      facts([
        ["Queue", last(found.jobQueue)],
        ["Definition", last(found.jobDefinition)],
        ["Created", clock(found.createdAt)],
        ["Started", clock(found.startedAt)],
        ["Stopped", clock(found.stoppedAt)],
        ["Ran", found.startedAt ? ran(found) : null],
        ["Exit code", container.exitCode],
        ["GPUs", gpus],
        ["Attempts", found.attempts?.length],
        ["Task", task ? h("a", { href: link("tasks", container.taskArn.split("/").at(-2), task) }, short(task)) : null],
        ["Command", container.command?.length ? h("code", {}, container.command.join(" ")) : null],
        ["Share", found.shareIdentifier],
        [
          "After",
          found.dependsOn?.length
            ? found.dependsOn.map(({ jobId }) => [h("a", { href: link("batch", "job", jobId) }, short(jobId)), " "])
            : null,
        ],
      ]),
    ),
    found.arrayProperties?.size
      ? section(
          `Children`,
          { "data-key": "children" },
          h("p", { class: "note" }, summary(found.arrayProperties)),
          h(
            "ul",
            { class: "squares", "aria-label": "Children of the array" },
            found.children.slice(0, SQUARES_MAX).map((child) => {
              const { index } = child.arrayProperties;
              const code = child.container?.exitCode ?? null;
              const text = `child ${index}: ${child.status}${code === null ? "" : `, exit code ${code}`}`;
              return h(
                "li",
                { "data-key": String(index) },
                h(
                  "a",
                  { href: link("batch", "job", child.jobId), class: child.status, title: text, "aria-label": text },
                  String(index),
                ),
              );
            }),
          ),
          found.children.length > SQUARES_MAX
            ? h("p", { class: "note" }, `The first ${number(SQUARES_MAX)} of ${number(found.children.length)} children.`)
            : null,
        )
      : null,
    found.attempts?.length > 1
      ? section(
          "Attempts",
          { "data-key": "attempts" },
          table(
            [
              ["Started", (one) => clock(one.startedAt)],
              ["Stopped", (one) => clock(one.stoppedAt)],
              ["Exit code", (one) => one.container?.exitCode ?? "", "right"],
              ["Reason", (one) => one.container?.reason ?? one.statusReason, "wide"],
            ],
            found.attempts,
            { label: "Attempts" },
          ),
        )
      : null,
    log,
  ];
}

function actions(found) {
  const failed = found.children.filter(({ status }) => status === "FAILED").map((child) => child.arrayProperties.index);
  const over = OVER.includes(found.status);
  return [
    over && failed.length
      ? action(`Retry ${failed.length} failed …`, {
          main: true,
          title: `Retry the failed children of ${found.jobName}?`,
          question:
            `${plural(failed.length, "child", "children")} (${ranges(failed)}) will run again as a new job with the same indexes. ` +
            "Those that succeeded do not run again.",
          command: () => awsCommand("batch", "SubmitJob", again(found, failed)),
          run: () => submit(again(found, failed)),
        })
      : null,
    over && !found.children.length
      ? action("Run again …", {
          main: found.status === "FAILED",
          title: `Run ${found.jobName} again?`,
          question: "A new job with the same definition, command and environment is submitted.",
          command: () => awsCommand("batch", "SubmitJob", again(found, null)),
          run: () => submit(again(found, null)),
        })
      : null,
    over
      ? null
      : action("Terminate", {
          danger: true,
          title: `Terminate ${found.jobName}?`,
          question: "What runs is stopped, and the job FAILED. Jobs that depend on it fail, too.",
          fields: [{ name: "reason", label: "Reason", value: "Terminated in the console", required: true }],
          command: (values) => awsCommand("batch", "TerminateJob", { jobId: found.jobId, reason: values.reason }),
          run: async (values) => {
            await call("batch", "TerminateJob", { jobId: found.jobId, reason: values.reason });
            return `${found.jobName} ends.`;
          },
        }),
  ];
}

async function submit(input) {
  const { jobId } = await call("batch", "SubmitJob", input);
  go("batch", "job", jobId);
  return `Submitted ${input.jobName}.`;
}

export function ranges(indexes) {
  const parts = [];
  for (const index of indexes) {
    const before = parts.at(-1);
    if (before && before[1] === index - 1) before[1] = index;
    else parts.push([index, index]);
  }
  return parts.map(([from, to]) => (from === to ? `${from}` : `${from}-${to}`)).join(",");
}

// Batch cannot run chosen indexes. As `corral pipeline retry` does, a smaller array runs them, and this script in front of the
// command gives each child the index that it had.
const RESTORE_INDEX =
  "k=${AWS_BATCH_JOB_ARRAY_INDEX:-0}; IFS=,; set -f; for r in $CORRAL_ARRAY_INDEXES; do a=${r%-*}; b=${r#*-}; n=$((b - a + 1)); " +
  'if [ "$k" -lt "$n" ]; then AWS_BATCH_JOB_ARRAY_INDEX=$((a + k)); AWS_BATCH_JOB_ARRAY_SIZE=$ARRAY_SIZE; ' +
  "export AWS_BATCH_JOB_ARRAY_INDEX " +
  'AWS_BATCH_JOB_ARRAY_SIZE; unset IFS CORRAL_ARRAY_INDEXES; set +f; exec "$@"; fi; k=$((k - n)); done; exit 1';

function again(found, failed) {
  const container = found.container ?? {};
  const parent = /^(.+):(\d+)$/.exec(found.jobId);
  const indexes = failed ?? (parent ? [Number(parent[2])] : null);
  const environment = (container.environment ?? []).filter(
    ({ name }) => !["CORRAL_ARRAY_INDEXES", "ARRAY_SIZE"].includes(name) && !name.startsWith("AWS_BATCH"),
  );
  const overrides = { command: container.command ?? [], environment, resourceRequirements: container.resourceRequirements ?? [] };
  if (indexes) {
    const wrapped = overrides.command[2] === RESTORE_INDEX ? overrides.command.slice(4) : overrides.command;
    const names = Object.fromEntries((container.environment ?? []).map(({ name, value }) => [name, value]));
    const original = names.CORRAL_ARRAY_INDEXES ? expand(names.CORRAL_ARRAY_INDEXES) : null;
    overrides.command = ["/bin/sh", "-c", RESTORE_INDEX, "corral-console", ...wrapped];
    overrides.environment.push(
      { name: "CORRAL_ARRAY_INDEXES", value: ranges(original ? indexes.map((index) => original[index]) : indexes) },
      { name: "ARRAY_SIZE", value: names.ARRAY_SIZE ?? String(found.size) },
    );
  }
  return {
    jobName: found.jobName,
    jobQueue: last(found.jobQueue),
    jobDefinition: last(found.jobDefinition),
    containerOverrides: overrides,
    ...(indexes?.length > 1 ? { arrayProperties: { size: indexes.length } } : {}),
    ...(Object.keys(found.parameters ?? {}).length ? { parameters: found.parameters } : {}),
    ...(found.shareIdentifier ? { shareIdentifier: found.shareIdentifier } : {}),
  };
}

function expand(text) {
  return text.split(",").flatMap((part) => {
    const [from, to = from] = part.split("-").map(Number);
    return Array.from({ length: to - from + 1 }, (_, at) => from + at);
  });
}
