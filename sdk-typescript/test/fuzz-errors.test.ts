/** Holds errors to the status that they are made from, whatever else it carries. */

import assert from "node:assert/strict";
import { describe, it } from "node:test";

import { BinaryWriter } from "@bufbuild/protobuf/wire";
import fc from "fast-check";

import * as errors from "../src/errors.js";
import { Status } from "../src/gen/google/rpc/status.js";
import { readErrorInfo, statusError } from "../src/status.js";
import { damagedOf, holds, vectorsOf } from "./fuzz.js";

interface Vector {
  readonly status: string;
  readonly place: string;
  readonly family: string;
  readonly reason: string | null;
  readonly details: Readonly<Record<string, string>>;
  readonly executed: boolean;
}

const TYPE_URL = "type.googleapis.com/google.rpc.ErrorInfo";
const vectors = vectorsOf("errors.json") as readonly Vector[];
const bytesOf = ({ status }: Vector): Buffer => Buffer.from(status, "base64");

/** The name of the class right below CronoqError. */
function familyOf(error: errors.CronoqError): string {
  let kind = error.constructor as { name: string };
  for (;;) {
    const above = Object.getPrototypeOf(kind) as { name: string };
    if (above === errors.CronoqError) {
      return kind.name.replace(/Error$/, "");
    }
    kind = above;
  }
}

/** google.rpc.ErrorInfo, written by hand as it is read by hand. */
function infoBytes(reason: string, domain: string, name: string, text: string): Uint8Array {
  const entry = new BinaryWriter().uint32(10).string(name).uint32(18).string(text).finish();
  const writer = new BinaryWriter().uint32(10).string(reason).uint32(18).string(domain);
  return writer.uint32(26).bytes(entry).finish();
}

const words = fc.oneof(
  fc.constantFrom(...vectors.flatMap(({ reason }) => (reason === null ? [] : [reason]))),
  fc.string({ maxLength: 5 }),
);
const texts = fc.oneof(fc.constantFrom("", "index", "tasks[3].", "tasks[3].key"), fc.string());
const broken = fc.oneof(
  fc.uint8Array({ maxLength: 12 }),
  damagedOf(vectors.map((vector) => bytesOf(vector).toString("latin1"))).map(
    (text) => new Uint8Array(Buffer.from(text, "latin1")),
  ),
);

describe("statuses", () => {
  it("become the errors that all SDKs make of them", () => {
    for (const vector of vectors) {
      const status = Status.decode(bytesOf(vector));
      const error = statusError(status, vector.place);
      const found = {
        status: vector.status,
        place: vector.place,
        family: familyOf(error),
        reason: readErrorInfo(bytesOf(vector)).reason ?? null,
        details: error.details,
        executed: error.executed !== false,
      };
      assert.deepEqual(found, vector);
    }
  });

  it("say nothing in fields of another form than theirs", () => {
    const writer = new BinaryWriter().uint32(8).uint32(8).uint32(18).string("cronoq");
    const status = statusOf(5, "x", [writer.finish(), infoBytes("task_unknown", "cronoq", "", "")]);
    assert.equal(readErrorInfo(Status.encode(status).finish()).reason, undefined);
  });

  it("say what they say, beside details that are broken", () => {
    const property = fc.property(
      fc.integer({ min: -1, max: 20 }),
      words,
      texts,
      texts,
      texts,
      broken,
      (code, word, name, text, place, junk) => {
        const mine = infoBytes(`ERROR_REASON_${word.toUpperCase()}`, "cronoq", name, text);
        // What names the domain may be an answer of its own, and then comes first.
        const isHeard = Buffer.from(junk).includes("cronoq");
        const error = statusError(statusOf(code, text, isHeard ? [mine] : [junk, mine]), place);
        const bare = statusError(statusOf(code, text, []), place);
        const reason = errors.reasonOf(word.toUpperCase());
        const known = vectors.find((vector) => vector.reason === reason);
        assert.equal(familyOf(error), known === undefined ? familyOf(bare) : known.family);
        assert.equal(error.executed !== false, known?.executed ?? true);
        const told = place !== "" && text.startsWith(place) ? text.slice(place.length) : text;
        const isLeftOut = name === "index" && place !== "";
        assert.deepEqual(error.details, isLeftOut ? {} : Object.fromEntries([[name, told]]));
        assert.ok(told === "" ? error.message !== "" : error.message === told);
      },
    );
    holds("typescript-errors", property);
  });
});

function statusOf(code: number, message: string, values: readonly Uint8Array[]): Status {
  const details = values.map((value) => ({ typeUrl: TYPE_URL, value: Buffer.from(value) }));
  return { code, message, details };
}
