/**
 * Decides what a gRPC status says: its reason and details, and whether the call was ever sent.
 */

import { BinaryReader, WireType } from "@bufbuild/protobuf/wire";
import { type Metadata, status as Code } from "@grpc/grpc-js";

import { type CronoqError, errorFor, type ErrorReason, reasonOf } from "./errors.js";
import { Status } from "./gen/google/rpc/status.js";

export const SHARD_ENDPOINT_KEY = "cronoq-shard-endpoint";
const STATUS_KEY = "grpc-status-details-bin";
const ERROR_DOMAIN = "cronoq";
const ERROR_INFO_TYPE = "google.rpc.ErrorInfo";

// What grpc-js says when there was no connection to send the call on.
const NEVER_SENT = [
  "no connection established",
  "name resolution failed",
  "channel closed before call started",
  "econnrefused",
  "stream refused by server", // By HTTP/2, a stream that is refused was not looked at.
];

/** What a status is made of, whoever tells it. */
export interface StatusLike {
  readonly code: number;
  readonly details: string;
  readonly metadata?: Metadata;
}

/** Returns the name of a status code. */
export function codeName(code: number): string {
  return (Code as Record<number, string | undefined>)[code] ?? "UNKNOWN";
}

/** Returns the error for a call that failed. */
export function callError(status: StatusLike, initial: Metadata | undefined): CronoqError {
  const code = codeName(status.code);
  let reason: ErrorReason | undefined;
  const details: Record<string, string> = {};
  for (const metadata of [initial, status.metadata]) {
    for (const [key, value] of Object.entries(metadata?.getMap() ?? {})) {
      if (key === STATUS_KEY && typeof value !== "string") {
        const found = readErrorInfo(value);
        reason = found.reason ?? reason;
        Object.assign(details, found.details);
      } else if (key.startsWith("cronoq-")) {
        details[key] = value.toString();
      }
    }
  }
  const message = status.details === "" ? code.toLowerCase() : status.details;
  // What has a reason came from a server, whatever its text quotes.
  const executed = reason === undefined && wasNeverSent(code, message) ? false : undefined;
  return errorFor(code, message, { reason, details, executed });
}

/**
 * Returns the error for a status that travels inside a message.
 *
 * `place` is where in the request the server says the fault is, such as `tasks[3].`. It is left
 * out: the caller knows of one task only, not of the request that carried it.
 */
export function statusError(status: Status | undefined, place = ""): CronoqError {
  if (status === undefined) {
    return errorFor("INTERNAL", "the server gave no reason");
  }
  const { reason, details } = errorInfoOf(status);
  const kept = Object.entries(details)
    .filter(([name]) => place === "" || name !== "index")
    .map(([name, text]) => [name, without(text, place)] as const);
  return errorFor(codeName(status.code), without(status.message, place), {
    reason,
    details: Object.fromEntries(kept),
  });
}

function without(text: string, prefix: string): string {
  return text.startsWith(prefix) ? text.slice(prefix.length) : text;
}

interface ErrorInfo {
  readonly reason: ErrorReason | undefined;
  readonly details: Record<string, string>;
}

/** Returns reason and details of a serialized google.rpc.Status. */
export function readErrorInfo(bytes: Uint8Array): ErrorInfo {
  try {
    return errorInfoOf(Status.decode(bytes));
  } catch (error) {
    if (error instanceof Error) {
      return { reason: undefined, details: {} }; // Not a status: then it says nothing.
    }
    throw error;
  }
}

function errorInfoOf(status: Status): ErrorInfo {
  for (const detail of status.details) {
    if (detail.typeUrl.endsWith(`/${ERROR_INFO_TYPE}`)) {
      const info = decodedOrNothing(detail.value);
      if (info?.domain === ERROR_DOMAIN) {
        return { reason: reasonOf(info.reason), details: Object.fromEntries(info.metadata) };
      }
    }
  }
  return { reason: undefined, details: {} };
}

/** A detail that is not what it says is passed over: the status still says that the call failed. */
function decodedOrNothing(bytes: Uint8Array): WireErrorInfo | undefined {
  try {
    return decodeErrorInfo(bytes);
  } catch (error) {
    if (error instanceof Error) {
      return undefined;
    }
    throw error;
  }
}

interface WireErrorInfo {
  reason: string;
  domain: string;
  metadata: Map<string, string>;
}

/** google.rpc.ErrorInfo: 1 reason, 2 domain, 3 metadata. A field of another form is none of these. */
function decodeErrorInfo(bytes: Uint8Array): WireErrorInfo {
  const reader = new BinaryReader(bytes);
  const info: WireErrorInfo = { reason: "", domain: "", metadata: new Map() };
  while (reader.pos < reader.len) {
    const [field, wireType] = reader.tag();
    if (wireType !== WireType.LengthDelimited || field > 3) {
      reader.skip(wireType, field);
    } else if (field === 1) {
      info.reason = reader.string();
    } else if (field === 2) {
      info.domain = reader.string();
    } else {
      info.metadata.set(...decodeEntry(reader.bytes()));
    }
  }
  return info;
}

function decodeEntry(bytes: Uint8Array): [string, string] {
  const reader = new BinaryReader(bytes);
  const entry: [string, string] = ["", ""];
  while (reader.pos < reader.len) {
    const [field, wireType] = reader.tag();
    if (wireType !== WireType.LengthDelimited || field > 2) {
      reader.skip(wireType, field);
    } else {
      entry[field - 1] = reader.string();
    }
  }
  return entry;
}

function wasNeverSent(code: string, message: string): boolean {
  const text = message.toLowerCase();
  return code === "UNAVAILABLE" && NEVER_SENT.some((mark) => text.includes(mark));
}
