/** Holds endpoints to a rule written another way, whatever is given (RR-01, RR-13, RR-15). */

import assert from "node:assert/strict";
import { describe, it } from "node:test";

import fc from "fast-check";

import { type Endpoint, EndpointError, parseConfigured, parseRedirect } from "../src/endpoint.js";
import { damagedOf, holds, textsOf, vectorsOf } from "./fuzz.js";

const WELL_FORMED =
  /^([A-Za-z]+):\/\/(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*\.*))(?::([0-9]*))?\/?$/;
const BYTE = /^(?:0|[1-9][0-9]?|1[0-9]{2}|2[0-4][0-9]|25[0-5])$/;
const GROUP = /^[0-9a-f]{1,4}$/;

interface Ruled {
  readonly text: string;
  readonly isLoopback: boolean;
}

/** What a text means by the rule; undefined where it is to be refused. */
function ruled(text: string, ports: Readonly<Record<string, number>>): Ruled | undefined {
  const [, schemeText = "", address, name = "", digits = ""] = WELL_FORMED.exec(text) ?? [];
  const scheme = schemeText.toLowerCase();
  if (scheme !== "http" && scheme !== "https") {
    return undefined;
  }
  const significant = digits.replace(/^0+/, "");
  const port = digits === "" ? ports[scheme] : Number(significant);
  if (port === undefined || port === 0 || significant.length > 5 || port > 65_535) {
    return undefined;
  }
  if (address === undefined) {
    const host = name.toLowerCase();
    const isLoopback = host === "localhost" || (quadOf(host)?.[0] ?? 0) === 127;
    return { text: `${scheme}://${host}:${port}`, isLoopback };
  }
  const groups = groupsOf(address.toLowerCase());
  return groups === undefined
    ? undefined
    : {
        text: `${scheme}://[${address.toLowerCase()}]:${port}`,
        isLoopback: groups.join() === "0,0,0,0,0,0,0,1",
      };
}

function quadOf(text: string): readonly number[] | undefined {
  const parts = text.split(".");
  return parts.length === 4 && parts.every((part) => BYTE.test(part))
    ? parts.map(Number)
    : undefined;
}

/** The eight groups of an IPv6 address; undefined when it is none. */
function groupsOf(address: string): readonly number[] | undefined {
  let text = address;
  if (text.includes(".")) {
    const at = text.lastIndexOf(":") + 1;
    const [a = 0, b = 0, c = 0, d = 0] = quadOf(text.slice(at)) ?? [Number.NaN];
    if (Number.isNaN(a)) {
      return undefined;
    }
    text = `${text.slice(0, at)}${(a * 256 + b).toString(16)}:${(c * 256 + d).toString(16)}`;
  }
  const halves = text.split("::").map((half) => (half === "" ? [] : half.split(":")));
  const [left = [], right = []] = halves;
  const missing = 8 - left.length - right.length;
  const isWhole = halves.length === 1 ? missing === 0 : halves.length === 2 && missing > 0;
  const groups = [...left, ...Array<string>(Math.max(missing, 0)).fill("0"), ...right];
  return isWhole && groups.every((group) => GROUP.test(group))
    ? groups.map((group) => Number.parseInt(group, 16))
    : undefined;
}

function outcome(read: () => Endpoint): Ruled | undefined {
  try {
    const found = read();
    return { text: found.toString(), isLoopback: found.isLoopback };
  } catch (error) {
    assert.ok(error instanceof EndpointError, String(error));
    return undefined;
  }
}

const PARTS = [
  ...["http", "https", "HTTP", "ftp", "://", ":", "@", "/", "?", "#", ".", "localhost", "queue"],
  ...["127.0.0.1", "127.1", "128.0.0.1", "[", "]", "::1", "::", "1:2:3:4:5:6:7:8", ":1", ":0"],
  ...["1.2.3.4", "ffff", ":65535", ":65536", ":080", "\u212a", "%2e", "-", "_", "Ab", "[::1]"],
];

describe("any text", () => {
  // Covers R15.
  it("is an endpoint by the rule, or refused by it", () => {
    const vectors = vectorsOf("endpoints.json") as readonly { readonly text: string }[];
    const shared = vectors.map(({ text }) => text);
    const texts = fc.oneof(textsOf(PARTS), damagedOf(shared));
    const property = fc.property(texts, fc.boolean(), (text, tls) => {
      const redirect = outcome(() => parseRedirect(text));
      assert.deepEqual(redirect, ruled(text, { http: 80, https: 443 }));
      if (redirect !== undefined) {
        assert.deepEqual(
          outcome(() => parseRedirect(redirect.text)),
          redirect,
        );
      }
      const whole = text.includes("://") ? text : `http${tls ? "s" : ""}://${text}`;
      const expected = ruled(whole, { http: 7070, https: 7070 });
      const isFit = !tls || expected?.text.startsWith("https:");
      assert.deepEqual(
        outcome(() => parseConfigured(text, tls)),
        isFit ? expected : undefined,
      );
    });
    holds("typescript-endpoints", property);
  });
});
