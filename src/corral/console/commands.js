// Commands of a shell that do the same as a call of the page.

import { h } from "./dom.js";

export function quote(text) {
  return /^[A-Za-z0-9_@%+=:,./-]+$/.test(text) ? text : `'${String(text).replaceAll("'", `'\\''`)}'`;
}

const kebab = (name) =>
  name
    .replace(/([a-z0-9])([A-Z])/g, "$1-$2")
    .replace(/([A-Z]+)([A-Z][a-z])/g, "$1-$2")
    .toLowerCase();

const SERVICES = { s3: "s3api" };

// `aws ecs run-task --task-definition train …`; Corral's own operations need `corral aws`, which knows their model.
export function awsCommand(service, operation, input = {}) {
  const words = [service === "corral" ? "corral aws corral" : `aws ${SERVICES[service] ?? service}`, kebab(operation)];
  for (const [name, value] of Object.entries(input)) {
    if (value === null || value === undefined) continue;
    const option = `--${kebab(name)}`;
    if (value === true) words.push(option);
    else if (value === false) words.push(option.replace("--", "--no-"));
    else if (Array.isArray(value) && value.every((each) => typeof each !== "object"))
      words.push(option, value.map((each) => quote(each)).join(" "));
    else words.push(option, quote(typeof value === "object" ? JSON.stringify(value) : String(value)));
  }
  return words.join(" ");
}

export function commandBox(command) {
  const copy = async (event) => {
    const button = event.currentTarget;
    try {
      await navigator.clipboard.writeText(command);
      button.textContent = "Copied";
    } catch {
      selectText(button.previousElementSibling); // the browser forbids to copy, for example on a page without TLS
      button.textContent = "Selected";
    }
    setTimeout(() => {
      button.textContent = "Copy";
    }, 1500);
  };
  return h(
    "div",
    { class: "command" },
    h("code", { tabindex: 0, role: "textbox", "aria-readonly": "true", "aria-label": "Command" }, command),
    h(
      "button",
      { type: "button", class: "quiet", onclick: copy, "aria-label": `Copy the command ${command.slice(0, 60)}` },
      "Copy",
    ),
  );
}

function selectText(element) {
  getSelection().selectAllChildren(element);
}
