// graphile-worker over PostgreSQL: addJobs for many; what has ended is deleted, nothing is kept.

import { makeWorkerUtils, run as runWorker } from "graphile-worker";
import pg from "pg";
import { PLAIN, SLOTS, URL, byCallers, chunks, probe, run, work } from "./speaking.mjs";

const POOL = 32;

class OverGraphile {
  packages = ["graphile-worker", "pg"];

  async prepare() {
    this.pool = new pg.Pool({ connectionString: URL, max: POOL });
    this.utils = await makeWorkerUtils({ pgPool: this.pool });
    await this.utils.migrate();
  }

  async bulk(count, mixed) {
    for (const size of chunks(count)) {
      const jobs = Array.from({ length: size }, (_, at) => ({
        identifier: "job",
        payload: { text: PLAIN },
        priority: mixed ? at % 4 : undefined,
      }));
      await this.utils.addJobs(jobs);
    }
  }

  single(count) {
    return byCallers(() => this.utils.addJob("job", { text: PLAIN }), count);
  }

  probe() {
    return this.utils.addJob("job", { text: probe() });
  }

  async left() {
    const found = await this.pool.query("SELECT count(*) FROM graphile_worker._private_jobs");
    return Number(found.rows[0].count);
  }
}

async function serve() {
  const batched = process.argv[3] === "batched";
  await runWorker({
    connectionString: URL,
    concurrency: SLOTS,
    maxPoolSize: Math.min(SLOTS + 2, 40),
    taskList: { job: async (payload) => void work(payload.text) },
    preset: batched
      ? { worker: { localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 } }
      : undefined,
  });
}

await run(new OverGraphile(), serve);
