// Calls of the console: the visitor's token with each, and refusals as errors with their reason.

const TOKEN = "cronoq.token";

export const session = {
  get token() { return sessionStorage.getItem(TOKEN) ?? ""; },
  set token(value) {
    if (value) sessionStorage.setItem(TOKEN, value);
    else sessionStorage.removeItem(TOKEN);
  },
};

export class Refused extends Error {
  constructor(status, reason, message) {
    super(message);
    this.status = status;
    this.reason = reason;
  }
}

export async function call(path, { method = "GET", body, signal, raw = false } = {}) {
  const headers = {};
  if (session.token) headers.authorization = `Bearer ${session.token}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path, { method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "unreachable", "The server can't be reached.");
  }
  if (!answer.ok) {
    const told = await answer.json().catch(() => null);
    const why = told?.error ?? { reason: "unknown", message: `The server answered ${answer.status}.` };
    if (answer.status === 401) window.dispatchEvent(new Event("cronoq-login"));
    throw new Refused(answer.status, why.reason, why.message);
  }
  if (raw) return answer;
  return answer.status === 204 ? null : answer.json();
}

export function query(values) {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== "" && one !== undefined && one !== null && one !== false) found.append(name, one);
    }
  }
  const text = found.toString();
  return text ? `?${text}` : "";
}
