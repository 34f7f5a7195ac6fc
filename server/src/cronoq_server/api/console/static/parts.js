// What pages are made of: polling, notes, badges, dialogs, charts.

import { html, useCallback, useEffect, useRef, useState } from "/console/lib/preact.js";
import { call } from "/console/api.js";

const GOOD = new Set(["succeeded"]);
const BAD = new Set(["failed", "dead_lettered"]);
const WARN = new Set(["retrying", "missed", "shed", "cancelled", "skipped"]);

export function Status({ of }) {
  const kind = GOOD.has(of) ? "good" : BAD.has(of) ? "bad" : WARN.has(of) ? "warn" : "";
  return html`<span class=${`badge ${kind}`}>${of.replace("_", " ")}</span>`;
}

// Asks again and again while the page is looked at; one question at a time, none when hidden.
export function usePoll(path, everyMs) {
  const [state, setState] = useState({ value: null, error: null });
  const again = useRef(() => {});
  useEffect(() => {
    const control = new AbortController();
    let timer = 0;
    let stopped = false;
    let round = 0;
    async function ask() {
      clearTimeout(timer);
      const mine = ++round;
      if (!document.hidden) {
        try {
          const value = await call(path, { signal: control.signal });
          if (!stopped && mine === round) setState({ value, error: null });
        } catch (error) {
          if (!stopped && mine === round && error.name !== "AbortError") setState((old) => ({ value: old.value, error }));
        }
      }
      // Whoever asked in between goes on asking: two rounds that both did would never end.
      if (!stopped && mine === round && everyMs) timer = setTimeout(ask, everyMs);
    }
    again.current = ask;
    setState((old) => ({ value: old.value, error: null }));
    ask();
    document.addEventListener("visibilitychange", ask);
    return () => {
      stopped = true;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", ask);
      control.abort();
    };
  }, [path, everyMs]);
  return [state.value, state.error, useCallback(() => again.current(), [])];
}

export function Trouble({ error }) {
  return error ? html`<p class="note bad" role="alert">${error.message}</p>` : null;
}

export function Missing({ shards }) {
  return shards?.length
    ? html`<p class="note warn" role="status">Not included, because they don't answer: ${shards.join(", ")}.</p>`
    : null;
}

// A button that does something once, says what came of it, and asks first if that is wise.
export function Act({ label, ask, kind = "", path, method = "POST", body, done, disabled }) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(null);
  const box = useRef(null);
  async function act() {
    box.current?.close();
    setBusy(true);
    setError(null);
    try {
      done?.(await call(path, { method, body }));
    } catch (problem) {
      setError(problem);
    }
    setBusy(false);
  }
  return html`
    <button class=${kind} disabled=${busy || disabled} onClick=${() => (ask ? box.current.showModal() : act())}>${label}</button>
    ${ask && html`<dialog ref=${box} aria-label=${label}>
      <p>${ask}</p>
      <div class="row">
        <button class=${kind || "main"} onClick=${act}>${label}</button>
        <button onClick=${() => box.current.close()} autofocus>Leave it</button>
      </div>
    </dialog>`}
    ${error && html`<span class="note bad" role="alert">${error.message}</span>`}
  `;
}

export function Meter({ value, of, label }) {
  const share = of > 0 ? Math.min(1, value / of) : 0;
  return html`<div class="meter" role="img" aria-label=${label}>
    <svg viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true"><rect width=${share * 100} height="1"/></svg>
  </div>`;
}

export const COLORS = ["#3d6fe0", "#d9822b", "#2a9d6f", "#b04fc4", "#c94f4f", "#5a8a9e", "#8a7a2b", "#6b6bd6"];

function shade(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// A chart over time; `series` is [{label, values}], `at` are seconds.
export function Chart({ title, at, series, format }) {
  const place = useRef(null);
  const plot = useRef(null);
  const names = series.map((one) => one.label).join("\n");
  useEffect(() => {
    const box = place.current;
    const axis = { stroke: () => shade("--dim"), grid: { stroke: () => shade("--line"), width: 1 }, ticks: { stroke: () => shade("--line") } };
    plot.current = new uPlot({
      width: box.clientWidth || 400,
      height: 200,
      cursor: { drag: { x: false, y: false } },
      legend: { show: false },
      scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
      axes: [axis, { ...axis, size: 64, values: (_, ticks) => ticks.map(format) }],
      series: [{}, ...series.map((one, index) => ({ label: one.label, stroke: COLORS[index % COLORS.length], width: 2, points: { show: false } }))],
    }, [at, ...series.map((one) => one.values)], box);
    const watch = new ResizeObserver(() => plot.current?.setSize({ width: box.clientWidth, height: 200 }));
    watch.observe(box);
    return () => { watch.disconnect(); plot.current.destroy(); plot.current = null; };
  }, [names]);
  useEffect(() => { plot.current?.setData([at, ...series.map((one) => one.values)]); }, [at, series]);
  const last = series.map((one) => `${one.label} ${format(one.values.at(-1) ?? 0)}`).join(", ");
  return html`<section class="card">
    <h2>${title}</h2>
    <div class="chart" ref=${place} role="img" aria-label=${`${title}: now ${last || "nothing"}`}></div>
    <div class="legend" aria-hidden="true">${series.map((one, index) => html`<span key=${one.label}><${Swatch} color=${COLORS[index % COLORS.length]}/>${one.label}</span>`)}</div>
  </section>`;
}

function Swatch({ color }) {
  return html`<i ref=${(element) => { if (element) element.style.background = color; }}></i>`;
}
