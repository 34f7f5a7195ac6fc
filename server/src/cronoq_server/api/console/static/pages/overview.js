// How things go: pools, and charts of the last half hour.

import { html, useEffect, useMemo, useRef, useState } from "/console/lib/preact.js";
import { call } from "/console/api.js";
import { count, rate, seconds } from "/console/format.js";
import { Act, Chart, Meter, Missing, Trouble, usePoll } from "/console/parts.js";

const EVERY_MS = 2000;
const SHOWN = 900;

// Keeps the samples that the server has, asking only for what is new.
function useHistory() {
  const [kept, setKept] = useState({ at: [], epochs: [], pools: {} });
  const latest = useRef("0");
  useEffect(() => {
    let timer = 0;
    let stopped = false;
    async function ask() {
      clearTimeout(timer);
      try {
        if (!document.hidden) {
          const fresh = await call(`/console-data/history?after=${latest.current}`);
          if (stopped) return;
          if (fresh.at_unix_ns.length) {
            latest.current = fresh.at_unix_ns.at(-1);
            setKept((old) => joined(old, fresh));
          }
        }
      } catch {
        // The snapshot's poll on the same page says what is wrong.
      }
      if (!stopped) timer = setTimeout(ask, EVERY_MS);
    }
    ask();
    return () => { stopped = true; clearTimeout(timer); };
  }, []);
  return kept;
}

function joined(old, fresh) {
  const more = fresh.at_unix_ns.map((at) => Number(BigInt(at) / 1_000_000n) / 1000);
  const at = [...old.at, ...more].slice(-SHOWN);
  const pools = {};
  for (const [name, columns] of Object.entries(fresh.pools)) {
    pools[name] = {};
    for (const [field, values] of Object.entries(columns)) {
      const before = old.pools[name]?.[field] ?? new Array(old.at.length).fill(0);
      pools[name][field] = [...before, ...values].slice(-SHOWN);
    }
  }
  return { at, epochs: [...old.epochs, ...fresh.epochs].slice(-SHOWN), pools };
}

// What a counter grew by, per second; a new leadership counts from zero.
function growth({ at, epochs }, values) {
  return values.map((value, index) => {
    if (index === 0 || epochs[index] !== epochs[index - 1]) return 0;
    return Math.max(0, value - values[index - 1]) / Math.max(0.001, at[index] - at[index - 1]);
  });
}

export function Overview({ server }) {
  const history = useHistory();
  const [view, error, again] = usePoll("/v1/snapshot", EVERY_MS);
  const names = Object.keys(history.pools).slice(0, 8);
  const lines = useMemo(() => {
    const each = (make) => names.map((name) => ({ label: name, values: make(history.pools[name]) }));
    return {
      done: each((pool) => growth(history, pool.succeeded)),
      failed: each((pool) => growth(history, pool.failed)),
      pending: each((pool) => pool.pending),
      age: each((pool) => pool.oldest_ready_s),
    };
  }, [history]);
  const now = (series) => series.reduce((sum, one) => sum + (one.values.at(-1) ?? 0), 0);
  return html`
    <h1>Overview</h1>
    <${Trouble} error=${error}/>
    <${Missing} shards=${view?.unavailable_shards}/>
    <div class="tiles">
      <${Tile} value=${rate(now(lines.done))} label="succeeding"/>
      <${Tile} value=${rate(now(lines.failed))} label="failing for good"/>
      <${Tile} value=${count(view?.pending)} label="pending"/>
      <${Tile} value=${count(view?.running)} label="running"/>
      <${Tile} value=${count(view?.workers_connected)} label="workers"/>
      <${Tile} value=${count(view?.totals.retries)} label="retries since this leader"/>
    </div>
    <div class="grid">
      <${Chart} title="Throughput" at=${history.at} series=${lines.done} format=${rate}/>
      <${Chart} title="Failures" at=${history.at} series=${lines.failed} format=${rate}/>
      <${Chart} title="Pending tasks" at=${history.at} series=${lines.pending} format=${count}/>
      <${Chart} title="Age of the oldest ready task" at=${history.at} series=${lines.age} format=${seconds}/>
    </div>
    <section class="card wide" tabindex="0">
      <h2>Pools</h2>
      <table>
        <thead><tr><th>Pool</th><th>State</th><th class="number">Pending</th><th>Slots</th><th class="number">Wanted</th>
          <th class="number">Succeeded</th><th class="number">Failed</th><th class="number">Wait p50</th><th class="number">p99</th>
          <th class="number">Oldest ready</th><th><span class="unseen">Actions</span></th></tr></thead>
        <tbody>${(view?.pools ?? []).map((pool) => html`<tr key=${pool.name}>
          <td><a href=${`#/tasks?pool=${encodeURIComponent(pool.name)}`}>${pool.name}</a></td>
          <td>${pool.paused ? html`<span class="badge warn">paused</span>` : pool.capacity ? html`<span class="badge good">runs</span>` : html`<span class="badge warn">no workers</span>`}</td>
          <td class="number">${count(Object.values(pool.pending_by_class).reduce((a, b) => a + b, 0))}</td>
          <td>${pool.busy} of ${pool.capacity}<${Meter} value=${pool.busy} of=${pool.capacity} label=${`${pool.busy} of ${pool.capacity} slots busy`}/></td>
          <td class="number">${count(pool.desired)}</td>
          <td class="number">${count(pool.succeeded)}</td>
          <td class="number">${count(pool.failed)}</td>
          <td class="number">${seconds(pool.wait_p50_s)}</td>
          <td class="number">${seconds(pool.wait_p99_s)}</td>
          <td class="number">${seconds(pool.oldest_ready_s)}</td>
          <td>${server.who.role === "admin" && html`<${Act} label=${pool.paused ? "Resume" : "Pause"} done=${again}
            path=${`/v1/pools/${encodeURIComponent(pool.name)}/${pool.paused ? "resume" : "pause"}`}
            ask=${pool.paused ? null : `No attempt of pool ${pool.name} starts until it is resumed. Running ones go on.`}/>`}</td>
        </tr>`)}</tbody>
      </table>
    </section>`;
}

function Tile({ value, label }) {
  return html`<div class="tile"><b>${value}</b><span>${label}</span></div>`;
}
