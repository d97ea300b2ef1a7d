// SQS queues: depth, age and a look at messages, which neither hides nor counts them.

import { action, say } from "./actions.js";
import { call, session } from "./api.js";
import { go, link } from "./app.js";
import { awsCommand } from "./commands.js";
import { facts, h, section, state, table } from "./dom.js";
import { ago, bytes, clock, duration, last, number, plural } from "./format.js";
import { graph, readMetrics } from "./graph.js";
import { queues as readQueues } from "./overview.js";

const HOUR_S = 3600;

export function queues() {
  return {
    title: "Queues",
    parts: {
      queues: {
        topics: ["queues"],
        load: async () => {
          const queues = await readQueues();
          return { queues, ages: await ages(queues.map(({ name }) => name)) };
        },
      },
    },
    draw: ({ queues: { queues, ages } = {} }) => [
      h(
        "div",
        { class: "head" },
        h("div", {}, h("h1", {}, "Queues")),
        h(
          "div",
          { class: "buttons" },
          action("Create …", {
            title: "Create a queue",
            fields: [{ name: "name", label: "Name", required: true }],
            command: ({ name }) => awsCommand("sqs", "CreateQueue", { QueueName: name || "NAME" }),
            run: async ({ name }) => {
              await call("sqs", "CreateQueue", { QueueName: name });
              go("queues", name);
              return `Created ${name}.`;
            },
          }),
        ),
      ),
      section(
        "SQS queues",
        {},
        table(
          [
            ["Queue", (one) => h("a", { href: link("queues", one.name) }, one.name), "name"],
            ["Messages", (one) => number(one.ApproximateNumberOfMessages), "right"],
            ["In flight", (one) => number(one.ApproximateNumberOfMessagesNotVisible), "right"],
            ["Delayed", (one) => number(one.ApproximateNumberOfMessagesDelayed), "right"],
            ["Oldest", (one) => (ages?.[one.name] ? duration(ages[one.name]) : "–"), "nowrap"],
            ["Dead letters go to", (one) => deadLetters(one) ?? "", "nowrap"],
          ],
          queues ?? [],
          { key: (one) => one.name, label: "Queues", empty: queues ? "No queue." : "Loading …" },
        ),
      ),
    ],
  };
}

async function ages(names) {
  if (!names.length) return {};
  const now = Date.now() / 1000;
  const series = await readMetrics(
    call,
    names.slice(0, 100).map((name) => ({
      label: name,
      namespace: "AWS/SQS",
      name: "ApproximateAgeOfOldestMessage",
      dimensions: { QueueName: name },
      stat: "Maximum",
    })),
    now - 180,
    now,
    10,
  );
  return Object.fromEntries(series.map(({ label, points }) => [label, points.at(-1)?.[1]]));
}

const messagesOf = (one) => Number(one.ApproximateNumberOfMessages) + Number(one.ApproximateNumberOfMessagesNotVisible);

function deadLetters(one) {
  const target = one.RedrivePolicy && JSON.parse(one.RedrivePolicy).deadLetterTargetArn?.split(":").pop();
  return target ? h("a", { href: link("queues", target) }, target) : null;
}

export function queue(name) {
  let peeked = null;
  const url = () => `${session.about.endpoint_url}/${session.about.identity.account}/${name}`;
  const page = {
    title: name,
    parts: {
      queue: {
        topics: ["queues"],
        load: async () => {
          const { QueueUrl } = await call("sqs", "GetQueueUrl", { QueueName: name }).catch((error) => {
            if (error.status) return { QueueUrl: url() };
            throw error;
          });
          return {
            url: QueueUrl,
            name,
            ...(await call("sqs", "GetQueueAttributes", { QueueUrl, AttributeNames: ["All"] })).Attributes,
          };
        },
      },
      sources: {
        topics: ["queues"],
        every: 10_000,
        load: async ({ queue }) =>
          queue ? ((await call("sqs", "ListDeadLetterSourceQueues", { QueueUrl: queue.url })).queueUrls ?? []) : undefined,
      },
      moves: {
        topics: ["queues"],
        load: async ({ queue }) =>
          queue
            ? ((
                await call("sqs", "ListMessageMoveTasks", { SourceArn: queue.QueueArn }).catch((error) => {
                  if (error.status) return {};
                  throw error;
                })
              ).Results ?? [])
            : undefined,
      },
      age: { topics: ["queues"], load: async () => (await ages([name]))[name] },
      depth: {
        topics: ["queues"],
        every: 10_000,
        load: async () => {
          const to = Date.now() / 1000;
          const series = await readMetrics(
            call,
            [
              ["Messages", "ApproximateNumberOfMessagesVisible"],
              ["In flight", "ApproximateNumberOfMessagesNotVisible"],
            ].map(([label, metric]) => ({
              label,
              namespace: "AWS/SQS",
              name: metric,
              dimensions: { QueueName: name },
              stat: "Maximum",
            })),
            to - HOUR_S,
            to,
          );
          return { from: to - HOUR_S, to, series: series.map((one) => ({ ...one, area: true })) };
        },
      },
    },
    draw: ({ queue: found, sources, moves = [], age, depth }) => {
      if (found && sources === undefined) queueMicrotask(() => page.view.reload("sources", "moves"));
      return found
        ? drawQueue(found, sources ?? [], moves, age, depth)
        : [h("h1", {}, name), h("p", { class: "empty" }, "Loading …")];
    },
  };

  const peek = async (found) => {
    try {
      peeked = (await call("corral", "PeekMessages", { queue: found.name, maxMessages: 10 })).messages;
      page.view.draw();
    } catch (error) {
      say(error.message);
    }
  };

  const drawQueue = (found, sources, moves, age, depth) => [
    h("p", { class: "path" }, h("a", { href: link("queues") }, "Queues")),
    h(
      "div",
      { class: "head" },
      h("div", {}, h("h1", {}, name), h("p", {}, found.url)),
      h("div", { class: "buttons" }, actions(found, sources)),
    ),
    h(
      "div",
      { class: "numbers" },
      [
        ["messages", number(found.ApproximateNumberOfMessages)],
        ["in flight", number(found.ApproximateNumberOfMessagesNotVisible)],
        ["delayed", number(found.ApproximateNumberOfMessagesDelayed)],
        ["oldest", age ? duration(age) : "–"],
      ].map(([text, value]) => h("div", { "data-key": text }, h("b", {}, value), h("span", {}, text))),
    ),
    section(
      "The last hour",
      { "data-key": "depth" },
      depth ? graph({ title: "Messages in the last hour", ...depth, gap: 400 }) : null,
    ),
    section(
      "Messages",
      { "data-key": "peek" },
      h("p", { class: "note" }, "A look neither hides messages from others nor counts as a receive."),
      h(
        "div",
        { class: "buttons" },
        h("button", { type: "button", onclick: () => peek(found) }, peeked ? "Look again" : "Look at messages"),
      ),
      peeked
        ? peeked.length
          ? peeked.map((message) =>
              h(
                "div",
                { "data-key": message.messageId },
                h("h3", { class: "mono" }, message.messageId),
                h(
                  "p",
                  { class: "note" },
                  message.state === "inFlight" ? "in flight" : message.state,
                  ` · sent ${ago(message.sentAtS)} · ${plural(message.receives ?? 0, "receive")} · ${bytes(message.bytes)}`,
                ),
                h("pre", { tabindex: 0 }, message.body),
              ),
            )
          : h("p", { class: "empty" }, "No message.")
        : null,
    ),
    moves.length
      ? section(
          "Moves of messages",
          { "data-key": "moves" },
          table(
            [
              ["Started", (one) => clock(one.StartedTimestamp), "nowrap"],
              ["Status", (one) => state(one.Status)],
              ["Moved", (one) => number(one.ApproximateNumberOfMessagesMoved), "right"],
              ["", (one) => one.FailureReason, "wide"],
            ],
            moves,
            { label: "Moves" },
          ),
        )
      : null,
    section(
      "Settings",
      { "data-key": "facts" },
      facts([
        ["Visibility timeout", `${found.VisibilityTimeout} s`],
        ["Kept", duration(Number(found.MessageRetentionPeriod))],
        ["Dead letters go to", deadLetters(found)],
        ["Receives before that", found.RedrivePolicy ? JSON.parse(found.RedrivePolicy).maxReceiveCount : null],
        [
          "Dead letters of",
          sources.length ? sources.map((one) => [h("a", { href: link("queues", last(one)) }, last(one)), " "]) : null,
        ],
        ["FIFO", found.FifoQueue],
        ["Created", clock(Number(found.CreatedTimestamp))],
      ]),
    ),
  ];

  const actions = (found, sources) => [
    action("Send …", {
      title: `Send a message to ${name}`,
      fields: [
        { name: "body", label: "Body", type: "textarea", required: true },
        ...(found.FifoQueue ? [{ name: "group", label: "Message group", value: "console", required: true }] : []),
      ],
      command: ({ body, group }) =>
        awsCommand("sqs", "SendMessage", {
          QueueUrl: found.url,
          MessageBody: body || "TEXT",
          ...(group ? { MessageGroupId: group } : {}),
        }),
      run: async ({ body, group }) => {
        await call("sqs", "SendMessage", {
          QueueUrl: found.url,
          MessageBody: body,
          ...(group ? { MessageGroupId: group, MessageDeduplicationId: crypto.randomUUID() } : {}),
        });
        return "Sent.";
      },
    }),
    sources.length
      ? action("Redrive", {
          main: true,
          title: `Move the messages of ${name} back?`,
          question: `They go back to ${sources.map(last).join(", ")}, from which they came.`,
          command: () => awsCommand("sqs", "StartMessageMoveTask", { SourceArn: found.QueueArn }),
          run: async () => {
            await call("sqs", "StartMessageMoveTask", { SourceArn: found.QueueArn });
            return "The messages move back.";
          },
        })
      : null,
    action("Purge", {
      danger: true,
      title: `Delete all messages of ${name}?`,
      question: `${plural(messagesOf(found), "message")} would be lost.`,
      command: () => awsCommand("sqs", "PurgeQueue", { QueueUrl: found.url }),
      run: async () => {
        await call("sqs", "PurgeQueue", { QueueUrl: found.url });
        return `${name} is empty.`;
      },
    }),
    action("Delete", {
      danger: true,
      title: `Delete the queue ${name}?`,
      question: "Its messages are lost.",
      command: () => awsCommand("sqs", "DeleteQueue", { QueueUrl: found.url }),
      run: async () => {
        await call("sqs", "DeleteQueue", { QueueUrl: found.url });
        go("queues");
        return `${name} is deleted.`;
      },
    }),
  ];
  return page;
}
