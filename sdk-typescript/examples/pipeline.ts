/**
 * A pipeline: parts in one batch, and a task that depends on all of them. Needs hello-worker.
 *
 *     node pipeline.js [ENDPOINT]
 */

import { Client, newKey, type TaskSpec } from "cronoq";
import { z } from "zod";

await using client = new Client({ endpoint: process.argv[2] ?? "127.0.0.1:7070" });

const run = newKey();
const parts: (TaskSpec & { key: string })[] = Array.from({ length: 10 }, (_, n) => ({
  kind: "square",
  payload: n,
  key: `${run}/${n}`,
}));
const total: TaskSpec = {
  kind: "total",
  key: `${run}/total`,
  priority: "high",
  deps: parts.map(({ key }) => ({ target: key, cond: "on_success" })),
};

// Admitted whole or not at all.
const handles = await client.submitBatch([...parts, total]);
const sum = await handles.at(-1)?.result({ as: z.number() });
console.log(`the sum of ten squares is ${sum}`);
