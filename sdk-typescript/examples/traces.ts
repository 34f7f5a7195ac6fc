/** A client and a worker that go on with the traces of their program; `node traces.js`. */

import { Client, Worker } from "cronoq";
// docs: traces
import { submitting, tracing } from "cronoq/opentelemetry";

const client = new Client({ onSubmit: submitting() });
const worker = new Worker({ interceptors: [tracing()] });
// docs: end

console.log(worker.isReady);
client.close();
