// This server, and the shards beside it.

import { html } from "/console/lib/preact.js";
import { seconds } from "/console/format.js";
import { Trouble, usePoll } from "/console/parts.js";

export function Servers() {
  const [view, error] = usePoll("/console-data/server", 2000);
  if (!view) return html`<h1>Servers</h1><${Trouble} error=${error}/>`;
  return html`
    <h1>Servers</h1>
    <${Trouble} error=${error}/>
    <section class="card"><h2>This server leads</h2><dl>
      <dt>Version</dt><dd>${view.version}</dd>
      <dt>Store</dt><dd>${view.store}</dd>
      <dt>gRPC</dt><dd class="mono">${view.grpc_addr}</dd>
      <dt>Epoch</dt><dd>${view.epoch}</dd>
      <dt>Commits</dt><dd>${view.commit_p50_s ? `half within ${seconds(view.commit_p50_s)}, nearly all within ${seconds(view.commit_p99_s)}` : "none lately"}</dd>
    </dl>
    <p class="dim">Standbys refuse every call, so they never show up here; each has a readiness probe of its own.</p></section>
    ${view.shards.length ? html`<section class="card wide" tabindex="0"><h2>Shards</h2><table>
      <thead><tr><th>Name</th><th class="number">Number</th><th>Pools</th><th>Endpoint</th><th>Leader</th></tr></thead>
      <tbody>${view.shards.map((one) => html`<tr key=${one.name}>
        <td>${one.name} ${one.own && html`<span class="badge">this one</span>`}</td><td class="number">${one.number}</td>
        <td class="text">${one.pools.join(", ")}</td><td class="mono text">${one.endpoint}</td>
        <td>${one.answers ? html`<span class="badge good">answers</span>` : html`<span class="badge bad">does not answer</span>`}</td>
      </tr>`)}</tbody></table></section>` : null}`;
}
