/**
 * Decides whether the text in a value of MessagePack is UTF-8, which the library does not look at:
 * it makes of other bytes what it can, where all SDKs must agree on a refusal.
 */

import { isUtf8 } from "node:buffer";

interface Head {
  /** Bytes of the count that follows. */
  readonly counter: number;
  /** Bytes that follow in any case. */
  readonly size: number;
  /** What the count counts; entries of arrays and maps are values of their own. */
  readonly counts: "text" | "bytes" | "values";
}

/** True unless some text is not UTF-8. Of what is no whole value, as much as there is is looked at. */
export function isTextUtf8(payload: Uint8Array): boolean {
  let at = 0;
  while (at < payload.length) {
    const first = payload[at] ?? 0;
    const { counter, size, counts } = headOf(first);
    let count = first >= 0xa0 && first < 0xc0 ? first & 31 : 0;
    for (const digit of payload.subarray(at + 1, at + 1 + counter)) {
      count = count * 256 + digit;
    }
    const begin = at + 1 + counter;
    at = begin + size + (counts === "values" ? 0 : count);
    if (counts === "text" && !isUtf8(payload.subarray(begin, at))) {
      return false;
    }
  }
  return true;
}

function headOf(first: number): Head {
  if (first >= 0xa0 && first < 0xc0) {
    return { counter: 0, size: 0, counts: "text" };
  }
  if (first < 0xc4 || first >= 0xe0) {
    return { counter: 0, size: 0, counts: "values" };
  }
  if (first <= 0xc6) {
    return { counter: 2 ** (first - 0xc4), size: 0, counts: "bytes" };
  }
  if (first <= 0xc9) {
    return { counter: 2 ** (first - 0xc7), size: 1, counts: "bytes" };
  }
  if (first <= 0xd8) {
    return { counter: 0, size: sizeOf(first), counts: "values" };
  }
  if (first <= 0xdb) {
    return { counter: 2 ** (first - 0xd9), size: 0, counts: "text" };
  }
  return { counter: first % 2 === 0 ? 2 : 4, size: 0, counts: "values" };
}

/** Bytes of numbers, and of extensions of a fixed size with the byte of their type. */
function sizeOf(first: number): number {
  if (first <= 0xcb) {
    return first === 0xca ? 4 : 8;
  }
  return first <= 0xd3 ? 2 ** (first % 4) : 1 + 2 ** (first - 0xd4);
}
