// A log of any length. Only the lines in sight are elements; colours and progress bars are those of a terminal.

import { call } from "./api.js";
import { h, update } from "./dom.js";
import { clock, number } from "./format.js";

const ROW = 18; // pixels, as in style.css
const AROUND = 30; // rows above and below those in sight
const LINES_MAX = 500_000;
const CODE = /\x1b\[([0-9;]*)m/g;
const OTHER = /\x1b\[[0-9;?]*[A-Za-ln-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()][A-Z0-9]|[\x00-\x08\x0b\x0c\x0e-\x1a]/g;

export class LogView {
  // `source` is {group, stream}. `draw()` and `refresh()` are called by the page.
  constructor(source, element) {
    this.source = source;
    this.lines = []; // {time, text}: what the terminal would show
    this.token = null;
    this.followed = true;
    this.found = [];
    this.current = -1;
    this.only = false;
    this.build(element);
    this.refresh();
  }

  build(element) {
    const find = h("input", {
      type: "search",
      placeholder: "Search",
      "aria-label": "Search in the log",
      oninput: () => this.search(find.value),
      onkeydown: (event) => event.key === "Enter" && (event.preventDefault(), this.step(event.shiftKey ? -1 : 1)),
    });
    this.find = find;
    this.count = h("output", { "aria-live": "polite" });
    this.follower = h("input", {
      type: "checkbox",
      checked: true,
      onchange: (event) => {
        this.followed = event.target.checked;
        this.place();
      },
    });
    this.times = h("input", { type: "checkbox", onchange: () => this.rows() });
    const only = h("input", {
      type: "checkbox",
      onchange: (event) => {
        this.only = event.target.checked;
        this.search(find.value);
      },
    });
    this.inner = h("div", {});
    this.box = h(
      "div",
      { class: "lines", tabindex: 0, role: "region", "aria-label": "Lines of the log", onscroll: () => this.scrolled() },
      this.inner,
    );
    element.replaceChildren(
      h(
        "div",
        { class: "log-bar" },
        find,
        h("button", { type: "button", "aria-label": "Previous match", onclick: () => this.step(-1) }, "↑"),
        h("button", { type: "button", "aria-label": "Next match", onclick: () => this.step(1) }, "↓"),
        h("label", {}, only, "only matches"),
        h("label", {}, this.times, "times"),
        h("label", {}, this.follower, "follow"),
        h("button", { type: "button", onclick: () => this.save() }, "Save"),
        this.count,
      ),
      this.box,
    );
    this.resized = new ResizeObserver(() => this.place());
    this.resized.observe(this.box);
  }

  close() {
    this.closed = true;
    this.resized.disconnect();
  }

  // Read what is new. Calls that come meanwhile are one more read.
  async refresh() {
    if (this.reading) {
      this.again = true;
      return;
    }
    this.reading = true;
    try {
      do {
        this.again = false;
        await this.read();
      } while (this.again && !this.closed);
      if (this.lines.length) this.problem = "";
    } catch (error) {
      this.problem = error.status ? error.message : "";
      if (error.status === undefined && error.name !== "AbortError") console.error(error);
    } finally {
      this.reading = false;
      this.status();
    }
  }

  async read() {
    const { group, stream } = this.source;
    if (!this.token) {
      const { logs } = await call("corral", "DescribeLogStates", { group, streams: [stream] });
      this.problem = "No output yet.";
      if (typeof logs[0]?.unstoredBytes !== "number") return; // the stream does not exist yet
    }
    for (;;) {
      const page = await call("logs", "GetLogEvents", {
        logGroupName: group,
        logStreamName: stream,
        startFromHead: true,
        ...(this.token ? { nextToken: this.token } : {}),
      });
      if (this.closed) return;
      const events = page.events ?? [];
      for (const event of events) this.add(event);
      const over = page.nextForwardToken === this.token;
      this.token = page.nextForwardToken;
      if (events.length) this.grown();
      if (over || !events.length) return;
    }
  }

  // A message that begins with \r is a progress bar, and the next message is drawn over it.
  add({ timestamp, message }) {
    const bar = message.startsWith("\r");
    for (const part of message
      .replace(/^\r/, "")
      .replace(/\r?\n$/, "")
      .split("\n")) {
      const line = { time: timestamp, text: part.includes("\r") ? overwrite(part) : part };
      if (this.bar && this.lines.length) this.lines[this.lines.length - 1] = line;
      else this.lines.push(line);
      this.bar = bar;
    }
    if (this.lines.length > LINES_MAX) this.lines.splice(0, LINES_MAX / 10);
  }

  grown() {
    if (this.find.value) this.search(this.find.value, false);
    else this.place();
    this.status();
  }

  get shown() {
    return this.only && this.find.value ? this.found : null; // indexes of lines; null: all
  }

  place() {
    const count = this.shown ? this.shown.length : this.lines.length;
    this.inner.style.height = `${Math.max(1, count) * ROW}px`;
    if (this.followed) this.scrollTo(this.box.scrollHeight);
    this.rows();
  }

  // Only a change of the position has an event, which `scrolled` must not take for one of the person.
  scrollTo(top) {
    const before = this.box.scrollTop;
    this.box.scrollTop = top;
    this.own = this.box.scrollTop !== before;
  }

  scrolled() {
    const end = this.box.scrollHeight - this.box.clientHeight - this.box.scrollTop < ROW * 2;
    if (!this.own || end) {
      this.followed = end;
      this.follower.checked = end;
    }
    this.own = false;
    if (!this.waiting)
      this.waiting = requestAnimationFrame(() => {
        this.waiting = 0;
        this.rows();
      });
  }

  rows() {
    const shown = this.shown;
    const count = shown ? shown.length : this.lines.length;
    const first = Math.max(0, Math.floor(this.box.scrollTop / ROW) - AROUND);
    const end = Math.min(count, Math.ceil((this.box.scrollTop + this.box.clientHeight) / ROW) + AROUND);
    const rows = [];
    const word = this.find.value.toLowerCase();
    for (let at = first; at < end; at++) {
      const index = shown ? shown[at] : at;
      const line = this.lines[index];
      if (!line) continue;
      rows.push(
        h(
          "div",
          {
            class: index === this.found[this.current] ? "row current" : "row",
            "data-key": String(index),
            style: { top: `${at * ROW}px` },
          },
          this.times.checked ? h("time", {}, clock(line.time)) : null,
          coloured(line.text, word),
        ),
      );
    }
    update(this.inner, rows); // rows that stay keep the selection of the person
  }

  search(word, jump = true) {
    const wanted = word.toLowerCase();
    this.found = [];
    if (wanted)
      this.lines.forEach((line, index) => {
        if (plain(line).includes(wanted)) this.found.push(index);
      });
    if (jump) {
      this.current = -1;
      if (wanted) this.step(1);
    }
    this.place();
    this.status();
  }

  step(by) {
    if (!this.found.length) return;
    this.current = (this.current + by + this.found.length) % this.found.length;
    this.followed = this.follower.checked = false;
    const at = this.shown ? this.current : this.found[this.current];
    this.scrollTo(Math.max(0, at * ROW - this.box.clientHeight / 2));
    this.rows();
    this.status();
  }

  status() {
    const lines = `${number(this.lines.length)} line${this.lines.length === 1 ? "" : "s"}`;
    const text = this.find.value
      ? this.found.length
        ? `${this.current + 1} of ${number(this.found.length)} in ${lines}`
        : `no match in ${lines}`
      : this.problem || lines;
    if (this.count.textContent !== text) this.count.textContent = text;
  }

  save() {
    const url = URL.createObjectURL(
      new Blob(
        this.lines.map((line) => `${line.text.replace(CODE, "").replace(OTHER, "")}\n`),
        { type: "text/plain" },
      ),
    );
    h("a", { href: url, download: `${this.source.stream.replaceAll("/", "-")}.log` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
  }
}

function plain(line) {
  return (line.plain ??= line.text.replace(CODE, "").replace(OTHER, "").toLowerCase());
}

// What a terminal shows of a line with carriage returns: each part is written over the one before it.
export function overwrite(text) {
  let line = "";
  for (const part of text.split("\r")) {
    if (!part) continue;
    line = part.includes("\x1b") || part.length >= line.length ? part : part + line.slice(part.length);
  }
  return line;
}

// The nodes of a line with the colours of ANSI escape codes; matches of `word` are marked. All of it is text.
export function coloured(text, word) {
  const nodes = [];
  let style = {};
  let at = 0;
  const push = (part) => {
    const shown = part.replace(OTHER, "");
    if (!shown) return;
    const kinds = [
      style.bold && "bold",
      style.faint && "faint",
      style.italic && "italic",
      style.under && "under",
      style.colour !== undefined && `c${style.colour}`,
    ].filter(Boolean);
    const content = word ? marked(shown, word) : [shown];
    if (kinds.length) nodes.push(h("span", { class: kinds.join(" ") }, content));
    else nodes.push(...content);
  };
  for (const match of text.matchAll(CODE)) {
    push(text.slice(at, match.index));
    at = match.index + match[0].length;
    style = styled(style, match[1]);
  }
  push(text.slice(at));
  return nodes;
}

function marked(text, word) {
  const parts = [];
  const lower = text.toLowerCase();
  let at = 0;
  for (let found = lower.indexOf(word); found >= 0; found = lower.indexOf(word, at)) {
    parts.push(text.slice(at, found), h("mark", {}, text.slice(found, found + word.length)));
    at = found + word.length;
  }
  return [...parts, text.slice(at)];
}

function styled(before, codes) {
  let style = { ...before };
  const numbers = codes.split(";").map(Number);
  for (let at = 0; at < numbers.length; at++) {
    const code = numbers[at];
    if (code === 0) style = {};
    else if (code === 1) style.bold = true;
    else if (code === 2) style.faint = true;
    else if (code === 3) style.italic = true;
    else if (code === 4) style.under = true;
    else if (code === 22) style.bold = style.faint = false;
    else if (code >= 30 && code <= 37) style.colour = code - 30;
    else if (code >= 90 && code <= 97) style.colour = code - 90;
    else if (code === 39) delete style.colour;
    else if (code === 38 || code === 48) {
      if (numbers[at + 1] === 5 && code === 38 && numbers[at + 2] < 16) style.colour = numbers[at + 2] % 8;
      at += numbers[at + 1] === 5 ? 2 : 4;
    }
  }
  return style;
}
