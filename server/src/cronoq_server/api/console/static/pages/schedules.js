// Schedules: when they are due, in their own zone, and what can be done to them.

import { html, useEffect, useState } from "/console/lib/preact.js";
import { call } from "/console/api.js";
import { ago, count, millis } from "/console/format.js";
import { Act, Missing, Trouble, usePoll } from "/console/parts.js";

const NEXT = 6;

export function Schedules({ server, values }) {
  const [view, error, again] = usePoll("/v1/schedules", 5000);
  const open = values.get("open") ?? "";
  const pool = values.get("pool") ?? "";
  const admin = server.who.role === "admin";
  return html`
    <h1>Schedules</h1>
    <${Trouble} error=${error}/>
    <${Missing} shards=${view?.unavailable_shards}/>
    <section class="card wide" tabindex="0">
      <table>
        <thead><tr><th>Name</th><th>Cron</th><th>Zone</th><th>Pool</th><th>Kind</th><th>Overlap</th><th>Next</th><th>State</th></tr></thead>
        <tbody>${(view?.schedules ?? []).map((one) => html`<tr key=${`${one.pool}/${one.name}`}>
          <td class="text"><a href=${`#/schedules?open=${encodeURIComponent(one.name)}&pool=${encodeURIComponent(one.pool)}`}>${one.name}</a></td>
          <td class="mono short">${one.cron}</td><td>${one.tz}</td><td>${one.pool}</td><td class="text">${one.kind}</td>
          <td>${one.overlap.replaceAll("_", " ")}</td>
          <td>${one.next_unix_ns ? html`${local(one.next_unix_ns, one.tz)} <span class="dim">${ago(one.next_unix_ns)}</span>` : "never again"}</td>
          <td>${one.paused ? html`<span class="badge warn">paused</span>` : html`<span class="badge good">on</span>`}</td>
        </tr>`)}</tbody>
      </table>
      ${view && !view.schedules.length && html`<p class="dim">No schedules.</p>`}
    </section>
    ${open && html`<${Schedule} key=${`${pool}/${open}`} name=${open} pool=${pool} admin=${admin} changed=${again}/>`}`;
}

function local(ns, zone) {
  return new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long", timeZone: zone }).format(new Date(millis(ns)));
}

// The zone's distance from UTC in minutes at an instant.
function offset(ms, zone) {
  const parts = new Intl.DateTimeFormat("en-GB", { timeZone: zone, hourCycle: "h23", year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit" }).formatToParts(new Date(ms));
  const of = Object.fromEntries(parts.map((part) => [part.type, Number(part.value)]));
  return Math.round((Date.UTC(of.year, of.month - 1, of.day, of.hour, of.minute, of.second) - Math.floor(ms / 1000) * 1000) / 60_000);
}

function Schedule({ name, pool, admin, changed }) {
  const path = `/v1/schedules/${encodeURIComponent(name)}`;
  const named = pool ? `?pool=${encodeURIComponent(pool)}` : "";
  const [detail, error, again] = usePoll(`${path}${named}`, 0);
  const [next, setNext] = useState([]);
  const [note, setNote] = useState(null);
  useEffect(() => {
    call(`${path}/next?count=${NEXT}${pool ? `&pool=${encodeURIComponent(pool)}` : ""}`).then((found) => setNext(found.at_unix_ns), () => setNext([]));
  }, [path]);
  if (!detail) return html`<${Trouble} error=${error}/>`;
  const { schedule } = detail;
  const done = () => { again(); changed(); };
  return html`<section class="card">
    <h2>${schedule.name}</h2>
    ${detail.chain_broken && html`<p class="note bad">Its chain is broken: an occurrence did not succeed, so that no later one can run. Putting the schedule again mends it.</p>`}
    <p class="dim">${count(detail.skipped)} occurrences passed over so far. Times that the clock skips: ${schedule.gap.replace("_", " ")}; times that come twice: ${schedule.fold}; missed ones: ${schedule.catch_up}.</p>
    <ol>${next.map((at, index) => html`<li key=${at}>${local(at, schedule.tz)}
      ${index > 0 && offset(millis(at), schedule.tz) !== offset(millis(next[index - 1]), schedule.tz) && html` <span class="badge warn">the clock has changed since the one before</span>`}</li>`)}</ol>
    <p><a href=${`#/tasks?schedule=${encodeURIComponent(schedule.name)}`}>Its tasks</a></p>
    ${admin && html`<div class="row">
      <${Act} label=${schedule.paused ? "Resume" : "Pause"} path=${`${path}/${schedule.paused ? "resume" : "pause"}${named}`} done=${done}/>
      <${Act} label="Run now" path=${`${path}/trigger${named}`} done=${(made) => { setNote(made.task_id); done(); }} ask="One occurrence is created now, whatever the overlap rule says."/>
      ${note && html`<a class="note good" href=${`#/task/${note}`}>Task ${note} was created</a>`}
    </div>
    <${Backfill} path=${path} named=${named}/>`}
  </section>`;
}

function Backfill({ path, named }) {
  const [plan, setPlan] = useState(null);
  const [note, setNote] = useState(null);
  const stamp = (text) => String(BigInt(new Date(text).getTime()) * 1_000_000n);
  async function run(body, dry) {
    let created = 0;
    let from = body.from_unix_ns;
    do {
      const step = await call(`${path}/backfill${named}`, { method: "POST", body: { ...body, from_unix_ns: from, dry_run: dry } });
      created += step.created;
      from = step.next_unix_ns;
    } while (from);
    return created;
  }
  async function preview(event) {
    event.preventDefault();
    const form = new FormData(event.target);
    const body = { from_unix_ns: stamp(form.get("from")), to_unix_ns: stamp(form.get("to")) };
    try { setPlan({ body, created: await run(body, true) }); setNote(null); } catch (error) { setNote({ kind: "bad", text: error.message }); }
  }
  async function go() {
    const { body } = plan;
    setPlan(null);
    try { setNote({ kind: "good", text: `${count(await run(body, false))} created.` }); } catch (error) { setNote({ kind: "bad", text: error.message }); }
  }
  return html`<form class="row" onSubmit=${preview}>
    <label>Backfill from<input type="datetime-local" name="from" required/></label>
    <label>to (your clock)<input type="datetime-local" name="to" required/></label>
    <button>Count…</button>
    ${plan && html`<span class="note warn" role="status">${count(plan.created)} would be created. <button type="button" class="main" disabled=${!plan.created} onClick=${go}>Create them</button></span>`}
    ${note && html`<span class=${`note ${note.kind}`} role="status">${note.text}</span>`}
  </form>`;
}
