/** Decides how a watch goes on across breaks: from the cursor of the last event or bookmark. */

import { BackoffSeries, type Caller, cronoqErrorOf } from "./calls.js";
import { readEvent } from "./convert.js";
import { type CronoqError, UnsupportedError, WatchTooSlowError } from "./errors.js";
import { TasksService, type WatchRequest } from "./gen/cronoq/v1/tasks.js";
import { isUnavailable } from "./transport.js";
import type { StatusEvent } from "./views.js";

/** Where a watch stands. */
interface Place {
  cursor: Uint8Array;
}

type Reader = (
  caller: Caller,
  request: WatchRequest,
  place: Place,
  signal: AbortSignal | undefined,
) => AsyncGenerator<StatusEvent, void, undefined>;

/**
 * Yields events for ever, over as many streams as it takes.
 *
 * @throws {CronoqError} The watch was refused, or cannot go on.
 */
export async function* watchEvents(
  caller: Caller,
  request: WatchRequest,
  signal: AbortSignal | undefined,
): AsyncGenerator<StatusEvent, void, undefined> {
  const backoff = new BackoffSeries(caller.settings);
  const place: Place = { cursor: request.afterCursor };
  let read: Reader = readBatches;
  for (;;) {
    let trouble: CronoqError | undefined;
    try {
      for await (const event of read(caller, request, place, signal)) {
        backoff.reset();
        yield event;
      }
    } catch (thrown) {
      const error = cronoqErrorOf(thrown);
      if (error instanceof UnsupportedError && read !== readSingles) {
        read = readSingles;
        continue;
      }
      // Too slow: the stream is gone, but the cursor says where this reader stands.
      const isResumable = error instanceof WatchTooSlowError && place.cursor.length > 0;
      if (!isUnavailable(error) && !isResumable) {
        throw error;
      }
      trouble = error;
    }
    // A stream that ends without an error ends for its server's reasons: go on likewise.
    await caller.pause(backoff.nextDelay(trouble), signal);
  }
}

const readBatches: Reader = async function* (caller, request, place, signal) {
  const asked = { ...request, afterCursor: place.cursor };
  const channel = caller.connection.channel();
  for await (const message of channel.stream(TasksService.watchBatches, asked, { signal })) {
    for (const item of message.events) {
      const event = readEvent(item);
      yield event;
      // Moved only after the reader took the event: a break resumes before it.
      moveTo(place, event.cursor);
    }
    moveTo(place, message.cursor);
  }
};

const readSingles: Reader = async function* (caller, request, place, signal) {
  const asked = { ...request, afterCursor: place.cursor };
  const channel = caller.connection.channel();
  for await (const item of channel.stream(TasksService.watch, asked, { signal })) {
    yield readEvent(item);
    moveTo(place, item.cursor);
  }
};

function moveTo(place: Place, cursor: Uint8Array): void {
  if (cursor.length > 0) {
    place.cursor = cursor;
  }
}
