/** Decides how a listing is read: page by page, while someone iterates. */

import type { Caller } from "./calls.js";
import { monotonicMs } from "./clock.js";
import { readInfo } from "./convert.js";
import { type ListTasksRequest, TasksService } from "./gen/cronoq/v1/tasks.js";
import type { TaskInfo } from "./views.js";

/** Tasks of a listing, fetched page by page while they are read with `for await`. */
export class TaskPages implements AsyncIterable<TaskInfo> {
  readonly #caller: Caller;
  readonly #request: ListTasksRequest;
  readonly #deadlineMs: number;
  readonly #signal: AbortSignal | undefined;
  /** Shards that the pages read so far lack. */
  readonly unavailableShards = new Set<string>();

  /** Made by `Client.list`. */
  constructor(
    caller: Caller,
    request: ListTasksRequest,
    deadlineMs: number,
    signal: AbortSignal | undefined,
  ) {
    this.#caller = caller;
    this.#request = request;
    this.#deadlineMs = deadlineMs;
    this.#signal = signal;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<TaskInfo, void, undefined> {
    let { after } = this.#request;
    do {
      const page = await this.#caller.call(
        TasksService.listTasks,
        { ...this.#request, after },
        { idempotent: true, endsAt: monotonicMs() + this.#deadlineMs, signal: this.#signal },
      );
      page.unavailableShards.forEach((shard) => this.unavailableShards.add(shard));
      for (const message of page.tasks) {
        yield readInfo(message);
      }
      // Pages may be short or empty; only 0 is the end.
      after = page.nextAfter;
    } while (after !== 0n);
  }
}
