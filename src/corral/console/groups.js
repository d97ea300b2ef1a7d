// Auto Scaling groups, their instances and scaling activities.

import { action } from "./actions.js";
import { all, call } from "./api.js";
import { go, link } from "./app.js";
import { awsCommand } from "./commands.js";
import { facts, h, reason, section, state, table } from "./dom.js";
import { ago, clock, duration, plural, seconds } from "./format.js";

export const allGroups = () =>
  all("autoscaling", "DescribeAutoScalingGroups", { MaxRecords: 100 }, "AutoScalingGroups", "NextToken");

const linkOf = (task) => link("tasks", "-", task); // a task of any cluster
const allInstances = () => all("corral", "DescribeInstances", {}, "instances");

export function groups() {
  return {
    title: "Groups",
    parts: {
      groups: {
        topics: ["groups", "instances"],
        load: allGroups,
      },
      instances: { topics: ["instances"], load: allInstances },
    },
    draw: ({ groups, instances }) => [
      h("h1", {}, "Groups and instances"),
      section(
        "Auto Scaling groups",
        { "data-key": "groups" },
        table(
          [
            ["Group", (one) => h("a", { href: link("groups", one.AutoScalingGroupName) }, one.AutoScalingGroupName), "name"],
            ["Instances", (one) => one.Instances.length, "right"],
            ["Desired", (one) => one.DesiredCapacity, "right"],
            ["Smallest", (one) => one.MinSize, "right"],
            ["Largest", (one) => one.MaxSize, "right"],
            ["In service", (one) => one.Instances.filter(({ LifecycleState }) => LifecycleState === "InService").length, "right"],
            ["Created", (one) => ago(one.CreatedTime), "nowrap"],
          ],
          groups ?? [],
          {
            key: (one) => one.AutoScalingGroupName,
            label: "Auto Scaling groups",
            empty: groups ? "No Auto Scaling group." : "Loading …",
          },
        ),
      ),
      section("Instances", { "data-key": "instances" }, instanceTable(instances)),
    ],
  };
}

function instanceTable(rows) {
  return table(
    [
      ["Instance", (one) => h("a", { href: link("groups", "instance", one.id) }, one.id), "nowrap"],
      ["Type", (one) => one.type, "nowrap"],
      ["State", (one) => state(one.state === "running" ? "RUNNING" : one.state === "pending" ? "PENDING" : one.state)],
      ["GPUs", (one) => one.gpus, "right"],
      ["Tasks", (one) => one.tasks, "right"],
      ["Group", (one) => (one.group ? h("a", { href: link("groups", one.group) }, one.group) : ""), "nowrap"],
      ["Host", (one) => one.host],
      ["Since", (one) => ago(one.sinceS), "nowrap"],
      ["Reason", (one) => reason(one.endReason || one.waitReason || one.launchReason, linkOf), "wide"],
    ],
    rows ?? [],
    { key: (one) => one.id, label: "Instances", empty: rows ? "No instance." : "Loading …" },
  );
}

export function group(name, id) {
  if (name === "instance") return instance(id);
  return {
    title: name,
    parts: {
      group: {
        topics: ["groups", "instances"],
        load: async () => {
          const {
            AutoScalingGroups: [found],
          } = await call("autoscaling", "DescribeAutoScalingGroups", { AutoScalingGroupNames: [name] });
          if (!found) throw Object.assign(new Error(`The group ${name} does not exist.`), { status: 404, code: "NotFound" });
          return found;
        },
      },
      activities: {
        topics: ["groups", "instances"],
        load: async () =>
          (await call("autoscaling", "DescribeScalingActivities", { AutoScalingGroupName: name, MaxRecords: 50 })).Activities,
      },
      instances: {
        topics: ["groups", "instances"],
        load: async () => (await allInstances()).filter((one) => one.group === name),
      },
      policies: {
        topics: ["groups"],
        load: async () => (await call("autoscaling", "DescribePolicies", { AutoScalingGroupName: name })).ScalingPolicies,
      },
    },
    draw: ({ group: found, activities = [], instances, policies = [] }) =>
      found
        ? [
            h("p", { class: "path" }, h("a", { href: link("groups") }, "Groups")),
            h(
              "div",
              { class: "head" },
              h(
                "div",
                {},
                h("h1", {}, name),
                h(
                  "p",
                  {},
                  `${found.Instances.length} of ${plural(found.DesiredCapacity, "instance")}, between ${found.MinSize} and ${found.MaxSize}`,
                ),
              ),
              h("div", { class: "buttons" }, actions(found, name)),
            ),
            section(
              "Group",
              { "data-key": "facts" },
              facts([
                ["Desired", found.DesiredCapacity],
                [
                  "Launches",
                  found.LaunchConfigurationName ??
                    found.LaunchTemplate?.LaunchTemplateName ??
                    (found.MixedInstancesPolicy ? "several types" : null),
                ],
                ["Cooldown", duration(found.DefaultCooldown)],
                ["Suspended", found.SuspendedProcesses.map(({ ProcessName }) => ProcessName).join(", ")],
                ["Created", clock(found.CreatedTime)],
              ]),
            ),
            section(
              "Scaling activities",
              { "data-key": "activities" },
              table(
                [
                  ["Started", (one) => clock(one.StartTime), "nowrap"],
                  ["Status", (one) => state(one.StatusCode)],
                  ["Took", (one) => (one.EndTime ? duration(seconds(one.EndTime) - seconds(one.StartTime)) : ""), "nowrap"],
                  ["What", (one) => one.Description, "wide"],
                  ["Why", (one) => [one.Cause, h("div", { class: "dim" }, reason(one.StatusMessage, linkOf))], "wide"],
                ],
                activities,
                { key: (one) => one.ActivityId, label: "Scaling activities", empty: "No activity yet." },
              ),
            ),
            section("Instances", { "data-key": "instances" }, instanceTable(instances)),
            section(
              "Scaling policies",
              { "data-key": "policies" },
              table(
                [
                  ["Policy", (one) => one.PolicyName, "name"],
                  ["Type", (one) => one.PolicyType],
                  [
                    "Target",
                    (one) =>
                      one.TargetTrackingConfiguration?.TargetValue ??
                      one.ScalingAdjustment ??
                      (one.StepAdjustments?.length ? plural(one.StepAdjustments.length, "step") : ""),
                    "right",
                  ],
                  [
                    "Alarms",
                    (one) =>
                      one.Alarms?.map(({ AlarmName }) => [h("a", { href: link("metrics", "alarm", AlarmName) }, AlarmName), " "]),
                    "wide",
                  ],
                ],
                policies,
                { key: (one) => one.PolicyARN, label: "Scaling policies", empty: "No policy: the size changes only by request." },
              ),
            ),
          ]
        : [h("h1", {}, name), h("p", { class: "empty" }, "Loading …")],
  };
}

function actions(found, name) {
  return [
    action("Scale …", {
      main: true,
      title: `Scale ${name}`,
      fields: [
        {
          name: "count",
          label: "Desired instances",
          type: "number",
          min: found.MinSize,
          max: found.MaxSize,
          step: 1,
          value: String(found.DesiredCapacity),
          required: true,
          hint: `From ${found.MinSize} to ${found.MaxSize}`,
        },
      ],
      command: ({ count }) =>
        awsCommand("autoscaling", "SetDesiredCapacity", { AutoScalingGroupName: name, DesiredCapacity: Number(count) }),
      run: async ({ count }) => {
        await call("autoscaling", "SetDesiredCapacity", { AutoScalingGroupName: name, DesiredCapacity: Number(count) });
        return `${name} gets ${plural(Number(count), "instance")}.`;
      },
    }),
    action("Sizes …", {
      title: `Change the sizes of ${name}`,
      fields: [
        { name: "least", label: "Smallest", type: "number", min: 0, step: 1, value: String(found.MinSize), required: true },
        { name: "most", label: "Largest", type: "number", min: 0, step: 1, value: String(found.MaxSize), required: true },
      ],
      command: ({ least, most }) =>
        awsCommand("autoscaling", "UpdateAutoScalingGroup", {
          AutoScalingGroupName: name,
          MinSize: Number(least),
          MaxSize: Number(most),
        }),
      run: async ({ least, most }) => {
        await call("autoscaling", "UpdateAutoScalingGroup", {
          AutoScalingGroupName: name,
          MinSize: Number(least),
          MaxSize: Number(most),
        });
        return `${name} has between ${least} and ${most} instances.`;
      },
    }),
    action("Delete", {
      danger: true,
      title: `Delete ${name}?`,
      question: "Its instances are terminated, and their tasks stop.",
      command: () => awsCommand("autoscaling", "DeleteAutoScalingGroup", { AutoScalingGroupName: name, ForceDelete: true }),
      run: async () => {
        await call("autoscaling", "DeleteAutoScalingGroup", { AutoScalingGroupName: name, ForceDelete: true });
        go("groups");
        return `${name} is deleted.`;
      },
    }),
  ];
}

function instance(id) {
  return {
    title: id,
    parts: {
      instance: {
        topics: ["instances", "tasks"],
        load: async () => (await allInstances()).filter((one) => one.id === id),
      },
    },
    draw: ({ instance: rows }) => [
      h("p", { class: "path" }, h("a", { href: link("groups") }, "Groups and instances")),
      h(
        "div",
        { class: "head" },
        h("div", {}, h("h1", {}, id)),
        h(
          "div",
          { class: "buttons" },
          rows?.length && !/terminated|shutting/.test(rows[0].state)
            ? action("Terminate", {
                danger: true,
                title: `Terminate ${id}?`,
                question: "Its tasks stop. Its group may launch another one.",
                command: () => awsCommand("ec2", "TerminateInstances", { InstanceIds: [id] }),
                run: async () => {
                  await call("ec2", "TerminateInstances", { InstanceIds: [id] });
                  return `${id} is terminated.`;
                },
              })
            : null,
        ),
      ),
      section("Instance", {}, instanceTable(rows)),
    ],
  };
}
