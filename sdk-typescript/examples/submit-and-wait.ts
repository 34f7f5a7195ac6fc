/**
 * A client: submits work, waits, watches. Needs hello-worker.
 *
 *     node submit-and-wait.js [ENDPOINT]
 */

import { Client, newKey, TaskFailedError } from "cronoq";
import { z } from "zod";

await using client = new Client({ endpoint: process.argv[2] ?? "127.0.0.1:7070" });

const greeting = await client.submit("greet", "world");
console.log(await greeting.result({ as: z.string() }));

// With a key it is safe to submit again: there is one task, whatever gets lost on the way.
const key = newKey();
const order = { customer: "Ada", cents: 1_250 };
const first = await client.submit("bill", order, { key, priority: "high", timeoutMs: 30_000 });
const again = await client.submit("bill", order, { key });
console.log(`the same task: ${first.id === again.id}, known before: ${again.duplicate}`);
console.log(await first.result());

// Many calls at once share requests.
const numbers = Array.from({ length: 100 }, (_, n) => n);
const squares = await Promise.all(
  numbers.map(async (n) => await (await client.submit("square", n)).result({ as: z.number() })),
);
console.log(`the sum of a hundred squares is ${squares.reduce((a, b) => a + b)}`);

const debt = await client.submit("bill", { customer: "Bob", cents: -1 });
try {
  await debt.result();
} catch (error) {
  if (!(error instanceof TaskFailedError)) {
    throw error;
  }
  console.log(`as expected: ${error.taskMessage}`);
}

const slow = await client.submit("count", 600);
for await (const event of client.watch({ ids: [slow.id], allTransitions: true })) {
  if (event.status === "running") {
    await slow.cancel();
  } else if (event.status === "cancelled") {
    console.log("cancelled while it ran");
    break;
  }
}
