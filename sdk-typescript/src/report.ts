/** Decides how an outcome stands in a report, and how much room it takes there. */

import type { Report, WorkerMessage } from "./gen/cronoq/v1/workers.js";
import { cleanMessage, type Outcome } from "./outcome.js";

const REPORT_ROOM = 64; // Bytes around one report in its message.
const BYTES_PER_CHARACTER = 4; // More than UTF-8 needs for what is one character of a string.

/** Returns an outcome as a report. */
export function reportOf(lease: bigint, outcome: Outcome): Report {
  switch (outcome.type) {
    case "completed": {
      const { contentType, output } = outcome;
      return { report: { $case: "complete", value: { lease, output, contentType } } };
    }
    case "failed": {
      const { permanent, retryAfterMs } = outcome;
      const message = cleanMessage(outcome.message);
      const retryAfterS = retryAfterMs === undefined ? undefined : retryAfterMs / 1000;
      return { report: { $case: "fail", value: { lease, message, permanent, retryAfterS } } };
    }
    case "nacked":
      return {
        report: { $case: "nack", value: { lease, reason: cleanMessage(outcome.reason) } },
      };
    case "cancelled":
      return { report: { $case: "cancelled", value: { lease } } };
  }
}

/** Returns how many bytes an outcome takes in a message, at most. */
export function roomOf(outcome: Outcome): number {
  switch (outcome.type) {
    case "completed":
      return outcome.output.length + outcome.contentType.length + REPORT_ROOM;
    case "failed":
      return BYTES_PER_CHARACTER * outcome.message.length + REPORT_ROOM;
    case "nacked":
    case "cancelled":
      return BYTES_PER_CHARACTER * outcome.reason.length + REPORT_ROOM;
  }
}

/** Returns a report as the message that servers before version 4 know. */
export function singleOf(report: Report): WorkerMessage {
  return { message: report.report };
}
