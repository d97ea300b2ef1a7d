// Metrics: a graph of any of them, and the alarms.

import { action } from "./actions.js";
import { all, call } from "./api.js";
import { go, link } from "./app.js";
import { awsCommand } from "./commands.js";
import { facts, h, section, state, table } from "./dom.js";
import { ago, clock, plural } from "./format.js";
import { graph, readMetrics } from "./graph.js";

const SPANS = { "15 minutes": 900, "1 hour": 3600, "6 hours": 21600, "1 day": 86400, "1 week": 604800, "1 month": 2592000 };
const STATS = ["Average", "Maximum", "Minimum", "Sum", "SampleCount", "p50", "p90", "p99"];
const SERIES_MAX = 6;
const LISTED_MAX = 300;

const choice = { namespace: "Corral/GPU", find: "", span: "1 hour", stat: "Average", chosen: [] };
const keyOf = (metric) =>
  JSON.stringify([metric.Namespace, metric.MetricName, metric.Dimensions.map(({ Name, Value }) => [Name, Value]).sort()]);
const nameOf = (metric) => `${metric.MetricName} ${metric.Dimensions.map(({ Value }) => Value).join(" ")}`.trim();

const KINDS = ["MetricAlarm", "CompositeAlarm"]; // without them, CloudWatch leaves out composite alarms
const ALARMS_MAX = 1000;

export async function readAlarms(filter) {
  const alarms = [];
  let NextToken;
  do {
    const found = await call("cloudwatch", "DescribeAlarms", { ...filter, AlarmTypes: KINDS, MaxRecords: 100, NextToken });
    alarms.push(...found.MetricAlarms, ...found.CompositeAlarms);
    ({ NextToken } = found);
  } while (NextToken && alarms.length < ALARMS_MAX);
  return alarms;
}

export function metrics() {
  const page = {
    title: "Metrics",
    parts: {
      alarms: {
        topics: ["alarms"],
        load: () => readAlarms({}),
      },
      list: { topics: ["gpus"], every: 60_000, load: () => all("cloudwatch", "ListMetrics", {}, "Metrics", "NextToken", 5000) },
      graph: {
        topics: ["gpus", "queues", "tasks"],
        every: 2000,
        load: async () => {
          const to = Date.now() / 1000,
            from = to - SPANS[choice.span];
          if (!choice.chosen.length) return { from, to, series: [] };
          return {
            from,
            to,
            series: await readMetrics(
              call,
              choice.chosen.map((metric) => ({
                label: nameOf(metric),
                namespace: metric.Namespace,
                name: metric.MetricName,
                dimensions: Object.fromEntries(metric.Dimensions.map(({ Name, Value }) => [Name, Value])),
                stat: choice.stat,
              })),
              from,
              to,
            ),
          };
        },
      },
    },
    draw: ({ alarms, list, graph: found }) => drawMetrics(page, alarms, list, found),
  };
  return page;
}

function drawMetrics(page, alarms, list, found) {
  const set =
    (name, part = "graph") =>
    (event) => {
      choice[name] = event.target.value;
      page.view.draw();
      if (part) page.view.reload(part);
    };
  const namespaces = [...new Set((list ?? []).map(({ Namespace }) => Namespace))].sort();
  if (namespaces.length && !namespaces.includes(choice.namespace)) choice.namespace = namespaces[0];
  const words = choice.find.toLowerCase().split(/\s+/).filter(Boolean);
  const fit = (list ?? []).filter(
    (metric) => metric.Namespace === choice.namespace && words.every((word) => nameOf(metric).toLowerCase().includes(word)),
  );
  const chosen = new Set(choice.chosen.map(keyOf));
  const watching = (alarms ?? []).filter((alarm) => alarm.MetricName && chosen.has(keyOf(alarm))).slice(0, SERIES_MAX);
  const toggle = (metric) => () => {
    choice.chosen = chosen.has(keyOf(metric))
      ? choice.chosen.filter((one) => keyOf(one) !== keyOf(metric))
      : [...choice.chosen, metric].slice(-SERIES_MAX);
    page.view.draw();
    page.view.reload("graph");
  };
  return [
    h("h1", {}, "Metrics and alarms"),
    section(
      "Graph",
      { "data-key": "graph" },
      h(
        "div",
        { class: "filters" },
        select("Time", Object.keys(SPANS), choice.span, set("span")),
        select("Statistic", STATS, choice.stat, set("stat")),
        choice.chosen.length
          ? h(
              "button",
              {
                type: "button",
                onclick: () => {
                  choice.chosen = [];
                  page.view.draw();
                  page.view.reload("graph");
                },
              },
              "Clear",
            )
          : null,
      ),
      found && choice.chosen.length
        ? graph({
            title: "Chosen metrics",
            ...found,
            height: 240,
            gap: 3 * (found.series[0]?.period ?? 60) + 60,
            thresholds: watching.map((alarm) => alarm.Threshold),
          })
        : h("p", { class: "empty" }, `Choose up to ${SERIES_MAX} metrics below.`),
      watching.length
        ? h(
            "p",
            { class: "note" },
            "Alarms on it: ",
            watching.map((alarm) => [
              h("a", { href: link("metrics", "alarm", alarm.AlarmName) }, alarm.AlarmName),
              " ",
              state(alarm.StateValue),
              ` ${condition(alarm)} `,
            ]),
          )
        : null,
    ),
    section(
      "Alarms",
      { "data-key": "alarms" },
      table(
        [
          ["Alarm", (one) => h("a", { href: link("metrics", "alarm", one.AlarmName) }, one.AlarmName), "name"],
          ["State", (one) => state(one.StateValue)],
          ["Since", (one) => ago(one.StateTransitionedTimestamp ?? one.StateUpdatedTimestamp), "nowrap"],
          ["Condition", condition, "wide"],
          ["Reason", (one) => one.StateReason, "wide"],
        ],
        alarms ?? [],
        { key: (one) => one.AlarmName, label: "Alarms", empty: alarms ? "No alarm." : "Loading …" },
      ),
    ),
    section(
      "All metrics",
      { "data-key": "list" },
      h(
        "div",
        { class: "filters", role: "search" },
        select("Namespace", namespaces.length ? namespaces : [choice.namespace], choice.namespace, set("namespace", null)),
        h("label", {}, "Find ", h("input", { type: "search", value: choice.find, oninput: set("find", null) })),
        h("span", { class: "dim" }, list ? plural(fit.length, "metric") : "Loading …"),
      ),
      table(
        [
          [
            "",
            (metric) =>
              h("input", {
                type: "checkbox",
                checked: chosen.has(keyOf(metric)),
                "aria-label": `Draw ${nameOf(metric)}`,
                onchange: toggle(metric),
                mount: (box) => {
                  box.checked = chosen.has(keyOf(metric));
                },
              }),
          ],
          ["Metric", (metric) => metric.MetricName, "name"],
          ["Dimensions", (metric) => metric.Dimensions.map(({ Name, Value }) => `${Name}=${Value}`).join(", "), "wide"],
        ],
        fit.slice(0, LISTED_MAX),
        { key: keyOf, label: "Metrics", empty: list ? "No metric fits." : "Loading …" },
      ),
      fit.length > LISTED_MAX ? h("p", { class: "note" }, `The first ${LISTED_MAX}. Write a word to find others.`) : null,
    ),
  ];
}

function select(label, options, value, onchange) {
  return h(
    "label",
    {},
    `${label} `,
    h(
      "select",
      { onchange },
      options.map((option) => h("option", { value: option, selected: option === value }, option)),
    ),
  );
}

const SIGNS = {
  GreaterThanThreshold: ">",
  GreaterThanOrEqualToThreshold: "≥",
  LessThanThreshold: "<",
  LessThanOrEqualToThreshold: "≤",
};

function condition(alarm) {
  if (alarm.AlarmRule) return alarm.AlarmRule;
  const metric = alarm.MetricName ? `${alarm.Statistic ?? alarm.ExtendedStatistic} of ${alarm.MetricName}` : "an expression";
  const sign = SIGNS[alarm.ComparisonOperator] ?? alarm.ComparisonOperator;
  const period = alarm.Period ?? alarm.Metrics?.[0]?.MetricStat?.Period ?? 60;
  return `${metric} ${sign} ${alarm.Threshold} for ${alarm.EvaluationPeriods} × ${period} s`;
}

// #/metrics/alarm/NAME
export function metric(_, name) {
  return {
    title: name,
    parts: {
      alarm: {
        topics: ["alarms"],
        load: async () => {
          const [alarm] = await readAlarms({ AlarmNames: [name] });
          if (!alarm) throw Object.assign(new Error(`The alarm ${name} does not exist.`), { status: 404, code: "NotFound" });
          return alarm;
        },
      },
      history: {
        topics: ["alarms"],
        load: async () =>
          (await call("cloudwatch", "DescribeAlarmHistory", { AlarmName: name, AlarmTypes: KINDS, MaxRecords: 30 }))
            .AlarmHistoryItems,
      },
      graph: {
        topics: ["alarms", "gpus", "queues"],
        load: async ({ alarm }) => {
          const found = alarm ?? (await readAlarms({ AlarmNames: [name] }))[0];
          if (!found?.MetricName) return null;
          const to = Date.now() / 1000;
          const series = await readMetrics(
            call,
            [
              {
                label: found.MetricName,
                namespace: found.Namespace,
                name: found.MetricName,
                dimensions: Object.fromEntries(found.Dimensions.map(({ Name, Value }) => [Name, Value])),
                stat: found.Statistic ?? found.ExtendedStatistic,
              },
            ],
            to - 3600,
            to,
          );
          return { from: to - 3600, to, series };
        },
      },
    },
    draw: ({ alarm, history = [], graph: found }) =>
      alarm
        ? [
            h("p", { class: "path" }, h("a", { href: link("metrics") }, "Metrics and alarms")),
            h(
              "div",
              { class: "head" },
              h("div", {}, h("h1", {}, name), h("p", {}, state(alarm.StateValue), ` ${alarm.StateReason}`)),
              h(
                "div",
                { class: "buttons" },
                action("Delete", {
                  danger: true,
                  title: `Delete the alarm ${name}?`,
                  question: "What it would start is not started any more.",
                  command: () => awsCommand("cloudwatch", "DeleteAlarms", { AlarmNames: [name] }),
                  run: async () => {
                    await call("cloudwatch", "DeleteAlarms", { AlarmNames: [name] });
                    go("metrics");
                    return `${name} is deleted.`;
                  },
                }),
              ),
            ),
            found
              ? section(
                  "The last hour",
                  { "data-key": "graph" },
                  graph({ title: alarm.MetricName, ...found, thresholds: [alarm.Threshold], gap: 400 }),
                )
              : null,
            section(
              "Alarm",
              { "data-key": "facts" },
              facts([
                ["Condition", condition(alarm)],
                ["Namespace", alarm.Namespace],
                ["Dimensions", alarm.Dimensions?.map(({ Name, Value }) => `${Name}=${Value}`).join(", ")],
                ["Missing data", alarm.TreatMissingData],
                ["Actions", (alarm.AlarmActions ?? []).join(", ") || "none"],
                ["Since", clock(alarm.StateTransitionedTimestamp)],
              ]),
            ),
            section(
              "History",
              { "data-key": "history" },
              table(
                [
                  ["Time", (one) => clock(one.Timestamp), "nowrap"],
                  ["Kind", (one) => one.HistoryItemType, "nowrap"],
                  ["What", (one) => one.HistorySummary, "wide"],
                ],
                history,
                { label: "History", empty: "Nothing yet." },
              ),
            ),
          ]
        : [h("h1", {}, name), h("p", { class: "empty" }, "Loading …")],
  };
}
