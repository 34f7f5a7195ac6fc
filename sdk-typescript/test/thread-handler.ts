/** What runs in the threads of handlers.test. */

import { workerData } from "node:worker_threads";

import { z } from "zod";

import { Cancel, Permanent, Reject, Retryable } from "../src/index.js";
import { serveThread } from "../src/thread.js";

serveThread(
  async ({ act, n }, attempt) => {
    attempt.progress("working");
    switch (act) {
      case "work": {
        const [parent = 0n] = attempt.parents;
        return { n, parent: await attempt.output(parent), given: workerData as unknown };
      }
      case "room":
        return attempt.payload.buffer.byteLength - attempt.payload.length;
      case "retryable":
        throw new Retryable("later", { retryAfterMs: 5 });
      case "permanent":
        throw new Permanent("never");
      case "reject":
        throw new Reject("elsewhere");
      case "cancel":
        throw new Cancel("unwanted");
      case "spin":
        while (!attempt.isCancelled);
        return "seen";
      case "blind":
        for (;;);
      case "exit":
        process.exit(0);

      default:
        throw new TypeError("bad");
    }
  },
  { payload: z.object({ act: z.string(), n: z.number().optional() }) },
);
