/**
 * Runs properties: some hundreds of cases, or as many as fit in `CRONOQ_FUZZ_S` seconds, made from
 * `CRONOQ_FUZZ_SEED`. Reads the vectors that all languages share.
 */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

import fc from "fast-check";

const CASES = 500;
const MANY = 2 ** 31 - 1;

/** Holds a property, or throws with the smallest case that breaks it; `parts` share the time. */
export function holds<T>(name: string, property: fc.IProperty<T>, parts = 1): void {
  const milliseconds = (Number(process.env["CRONOQ_FUZZ_S"] ?? 0) * 1000) / parts;
  const isLong = milliseconds > 0;
  const found = fc.check(property, {
    seed: Number(process.env["CRONOQ_FUZZ_SEED"] ?? 1),
    numRuns: isLong ? MANY : CASES,
    plugins: isLong ? [fc.interruptAfterTimeLimit(milliseconds, { failOnInterrupt: false })] : [],
  });
  if (found.failed) {
    assert.fail(fc.defaultReportMessage(found));
  }
  if (isLong) {
    console.log(`${name}: ${found.numRuns} cases`);
  }
}

/** The vectors of a file in `conformance/vectors`, for the caller to say of what form they are. */
export function vectorsOf(file: string): readonly unknown[] {
  const place = new URL(`../../../conformance/vectors/${file}`, import.meta.url);
  const told = JSON.parse(readFileSync(place, "utf8")) as { vectors: readonly unknown[] };
  assert.ok(told.vectors.length >= 100);
  return told.vectors;
}

/** Texts of some parts, of damaged parts, and of any letters. */
export function textsOf(parts: readonly string[]): fc.Arbitrary<string> {
  const part = fc.oneof(
    { arbitrary: fc.constantFrom(...parts), weight: 6 },
    { arbitrary: fc.string({ maxLength: 3, unit: "binary" }), weight: 1 },
    { arbitrary: fc.string({ maxLength: 3, unit: "grapheme-ascii" }), weight: 1 },
  );
  return fc.array(part, { maxLength: 6 }).map((chosen) => chosen.join(""));
}

/** Texts of a list, whole or with some letters taken out, put in or put again. */
export function damagedOf(texts: readonly string[]): fc.Arbitrary<string> {
  const damage = fc.tuple(fc.nat(1000), fc.nat(3), fc.string({ maxLength: 2 }), fc.boolean());
  return fc
    .tuple(fc.constantFrom(...texts), fc.array(damage, { maxLength: 3 }))
    .map(([text, damages]) => {
      let told = text;
      for (const [where, length, put, isDoubled] of damages) {
        const at = where % (told.length + 1);
        const kept = isDoubled ? told.slice(at, at + length) : "";
        told = told.slice(0, at) + put + kept + kept + told.slice(at + length);
      }
      return told;
    });
}
