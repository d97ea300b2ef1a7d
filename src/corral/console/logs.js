// Log groups, their streams, and one stream on a page of its own.

import { all } from "./api.js";
import { link } from "./app.js";
import { h, section, table } from "./dom.js";
import { ago, bytes, clock } from "./format.js";
import { LogView } from "./logview.js";

export function groups() {
  return {
    title: "Logs",
    parts: { groups: { topics: ["log-groups"], load: () => all("logs", "DescribeLogGroups", {}, "logGroups") } },
    draw: ({ groups }) => [
      h("h1", {}, "Logs"),
      section(
        "Log groups",
        {},
        table(
          [
            ["Group", (group) => h("a", { href: link("logs", group.logGroupName) }, group.logGroupName), "name"],
            ["Size", (group) => bytes(group.storedBytes), "right"],
            ["Kept", (group) => (group.retentionInDays ? `${group.retentionInDays} days` : "for ever"), "nowrap"],
          ],
          groups ?? [],
          { key: (group) => group.logGroupName, label: "Log groups", empty: groups ? "No log group." : "Loading …" },
        ),
      ),
    ],
  };
}

export function log(group, stream) {
  return stream === undefined ? streams(group) : one(group, stream);
}

function streams(group) {
  return {
    title: group,
    parts: {
      streams: {
        topics: ["tasks"],
        load: () =>
          all(
            "logs",
            "DescribeLogStreams",
            { logGroupName: group, orderBy: "LastEventTime", descending: true },
            "logStreams",
            "nextToken",
            200,
          ),
      },
    },
    draw: ({ streams }) => [
      h("p", { class: "path" }, h("a", { href: link("logs") }, "Logs")),
      h("h1", {}, group),
      section(
        "Streams",
        {},
        table(
          [
            ["Stream", (stream) => h("a", { href: link("logs", group, stream.logStreamName) }, stream.logStreamName), "name"],
            [
              "Last event",
              (stream) =>
                stream.lastEventTimestamp
                  ? h("span", { title: clock(stream.lastEventTimestamp) }, ago(stream.lastEventTimestamp))
                  : "–",
              "nowrap",
            ],
          ],
          streams ?? [],
          { key: (stream) => stream.logStreamName, label: "Log streams", empty: streams ? "No stream." : "Loading …" },
        ),
      ),
    ],
  };
}

function one(group, stream) {
  let view = null;
  const topic = `logs:${group}:${stream}`;
  return {
    title: stream,
    parts: {},
    topics: [topic],
    changed: (topics) => {
      if (topics.includes(topic)) view?.refresh();
    },
    close: () => view?.close(),
    draw: () => [
      h("p", { class: "path" }, h("a", { href: link("logs") }, "Logs"), " / ", h("a", { href: link("logs", group) }, group)),
      h("h1", {}, stream),
      h("div", {
        class: "log",
        "data-keep": "log",
        "data-key": "log",
        mount: (element) => {
          view = new LogView({ group, stream }, element);
        },
      }),
    ],
  };
}
