// The frame: session, navigation, and the page that is shown. A page is an object with
//   title, parts: {part: {name, topics: [...], every: milliseconds, load: async () => data}}, draw(data) => nodes, optionally close().
// When something of a part's topics changes, the part alone is loaded again, and the page is drawn with what all parts have loaded.

import { Changes, isDenied, isThrottled, onChangedSession, recordCalls, session } from "./api.js";
import { awsCommand, commandBox } from "./commands.js";
import { cached, h, renewAges, update } from "./dom.js";
import { inFrame } from "./frames.js";
import * as batch from "./batch.js";
import * as buckets from "./buckets.js";
import * as cost from "./cost.js";
import * as groups from "./groups.js";
import * as logs from "./logs.js";
import * as metrics from "./metrics.js";
import * as overview from "./overview.js";
import * as queues from "./queues.js";
import * as services from "./services.js";
import * as stacks from "./stacks.js";
import * as task from "./task.js";
import * as tasks from "./tasks.js";

const PAGES = [
  ["", "Overview", overview.overview],
  ["tasks", "Tasks", tasks.tasks],
  ["batch", "Batch", batch.queues],
  ["services", "Services", services.services],
  ["groups", "Groups", groups.groups],
  ["queues", "Queues", queues.queues],
  ["buckets", "Buckets", buckets.buckets],
  ["stacks", "Stacks", stacks.stacks],
  ["metrics", "Metrics", metrics.metrics],
  ["logs", "Logs", logs.groups],
  ["cost", "Cost", cost.cost],
];
// Pages inside these: #/tasks/CLUSTER/ID is `task` of task.js.
const INNER = {
  tasks: task.task,
  batch: batch.inside,
  services: services.service,
  groups: groups.group,
  queues: queues.queue,
  buckets: buckets.bucket,
  stacks: stacks.stack,
  metrics: metrics.metric,
  logs: logs.log,
};

const LOADING = "Loading …"; // what pages show instead of a part that has not been loaded
const EVERY_MS = 250; // a part is loaded again at most so often; `every` of a part overrides it
const REST = 4; // times as long as a load took, so that a part of many calls, as one for each of 100 queues, keeps the server free
const COMMANDS = 20; // of a page
const DENIED_MS = 60_000; // each denied call is in the audit

const main = document.getElementById("main");
const connection = document.getElementById("connection");
let close = () => {};

export function go(...parts) {
  location.hash = link(...parts);
}

export function link(...parts) {
  return `#/${parts.map(encodeURIComponent).join("/")}`;
}

const CODE = /^#([A-Za-z0-9_-]{8,})$/; // the address of a link

// The person may open a new link in this tab, or in another one with another identity.
window.addEventListener("hashchange", () => (CODE.test(location.hash) ? location.reload() : started && show()));
onChangedSession(() => location.reload());

let started = false;

async function start() {
  recordCalls((service, operation, input) => {
    if (calls?.size < COMMANDS) calls.set(`${service} ${operation} ${JSON.stringify(input)}`, [service, operation, input]);
  });
  const code = CODE.exec(location.hash);
  if (code) {
    history.replaceState(null, "", "/");
    try {
      await session.redeem(code[1]);
    } catch (error) {
      if (!session.secret) return ended(error.message); // else the link was opened again, and its session continues
    }
  }
  if (!session.secret) return ended("");
  for (;;) {
    try {
      await session.load();
      break;
    } catch (error) {
      if (error.status) return ended(error.message);
      connected(false);
      await new Promise((resolve) => setTimeout(resolve, 500));
    }
  }
  const { identity, region } = session.about;
  update(document.getElementById("identity"), [
    h("span", { class: "who" }, `${identity.name} · ${region}`),
    h("button", { type: "button", class: "quiet", onclick: logout }, "Log out"),
  ]);
  started = true;
  document.querySelector(".skip").onclick = (event) => {
    event.preventDefault(); // the address names the page
    main.focus();
  };
  show();
}

async function logout() {
  await session.end().catch(() => {});
  ended("You are logged out.");
}

function ended(reason) {
  close();
  started = false;
  document.title = "Corral";
  update(document.getElementById("identity"), []);
  update(document.getElementById("pages"), []);
  update(connection, []);
  update(main, [
    h(
      "div",
      { class: "ended", "data-key": "ended" },
      h("h1", {}, "Open the console with a new link"),
      reason ? h("p", {}, reason) : null,
      h("p", {}, "A link works once, for five minutes. This command prints one:"),
      commandBox("corral console"),
    ),
  ]);
}

function connected(yes, error) {
  if (error?.status === 401) return ended(error.message);
  connection.className = yes ? "live" : "lost";
  const text = yes ? "live" : "Corral does not answer. Connecting …";
  if (connection.textContent !== text) connection.textContent = text;
}

let calls = null; // the first calls that the page has made: shown as commands at its end

function show() {
  close();
  close = () => {};
  const [name = "", ...params] = location.hash.replace(/^#\/?/, "").split("/").map(decoded);
  const entry = PAGES.find(([path]) => path === name) ?? PAGES[0];
  drawPages(entry[0]);
  document.querySelector("dialog[open]")?.close();
  const page = (params.length && INNER[entry[0]]) || entry[2];
  calls = new Map();
  const view = open(page(...params));
  close = view.close;
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // a person has typed a percent sign
  }
}

function drawPages(current) {
  update(document.getElementById("pages"), [
    h(
      "ul",
      {},
      PAGES.map(([path, title]) =>
        h("li", {}, h("a", { href: `#/${path}`, "aria-current": path === current ? "page" : null }, title)),
      ),
    ),
  ]);
  document.querySelector("#pages [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" }); // on a phone
}

// Show a page, load its parts, and keep it current.
function open(page) {
  const data = {},
    errors = {};
  const memory = new Map(); // of `cached`
  const stale = new Set(Object.keys(page.parts));
  const settled = new Set(); // the parts that have been loaded, or cannot be
  const busy = new Set(); // the parts that are being loaded
  const due = {}; // the time before which a part is not loaded again
  let over = false,
    timer = 0,
    first = true;

  const draw = () => inFrame(drawNow); // several changes of one moment are drawn once
  const drawNow = () => {
    if (over) return;
    document.title = `${page.title} · Corral`;
    const failed = Object.entries(errors).filter(([, error]) => error && !isDenied(error));
    const denied = Object.entries(errors).filter(([, error]) => error && isDenied(error));
    const fresh = [
      denied.length
        ? h(
            "p",
            { class: "note denied", "data-key": "denied" },
            "Your policies do not allow you to see: ",
            denied.map(([part]) => page.parts[part].name ?? part).join(", "),
            ". ",
            denied[0][1].message,
          )
        : null,
      ...[...new Set(failed.map(([, error]) => `${error.code}: ${error.message}`))].map((problem) =>
        h("p", { class: "problem", role: "alert", "data-key": `problem-${problem}` }, problem),
      ),
      ...page.draw(data).flat(9).filter(Boolean),
      calls.size ? cached(memory, "commands", [calls.size], asCommands) : null,
    ].filter(Boolean);
    if ((denied.length || failed.length) && Object.keys(page.parts).every((part) => settled.has(part))) {
      for (const empty of fresh.flatMap((node) => [...(node.querySelectorAll?.(".empty") ?? []), node]))
        if (empty.textContent === LOADING) empty.textContent = "Not available.";
    }
    const hadFocus = main.contains(document.activeElement);
    update(main, [h("div", { class: "page", "data-key": location.hash }, fresh)]);
    if (first) {
      first = false;
      scrollTo(0, 0);
      if (hadFocus && !main.contains(document.activeElement)) main.focus({ preventScroll: true }); // a link was followed
    }
  };

  const every = (part) => (errors[part] && isDenied(errors[part]) ? DENIED_MS : (page.parts[part].every ?? EVERY_MS));

  // Load a part. The others need not wait for it.
  const load = async (part) => {
    const begin = performance.now();
    let again = false; // soon, because the server does not answer, or has refused for a moment
    busy.add(part);
    stale.delete(part);
    try {
      data[part] = await page.parts[part].load(data);
      errors[part] = null;
      settled.add(part);
    } catch (error) {
      if (over) return;
      if (error.status === 401) return connected(false, error);
      if (error.status === 0 || error.status >= 502 || isThrottled(error)) {
        again = true;
        stale.add(part);
      } else {
        if (error.status === undefined) console.error(error);
        errors[part] = error.status === undefined ? { code: "The page failed", message: error.message } : error;
        settled.add(part);
      }
    } finally {
      busy.delete(part);
      const now = performance.now(),
        took = now - begin;
      due[part] = again ? now + Math.max(150, Math.min(3000, 2 * took)) : Math.max(begin + every(part), now + REST * took);
      draw();
      if (stale.size) later(0);
    }
  };

  const loadDue = () => {
    const now = performance.now();
    const waiting = over ? [] : [...stale].filter((part) => !busy.has(part));
    for (const part of waiting) if ((due[part] ?? 0) <= now) load(part);
    const next = Math.min(...waiting.map((part) => (stale.has(part) ? due[part] : Infinity)));
    if (next < Infinity) later(next - now);
  };

  const later = (pause) => {
    clearTimeout(timer);
    timer = setTimeout(loadDue, pause);
  };

  const changed = (topics) => {
    for (const [part, { topics: own = [] }] of Object.entries(page.parts)) {
      if (own.some((topic) => topics.includes(topic))) stale.add(part);
    }
    page.changed?.(topics);
    later(settled.size ? 20 : 0); // several changes of one moment are loaded once; the first event names all topics
  };

  const changes = new Changes(changed, (yes, error) => {
    connected(yes, error);
    if (yes && stale.size) later(20); // what could not be loaded while Corral did not answer
  });
  let topics = "";
  const listen = () => {
    const wanted = [...new Set([...Object.values(page.parts).flatMap((part) => part.topics ?? []), ...(page.topics ?? [])])];
    if (!wanted.length) wanted.push("hosts"); // the stream also shows whether Corral answers
    if (document.hidden)
      changes.stop(); // a browser has few connections: a hidden page needs none
    else if (wanted.join() !== topics) changes.follow(wanted);
    topics = document.hidden ? "" : wanted.join();
  };
  document.addEventListener("visibilitychange", listen);
  const aged = setInterval(() => document.hidden || (renewAges(main), draw()), 10_000); // "3 min ago" grows older without an event
  page.view = {
    draw,
    listen,
    reload: (...parts) =>
      Promise.all(
        parts.map((part) => {
          delete due[part];
          if (!busy.has(part)) return load(part);
          stale.add(part); // what is being loaded may be older than the reason to load it
          return null;
        }),
      ),
  };
  listen(); // the first load begins when changes are followed, so that none is missed
  drawNow();
  later(1000);
  return {
    close() {
      over = true;
      changes.stop();
      document.removeEventListener("visibilitychange", listen);
      clearTimeout(timer);
      clearInterval(aged);
      page.close?.();
    },
  };
}

function asCommands() {
  return h(
    "details",
    { class: "commands" },
    h("summary", {}, "This page as commands"),
    [...calls.values()].map((one) => commandBox(awsCommand(...one))),
  );
}

start();
