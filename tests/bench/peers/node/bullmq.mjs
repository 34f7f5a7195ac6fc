// BullMQ over Redis: addBulk for many; the mix has a limit of concurrency, one of rate, priorities.

import { Queue, Worker } from "bullmq";
import { PLAIN, SLOTS, URL, byCallers, chunks, probe, run, work } from "./speaking.mjs";

const { hostname, port } = new globalThis.URL(URL);
const connection = { host: hostname, port: Number(port), maxRetriesPerRequest: null };

class OverBullMq {
  packages = ["bullmq"];

  async prepare() {
    this.plain = new Queue("plain", { connection });
    this.limited = new Queue("limited", { connection });
    await this.limited.setGlobalConcurrency(100_000);
  }

  async bulk(count, mixed) {
    for (const size of chunks(count)) {
      const jobs = Array.from({ length: size }, (_, at) => ({
        name: "job",
        data: PLAIN,
        opts: mixed ? { priority: 1 + (at % 4) } : undefined,
      }));
      await (mixed ? this.limited : this.plain).addBulk(jobs);
    }
  }

  single(count) {
    return byCallers(() => this.plain.add("job", PLAIN), count);
  }

  probe() {
    return this.plain.add("job", probe());
  }

  async left(submitted) {
    const ended = await Promise.all([
      this.plain.getCompletedCount(),
      this.limited.getCompletedCount(),
    ]);
    return submitted - ended[0] - ended[1];
  }
}

function serve() {
  const process = async (job) => work(job.data);
  const limiter = { max: 1_000_000, duration: 1000 };
  new Worker("plain", process, { connection, concurrency: SLOTS });
  new Worker("limited", process, { connection, concurrency: SLOTS, limiter });
}

await run(new OverBullMq(), serve);
