// Who used the GPUs, and what instances and runs cost.

import { call } from "./api.js";
import { h, meter, section, table } from "./dom.js";
import { clock, number, percent } from "./format.js";

const SPANS = { "1 day": 86400, "1 week": 604800, "1 month": 2592000, "1 year": 31536000 };
const SLOW_MS = 30_000;
const choice = { span: "1 week" };

export function cost() {
  const page = {
    title: "Cost",
    parts: {
      usage: {
        topics: ["tasks"],
        every: SLOW_MS,
        load: () => call("corral", "DescribeUsage", { last: SPANS[choice.span], utcOffset: -60 * new Date().getTimezoneOffset() }),
      },
      cost: {
        topics: ["tasks", "instances"],
        every: SLOW_MS,
        load: () => call("corral", "GetUsage", { last: SPANS[choice.span] }),
      },
    },
    draw: ({ usage, cost }) => [
      h(
        "div",
        { class: "head" },
        h("div", {}, h("h1", {}, "Use and cost"), h("p", {}, usage ? `Since ${clock(usage.fromS)}` : "")),
        h(
          "div",
          { class: "filters" },
          h(
            "label",
            {},
            "Time ",
            h(
              "select",
              {
                onchange: (event) => {
                  choice.span = event.target.value;
                  page.view.reload("usage", "cost");
                },
              },
              Object.keys(SPANS).map((one) => h("option", { value: one, selected: one === choice.span }, one)),
            ),
          ),
        ),
      ),
      section(
        "Who used the GPUs",
        { "data-key": "owners" },
        table(
          [
            ["User", (one) => one.owner, "name"],
            ["GPU-hours", (one) => number(one.gpuHours, 2), "right"],
            [
              "Share",
              (one) => h("span", {}, percent(one.share * 100), meter(one.share, `${percent(one.share * 100)} of all GPU-hours`)),
            ],
            ["Idle", (one) => number(one.idleGpuHours, 2), "right"],
            ["GPUs now", (one) => number(one.gpus, 1), "right"],
            ["Decayed", (one) => number(one.decayedGpuHours, 2), "right"],
            ["Weight", (one) => one.weight, "right"],
            [
              "Limit",
              (one) =>
                (one.limits ?? [])
                  .map(
                    ({ subject, usedGpuHours, gpuHoursPerWeek }) =>
                      `${number(usedGpuHours, 1)} of ${number(gpuHoursPerWeek, 1)} a week (${subject})`,
                  )
                  .join(", "),
              "wide",
            ],
          ],
          usage?.owners ?? [],
          { key: (one) => one.owner, label: "Use", empty: usage ? "No GPU was used." : "Loading …" },
        ),
      ),
      section("GPU-hours by day", { "data-key": "days" }, days(usage)),
      section(
        "Instances",
        { "data-key": "groups" },
        table(
          [
            ["Group", (one) => one.group || "no group", "name"],
            ["Hours", (one) => number(one.hours, 2), "right"],
            ["GPU-hours", (one) => number(one.gpuHours, 2), "right"],
            ["On demand", (one) => dollars(one.onDemand), "right"],
            ["Spot", (one) => dollars(one.spot), "right"],
          ],
          cost?.groups ?? [],
          { key: (one) => `${one.group} ${one.region}`, label: "Instances", empty: cost ? "No instance has run." : "Loading …" },
        ),
        cost?.prices
          ? h(
              "p",
              { class: "note" },
              `What they would have cost on AWS: prices of ${cost.prices.region} on ${cost.prices.date}, in ${cost.prices.currency}.`,
            )
          : null,
      ),
      section(
        "This machine",
        { "data-key": "machine" },
        table(
          [
            ["Run", (one) => one.name, "name"],
            ["Owner", (one) => one.owner, "nowrap"],
            ["Tasks", (one) => number(one.tasks), "right"],
            ["Hours", (one) => number(one.hours, 2), "right"],
            ["GPU-hours", (one) => number(one.gpuHours, 2), "right"],
            ["Cost", (one) => dollars(one.cost), "right"],
          ],
          (cost?.machine?.names ?? []).slice(0, 200),
          {
            key: (one) => `${one.name} ${one.region} ${one.owner}`,
            label: "Runs",
            empty: cost ? "No run has used a GPU." : "Loading …",
          },
        ),
        cost && !cost.machine?.gpuHourPrice
          ? h("p", { class: "note" }, "Set what a GPU-hour of this machine costs in corral.toml, and the runs get a price.")
          : null,
      ),
    ],
  };
  return page;
}

const dollars = (value) =>
  value === null || value === undefined ? "–" : value.toLocaleString(undefined, { style: "currency", currency: "USD" });

function days(usage) {
  const sums = new Map();
  for (const { days } of usage?.owners ?? []) {
    for (const { date, gpuHours, idleGpuHours } of days) {
      const sum = sums.get(date) ?? [0, 0];
      sums.set(date, [sum[0] + gpuHours, sum[1] + idleGpuHours]);
    }
  }
  const most = Math.max(0, ...[...sums.values()].map(([hours]) => hours));
  return table(
    [
      ["Day", ([date]) => date, "nowrap"],
      ["GPU-hours", ([, [hours]]) => number(hours, 2), "right"],
      ["", ([date, [hours]]) => meter(most ? hours / most : 0, `${number(hours, 2)} GPU-hours on ${date}`), "wide"],
      ["Idle", ([, [, idle]]) => number(idle, 2), "right"],
    ],
    [...sums].sort().reverse(),
    { key: ([date]) => date, label: "GPU-hours by day", empty: usage ? "No GPU was used." : "Loading …" },
  );
}
