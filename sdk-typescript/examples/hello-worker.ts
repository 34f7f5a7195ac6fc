/**
 * A worker: run it beside a server, then run submit-and-wait and pipeline.
 *
 *     node hello-worker.js [ENDPOINT [POOL]]
 */

import { Permanent, Retryable, Worker } from "cronoq";
import { z } from "zod";

const endpoint = process.argv[2] ?? "127.0.0.1:7070";
const pool = process.argv[3] ?? "default";
// docs: schema
const Order = z.object({ customer: z.string(), cents: z.number().int() });
// docs: end

const worker = new Worker({ endpoint, pool, slots: 8 });

worker.handler("greet", z.string(), (name) => `hello ${name}`);

worker.handler("square", z.number(), (number) => number * number);

// Fails in two ways; task id and number are a fencing token for outside systems.
// docs: schema
worker.handler("bill", Order, ({ cents, customer }, attempt) => {
  if (cents < 0) {
    throw new Permanent(`${customer} cannot owe ${cents} cents`);
  }
  if (attempt.number === 1) {
    throw new Retryable("the bank asks to come back", { retryAfterMs: 200 });
  }
  return { customer, cents, attempt: attempt.number };
});
// docs: end

// Is long: it tells how far it is and stops when it is told to.
worker.handler("count", z.number(), async (steps, attempt) => {
  for (let step = 0; step < steps; step += 1) {
    attempt.signal.throwIfAborted();
    attempt.progress("", step / steps);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  return steps;
});

// Reads the outputs of those that its task depended on.
worker.handler("total", async (_, attempt) => {
  let sum = 0;
  for (const parent of attempt.parents) {
    sum += await attempt.output(parent, { as: z.number() });
  }
  return sum;
});

await worker.runForever();
