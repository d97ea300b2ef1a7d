// Elements of the page. Text always becomes a text node, so no name, tag or log line can become markup.

import { ago, clock, seconds } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";

// h("a", {class: "x", href: "#/", onclick: f, style: {width: "10px"}}, "text", child, [children])
export function h(tag, attributes, ...children) {
  return build(document.createElement(tag), attributes, children);
}

export function s(tag, attributes, ...children) {
  return build(document.createElementNS(SVG, tag), attributes, children);
}

function build(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) {
      element[name] = value;
      (element.handlers ??= []).push(name);
    } else if (name === "style") Object.assign(element.style, value);
    else if (name === "mount") element.mount = value;
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) append(element, child);
    else element.append(child instanceof Node ? child : String(child));
  }
}

// Give `parent` the children `fresh`, and keep the elements that it has where they are alike: the focus, the selection, the scroll
// position and open details stay. Elements with `data-key` are matched by it; an element with `data-keep` manages its own children.
export function update(parent, fresh) {
  if (
    fresh.length === 1 &&
    fresh[0].nodeType === Node.TEXT_NODE &&
    parent.firstChild?.nodeType === Node.TEXT_NODE &&
    !parent.firstChild.nextSibling
  ) {
    change(parent.firstChild, fresh[0]);
    return;
  }
  const keyed = new Map();
  for (const child of parent.children) if (child.dataset.key) keyed.set(child.dataset.key, child);
  let at = parent.firstChild;
  for (const node of fresh) {
    const key = node.dataset?.key;
    const old = key ? keyed.get(key) : at;
    if (old && alike(old, node)) {
      if (old === at) at = at.nextSibling;
      else parent.insertBefore(old, at);
      change(old, node);
    } else {
      parent.insertBefore(node, at);
      mounted(node);
    }
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

// A part of a page that is built only if something that it shows has changed: `values` are compared with those of the last time.
// `memory` belongs to the page.
export function cached(memory, key, values, build) {
  const before = memory.get(key);
  if (before?.element.isConnected && values.every((value, at) => value === before.values[at])) {
    const same = document.createElement(before.element.tagName);
    same.dataset.key = key;
    same.unchanged = true;
    return same;
  }
  const element = build();
  element.dataset.key = key;
  element.remembered = (shown) => memory.set(key, { values, element: shown });
  return element;
}

function alike(old, node) {
  return (
    old.nodeType === node.nodeType &&
    old.nodeName === node.nodeName &&
    old.dataset?.key === node.dataset?.key &&
    old.dataset?.keep === node.dataset?.keep
  );
}

function change(old, node) {
  if (node.unchanged) return;
  node.remembered?.(old);
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== node.data) old.data = node.data;
    return;
  }
  const isOwn = (name) => name === "open" && old.tagName === "DETAILS"; // the person opens and closes them
  for (const { name, value } of node.attributes) {
    if (isOwn(name) || old.getAttribute(name) === value) continue;
    if (name === "style") old.style.cssText = value; // the policy of the page forbids the attribute
    else old.setAttribute(name, value);
  }
  if (old.attributes.length > node.attributes.length) {
    for (const { name } of [...old.attributes]) if (!isOwn(name) && !node.hasAttribute(name)) old.removeAttribute(name);
  }
  for (const name of old.handlers ?? []) old[name] = null;
  for (const name of node.handlers ?? []) old[name] = node[name];
  old.handlers = node.handlers;
  if (old.type === "checkbox") old.checked = node.hasAttribute("checked");
  if (old.tagName === "SELECT" || old.tagName === "TEXTAREA" || old.dataset.keep) {
    if (old.tagName === "SELECT") {
      update(old, [...node.childNodes]);
      old.value = node.value;
    }
    return;
  }
  if (old.firstChild || node.firstChild) update(old, [...node.childNodes]);
}

function mounted(node) {
  if (node.nodeType !== Node.ELEMENT_NODE) return;
  node.mount?.(node);
  node.remembered?.(node);
  for (const child of node.children) mounted(child);
}

// A table: columns are [title, row => content, class]. `key` makes the row's identity. A long table gives a `memory` of its own, and the
// text of what a row shows: then only rows with another text are built again.
export function table(columns, rows, { key, label, empty = "Nothing here.", memory, text } = {}) {
  if (memory) {
    const keys = new Set(rows.map(key));
    for (const known of memory.keys()) if (!keys.has(known)) memory.delete(known);
  }
  if (!rows.length) return h("p", { class: "empty" }, empty);
  return h(
    "div",
    { class: "table", tabindex: 0, role: "region", "aria-label": label },
    h(
      "table",
      {},
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          columns.map(([title, , kind]) => h("th", { scope: "col", class: kind }, title)),
        ),
      ),
      h(
        "tbody",
        {},
        rows.map((row) => {
          const build = () =>
            h(
              "tr",
              { "data-key": key?.(row) },
              columns.map(([title, content, kind]) => h("td", { class: kind, "data-title": title }, content(row))),
            );
          return memory ? cached(memory, key(row), [text(row)], build) : build();
        }),
      ),
    ),
  );
}

// Rows of a term and its value. Values that are missing are left out.
export function facts(pairs) {
  return h(
    "dl",
    { class: "facts" },
    pairs
      .filter(([, value]) => value !== null && value !== undefined && value !== "")
      .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
  );
}

export function section(title, attributes, ...children) {
  return h("section", { "aria-label": title, ...attributes }, h("h2", {}, title), ...children);
}

const TONES = {
  good: ["RUNNING", "SUCCEEDED", "ACTIVE", "OK", "UP", "InService", "Successful", "VALID", "COMPLETED", "ENABLED", "HEALTHY"],
  wait: [
    "WAITING",
    "PENDING",
    "RUNNABLE",
    "SUBMITTED",
    "STARTING",
    "PROVISIONING",
    "ACTIVATING",
    "DRAINING",
    "STOPPING",
    "HELD",
    "PAUSING",
    "PAUSED",
    "RESUMING",
    "IN_PROGRESS",
    "InProgress",
    "Pending",
    "DEPROVISIONING",
    "DEACTIVATING",
    "INSUFFICIENT_DATA",
    "SILENT",
  ],
  bad: ["FAILED", "ALARM", "LOST", "REVOKED", "Failed", "ERROR", "UNHEALTHY", "INVALID"],
};

// A state is a coloured mark and its word, so that it can be read without the colour.
export function state(word, text) {
  if (!word) return "";
  let tone = Object.keys(TONES).find((name) => TONES[name].includes(word));
  if (!tone && /FAILED|ROLLBACK/.test(word)) tone = "bad";
  if (!tone && /IN_PROGRESS/.test(word)) tone = "wait";
  if (!tone && /COMPLETE/.test(word)) tone = "good";
  return h("span", { class: `state ${tone ?? "plain"}` }, text ?? word);
}

// A reason with links instead of the ids of tasks in it.
export function reason(text, href) {
  return (text ?? "")
    .split(/\b([0-9a-f]{32})\b/)
    .map((part, at) => (at % 2 ? h("a", { href: href(part), title: part }, part.slice(0, 8)) : part));
}

// How long ago a time is. `renewAges` keeps the text right without drawing the page again.
export function age(time, before = "") {
  return h("span", { "data-since": seconds(time), "data-before": before, title: clock(time) }, before + ago(time));
}

export function renewAges(element) {
  for (const span of element.querySelectorAll("[data-since]")) {
    const text = span.dataset.before + ago(Number(span.dataset.since));
    if (span.textContent !== text) span.firstChild.data = text;
  }
}

export function meter(share, label) {
  const percent = Math.max(0, Math.min(100, share * 100));
  return h("span", { class: "meter", role: "img", "aria-label": label }, h("span", { style: { width: `${percent.toFixed(1)}%` } }));
}
