/**
 * What docs/getting-started.md shows: a worker and a client in one program.
 *
 *     node first-steps.js [ENDPOINT]
 */

import { Client, Retryable, Worker } from "cronoq";
import { z } from "zod";

const endpoint = process.argv[2] ?? "127.0.0.1:7070";

// docs: worker
const worker = new Worker({ endpoint, slots: 8 });
// docs: end

// docs: payload
const Order = z.object({ customer: z.string(), cents: z.number().int() });

worker.handler(
  "invoice",
  Order,
  ({ customer, cents }) => `${customer} owes ${(cents / 100).toFixed(2)}`,
);
// docs: end

// docs: retry
worker.handler("flaky", (_, attempt) => {
  if (attempt.number < 3) {
    throw new Retryable("not yet", { retryAfterMs: 50 });
  }
  return attempt.number;
});
// docs: end

// docs: deps
worker.handler("square", z.number(), (number) => number * number);

worker.handler("sum", async (_, attempt) => {
  let sum = 0;
  for (const parent of attempt.parents) {
    sum += await attempt.output(parent, { as: z.number() });
  }
  return sum;
});
// docs: end

// docs: worker
worker.start(); // or: await worker.runForever(), until SIGTERM or Ctrl-C
// docs: end

// docs: client
const client = new Client({ endpoint });
// docs: end

// docs: payload
const billed = await client.submit("invoice", { customer: "Ada", cents: 1250 });
console.log(await billed.result()); // Ada owes 12.50
// docs: end

// docs: retry
const tried = await client.submit("flaky", null, { retry: { maxAttempts: 5 } });
console.log("succeeded in attempt", await tried.result()); // 3
// docs: end

// docs: key
const options = { key: "mail-42", delayMs: 3_600_000 };
const first = await client.submit("mail", "hi", options);
const again = await client.submit("mail", "hi", options);
console.log(again.id === first.id, again.duplicate); // true true
await first.cancel();
// docs: end

// docs: deps
const numbers = [1, 2, 3, 4];
const handles = await client.submitBatch([
  ...numbers.map((n) => ({ kind: "square", payload: n, key: `square-${n}` })),
  { kind: "sum", key: "sum-1-4", deps: numbers.map((n) => `square-${n}`) },
]);
console.log(await handles.at(-1)?.result()); // 30
// docs: end

client.close();
await worker.stop();
