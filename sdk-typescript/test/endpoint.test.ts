/** Holds the reading of endpoints to what all SDKs make of them. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { describe, it } from "node:test";

import { type Endpoint, EndpointError, parseConfigured, parseRedirect } from "../src/endpoint.js";

interface Vector {
  readonly text: string;
  readonly configured: string | null;
  readonly tls: string | null;
  readonly redirect: string | null;
  readonly is_loopback: boolean;
}

const SHARED = new URL("../../../conformance/vectors/endpoints.json", import.meta.url);
const PATH = process.env["CRONOQ_ENDPOINT_VECTORS"] ?? SHARED;
const { vectors } = JSON.parse(readFileSync(PATH, "utf8")) as { vectors: readonly Vector[] };

/** What reading comes to; null is a refusal. */
function outcome(read: () => Endpoint): Endpoint | null {
  try {
    return read();
  } catch (error) {
    assert.ok(error instanceof EndpointError, String(error));
    return null;
  }
}

describe("endpoints", () => {
  // Covers R15.
  it("are read as all SDKs read them", () => {
    assert.ok(vectors.length > 100);
    for (const vector of vectors) {
      const { text } = vector;
      const redirect = outcome(() => parseRedirect(text));
      const found = {
        text,
        configured: outcome(() => parseConfigured(text, false))?.toString() ?? null,
        tls: outcome(() => parseConfigured(text, true))?.toString() ?? null,
        redirect: redirect?.toString() ?? null,
        is_loopback: redirect?.isLoopback ?? false,
      };
      assert.deepEqual(found, vector);
    }
  });
});
