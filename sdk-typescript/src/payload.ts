/**
 * Decides how values become bytes and bytes become values.
 *
 * A codec names the content type of what it makes and reads content types it knows. Bytes stay
 * bytes (`application/octet-stream`), everything else goes through the codec of the client or
 * worker. Transforms (compression, encryption) wrap the bytes and add `;transform=NAME` to the
 * content type, so that the reader undoes what the writer did. Bytes that are not what they say are
 * a PayloadError; a worker fails such an attempt permanently, since no retry can change the bytes.
 */

import { isUtf8 } from "node:buffer";
import { deflateSync, inflateSync } from "node:zlib";

import { decode as unpack, encode as pack } from "@msgpack/msgpack";

import { PayloadError } from "./errors.js";
import { isTextUtf8 } from "./text.js";

export const BYTES_TYPE = "application/octet-stream";
export const JSON_TYPE = "application/json";
export const MSGPACK_TYPE = "application/msgpack";
const TRANSFORM_MARK = ";transform=";

/** Bytes and what they are. */
export interface Encoded {
  readonly payload: Uint8Array;
  readonly contentType: string;
}

/** Makes sure that a value is what is wanted: a zod schema, or anything else that has `parse`. */
export interface Parser<T> {
  /** Returns the value as it is wanted; throws if it is something else. */
  parse(value: unknown): T;
}

/** Wants the bytes as they came, whatever their content type says. */
export const BYTES: Parser<Uint8Array> = {
  parse(value: unknown): Uint8Array {
    if (value instanceof Uint8Array) {
      return value;
    }
    throw new PayloadError("payload is not bytes");
  },
};

/** Turns values into bytes and back. */
export interface Codec {
  /** Returns the bytes and their content type; throws PayloadError if there are none. */
  encode(value: unknown): Encoded;
  /**
   * Returns the value in a payload, as `wanted` has it, or throws PayloadError. Without `wanted` it
   * is whatever is there; if that is `BYTES`, the payload itself. An empty content type means that
   * the sender did not say; the codec's own is meant.
   */
  decode(payload: Uint8Array, contentType: string, wanted?: Parser<unknown>): unknown;
}

/** Wraps bytes on their way out and unwraps them on their way in: compression, encryption. */
export interface Transform {
  /** What the content type calls it; the reader finds its transform by this name. */
  readonly name: string;
  /** Returns the wrapped bytes, or undefined to leave this payload alone. */
  wrap(payload: Uint8Array): Uint8Array | undefined;
  /** Returns the original bytes; throws PayloadError when they cannot be had. */
  unwrap(payload: Uint8Array): Uint8Array;
}

/** JSON for values, bytes as they are. `undefined` becomes `null`. */
export class JsonCodec implements Codec {
  encode(value: unknown): Encoded {
    const raw = bytesOf(value);
    if (raw !== undefined) {
      return raw;
    }
    // What JSON has no form for (functions, symbols) yields undefined, whatever the type says.
    const text = JSON.stringify(value ?? null) as string | undefined;
    if (text === undefined) {
      throw new PayloadError(`cannot encode a ${typeof value}`);
    }
    return { payload: Buffer.from(text), contentType: JSON_TYPE };
  }

  decode(payload: Uint8Array, contentType: string, wanted?: Parser<unknown>): unknown {
    return decodeAs(payload, contentType, wanted, JSON_TYPE);
  }
}

/**
 * MessagePack for values, bytes as they are. `bigint` is written as a 64-bit number; numbers of 64
 * bits are read as `number`, as JSON's are.
 */
export class MsgpackCodec implements Codec {
  encode(value: unknown): Encoded {
    const raw = bytesOf(value);
    if (raw !== undefined) {
      return raw;
    }
    return { payload: pack(value ?? null, { useBigInt64: true }), contentType: MSGPACK_TYPE };
  }

  decode(payload: Uint8Array, contentType: string, wanted?: Parser<unknown>): unknown {
    return decodeAs(payload, contentType, wanted, MSGPACK_TYPE);
  }
}

/** A codec whose bytes go through transforms: the first in the list is the innermost. */
export class TransformingCodec implements Codec {
  readonly #inner: Codec;
  readonly #transforms: readonly Transform[];

  constructor(inner: Codec, transforms: readonly Transform[]) {
    this.#inner = inner;
    this.#transforms = [...transforms];
  }

  encode(value: unknown): Encoded {
    let { payload, contentType } = this.#inner.encode(value);
    for (const transform of this.#transforms) {
      const wrapped = transform.wrap(payload);
      if (wrapped !== undefined) {
        payload = wrapped;
        contentType += TRANSFORM_MARK + transform.name;
      }
    }
    return { payload, contentType };
  }

  decode(payload: Uint8Array, contentType: string, wanted?: Parser<unknown>): unknown {
    const [plainType = "", ...names] = contentType.split(TRANSFORM_MARK);
    let plain = payload;
    for (const name of names.reverse()) {
      const transform = this.#transforms.find((known) => known.name === name);
      if (transform === undefined) {
        throw notConfigured(name);
      }
      plain = transform.unwrap(plain);
    }
    return this.#inner.decode(plain, plainType, wanted);
  }
}

/** Bounds of a `ZlibTransform`. */
export interface ZlibOptions {
  /** Shorter payloads stay as they are; 1024 if not given. */
  readonly minBytes?: number | undefined;
  /** What a payload may unpack to; more is refused. 64 MiB if not given. */
  readonly maxBytes?: number | undefined;
}

/** Compresses payloads that are long enough to gain from it. */
export class ZlibTransform implements Transform {
  readonly name = "zlib";
  readonly #minBytes: number;
  readonly #maxBytes: number;

  constructor(options: ZlibOptions = {}) {
    this.#minBytes = options.minBytes ?? 1024;
    this.#maxBytes = options.maxBytes ?? 64 * 1024 * 1024;
  }

  wrap(payload: Uint8Array): Uint8Array | undefined {
    if (payload.length < this.#minBytes) {
      return undefined;
    }
    const packed = deflateSync(payload);
    return packed.length < payload.length ? packed : undefined;
  }

  unwrap(payload: Uint8Array): Uint8Array {
    try {
      return inflateSync(payload, { maxOutputLength: this.#maxBytes });
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === "ERR_BUFFER_TOO_LARGE") {
        const text = `payload unpacks to more than ${this.#maxBytes} bytes`;
        throw new PayloadError(text, { cause: error });
      }
      throw new PayloadError(`payload is not zlib: ${textOf(error)}`, { cause: error });
    }
  }
}

/** Encodes with a codec of the user's: whatever it throws is a PayloadError. */
export function encodeWith(codec: Codec, value: unknown): Encoded {
  try {
    return codec.encode(value);
  } catch (error) {
    if (error instanceof PayloadError) {
      throw error;
    }
    throw new PayloadError(`cannot encode the value: ${textOf(error)}`, { cause: error });
  }
}

/** Decodes with a codec of the user's: whatever it throws is a PayloadError. */
export function decodeWith(
  codec: Codec,
  payload: Uint8Array,
  contentType: string,
  wanted: Parser<unknown> | undefined,
): unknown {
  try {
    return codec.decode(payload, contentType, wanted);
  } catch (error) {
    if (error instanceof PayloadError) {
      throw error;
    }
    throw new PayloadError(`cannot decode the payload: ${textOf(error)}`, { cause: error });
  }
}

function notConfigured(transform: string): PayloadError {
  return new PayloadError(`payload needs transform '${transform}', which is not configured`);
}

function bytesOf(value: unknown): Encoded | undefined {
  if (value instanceof Uint8Array) {
    return { payload: value, contentType: BYTES_TYPE };
  }
  if (value instanceof ArrayBuffer) {
    return { payload: new Uint8Array(value), contentType: BYTES_TYPE };
  }
  return undefined;
}

function decodeAs(
  payload: Uint8Array,
  contentType: string,
  wanted: Parser<unknown> | undefined,
  ownType: string,
): unknown {
  const [, transform] = contentType.split(TRANSFORM_MARK);
  if (transform !== undefined) {
    throw notConfigured(transform);
  }
  if (wanted === BYTES) {
    return payload;
  }
  const value = valueOf(payload, contentType, ownType);
  if (wanted === undefined) {
    return value;
  }
  try {
    return wanted.parse(value);
  } catch (error) {
    throw new PayloadError(`payload is not what is wanted: ${textOf(error)}`, { cause: error });
  }
}

function valueOf(payload: Uint8Array, contentType: string, ownType: string): unknown {
  if (payload.length === 0 && contentType === "") {
    return undefined; // A task without payload.
  }
  const [media = ""] = (contentType === "" ? ownType : contentType).split(";", 1);
  switch (plainMedia(media)) {
    case BYTES_TYPE:
      return payload;
    case JSON_TYPE:
      return read(payload, JSON_TYPE, parseJson);
    case MSGPACK_TYPE:
      return read(payload, MSGPACK_TYPE, parseMsgpack);
    default:
      throw new PayloadError(`unknown content type '${contentType}'`);
  }
}

/** Cuts off spaces and tabs and folds ASCII alone, as all SDKs do: a Kelvin sign is no k. */
function plainMedia(media: string): string {
  return media
    .replace(/^[ \t]+|[ \t]+$/g, "")
    .replace(/[A-Z]+/g, (letters) => letters.toLowerCase());
}

function read(
  payload: Uint8Array,
  media: string,
  parse: (payload: Uint8Array) => unknown,
): unknown {
  try {
    return parse(payload);
  } catch (error) {
    throw new PayloadError(`payload is no ${media}: ${textOf(error)}`, { cause: error });
  }
}

function parseMsgpack(payload: Uint8Array): unknown {
  const value = unpack(payload);
  if (!isTextUtf8(payload)) {
    throw new TypeError("its text is not UTF-8");
  }
  return value;
}

function parseJson(payload: Uint8Array): unknown {
  if (!isUtf8(payload)) {
    throw new TypeError("it is not UTF-8");
  }
  return JSON.parse(
    Buffer.from(payload.buffer, payload.byteOffset, payload.byteLength).toString("utf8"),
  );
}

/** The text of whatever was thrown. */
export function textOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
