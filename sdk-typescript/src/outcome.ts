/** Decides what a handler's end means for its task: the outcomes a worker can report. */

export const MESSAGE_BYTES_MAX = 32 * 1024;
const CUT_MARK = " … (cut)";
const PLAIN = /^[\x01-\x7f]*$/;

/** The handler returned a value. */
export interface Completed {
  readonly type: "completed";
  readonly output: Uint8Array;
  readonly contentType: string;
}

/** The attempt failed; `permanent` means that no other attempt shall follow. */
export interface Failed {
  readonly type: "failed";
  readonly message: string;
  readonly permanent: boolean;
  readonly retryAfterMs?: number | undefined;
}

/** The attempt was given back unrun. */
export interface Nacked {
  readonly type: "nacked";
  readonly reason: string;
}

/** The handler cancelled its task, or ended after the server cancelled it. */
export interface Cancelled {
  readonly type: "cancelled";
  readonly reason: string;
}

/** How an attempt ended. */
export type Outcome = Completed | Failed | Nacked | Cancelled;

/** Returns a failure that another attempt may follow. */
export function failed(message: string, retryAfterMs?: number): Failed {
  return { type: "failed", message, permanent: false, retryAfterMs };
}

/** Returns a failure that ends the task. */
export function failedForGood(message: string): Failed {
  return { type: "failed", message, permanent: true };
}

/** Returns the outcome of an attempt that was not run. */
export function nacked(reason: string): Nacked {
  return { type: "nacked", reason };
}

/** Returns text that every store can hold: no NUL, no lone surrogates, of bounded length (WP-19). */
export function cleanMessage(text: string): string {
  if (text.length <= MESSAGE_BYTES_MAX && PLAIN.test(text)) {
    return text;
  }
  const whole = text.replaceAll("\0", "\ufffd").toWellFormed();
  const raw = Buffer.from(whole);
  if (raw.length <= MESSAGE_BYTES_MAX) {
    return whole;
  }
  let end = MESSAGE_BYTES_MAX - Buffer.byteLength(CUT_MARK);
  while (((raw[end] ?? 0) & 0xc0) === 0x80) {
    end -= 1; // Not into the middle of a character.
  }
  return raw.toString("utf8", 0, end) + CUT_MARK;
}
