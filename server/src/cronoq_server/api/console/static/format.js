// How figures and instants are written. Ids and nanoseconds are texts: they do not fit a number.

const MILLION = 1_000_000n;
const whole = new Intl.NumberFormat("en");
const day = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

export const count = (value) => whole.format(value ?? 0);

export const millis = (ns) => Number(BigInt(ns) / MILLION);

export function instant(ns) {
  return ns === undefined || ns === null ? "–" : day.format(new Date(millis(ns)));
}

// Read as a number again, which drops zeros behind the point alone, and exponents.
const rounded = (value, digits) => Number(value.toPrecision(digits));

export function seconds(value) {
  if (value === undefined || value === null) return "–";
  if (value === 0) return "0 s";
  if (value < 0.001) return `${Math.round(value * 1e6)} µs`;
  if (value < 1) return `${rounded(value * 1000, 3)} ms`;
  if (value < 120) return `${rounded(value, 3)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  if (value < 172_800) return `${(value / 3600).toFixed(1)} h`;
  return `${(value / 86_400).toFixed(1)} d`;
}

export function ago(ns) {
  if (ns === undefined || ns === null) return "–";
  const passed = (Date.now() - millis(ns)) / 1000;
  return passed >= 0 ? `${seconds(Math.max(1, Math.round(passed)))} ago` : `in ${seconds(Math.round(-passed))}`;
}

export function between(from, to) {
  return from === undefined || to === undefined ? "–" : seconds((millis(to) - millis(from)) / 1000);
}

export function rate(value) {
  return value >= 100 ? `${whole.format(Math.round(value))}/s` : `${rounded(value, 2)}/s`;
}

export function pairs(map) {
  return Object.entries(map ?? {}).map(([name, value]) => (value === "" ? name : `${name}=${value}`));
}
