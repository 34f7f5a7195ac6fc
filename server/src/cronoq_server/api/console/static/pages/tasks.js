// Looking for tasks, and doing something to all that were found.

import { html, useState } from "/console/lib/preact.js";
import { call, query } from "/console/api.js";
import { ago, count, pairs } from "/console/format.js";
import { Missing, Status, Trouble, usePoll } from "/console/parts.js";

const STATUSES = ["blocked", "scheduled", "ready", "running", "retrying", "succeeded", "failed",
  "dead_lettered", "cancelled", "skipped", "missed", "shed"];
const FIELDS = ["pool", "status", "kind", "key", "tag", "tenant", "schedule"];
const LIMIT = 50;
const STEP = 1000;

function listed(values) {
  const found = {};
  for (const field of FIELDS) found[field] = values.getAll(field);
  return found;
}

function asFilter(given) {
  const tags = Object.fromEntries(given.tag.map((text) => {
    const at = text.indexOf("=");
    return at < 0 ? [text, ""] : [text.slice(0, at), text.slice(at + 1)];
  }));
  return { pools: given.pool, statuses: given.status, kinds: given.kind, keys: given.key, tags,
    tenants: given.tenant, schedule: given.schedule[0] ?? "" };
}

export function Tasks({ values, may }) {
  const given = listed(values);
  const after = values.get("after") ?? "";
  const asked = { ...given, limit: LIMIT, after, newest_first: true };
  const filter = asFilter(given);
  const [page, error, again] = usePoll(`/v1/tasks${query(asked)}`, after ? 0 : 3000);
  function search(event) {
    event.preventDefault();
    const form = new FormData(event.target);
    const next = Object.fromEntries(FIELDS.map((field) => [field, form.getAll(field).map((text) => text.trim()).filter(Boolean)]));
    const id = form.get("id").trim();
    location.hash = /^\d+$/.test(id) ? `#/task/${id}` : `#/tasks${query(next)}`;
  }
  return html`
    <h1>Tasks</h1>
    <form class="card" onSubmit=${search} key=${location.hash}>
      <div class="row">
        <label>Id<input name="id" inputmode="numeric" size="20"/></label>
        <label>Key<input name="key" value=${given.key[0] ?? ""}/></label>
        <label>Status<select name="status"><option value="">any</option>${STATUSES.map((status) => html`
          <option key=${status} value=${status} selected=${given.status.includes(status)}>${status.replace("_", " ")}</option>`)}</select></label>
        <label>Pool<input name="pool" value=${given.pool[0] ?? ""} size="12"/></label>
        <label>Kind<input name="kind" value=${given.kind[0] ?? ""} size="12"/></label>
        <label>Tag (name=value)<input name="tag" value=${given.tag[0] ?? ""} size="14"/></label>
        <label>Tenant<input name="tenant" value=${given.tenant[0] ?? ""} size="10"/></label>
        <label>Schedule<input name="schedule" value=${given.schedule[0] ?? ""} size="12"/></label>
        <button class="main">Search</button>
        <a href="#/tasks">Clear</a>
      </div>
    </form>
    <${Trouble} error=${error}/>
    <${Missing} shards=${page?.unavailable_shards}/>
    ${may && html`<${Bulk} key=${JSON.stringify(filter)} filter=${filter} done=${again}/>`}
    <section class="card wide" tabindex="0">
      <table aria-label="Tasks, newest first">
        <thead><tr><th>Id</th><th>Status</th><th>Kind</th><th>Pool</th><th>Key</th><th class="number">Attempt</th><th>Created</th><th>Message</th></tr></thead>
        <tbody>${(page?.tasks ?? []).map((task) => html`<tr key=${task.id}>
          <td><a class="mono" href=${`#/task/${task.id}`}>${task.id}</a></td>
          <td><${Status} of=${task.status}/></td>
          <td class="text">${task.kind}</td>
          <td>${task.pool}</td>
          <td class="text">${task.key ?? ""} ${pairs(task.tags).map((pair) => html`<span class="badge" key=${pair}>${pair}</span> `)}</td>
          <td class="number">${task.attempt}/${task.max_attempts}</td>
          <td class="short">${ago(task.created_unix_ns)}</td>
          <td class="text">${task.message ?? (task.waiting_for ?? []).join("; ")}</td>
        </tr>`)}</tbody>
      </table>
      ${page && !page.tasks.length && html`<p class="dim">${page.next_after ? "Nothing on this page; there may be more further on." : "No tasks."}</p>`}
      <p class="row">
        ${after && html`<a href=${`#/tasks${query(given)}`}>Newest</a>`}
        ${page?.next_after && html`<a href=${`#/tasks${query({ ...given, after: page.next_after })}`}>Older</a>`}
      </p>
    </section>`;
}

// Counts first what a bulk call would change, then does it page by page. Its key is the filter: what
// was counted for one must not be done to what another one finds.
function Bulk({ filter, done }) {
  const [plan, setPlan] = useState(null);
  const [note, setNote] = useState(null);
  async function run(action, dry) {
    let matched = 0;
    let changed = 0;
    let after = "0";
    do {
      const step = await call("/v1/bulk", { method: "POST", body: { action, filter, after, limit: STEP, dry_run: dry } });
      matched += step.matched;
      changed += step.changed;
      after = step.next_after;
      if (!dry) setNote({ kind: "", text: `${count(changed)} changed so far…` });
    } while (after);
    return { matched, changed };
  }
  async function preview(action) {
    setNote({ kind: "", text: "Counting…" });
    setPlan(null);
    try {
      const { matched } = await run(action, true);
      setPlan({ action, matched });
      setNote(null);
    } catch (error) {
      setNote({ kind: "bad", text: error.message });
    }
  }
  async function go() {
    const { action } = plan;
    setPlan(null);
    try {
      const { changed } = await run(action, false);
      setNote({ kind: "good", text: `${count(changed)} tasks ${action === "cancel" ? "cancelled" : "put back"}.` });
      done();
    } catch (error) {
      setNote({ kind: "bad", text: error.message });
    }
  }
  return html`<div class="row">
    <button onClick=${() => preview("retry")}>Retry all found…</button>
    <button class="danger" onClick=${() => preview("cancel")}>Cancel all found…</button>
    ${note && html`<span class=${`note ${note.kind}`} role="status">${note.text}</span>`}
    ${plan && html`<span class="note warn" role="status">${count(plan.matched)} tasks were found. ${plan.action === "cancel" ? "Those that have not ended would be cancelled." : "Those that ended without success would be put back."}
      <button class="danger" disabled=${!plan.matched} onClick=${go}>${plan.action === "cancel" ? "Cancel" : "Retry"} them</button>
      <button onClick=${() => setPlan(null)}>Leave them</button></span>`}
  </div>`;
}
