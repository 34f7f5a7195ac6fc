// Computes in a thread for as long as it is told, without giving way.

import { workerData } from "node:worker_threads";

import { serveThread } from "../../../sdk-typescript/dist/esm/thread.js";

serveThread(() => {
    const until = performance.now() + workerData * 1000;
    while (performance.now() < until);
    return null;
});
