// Limits that tasks share, and resizing them.

import { html, useRef, useState } from "/console/lib/preact.js";
import { call } from "/console/api.js";
import { count } from "/console/format.js";
import { Meter, Missing, Trouble, usePoll } from "/console/parts.js";

export function Resources({ server }) {
  const [view, error, again] = usePoll("/v1/resources", 2000);
  const resources = view?.resources ?? [];
  return html`
    <h1>Resources</h1>
    <${Trouble} error=${error}/>
    <${Missing} shards=${view?.unavailable_shards}/>
    <section class="card wide" tabindex="0">
      <table>
        <thead><tr><th>Name</th><th>Kind</th><th>In use</th><th class="number">Size</th><th class="number">Waiting tasks</th><th><span class="unseen">Actions</span></th></tr></thead>
        <tbody>${resources.map((one) => html`<tr key=${one.name}>
          <td class="text">${one.name} ${one.overridden && html`<span class="badge warn">resized</span>`} ${one.per_value && html`<span class="badge">per value</span>`}</td>
          <td>${one.kind.replace("_", " ")}</td>
          <td>${one.kind === "semaphore"
            ? html`${one.held} of ${one.permits}<${Meter} value=${one.held} of=${one.permits} label=${`${one.held} of ${one.permits} taken`}/>`
            : html`${one.tokens.toFixed(1)} of ${one.burst} tokens left<${Meter} value=${one.tokens} of=${one.burst} label=${`${one.tokens.toFixed(1)} of ${one.burst} tokens left`}/>`}</td>
          <td class="number">${one.kind === "semaphore" ? count(one.permits) : `${one.rate}/s, burst ${one.burst}`}</td>
          <td class="number">${count(one.waiting)}</td>
          <td>${server.who.role === "admin" && !one.name.includes(":") && html`<${Resize} of=${one} done=${again}/>`}</td>
        </tr>`)}</tbody>
      </table>
      ${view && !resources.length && html`<p class="dim">No resources are configured.</p>`}
    </section>`;
}

function Resize({ of, done }) {
  const box = useRef(null);
  const [error, setError] = useState(null);
  const fields = of.kind === "semaphore" ? ["permits"] : ["rate", "burst"];
  async function resize(event) {
    event.preventDefault();
    const form = new FormData(event.target);
    try {
      await call(`/v1/resources/${encodeURIComponent(of.name)}`, { method: "PUT", body: Object.fromEntries(fields.map((field) => [field, Number(form.get(field))])) });
      box.current.close();
      setError(null);
      done();
    } catch (problem) {
      setError(problem);
    }
  }
  return html`<button onClick=${() => box.current.showModal()}>Resize</button>
    <dialog ref=${box} aria-label=${`Resize ${of.name}`}><form onSubmit=${resize}>
      <h2>${of.name}</h2>
      <div class="row">${fields.map((field) => html`<label key=${field}>${field}<input name=${field} type="number" min="0" step="any" required value=${of[field]}/></label>`)}</div>
      <p class="dim">It holds until the next change of the configuration, over restarts too.</p>
      ${error && html`<p class="note bad" role="alert">${error.message}</p>`}
      <div class="row"><button class="main">Resize</button><button type="button" onClick=${() => box.current.close()}>Leave it</button></div>
    </form></dialog>`;
}
