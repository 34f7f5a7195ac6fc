// Everything about one task.

import { html, useEffect, useState } from "/console/lib/preact.js";
import { call } from "/console/api.js";
import { ago, between, instant, millis, pairs, seconds } from "/console/format.js";
import { Act, Status, Trouble, usePoll } from "/console/parts.js";

const ENDED = new Set(["succeeded", "failed", "dead_lettered", "cancelled", "skipped", "missed", "shed"]);
const SHOWN_BYTES = 100_000;

export function Task({ parts, may }) {
  const id = parts[1] ?? "";
  const [detail, error, again] = usePoll(`/v1/tasks/${encodeURIComponent(id)}/detail`, 2000);
  if (!detail) return html`<h1>Task <span class="mono">${id}</span></h1><${Trouble} error=${error}/>`;
  const { task, spec, attempts, parents, children } = detail;
  const ended = ENDED.has(task.status);
  return html`
    <h1>Task <span class="mono">${task.id}</span> <${Status} of=${task.status}/></h1>
    <${Trouble} error=${error}/>
    ${may && html`<div class="row">
      <${Act} label="Cancel" kind="danger" disabled=${ended} path=${`/v1/tasks/${task.id}/cancel`} done=${again} ask="The task ends now. A running handler is told to stop."/>
      <${Act} label="Retry" disabled=${!ended || task.status === "succeeded"} path=${`/v1/tasks/${task.id}/retry`} done=${again}/>
      <${Act} label="Delete" kind="danger" method="DELETE" disabled=${!ended} path=${`/v1/tasks/${task.id}`} done=${() => { location.hash = "#/tasks"; }} ask="The task and its output are forgotten."/>
    </div>`}
    ${task.waiting_for?.length ? html`<p class="note warn">Waits for ${task.waiting_for.join("; ")}.</p>` : null}
    ${task.message && html`<p class=${`note ${task.status === "succeeded" ? "" : "bad"}`}>${task.message}</p>`}
    <div class="grid">
      <section class="card"><h2>About</h2><dl>
        <dt>Kind</dt><dd>${task.kind}</dd>
        <dt>Pool</dt><dd>${task.pool}</dd>
        <dt>Priority</dt><dd>${task.priority}</dd>
        ${task.key && html`<dt>Key</dt><dd>${task.key}</dd>`}
        ${task.tenant && html`<dt>Tenant</dt><dd>${task.tenant}</dd>`}
        ${task.schedule && html`<dt>Schedule</dt><dd><a href=${`#/tasks?schedule=${encodeURIComponent(task.schedule)}`}>${task.schedule}</a></dd>`}
        <dt>Attempt</dt><dd>${task.attempt} of ${task.max_attempts}</dd>
        <dt>Created</dt><dd title=${instant(task.created_unix_ns)}>${instant(task.created_unix_ns)} (${ago(task.created_unix_ns)})</dd>
        ${task.started_unix_ns && html`<dt>Started</dt><dd>${instant(task.started_unix_ns)}</dd>`}
        ${task.finished_unix_ns && html`<dt>Ended</dt><dd>${instant(task.finished_unix_ns)} (took ${between(task.created_unix_ns, task.finished_unix_ns)} in all)</dd>`}
        ${task.next_run_unix_ns && html`<dt>Next run</dt><dd>${instant(task.next_run_unix_ns)} (${ago(task.next_run_unix_ns)})</dd>`}
        ${pairs(task.tags).length ? html`<dt>Tags</dt><dd>${pairs(task.tags).join(", ")}</dd>` : null}
        ${pairs(task.labels).length ? html`<dt>Labels</dt><dd>${pairs(task.labels).join(", ")}</dd>` : null}
        ${pairs(spec.resources).length ? html`<dt>Resources</dt><dd>${pairs(spec.resources).join(", ")}</dd>` : null}
        ${spec.timeout_s !== undefined && html`<dt>Timeout</dt><dd>${seconds(spec.timeout_s)}</dd>`}
        ${spec.trace_context?.traceparent && html`<dt>Trace</dt><dd class="mono">${spec.trace_context.traceparent.split("-")[1] ?? ""}</dd>`}
        ${task.progress && html`<dt>Progress</dt><dd>${task.progress.fraction === undefined ? "" : `${Math.round(task.progress.fraction * 100)} %`} ${shown(task.progress, "data")}</dd>`}
      </dl></section>
      <section class="card"><h2>Attempts</h2><${Timeline} task=${task} attempts=${attempts}/></section>
    </div>
    ${(parents.length || children.length) ? html`<section class="card graph"><h2>Dependencies</h2><${Graph} task=${task} parents=${parents} children=${children}/></section>` : null}
    <div class="grid">
      <section class="card"><h2>Payload ${spec.content_type && html`<span class="badge">${spec.content_type}</span>`}</h2><${Content} of=${spec} field="payload"/></section>
      ${task.output_available && html`<section class="card"><h2>Output</h2><${Output} id=${task.id} key=${task.finished_unix_ns}/></section>`}
    </div>`;
}

// A JSON answer carries contents in one of three fields, by what they are.
function shown(holder, field) {
  if (holder[field] !== undefined) return JSON.stringify(holder[field], null, 2);
  if (holder[`${field}_text`] !== undefined) return holder[`${field}_text`];
  return holder[`${field}_base64`] ?? "";
}

// Bytes of no told type are mostly text all the same.
function asText(packed) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(Uint8Array.from(atob(packed), (one) => one.charCodeAt(0)));
  } catch {
    return null;
  }
}

function Content({ of, field }) {
  const packed = of[`${field}_base64`];
  const found = packed === undefined ? null : asText(packed);
  const text = found ?? shown(of, field);
  if (!text) return html`<p class="dim">Empty.</p>`;
  const binary = packed !== undefined && found === null;
  return html`${binary && html`<p class="dim">No text; shown in base64.</p>`}
    <pre>${text.slice(0, SHOWN_BYTES)}</pre>${text.length > SHOWN_BYTES && html`<p class="dim">Cut here; there is more.</p>`}`;
}

function Output({ id }) {
  const [result, setResult] = useState(null);
  const [error, setError] = useState(null);
  useEffect(() => { call(`/v1/tasks/${id}/wait?timeout_s=0`).then(setResult, setError); }, [id]);
  if (error) return html`<${Trouble} error=${error}/>`;
  return result ? html`${result.content_type && html`<span class="badge">${result.content_type}</span>`}<${Content} of=${result} field="output"/>` : null;
}

function Timeline({ task, attempts }) {
  const bars = attempts.map((one) => ({ ...one, kind: "bad" }));
  const running = task.status === "running";
  if (task.attempt > attempts.length && task.started_unix_ns && (running || task.status === "succeeded")) {
    bars.push({ number: task.attempt, worker: "", started_unix_ns: task.started_unix_ns,
      ended_unix_ns: task.finished_unix_ns ?? String(BigInt(Date.now()) * 1_000_000n),
      outcome: running ? "running" : "succeeded", message: "", kind: running ? "live" : "good" });
  }
  if (!bars.length) return html`<p class="dim">None yet.</p>`;
  const first = millis(task.created_unix_ns);
  const span = Math.max(1, Math.max(...bars.map((one) => millis(one.ended_unix_ns))) - first);
  const at = (ns) => ((millis(ns) - first) / span) * 100;
  return html`<div class="timeline">${bars.map((one) => html`<div key=${one.number}>
    <div><b>${one.number}</b> ${one.outcome.replaceAll("_", " ")} after ${between(one.started_unix_ns, one.ended_unix_ns)} ${one.worker && html`<span class="dim">on ${one.worker}</span>`}</div>
    <div class="bar" aria-hidden="true"><svg viewBox="0 0 100 1" preserveAspectRatio="none"><rect class=${one.kind} x=${at(one.started_unix_ns)} width=${Math.max(0.5, at(one.ended_unix_ns) - at(one.started_unix_ns))} height="1"/></svg></div>
    ${one.message && html`<pre>${one.message}</pre>`}
  </div>`)}</div>`;
}

function Graph({ task, parents, children }) {
  const left = parents.slice(0, 12);
  const right = children.slice(0, 12);
  const rows = Math.max(left.length, right.length, 1);
  const height = rows * 44 + 8;
  const y = (index, of) => ((index + 0.5) * (height - 8)) / of + 4;
  const box = (x, top, text, note, href, self) => html`
    <a href=${href}><rect class=${self ? "self" : ""} x=${x} y=${top - 18} width="200" height="36" rx="6"/>
    <text x=${x + 10} y=${top - 2}>${text}</text><text x=${x + 10} y=${top + 12} opacity=".75">${note}</text></a>`;
  const middle = y(0, 1);
  return html`<svg width="720" height=${height} role="group" aria-label="What this task waits for, and what waits for it">
    ${left.map((one, index) => html`<path d=${`M200 ${y(index, left.length)} C230 ${y(index, left.length)} 230 ${middle} 260 ${middle}`}/>`)}
    ${right.map((_, index) => html`<path d=${`M460 ${middle} C490 ${middle} 490 ${y(index, right.length)} 520 ${y(index, right.length)}`}/>`)}
    ${left.map((one, index) => box(0, y(index, left.length), one.id ?? one.key, `${one.cond.replace("_", " ")}: ${one.status ?? "no longer known"}`, one.id ? `#/task/${one.id}` : `#/tasks?key=${encodeURIComponent(one.key)}`))}
    ${box(260, middle, task.id, task.status, `#/task/${task.id}`, true)}
    ${right.map((id, index) => box(520, y(index, right.length), id, "waits for this", `#/task/${id}`))}
  </svg>
  ${parents.length + children.length > left.length + right.length && html`<p class="dim">${parents.length} parents and ${children.length}${children.length === 100 ? " or more" : ""} children in all.</p>`}`;
}
