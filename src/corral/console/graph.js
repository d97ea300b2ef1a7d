// Graphs as SVG: lines over time, and the small line of a tile.

import { h, s } from "./dom.js";
import { clock, number } from "./format.js";

const WIDTH = 800,
  LEFT = 46,
  RIGHT = 8,
  TOP = 8,
  BOTTOM = 22;

// Reading the width of an element while the page is drawn would lay out what is drawn so far.
const main = document.getElementById("main");
let mainWidth = WIDTH;
new ResizeObserver(([{ contentRect }]) => (mainWidth = contentRect.width)).observe(main);

// A line for each of `series` ({label, points: [[seconds, value], …]}). A gap longer than `gap` seconds is not bridged.
export function graph({
  title,
  series,
  from,
  to,
  height = 180,
  unit = "",
  most,
  least = 0,
  gap = Infinity,
  thresholds = [],
  columns = 1,
}) {
  const room = mainWidth - 32;
  const width = Math.max(280, Math.min(1100, columns > 1 && room > 860 ? room / columns : room));
  const values = series.flatMap(({ points }) => points.map(([, value]) => value)).concat(thresholds);
  const top = most ?? nice(Math.max(...values, least + 1e-9));
  const bottom = Math.min(least, ...values);
  const x = (time) => LEFT + ((time - from) / (to - from || 1)) * (width - LEFT - RIGHT);
  const y = (value) => TOP + (1 - (value - bottom) / (top - bottom || 1)) * (height - TOP - BOTTOM);
  const shown = series.filter(({ points }) => points.length);
  const summary =
    shown
      .map(({ label, points }) => {
        const all = points.map(([, value]) => value);
        const [low, high, now] = [Math.min(...all), Math.max(...all), all.at(-1)].map((value) => `${number(value, 2)}${unit}`);
        return `${label}: ${low} to ${high}, last ${now}`;
      })
      .join("; ") || "no data";
  const readout = h("figcaption", { class: "legend" }, legend(series, unit));
  const marker = s("line", { class: "marker", y1: TOP, y2: height - BOTTOM, hidden: true, visibility: "hidden" });
  const move = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const time = from + ((((event.clientX - box.left) / box.width) * width - LEFT) / (width - LEFT - RIGHT)) * (to - from);
    const line = event.currentTarget.querySelector(".marker");
    line.setAttribute("x1", x(time));
    line.setAttribute("x2", x(time));
    line.setAttribute("visibility", "visible");
    event.currentTarget.parentElement.querySelector("figcaption").replaceChildren(...legend(series, unit, time));
  };
  const leave = (event) => {
    event.currentTarget.querySelector(".marker").setAttribute("visibility", "hidden");
    event.currentTarget.parentElement.querySelector("figcaption").replaceChildren(...legend(series, unit));
  };
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((share) => bottom + share * (top - bottom));
  return h(
    "figure",
    { class: "graph" },
    s(
      "svg",
      {
        viewBox: `0 0 ${width} ${height}`,
        role: "img",
        "aria-label": `${title}. ${summary}`,
        onpointermove: move,
        onpointerleave: leave,
      },
      ticks.map((value) => [
        s("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }),
        s("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, compact(value) + unit),
      ]),
      times(from, to).map((time) => s("text", { x: x(time), y: height - 6, "text-anchor": "middle" }, hour(time, to - from))),
      thresholds.map((value) => s("line", { class: "threshold", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) })),
      shown.map(({ points, area }) => {
        const at = series.findIndex((one) => one.points === points) % 6;
        const path = line(points, x, y, gap);
        return [
          area ? s("path", { class: `area tone${at}`, d: fill(points, x, y, y(bottom), gap) }) : null,
          s("path", { class: `line tone${at}`, d: path }),
        ];
      }),
      marker,
      shown.length ? null : s("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "no data in this time"),
    ),
    readout,
  );
}

function legend(series, unit, time) {
  return series.map(({ label, points }, at) => {
    const point = time === undefined ? points.at(-1) : nearest(points, time);
    return h(
      "span",
      {},
      h("i", { class: `tone${at % 6}` }),
      `${label} `,
      h("b", {}, point ? `${number(point[1], 2)}${unit}` : "–"),
      time !== undefined && point ? ` at ${clock(point[0])}` : "",
    );
  });
}

function nearest(points, time) {
  let best = null;
  for (const point of points) if (!best || Math.abs(point[0] - time) < Math.abs(best[0] - time)) best = point;
  return best;
}

function runs(points, gap) {
  const parts = [];
  let before = -Infinity;
  for (const point of points) {
    if (!parts.length || point[0] - before > gap) parts.push([]);
    parts.at(-1).push(point);
    before = point[0];
  }
  return parts;
}

function line(points, x, y, gap) {
  return runs(points, gap)
    .map((part) => {
      const path = part.map(([time, value], at) => `${at ? "L" : "M"}${x(time).toFixed(1)} ${y(value).toFixed(1)}`).join("");
      return part.length === 1 ? `${path}h1` : path;
    })
    .join("");
}

function fill(points, x, y, floor, gap) {
  return runs(points, gap)
    .map(
      (part) =>
        `M${x(part[0][0]).toFixed(1)} ${floor}` +
        part.map(([time, value]) => `L${x(time).toFixed(1)} ${y(value).toFixed(1)}`).join("") +
        `L${x(part.at(-1)[0]).toFixed(1)} ${floor}Z`,
    )
    .join("");
}

function nice(value) {
  const size = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((step) => step * size).find((step) => step >= value) ?? value;
}

function compact(value) {
  return Math.abs(value) >= 1e4 ? Intl.NumberFormat(undefined, { notation: "compact" }).format(value) : number(value, 2);
}

function times(from, to) {
  const steps = [10, 30, 60, 300, 600, 1800, 3600, 7200, 14400, 21600, 86400, 7 * 86400];
  const step = steps.find((one) => (to - from) / one <= 6) ?? 30 * 86400;
  const zone = new Date().getTimezoneOffset() * 60;
  const found = [];
  for (let time = Math.ceil((from - zone) / step) * step + zone; time < to; time += step)
    if (time > from + (to - from) * 0.03 && time < to - (to - from) * 0.02) found.push(time);
  return found;
}

function hour(time, span) {
  const date = new Date(time * 1000);
  if (span > 3 * 86400) return date.toLocaleDateString(undefined, { month: "short", day: "numeric" });
  return date.toLocaleTimeString(undefined, {
    hour12: false,
    hour: "2-digit",
    minute: "2-digit",
    second: span < 900 ? "2-digit" : undefined,
  });
}

export function sparkline(values, most = 100) {
  const known = values ?? [];
  const x = (at) => (at / Math.max(1, known.length - 1)) * 100;
  const y = (value) => 24 - (Math.min(most, value ?? 0) / most) * 23;
  const points = known.map((value, at) => `${x(at).toFixed(1)} ${y(value).toFixed(1)}`);
  return s(
    "svg",
    { class: "spark", viewBox: "0 0 100 24", preserveAspectRatio: "none", "aria-hidden": "true" },
    points.length
      ? [
          s("path", { class: "area tone0", d: `M0 24L${points.join("L")}L100 24Z` }),
          s("path", { class: "line tone0", d: `M${points.join("L")}` }),
        ]
      : null,
  );
}

// The values of metrics between two times: queries are {label, namespace, name, dimensions: {…}, stat}.
export async function readMetrics(call, queries, from, to, points = 300) {
  const period = periodOf(to - from, points);
  const start = Math.floor(from / period) * period;
  const found = await call("cloudwatch", "GetMetricData", {
    MetricDataQueries: queries.map(({ namespace, name, dimensions, stat = "Average" }, at) => ({
      Id: `m${at}`,
      MetricStat: {
        Metric: {
          Namespace: namespace,
          MetricName: name,
          Dimensions: Object.entries(dimensions).map(([Name, Value]) => ({ Name, Value })),
        },
        Period: period,
        Stat: stat,
      },
    })),
    StartTime: new Date(start * 1000).toISOString(),
    EndTime: new Date(Math.ceil(to) * 1000).toISOString(),
    ScanBy: "TimestampAscending",
  });
  return queries.map(({ label }, at) => {
    const result = found.MetricDataResults.find(({ Id }) => Id === `m${at}`) ?? { Timestamps: [], Values: [] };
    return { label, period, points: result.Timestamps.map((time, index) => [Date.parse(time) / 1000, result.Values[index]]) };
  });
}

function periodOf(span, points) {
  const periods = [1, 5, 10, 30, 60, 300, 900, 3600, 21600, 86400];
  return periods.find((period) => span / period <= points) ?? 86400;
}
