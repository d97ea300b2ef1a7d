// Calls of the server, its stream of changes, and the session.

const KEY = "corral-console";

export class Failure extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export const isThrottled = (error) => error.status === 429 || /Throttl/.test(error.code);
export const isDenied = (error) => error.status === 403 || /AccessDenied|Unauthorized/.test(error.code);

export const session = {
  about: null,
  get secret() {
    return localStorage.getItem(KEY);
  },
  async redeem(code) {
    const response = await send("POST", "/session", JSON.stringify({ code }), { "Content-Type": "application/json" });
    const { secret } = await response.json();
    localStorage.setItem(KEY, secret);
  },
  async load() {
    session.about = await (await send("GET", "/session")).json();
  },
  async end() {
    await send("DELETE", "/session");
    localStorage.removeItem(KEY);
  },
};

// Another tab of this browser has begun or ended a session: this tab must not go on with another identity than it shows.
export function onChangedSession(changed) {
  window.addEventListener("storage", ({ key }) => (key === KEY || key === null) && changed());
}

// An answer that is not 2xx is a Failure. If the server does not answer, its status is 0.
export async function send(method, path, body, headers = {}, signal) {
  let response;
  try {
    response = await fetch(path, {
      method,
      body,
      signal,
      cache: "no-store",
      headers: { "X-Corral-Console": session.secret ?? "", ...headers },
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure(0, "NoAnswer", "Corral does not answer.");
  }
  if (response.ok) return response;
  let problem = {};
  try {
    problem = (await response.json()).error ?? {};
  } catch {
    /* the answer is no JSON: the status says enough */
  }
  throw new Failure(
    response.status,
    problem.code ?? `HTTP ${response.status}`,
    problem.message ?? `The answer is ${response.status}.`,
  );
}

// Call an operation as boto3 does: call("ecs", "ListTasks", {cluster: "default"}).
export async function call(service, operation, input = {}) {
  record?.(service, operation, input);
  const response = await send("POST", `/call/${service}/${operation}`, JSON.stringify(input), {
    "Content-Type": "application/json",
  });
  return response.json();
}

let record = null;
export function recordCalls(recorder) {
  record = recorder;
}

// Read all pages of a listing, at most `most` rows.
export async function all(service, operation, input, member, token = "nextToken", most = 1000) {
  const rows = [];
  let next;
  do {
    const page = await call(service, operation, next ? { ...input, [token]: next } : input);
    rows.push(...(page[member] ?? []));
    next = page[token === "Marker" ? "NextMarker" : token];
  } while (next && rows.length < most);
  return rows;
}

// Follow the changes of topics, and make the connection again until `stop()`. `changed(topics)` gets the topics of each event; the
// first event names all of them, unless `after` is the number of an event that the server knows. `connected(yes, error)` follows
// the connection.
export class Changes {
  after = null;

  constructor(changed, connected) {
    this.changed = changed;
    this.connected = connected;
  }

  follow(topics) {
    this.stop();
    this.control = new AbortController();
    this.#run(topics, this.control.signal);
  }

  stop() {
    this.control?.abort();
  }

  async #run(topics, signal) {
    for (let pause = 200; !signal.aborted; pause = Math.min(pause * 2, 3000)) {
      try {
        const response = await send(
          "POST",
          "/changes",
          JSON.stringify({ topics, after: this.after }),
          { "Content-Type": "application/json" },
          signal,
        );
        this.connected(true);
        pause = 100;
        for await (const event of events(response.body)) {
          if (event.id) this.after = Number(event.id);
          if (event.data) this.changed(JSON.parse(event.data).topics);
        }
      } catch (error) {
        if (signal.aborted) return;
        if (error.status === 401) return void this.connected(false, error);
        if (error.status >= 400 && error.status < 500) console.error(error);
      }
      if (signal.aborted) return;
      this.connected(false);
      await new Promise((resolve) => setTimeout(resolve, pause));
    }
  }
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const parts = text.split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const event = {};
      for (const line of part.split("\n")) {
        const colon = line.indexOf(":");
        if (colon > 0) event[line.slice(0, colon)] = line.slice(colon + 1).trim();
      }
      yield event;
    }
  }
}
