// Actions: a button, a dialog with a plain question and the equivalent command, and a message about the result.

import { commandBox } from "./commands.js";
import { h, update } from "./dom.js";

let number = 0;

// A button that opens a dialog. `fields` are {name, label, type, value, hint, options, required, min, max, rows};
// `command(values)` is the shell command that does the same; `run(values)` does it, and returns the message that is then shown.
export function action(label, options) {
  return h(
    "button",
    {
      type: "button",
      class: options.danger ? "danger" : options.main ? "main" : null,
      onclick: () => ask(label, options),
      "aria-label": options.name,
    },
    label,
  );
}

export function ask(label, { title = label, question, fields = [], command, run, danger, wide }) {
  const id = `dialog-${++number}`;
  const values = Object.fromEntries(fields.map((field) => [field.name, field.value ?? (field.type === "checkbox" ? false : "")]));
  const box = h("div", { class: "same" });
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const confirm = h("button", { type: "submit", class: danger ? "danger" : "main" }, label.replace(/ ?…$/, ""));
  const cancel = h("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  const draw = () => {
    const text = command?.(values);
    update(box, text ? [h("p", {}, "The same on the command line:"), ...text.split("\n").map((line) => commandBox(line))] : []);
  };
  const submit = async (event) => {
    event.preventDefault();
    confirm.disabled = true;
    problem.hidden = true;
    try {
      const message = await run(values);
      dialog.close();
      if (message) say(message);
    } catch (error) {
      if (error.status === undefined) console.error(error);
      problem.textContent = error.message;
      problem.hidden = false;
      confirm.disabled = false;
    }
  };
  const input = (field) => (event) => {
    values[field.name] = field.type === "checkbox" ? event.target.checked : event.target.value;
    draw();
  };
  const dialog = h(
    "dialog",
    { "aria-labelledby": id, class: wide ? "wide" : null, onclose: () => dialog.remove() },
    h(
      "form",
      { onsubmit: submit },
      h("h2", { id }, title),
      question ? h("p", {}, question) : null,
      h(
        "div",
        { class: "fields" },
        fields.map((field) => fieldOf(field, input(field), `${id}-${field.name}`)),
      ),
      problem,
      box,
      h("div", { class: "buttons" }, cancel, confirm),
    ),
  );
  document.body.append(dialog);
  draw();
  dialog.showModal();
  (dialog.querySelector("input, textarea, select") ?? cancel).focus();
}

function fieldOf(field, oninput, id) {
  const { name, label, type = "text", hint, options, value, required, min, max, step, rows, placeholder, readonly } = field;
  const about = hint ? `${id}-hint` : null;
  const common = { id, name, oninput, required, "aria-describedby": about, placeholder, readonly };
  let control;
  if (options) {
    control = h(
      "select",
      common,
      options.map((option) => h("option", { value: option, selected: option === value }, option)),
    );
  } else if (type === "textarea") {
    control = h("textarea", { ...common, rows: rows ?? 3, spellcheck: "false" });
    control.value = value ?? "";
  } else {
    control = h("input", {
      ...common,
      type,
      min,
      max,
      step: step ?? (type === "number" ? "any" : null),
      autocomplete: "off",
      spellcheck: "false",
    });
    if (type === "checkbox") control.checked = Boolean(value);
    else control.value = value ?? "";
  }
  return h(
    "div",
    { class: `field ${type}` },
    h("label", { for: id }, label),
    control,
    hint ? h("small", { id: about }, hint) : null,
  );
}

// Show a message for some seconds.
export function say(text) {
  const message = h("p", {}, text);
  document.getElementById("messages").append(message);
  setTimeout(() => message.remove(), 6000);
}
