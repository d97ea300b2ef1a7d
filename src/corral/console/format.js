// Numbers, times and names as text.

export const short = (id) => (id ?? "").slice(0, 8);
export const last = (arn) => (arn ?? "").split("/").pop();
export const names = (arns) => (arns ?? []).map(last);

export function seconds(time) {
  // an ISO time, or a number of seconds or milliseconds since 1970
  if (time === null || time === undefined || time === "") return null;
  if (typeof time === "number") return time > 1e11 ? time / 1000 : time;
  return Date.parse(time) / 1000;
}

// Making a format takes longer than using it: each is made once, when it is first needed.
let days, times;
const numbers = []; // by the number of digits

export function clock(time) {
  const at = seconds(time);
  if (at === null) return "";
  const date = new Date(at * 1000);
  const today = new Date().toDateString() === date.toDateString();
  days ??= new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" });
  times ??= new Intl.DateTimeFormat(undefined, { hour12: false, hour: "numeric", minute: "numeric", second: "numeric" });
  return (today ? "" : `${days.format(date)} `) + times.format(date);
}

export function duration(length) {
  if (length === null || length === undefined || Number.isNaN(length)) return "";
  const all = Math.max(0, length);
  if (all < 1) return `${Math.round(all * 1000)} ms`;
  if (all < 60) return `${Math.floor(all)} s`;
  if (all < 3600) return `${Math.floor(all / 60)} min`;
  if (all < 86400) return `${Math.floor(all / 3600)} h ${Math.floor((all % 3600) / 60)} min`;
  return `${Math.floor(all / 86400)} d ${Math.floor((all % 86400) / 3600)} h`;
}

export function ago(time) {
  const at = seconds(time);
  return at === null ? "" : `${duration(Date.now() / 1000 - at)} ago`;
}

export function until(time) {
  const at = seconds(time);
  if (at === null) return "";
  const left = at - Date.now() / 1000;
  return left > 0 ? `in ${duration(left)}` : "soon";
}

export function bytes(count) {
  let size = Number(count ?? 0);
  for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
    if (size < 1024 || unit === "TiB") return `${unit === "B" ? size : size.toFixed(1)} ${unit}`;
    size /= 1024;
  }
  return "";
}

export const mib = (count) =>
  count >= 10240 ? `${Math.round(count / 1024)} GiB` : count >= 1024 ? `${(count / 1024).toFixed(1)} GiB` : `${count} MiB`;
export const number = (value, digits = 0) =>
  (numbers[digits] ??= new Intl.NumberFormat(undefined, { maximumFractionDigits: digits })).format(Number(value ?? 0));
export const percent = (value) => (value === null || value === undefined ? "–" : `${Math.round(value)}%`);
export const plural = (count, word, many) => `${number(count)} ${count === 1 ? word : (many ?? `${word}s`)}`;

// The name of a task or a run, with its index in an array; of another claim, what it is.
export function label(row) {
  const indexed = row.arrayIndex !== null && row.arrayIndex !== undefined;
  const name = row.taskName || row.name || short(row.task) || (row.job ? `jobs of ${row.jobQueue}` : row.instance);
  return indexed ? `${name}:${row.arrayIndex}` : name;
}
