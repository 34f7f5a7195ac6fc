/** Holds payloads to what all SDKs make of them, and to what they are written as (R18). */

import assert from "node:assert/strict";
import { isUtf8 } from "node:buffer";
import { describe, it } from "node:test";
import { deflateSync } from "node:zlib";

import fc from "fast-check";

import { PayloadError } from "../src/errors.js";
import {
  type Codec,
  JSON_TYPE,
  JsonCodec,
  MSGPACK_TYPE,
  MsgpackCodec,
  TransformingCodec,
  ZlibTransform,
} from "../src/payload.js";
import { damagedOf, holds, vectorsOf } from "./fuzz.js";

interface Vector {
  readonly codec: "json" | "msgpack";
  readonly content_type: string;
  readonly payload: string;
  readonly read: "value" | "bytes" | "unsaid" | "refused";
  readonly value?: unknown;
}

const MAX_BYTES = 64;
const ZLIB = new ZlibTransform({ minBytes: 1, maxBytes: MAX_BYTES });
const PACKING = {
  json: new TransformingCodec(new JsonCodec(), [ZLIB]),
  msgpack: new TransformingCodec(new MsgpackCodec(), [ZLIB]),
};
const REFUSED = Symbol("refused");
const vectors = vectorsOf("payloads.json") as readonly Vector[];

/** What reading comes to; anything but a value and an error of the payload is a fault. */
function outcome(codec: Codec, payload: Uint8Array, media: string): unknown {
  try {
    return codec.decode(payload, media);
  } catch (error) {
    assert.ok(error instanceof PayloadError, String(error));
    return REFUSED;
  }
}

function said(value: unknown): unknown {
  return value instanceof Uint8Array
    ? Buffer.from(value).toString("base64")
    : JSON.parse(JSON.stringify(value));
}

function isJson(payload: Uint8Array): boolean {
  try {
    JSON.parse(new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(payload));
    return true;
  } catch {
    return false;
  }
}

const bytes = fc.oneof(
  fc.uint8Array({ maxLength: 80 }),
  damagedOf(vectors.map(({ payload }) => Buffer.from(payload, "base64").toString("latin1"))).map(
    (text) => new Uint8Array(Buffer.from(text, "latin1")),
  ),
);
const medias = fc.oneof(
  fc.constantFrom("", JSON_TYPE, MSGPACK_TYPE, `${JSON_TYPE};transform=zlib`),
  damagedOf([...new Set(vectors.map((vector) => vector.content_type))]),
);
const KNOWN = /^[ \t]*application\/(?:json|msgpack|octet-stream)[ \t]*(?:;|$)/i;

describe("payloads", () => {
  // Covers R18.
  it("are read as all SDKs read them", () => {
    for (const vector of vectors) {
      const payload = Buffer.from(vector.payload, "base64");
      const found = outcome(PACKING[vector.codec], payload, vector.content_type);
      const place = JSON.stringify(vector);
      assert.equal(found === REFUSED, vector.read === "refused", place);
      if (vector.read === "value" || vector.read === "bytes") {
        assert.deepEqual(said(found), vector.value, place);
      }
    }
  });

  it("are values of their media, or refused", () => {
    const property = fc.property(bytes, medias, fc.boolean(), (payload, media, isPacked) => {
      const found = outcome(PACKING[isPacked ? "msgpack" : "json"], payload, media);
      if (media === JSON_TYPE) {
        assert.equal(found !== REFUSED, isJson(payload));
      }
      if (media === MSGPACK_TYPE && found !== REFUSED) {
        expectSame(new MsgpackCodec(), found);
        assert.ok(
          typeof found !== "string" ||
            isUtf8(payload.subarray(payload.length - Buffer.byteLength(found))),
        );
      }
      assert.ok(found === REFUSED || media === "" || media.startsWith(";") || KNOWN.test(media));
      assert.ok(found === REFUSED || !media.includes("\u212a"));
    });
    holds("typescript-payloads, bytes", property, 3);
  });

  it("come back as the values that they were made of", () => {
    const values = fc.jsonValue({ maxDepth: 4 });
    const property = fc.property(
      values,
      fc.constantFrom<Vector["codec"]>("json", "msgpack"),
      (value, name) => {
        if (name === "msgpack" && JSON.stringify(value).includes('"__proto__":')) {
          return; // The library refuses this key, lest it become the prototype of an object.
        }
        const { payload, contentType } = PACKING[name].encode(value);
        const plain =
          name === "json" ? new JsonCodec().encode(value) : new MsgpackCodec().encode(value);
        const found = outcome(PACKING[name], payload, contentType);
        if (plain.payload.length <= MAX_BYTES || !contentType.endsWith("zlib")) {
          assert.deepEqual(said(found), said(value));
        } else {
          assert.equal(found, REFUSED);
        }
      },
    );
    holds("typescript-payloads, values", property, 3);
  });

  it("unpack to as much as is allowed, as a whole", () => {
    const property = fc.property(fc.uint8Array({ maxLength: 90 }), fc.nat(1000), (plain, cut) => {
      const packed = deflateSync(plain);
      const media = "application/octet-stream;transform=zlib";
      const found = outcome(PACKING.json, packed, media);
      assert.deepEqual(
        found === REFUSED ? REFUSED : new Uint8Array(found as Uint8Array),
        plain.length <= MAX_BYTES ? plain : REFUSED,
      );
      const short = packed.subarray(0, cut % packed.length);
      assert.equal(outcome(PACKING.json, short, media), REFUSED);
    });
    holds("typescript-payloads, zlib", property, 3);
  });
});

/** What is read from a value's bytes is written as the same bytes. */
function expectSame(codec: Codec, value: unknown): void {
  let first: Uint8Array;
  try {
    first = codec.encode(value).payload;
  } catch {
    return; // Extensions of others have no form here.
  }
  const media = value instanceof Uint8Array ? "application/octet-stream" : MSGPACK_TYPE;
  assert.deepEqual(codec.encode(codec.decode(first, media)).payload, first);
}
