/** Holds one session to the worker protocol, message by message, on a clock that a test moves. */

import assert from "node:assert/strict";
import { beforeEach, describe, it } from "node:test";

import {
  type Heartbeats,
  Register,
  Registered,
  type Reports,
  WorkerMessage,
} from "../src/gen/cronoq/v1/workers.js";
import { cleanMessage, failed, MESSAGE_BYTES_MAX, type Outcome } from "../src/outcome.js";
import { type Run, Stop } from "../src/run.js";
import { Session } from "../src/session.js";
import { makeLease } from "./scripted-server.js";

const LIMIT = 4 * 1024 * 1024;

let session: Session;
let written: WorkerMessage[];
let now: number;

beforeEach(() => {
  session = new Session({ ...Register.create(), pool: "p" }, LIMIT);
  now = 0;
  register();
});

function register(fields: Partial<Registered> = {}): Run[] {
  written = [];
  session.opening(now);
  const answer = {
    ...Registered.create(),
    protocolVersion: 4,
    leaseTtlS: 30,
    sessionToken: Buffer.from("token"),
    maxMessageBytes: LIMIT,
    ...fields,
  };
  return session.registered(answer, (message) => written.push(message), now);
}

function lease(...numbers: number[]): Run[] {
  const leases = numbers.map((number) => makeLease(number));
  return session.receive({ message: { $case: "leases", value: { leases } } }, now).begun;
}

function abort(number: number): Run[] {
  const aborts = [{ lease: BigInt(number), reason: "asked" }];
  return session.receive({ message: { $case: "aborts", value: { aborts } } }, now).stopped;
}

function receipt(reports: number, heartbeats = 0): void {
  const value = { reports: BigInt(reports), heartbeats: BigInt(heartbeats) };
  session.receive({ message: { $case: "receipt", value } }, now);
}

function completed(size = 1): Outcome {
  return { type: "completed", output: Buffer.alloc(size), contentType: "" };
}

function finish(runs: readonly Run[], outcome = completed()): void {
  session.report(
    runs.map((run) => [run, outcome]),
    now,
  );
}

function reports(): Reports[] {
  return written.flatMap(({ message }) => (message?.$case === "reports" ? [message.value] : []));
}

function beats(): Heartbeats[] {
  return written.flatMap(({ message }) => (message?.$case === "heartbeats" ? [message.value] : []));
}

function resumed(): bigint[] | undefined {
  const { message } = session.opening(now);
  return message?.$case === "register" ? message.value.resume?.leases : undefined;
}

describe("reports", () => {
  it("of attempts that end together are one message, numbered (WP-20, WP-21)", () => {
    finish(lease(1, 2, 3));
    finish(lease(4));
    assert.deepEqual(
      reports().map((message) => [message.number, message.reports.length]),
      [
        [1n, 3],
        [2n, 1],
      ],
    );
  });

  it("are split by count and by size (WP-20)", () => {
    finish(lease(...Array.from({ length: 1_001 }, (_, n) => n + 1)));
    assert.deepEqual(
      reports().map((message) => message.reports.length),
      [500, 500, 1],
    );
    written.length = 0;
    finish(lease(2_001, 2_002, 2_003), completed(1_500_000));
    assert.deepEqual(
      reports().map((message) => message.reports.length),
      [2, 1],
    );
  });

  for (const [extra, isTooLarge] of [
    [-1, false],
    [0, false],
    [1, true],
  ] as const) {
    it(`hold outputs up to the limit; ${extra} bytes beside it (WP-18)`, () => {
      finish(lease(1), completed(LIMIT - 64 * 1024 + extra));
      const [report] = reports()[0]?.reports ?? [];
      assert.equal(report?.report?.$case, isTooLarge ? "fail" : "complete");
    });
  }

  it("are kept until their receipt, and named in a resume (WP-22, WP-30)", () => {
    const [first] = lease(1, 2);
    assert.ok(first !== undefined);
    finish([first]);
    session.broken();
    assert.deepEqual(resumed(), [2n, 1n]);
    register({ adopted: [2n], reportsSeen: 1n });
    assert.deepEqual(reports(), []);
    receipt(1);
    session.broken();
    assert.deepEqual(resumed(), [2n]);
  });

  it("that the server has not read are sent again, in order (WP-33)", () => {
    finish(lease(1));
    finish(lease(2));
    session.broken();
    register({ adopted: [1n, 2n], reportsSeen: 1n });
    assert.deepEqual(
      reports().map(({ number }) => number),
      [2n],
    );
  });

  it("of an aborted lease are cancellations, whatever it came to (WP-16)", () => {
    const runs = lease(1);
    assert.deepEqual(abort(1), runs);
    assert.deepEqual(abort(1), []);
    assert.deepEqual(abort(9), []);
    finish(runs);
    assert.equal(reports()[0]?.reports[0]?.report?.$case, "cancelled");
  });
});

describe("leases", () => {
  it("that come twice are ignored, running or finished (WP-12)", () => {
    const runs = lease(1);
    assert.deepEqual(lease(1), []);
    finish(runs);
    assert.deepEqual(lease(1), []);
  });

  it("end one TTL after the last confirmed heartbeat (WP-24)", () => {
    const runs = lease(1);
    now = 10_000;
    session.pulse(now);
    receipt(0, 1);
    now = 20_000;
    session.pulse(now);
    assert.deepEqual(session.pulse(39_999), []);
    assert.deepEqual(session.pulse(40_000), runs);
    assert.equal(runs[0]?.stop, Stop.EXPIRED);
  });

  it("end one TTL after their arrival without any receipt, also without a stream", () => {
    now = 5_000;
    const runs = lease(1);
    session.broken();
    assert.equal(session.nextPulse(34_000), 34_000);
    assert.deepEqual(session.pulse(34_999), []);
    assert.deepEqual(session.pulse(35_000), runs);
  });

  it("that are adopted have a full TTL from the registration (WP-31)", () => {
    lease(1);
    session.broken();
    now = 20_000;
    assert.deepEqual(register({ adopted: [1n] }), []);
    assert.deepEqual(session.pulse(49_999), []);
    assert.equal(session.pulse(50_000).length, 1);
  });

  it("that are not adopted are lost, and nothing is reported for them (WP-32)", () => {
    const [kept, lost] = lease(1, 2);
    assert.ok(kept !== undefined && lost !== undefined);
    session.broken();
    assert.deepEqual(register({ adopted: [1n] }), [lost]);
    finish([lost, kept]);
    assert.deepEqual(reports()[0]?.reports.length, 1);
  });

  it("may have a TTL of their own, which heartbeats heed", () => {
    const leases = [makeLease(1, { leaseTtlS: 3 })];
    session.receive({ message: { $case: "leases", value: { leases } } }, now);
    assert.equal(session.nextPulse(0), 1_000);
  });

  it("begin anew at a server that has begun anew (WP-34)", () => {
    finish(lease(5));
    receipt(1);
    finish(lease(6));
    session.broken();
    register();
    assert.deepEqual(reports(), []);
    assert.deepEqual(session.unconfirmedTasks(), []);
    assert.equal(lease(5).length, 1);
    session.pulse(10_000);
    assert.equal(beats()[0]?.lastLease, 5n);
  });
});

describe("heartbeats", () => {
  it("name every lease without a report, and the highest one read (WP-23)", () => {
    const [first] = lease(1, 2, 3);
    abort(2);
    assert.ok(first !== undefined);
    finish([first]);
    session.pulse(10_000);
    assert.deepEqual(beats()[0], { leases: [2n, 3n], progress: [], number: 1n, lastLease: 3n });
  });

  it("of an idle worker are one", () => {
    const runs = lease(1);
    session.pulse(10_000);
    finish(runs);
    session.pulse(20_000);
    session.pulse(30_000);
    assert.deepEqual(
      beats().map(({ leases }) => leases),
      [[1n], []],
    );
  });

  it("carry no more progress than fits, and the rest with the next ones (WP-25)", () => {
    const runs = lease(...Array.from({ length: 6_000 }, (_, index) => index + 1));
    for (const run of runs) {
      run.setProgress({ data: Buffer.alloc(1024), fraction: 0.5 });
    }
    session.noteProgress();
    now = 1_000;
    session.pulse(now);
    assert.equal(session.nextPulse(now), 2_000);
    session.report(
      runs.map((run) => [run, completed()]),
      now,
    );
    const told = new Set<bigint>();
    for (const message of written) {
      assert.ok(WorkerMessage.encode(message).finish().length <= LIMIT);
      if (message.message?.$case === "heartbeats") {
        assert.equal(message.message.value.leases.length, 6_000);
        message.message.value.progress.forEach((progress) => told.add(progress.lease));
      }
    }
    assert.equal(told.size, 6_000);
  });

  it("carry the last progress within a second, and before the report (WP-25)", () => {
    const [run] = lease(1);
    assert.ok(run !== undefined);
    for (const word of ["a", "b"]) {
      run.setProgress({ data: Buffer.from(word), fraction: 0.5 });
      session.noteProgress();
    }
    assert.equal(session.nextPulse(0), 1_000);
    session.pulse(1_000);
    run.setProgress({ data: Buffer.from("c"), fraction: undefined });
    session.noteProgress();
    finish([run]);
    const words = beats().map(({ progress }) =>
      Buffer.from(progress[0]?.progress?.data ?? []).toString(),
    );
    assert.deepEqual(words, ["b", "c"]);
    assert.equal(written.at(-1)?.message?.$case, "reports");
  });
});

describe("a session", () => {
  it("that drains gives late leases back, and says so again when it is resumed (WP-40, WP-41)", () => {
    session.drain();
    session.drain();
    assert.deepEqual(lease(1), []);
    const kinds = written.map(({ message }) => message?.$case);
    assert.deepEqual(kinds, ["setSlots", "reports"]);
    receipt(1);
    assert.ok(session.isSettled);
    session.broken();
    register();
    assert.equal(written[0]?.message?.$case, "setSlots");
    assert.equal(session.isServing, false);
  });

  it("passes over messages that it does not know", () => {
    const received = session.receive({ message: undefined }, now);
    assert.deepEqual(received, { begun: [], stopped: [], shutdown: undefined });
  });

  it("speaks single messages with servers before version 4", () => {
    session.broken();
    register({ protocolVersion: 3, sessionToken: new Uint8Array(0) });
    const runs = lease(1, 2);
    session.pulse(10_000);
    finish(runs, failed("no"));
    const kinds = written.map(({ message }) => message?.$case);
    assert.deepEqual(kinds, ["heartbeat", "heartbeat", "fail", "fail"]);
    assert.ok(session.isSettled);
    session.broken();
    assert.equal(resumed(), undefined);
  });
});

describe("messages for people (WP-19)", () => {
  for (const [text, clean] of [
    ["plain", "plain"],
    ["a\0b", "a\ufffdb"],
    ["\ud800x", "\ufffdx"],
    ["grün 😀", "grün 😀"],
  ] as const) {
    it(`are cleaned: ${JSON.stringify(text)}`, () => {
      assert.equal(cleanMessage(text), clean);
    });
  }

  for (const character of ["x", "ü", "€", "😀"]) {
    it(`are cut between characters: ${character}`, () => {
      const cut = cleanMessage(character.repeat(40_000));
      assert.ok(Buffer.byteLength(cut) <= MESSAGE_BYTES_MAX);
      assert.ok(Buffer.byteLength(cut) > MESSAGE_BYTES_MAX - 4);
      assert.match(cut, new RegExp(`^(${character})+ … \\(cut\\)$`, "u"));
    });
  }
});
