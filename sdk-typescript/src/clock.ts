/** Decides what time is inside: milliseconds of a monotonic clock; and how one waits. */

// Longer times than this overflow a timer.
const TIMER_MAX_MS = 2 ** 31 - 1;

/** Returns the monotonic time in milliseconds. */
export function monotonicMs(): number {
  return performance.now();
}

/** Waits; when the signal says so, no longer, and throws its reason. */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    const onAbort = (): void => {
      clearTimeout(timer);
      reject(signal?.reason as Error);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", onAbort);
      resolve();
    }, clamped(ms));
    signal?.addEventListener("abort", onAbort, { once: true });
  });
}

/** Returns a time that a timer can hold. */
export function clamped(ms: number): number {
  return Math.min(TIMER_MAX_MS, Math.max(0, ms));
}
