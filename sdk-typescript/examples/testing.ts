/** How handlers are tested, without a server and with one; `node testing.js`. */

import assert from "node:assert/strict";

// docs: testing
import { runHandler, startTestServer } from "cronoq/testing";

// docs: end
const greet = (name: unknown): string => `hello ${String(name)}`;

// docs: testing
const outcome = await runHandler(greet, "world");
assert.equal(outcome.value(), "hello world");

const server = await startTestServer(); // cronoq-server --test-clock
await server.advance({ hours: 3 });
await server.settle();
await server.stop();
// docs: end

console.log("tested");
