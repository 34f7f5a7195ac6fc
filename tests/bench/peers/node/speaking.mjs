// What both JavaScript adapters have in common: the work, and how the bench talks to them.
// It is the same conversation as that of speaking.py, which says more about it.

import fs from "node:fs";
import { createRequire } from "node:module";
import readline from "node:readline";

const { PEER_URL: URL, PEER_PROBES: PROBES } = process.env;
const SLOTS = Number(process.env.PEER_SLOTS ?? 1);
const CALLERS = 64;
const CHUNK = 1000;
const LINE_BYTES = 20;
const TICK_S = 0.01;
const TICKS_PER_PROBE = 3;
const STUCK_S = 60;
const PAD = "x".repeat(180);
const PLAIN = `-${"0".repeat(19)}${PAD}`;

let notes;

const now = () => Number(process.hrtime.bigint()) / 1e9;
const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
const probe = () => `P${String(process.hrtime.bigint()).padStart(19, "0")}${PAD}`;

function work(payload) {
  if (payload[0] === "P") {
    const took = process.hrtime.bigint() - BigInt(payload.slice(1, 20));
    notes ??= fs.openSync(PROBES, "a", 0o666);
    fs.writeSync(notes, `${String(took).padStart(LINE_BYTES - 1, "0")}\n`);
  }
  return payload.slice(0, 8);
}

function noted() {
  return fs.existsSync(PROBES) ? Math.floor(fs.statSync(PROBES).size / LINE_BYTES) : 0;
}

function* chunks(count) {
  for (let first = 0; first < count; first += CHUNK) yield Math.min(CHUNK, count - first);
}

async function byCallers(call, count) {
  let left = count;
  const run = async () => {
    while (left-- > 0) await call();
  };
  await Promise.all(Array.from({ length: Math.min(CALLERS, count) }, run));
}

// An adapter has packages and prepare, bulk, single, probe, left: see Adapter in speaking.py.
class Session {
  submitted = 0;

  constructor(adapter) {
    this.adapter = adapter;
  }

  async prepare() {
    await this.adapter.prepare();
    const require = createRequire(import.meta.url);
    const versions = { node: process.version };
    for (const name of this.adapter.packages) {
      versions[name] = require(`./node_modules/${name}/package.json`).version;
    }
    return { versions };
  }

  async #timed(part) {
    const begun = now();
    await part();
    return { seconds: now() - begun };
  }

  async #hand(count, how) {
    if (how === "single") await this.adapter.single(count);
    else await this.adapter.bulk(count, how === "mixed");
    this.submitted += count;
  }

  async #settled() {
    let [until, last] = [now() + STUCK_S, Infinity];
    for (;;) {
      const left = await this.adapter.left(this.submitted);
      if (left <= 0) return;
      if (left < last) [until, last] = [now() + STUCK_S, left];
      else if (now() > until) throw new Error(`${left} of ${this.submitted} jobs do not end`);
      await sleep(0.01);
    }
  }

  submit({ count, how }) {
    return this.#timed(() => this.#hand(count, how));
  }

  settle() {
    return this.#timed(() => this.#settled());
  }

  through({ count, how }) {
    return this.#timed(async () => {
      await this.#hand(count, how);
      await this.#settled();
    });
  }

  async idle({ count, pause_s, seconds }) {
    const before = noted();
    const end = now() + seconds;
    let sent = 0;
    while (sent < count && (sent === 0 || now() < end)) {
      await this.adapter.probe();
      sent += 1;
      this.submitted += 1;
      const stuck = now() + STUCK_S;
      while (noted() < before + sent) {
        if (now() > stuck) throw new Error("a probe did not start");
        await sleep(0.001);
      }
      await sleep(pause_s);
    }
    return { sent };
  }

  async load({ rate, seconds }) {
    const begun = now();
    let [sent, tick, probes] = [0, 0, 0];
    for (let passed = 0; passed < seconds; passed = now() - begun) {
      const due = Math.min(Math.floor(rate * passed) - sent, CHUNK);
      if (due > 0) {
        await this.adapter.bulk(due, false);
        sent += due;
      }
      if (tick % TICKS_PER_PROBE === 0) {
        await this.adapter.probe();
        probes += 1;
      }
      tick += 1;
      await sleep(Math.max(0, begun + tick * TICK_S - now()));
    }
    this.submitted += sent + probes;
    return { rate: sent / (now() - begun), probes };
  }
}

async function run(adapter, worker) {
  if (process.argv[2] === "worker") return worker();
  const session = new Session(adapter);
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const { do: what, ...asked } = JSON.parse(line);
    let answer;
    try {
      answer = await session[what](asked);
    } catch (error) {
      answer = { error: String(error) };
    }
    process.stdout.write(`${JSON.stringify(answer)}\n`);
  }
  process.exit(0);
}

export { CALLERS, PLAIN, SLOTS, URL, byCallers, chunks, probe, run, work };
