// Tasks and runs: what runs, what waits and why, and what has ended.

import { all, call } from "./api.js";
import { link } from "./app.js";
import { age, h, reason, state, table } from "./dom.js";
import { duration, label, last, mib, plural, short, until } from "./format.js";
import { needs, outcome } from "./overview.js";
import { runButton } from "./run.js";

const PAGE = 200;
const PAUSED = ["PAUSING", "PAUSED", "RESUMING"];
const choice = { cluster: "default", show: "all", name: "", rows: PAGE };

export function tasks() {
  const page = {
    title: "Tasks",
    memory: new Map(),
    parts: {
      clusters: { topics: [], load: async () => (await all("ecs", "ListClusters", {}, "clusterArns")).map(last) },
      runs: { topics: ["tasks"], load: () => call("corral", "ListRuns", { cluster: choice.cluster, maxWaiting: 500 }) },
      history: {
        topics: ["tasks"],
        load: () =>
          call("corral", "GetHistory", {
            cluster: choice.cluster,
            limit: choice.rows,
            ...(choice.show === "failed" ? { failed: true } : {}),
            ...(choice.name ? { name: `*${choice.name}*` } : {}),
          }),
      },
    },
    draw: (data) => drawList(page, data),
  };
  return page;
}

function drawList(page, { clusters = [choice.cluster], runs, history }) {
  const change = (name) => (event) => {
    choice[name] = event.target.value;
    page.view.draw();
    page.view.reload("runs", "history");
  };
  const wanted = choice.name.toLowerCase();
  const fits = (row) => !wanted || `${label(row)} ${row.task ?? row.taskArn}`.toLowerCase().includes(wanted);
  const placed = (runs?.running ?? []).filter(fits);
  const paused = (run) => PAUSED.includes(run.state);
  const running = choice.show === "paused" ? placed.filter(paused) : ["all", "running"].includes(choice.show) ? placed : [];
  const waiting = choice.show === "all" || choice.show === "waiting" ? (runs?.waiting ?? []).filter(fits) : [];
  const ended = ["all", "ended", "failed"].includes(choice.show) ? (history?.tasks ?? []).filter(fits) : [];
  const found = [...running, ...waiting, ...ended];
  const rows = found.slice(0, choice.rows).map((row) => (row.taskArn ? stopped(row) : unended(row)));
  const counts = runs?.counts ?? {};
  return [
    h(
      "div",
      { class: "head" },
      h(
        "div",
        {},
        h("h1", {}, "Tasks and runs"),
        h(
          "p",
          {},
          `${plural(counts.RUNNING ?? 0, "task")} running, ${counts.WAITING ?? 0} waiting`,
          placed.some(paused) ? `, ${placed.filter(paused).length} paused` : "",
          counts.jobs ? `, ${plural(counts.jobs, "Batch job")} in line` : "",
        ),
      ),
      h("div", { class: "buttons" }, runButton(choice.cluster)),
    ),
    h(
      "section",
      { "aria-label": "List of tasks" },
      h(
        "div",
        { class: "filters", role: "search" },
        h("label", {}, "Name ", h("input", { type: "search", value: choice.name, oninput: change("name") })),
        h(
          "label",
          {},
          "Show ",
          h(
            "select",
            { onchange: change("show") },
            ["all", "running", "paused", "waiting", "ended", "failed"].map((one) =>
              h("option", { value: one, selected: one === choice.show }, one),
            ),
          ),
        ),
        clusters.length > 1
          ? h(
              "label",
              {},
              "Cluster ",
              h(
                "select",
                { onchange: change("cluster") },
                clusters.map((one) => h("option", { value: one, selected: one === choice.cluster }, one)),
              ),
            )
          : null,
      ),
      table(
        [
          ["Task", (row) => h("a", { href: link("tasks", choice.cluster, row.id) }, row.name), "name"],
          ["State", (row) => state(row.state, row.stateText)],
          ["GPUs", (row) => row.gpus, "nowrap"],
          ["When", (row) => row.when(), "nowrap"],
          ["", (row) => row.about(), "wide"],
          ["Owner", (row) => row.owner, "nowrap"],
          ["Id", (row) => h("code", {}, short(row.id)), "nowrap"],
        ],
        rows,
        {
          key: (row) => row.id,
          label: "Tasks",
          empty: runs ? "No task fits." : "Loading …",
          memory: page.memory,
          text: (row) => [row.name, row.state, row.stateText, row.gpus, row.text, row.owner].join("\n"),
        },
      ),
      found.length > choice.rows || history?.nextToken
        ? h(
            "button",
            {
              type: "button",
              onclick: () => {
                choice.rows = Math.min(1000, choice.rows + PAGE);
                page.view.reload("history");
              },
            },
            "Show more",
          )
        : null,
    ),
  ];
}

// What a row shows. `text` changes with it; what costs more is built only then.
function unended(run) {
  const waits = run.state === "WAITING";
  return {
    id: run.task,
    name: label(run),
    state: run.held ? "HELD" : run.state,
    owner: run.owner,
    gpus: waits ? needs(run.needs) : run.gpuIds.length ? plural(run.gpuIds.length, "GPU") : "–",
    when: () => (run.startsAtS ? `starts ${until(run.startsAtS)}` : age(run.sinceS, waits ? "since " : "")),
    text: `${run.place} ${run.reason} ${run.host} ${run.sinceS} ${run.startsAtS && until(run.startsAtS)}`,
    about: () =>
      waits
        ? [run.place ? `Place ${run.place}: ` : "", reason(run.reason, (id) => link("tasks", choice.cluster, id))]
        : [run.host, run.gpuMemoryMiB ? `shares a GPU (${mib(run.gpuMemoryMiB)})` : null, run.reason].filter(Boolean).join(" · "),
  };
}

function stopped(task) {
  const about = `${outcome(task)} after ${duration(task.wallSeconds)}${task.exitCode ? ` · ${task.stoppedReason ?? ""}` : ""}`;
  return {
    id: last(task.taskArn),
    name: label(task),
    state: task.failed ? "FAILED" : "SUCCEEDED",
    stateText: task.failed ? "failed" : "ended",
    owner: task.owner,
    gpus: task.gpus ? plural(task.gpus, "GPU") : "–",
    when: () => age(task.stoppedAt),
    text: `${about} ${task.stoppedAt}`,
    about: () => about,
  };
}
