// CloudFormation stacks with their resources, events and outputs.

import { action } from "./actions.js";
import { all, call } from "./api.js";
import { go, link } from "./app.js";
import { awsCommand } from "./commands.js";
import { facts, h, section, state, table } from "./dom.js";
import { ago, clock, last } from "./format.js";

export function stacks() {
  return {
    title: "Stacks",
    parts: { stacks: { topics: ["stacks"], load: () => all("cloudformation", "DescribeStacks", {}, "Stacks", "NextToken") } },
    draw: ({ stacks }) => [
      h("h1", {}, "Stacks"),
      section(
        "CloudFormation stacks",
        {},
        table(
          [
            ["Stack", (one) => h("a", { href: link("stacks", one.StackName) }, one.StackName), "name"],
            ["Status", (one) => state(one.StackStatus)],
            [
              "Changed",
              (one) =>
                h("span", { title: clock(one.LastUpdatedTime ?? one.CreationTime) }, ago(one.LastUpdatedTime ?? one.CreationTime)),
              "nowrap",
            ],
            ["", (one) => one.StackStatusReason ?? one.Description, "wide"],
          ],
          stacks ?? [],
          { key: (one) => one.StackId, label: "Stacks", empty: stacks ? "No stack." : "Loading …" },
        ),
      ),
    ],
  };
}

export function stack(name) {
  return {
    title: name,
    parts: {
      stack: {
        topics: ["stacks"],
        load: async () => (await call("cloudformation", "DescribeStacks", { StackName: name })).Stacks[0],
      },
      resources: {
        topics: ["stacks"],
        load: () => all("cloudformation", "ListStackResources", { StackName: name }, "StackResourceSummaries", "NextToken"),
      },
      events: {
        topics: ["stacks"],
        load: async () => (await call("cloudformation", "DescribeStackEvents", { StackName: name })).StackEvents,
      },
    },
    draw: ({ stack: found, resources, events }) =>
      found
        ? [
            h("p", { class: "path" }, h("a", { href: link("stacks") }, "Stacks")),
            h(
              "div",
              { class: "head" },
              h("div", {}, h("h1", {}, name), h("p", {}, state(found.StackStatus), ` ${found.StackStatusReason ?? ""}`)),
              h(
                "div",
                { class: "buttons" },
                action("Delete", {
                  danger: true,
                  title: `Delete the stack ${name}?`,
                  question: `${resources?.length ?? 0} resources are deleted with it, except those that the template retains.`,
                  command: () => awsCommand("cloudformation", "DeleteStack", { StackName: name }),
                  run: async () => {
                    await call("cloudformation", "DeleteStack", { StackName: name });
                    go("stacks");
                    return `${name} is being deleted.`;
                  },
                }),
              ),
            ),
            found.Outputs?.length
              ? section(
                  "Outputs",
                  { "data-key": "outputs" },
                  table(
                    [
                      ["Output", (one) => one.OutputKey, "name"],
                      ["Value", (one) => h("code", {}, one.OutputValue), "wide"],
                      ["Export", (one) => one.ExportName ?? ""],
                      ["", (one) => one.Description, "wide"],
                    ],
                    found.Outputs,
                    { key: (one) => one.OutputKey, label: "Outputs" },
                  ),
                )
              : null,
            section(
              "Resources",
              { "data-key": "resources" },
              table(
                [
                  ["Name", (one) => one.LogicalResourceId, "name"],
                  ["Type", (one) => one.ResourceType, "nowrap"],
                  ["Status", (one) => state(one.ResourceStatus)],
                  ["Id", (one) => resourceLink(one), "wide"],
                  ["", (one) => one.ResourceStatusReason, "wide"],
                ],
                resources ?? [],
                { key: (one) => one.LogicalResourceId, label: "Resources", empty: resources ? "No resource." : "Loading …" },
              ),
            ),
            section(
              "Events",
              { "data-key": "events" },
              table(
                [
                  ["Time", (one) => clock(one.Timestamp), "nowrap"],
                  ["Resource", (one) => one.LogicalResourceId, "name"],
                  ["Status", (one) => state(one.ResourceStatus)],
                  ["Reason", (one) => one.ResourceStatusReason, "wide"],
                ],
                (events ?? []).slice(0, 200),
                { key: (one) => one.EventId, label: "Events", empty: events ? "No event." : "Loading …" },
              ),
            ),
            section(
              "Stack",
              { "data-key": "facts" },
              facts([
                ["Id", found.StackId],
                ["Created", clock(found.CreationTime)],
                ["Updated", clock(found.LastUpdatedTime)],
                ...(found.Parameters ?? []).map(({ ParameterKey, ParameterValue }) => [ParameterKey, ParameterValue]),
              ]),
            ),
          ]
        : [h("h1", {}, name), h("p", { class: "empty" }, "Loading …")],
  };
}

function resourceLink({ ResourceType, PhysicalResourceId: id = "" }) {
  const places = {
    "AWS::SQS::Queue": ["queues", last(id)],
    "AWS::S3::Bucket": ["buckets", id],
    "AWS::AutoScaling::AutoScalingGroup": ["groups", id],
    "AWS::Logs::LogGroup": ["logs", id],
    "AWS::CloudWatch::Alarm": ["metrics", "alarm", id],
    "AWS::Batch::JobQueue": ["batch", last(id)],
    "AWS::CloudFormation::Stack": ["stacks", id.split("/")[1]],
    "AWS::ECS::Service": ["services", ...id.split("/").slice(-2)],
  };
  return places[ResourceType] ? h("a", { href: link(...places[ResourceType]) }, id) : id;
}
