/**
 * A handler that computes, in threads of its own (crunch.ts).
 *
 *     node threads.js [ENDPOINT]
 */

import { Client, Worker } from "cronoq";
// docs: handler
import { threadHandler } from "cronoq/thread";
// docs: end

const endpoint = process.argv[2] ?? "127.0.0.1:7070";
const worker = new Worker({ endpoint, slots: 4 });
// docs: handler
worker.handler("crunch", threadHandler(new URL("./crunch.js", import.meta.url), { threads: 4 }));
// docs: end
worker.start();

const client = new Client({ endpoint });
const task = await client.submit("crunch", 1_000);
console.log(await task.result());
client.close();
await worker.stop();
