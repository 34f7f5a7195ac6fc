// Who is connected.

import { html } from "/console/lib/preact.js";
import { ago, count, pairs } from "/console/format.js";
import { Meter, Missing, Trouble, usePoll } from "/console/parts.js";

const SHOWN = 500;

export function Workers() {
  const [view, error] = usePoll("/v1/workers", 3000);
  const workers = view?.workers ?? [];
  return html`
    <h1>Workers</h1>
    <${Trouble} error=${error}/>
    <${Missing} shards=${view?.unavailable_shards}/>
    <section class="card wide" tabindex="0">
      <table>
        <thead><tr><th>Name</th><th>Pool</th><th>Slots</th><th>Labels</th><th>Kinds</th><th>SDK</th><th>Connected</th></tr></thead>
        <tbody>${workers.slice(0, SHOWN).map((one) => html`<tr key=${`${one.pool}/${one.id}`}>
          <td class="text">${one.name}</td><td>${one.pool}</td>
          <td>${one.busy} of ${one.slots}<${Meter} value=${one.busy} of=${one.slots} label=${`${one.busy} of ${one.slots} slots busy`}/></td>
          <td class="text">${pairs(one.labels).join(", ")}</td>
          <td class="text">${one.kinds.length ? one.kinds.join(", ") : "any"}</td>
          <td>${one.sdk}</td>
          <td class="short">${ago(one.connected_unix_ns)}</td>
        </tr>`)}</tbody>
      </table>
      ${view && !workers.length && html`<p class="dim">No worker is connected: nothing runs.</p>`}
      ${workers.length > SHOWN && html`<p class="dim">The first ${count(SHOWN)} of ${count(workers.length)}.</p>`}
    </section>`;
}
