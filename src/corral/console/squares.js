// The GPUs of many hosts as small squares. An update changes what differs, some hosts in each frame.

import { link } from "./app.js";
import { h, state, update } from "./dom.js";
import { label, mib, percent } from "./format.js";
import { inFrame } from "./frames.js";

const CHANGES = 200; // of squares in a frame, because the browser lays out and paints what has changed

export class Squares {
  #hosts = new Map(); // the id of a host → {element, head, about, squares}
  #wanted = [];
  #at = 0;

  // Show the GPUs in this element, which has no other content.
  mount(element) {
    this.element = element;
    this.#hosts.clear();
    // A title repeats the label for people with a mouse. It is set only when it is needed.
    element.onpointerover = ({ target }) => {
      if (target.ariaLabel) target.title = target.ariaLabel;
    };
    this.#at = 0;
    this.#draw(Infinity); // each frame more would be another layout
  }

  show(hosts) {
    this.#wanted = hosts;
    this.#at = 0;
    inFrame(this.#step);
  }

  #step = () => {
    if (this.element?.isConnected) this.#draw(CHANGES);
  };

  #draw(most) {
    for (let changes = 0; this.#at < this.#wanted.length && changes < most; this.#at++)
      changes += this.#drawHost(this.#wanted[this.#at], this.#at);
    if (this.#at < this.#wanted.length) return inFrame(this.#step);
    const ids = new Set(this.#wanted.map(({ id }) => id));
    for (const [id, { element }] of this.#hosts) {
      if (ids.has(id)) continue;
      element.remove();
      this.#hosts.delete(id);
    }
  }

  // Return how many squares have changed.
  #drawHost(host, at) {
    let known = this.#hosts.get(host.id);
    if (!known) {
      const head = h("div", { class: "host-head" });
      const list = h("ul", { class: "gpus many", "aria-label": `GPUs of ${host.name}` });
      known = { element: h("div", { class: "host" }, head, list), head, list, about: "", squares: new Map() };
      this.#hosts.set(host.id, known);
    }
    if (this.element.children[at] !== known.element) this.element.insertBefore(known.element, this.element.children[at] ?? null);
    const about = [host.name, host.state, host.rack, host.reason, host.gpus.length].join("\n");
    if (about !== known.about) {
      known.about = about;
      update(known.head, [
        h("h3", {}, host.name),
        state(host.state),
        ...(host.rack ? [h("span", { class: "dim" }, `rack ${host.rack}`)] : []),
        ...(host.reason ? [h("p", {}, host.reason)] : []),
        ...(host.gpus.length ? [] : [h("p", {}, "This host has no GPU.")]),
      ]);
      const ids = new Set(host.gpus.map(({ id }) => id));
      for (const [id, square] of known.squares) {
        if (ids.has(id)) continue;
        square.parentElement.remove();
        known.squares.delete(id);
      }
    }
    return host.gpus.filter((gpu) => drawSquare(known, host, gpu)).length;
  }
}

// Return whether the square has changed.
function drawSquare({ list, squares }, host, gpu) {
  let square = squares.get(gpu.id);
  if (!square) {
    square = h("a", {});
    square.append("");
    squares.set(gpu.id, square);
    list.append(h("li", {}, square));
  }
  const tasks = gpu.sharedBy?.length ? gpu.sharedBy : gpu.task ? [gpu] : [];
  const holder = gpu.fault || gpu.held || tasks.map(label).join(", ") || gpu.instance || "free";
  const used = `${mib(gpu.memoryUsedMiB ?? 0)} of ${mib(gpu.memoryMiB)}`;
  const about = [`GPU ${gpu.index}: ${percent(gpu.utilizationPercent)}`, holder, used, heat(gpu)].filter(Boolean).join(", ");
  if (square.about === about && square.task === gpu.task) return false;
  const href = gpu.task
    ? link("tasks", gpu.cluster || host.cluster || "-", gpu.task)
    : gpu.instance
      ? link("groups", "instance", gpu.instance)
      : null;
  Object.assign(square, { about, task: gpu.task, ariaLabel: about });
  const text = String(Math.round(gpu.utilizationPercent ?? 0));
  if (square.firstChild.data !== text) square.firstChild.data = text;
  const kind = kindOf(gpu);
  if (square.className !== kind) square.className = kind;
  if (square.getAttribute("href") !== href) {
    if (href) square.setAttribute("href", href);
    else square.removeAttribute("href");
  }
  const role = href ? null : "img";
  if (square.role !== role) square.role = role;
  return true;
}

// The temperature and the power of a GPU, as far as they are known.
export function heat(gpu) {
  const parts = [
    gpu.temperatureC === null || gpu.temperatureC === undefined ? null : `${Math.round(gpu.temperatureC)} °C`,
    gpu.powerW ? `${Math.round(gpu.powerW)} W` : null,
  ];
  return parts.filter(Boolean).join(" · ");
}

export function kindOf(gpu) {
  if (gpu.fault) return "sick";
  if (gpu.task || gpu.instance) return "held";
  if (gpu.held || gpu.excluded || gpu.reservedFor || gpu.foreign?.length) return "kept";
  return "free";
}
