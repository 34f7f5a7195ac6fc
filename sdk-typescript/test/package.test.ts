/** Installs the package as a program would, and uses it from both kinds of modules. */

import assert from "node:assert/strict";
import {
  cpSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";

import { VERSION } from "../src/index.js";
import { ROOT, runProgram } from "./real-server.js";

const PATIENCE_MS = 300_000;
const USES = `
  const outcome = await runHandler((name) => \`hello \${name}\`, "world");
  const client = new Client({ endpoint: "127.0.0.1:1" });
  client.close();
  console.log(outcome.value(), typeof serveThread, typeof tracing, new Worker() instanceof Worker);
`;
const TYPED = `
  import { Client, Worker, type TaskInfo } from "cronoq";
  import { runHandler } from "cronoq/testing";
  import { threadHandler } from "cronoq/thread";
  const parser = { parse: (value: unknown): number => Number(value) };
  export const worker = new Worker().handler("a", parser, (n, attempt) => n + attempt.number);
  worker.handler("b", threadHandler("./b.js"));
  export async function total(client: Client): Promise<bigint> {
    const sum: number = await client.result(1n, { as: parser });
    const found: TaskInfo = await client.get("key");
    await runHandler(() => sum);
    return found.id;
  }
`;

describe("the package", () => {
  let project: string;
  before(async () => {
    project = mkdtempSync(join(tmpdir(), "cronoq-consumer-"));
    const packed = await runProgram("npm", [
      "pack",
      "--ignore-scripts",
      "--pack-destination",
      project,
    ]);
    assert.equal(packed.code, 0, packed.stderr);
    const [tarball = ""] = readdirSync(project);
    assert.equal(tarball, `cronoq-${VERSION}.tgz`);
    writeFileSync(join(project, "package.json"), '{ "name": "consumer", "private": true }');
    const args = [
      "install",
      "--prefer-offline",
      "--no-audit",
      "--no-fund",
      `./${tarball}`,
      "@opentelemetry/api",
    ];
    const installed = await runProgram("npm", args, { cwd: project, patience: PATIENCE_MS });
    assert.equal(installed.code, 0, installed.stderr);
  });
  after(() => {
    rmSync(project, { recursive: true, force: true });
  });

  async function run(file: string, source: string): Promise<void> {
    writeFileSync(join(project, file), source);
    const ended = await runProgram(process.execPath, [file], { cwd: project });
    assert.deepEqual([ended.stderr, ended.stdout], ["", "hello world function function true\n"]);
  }

  it("is used from ES modules", async () => {
    await run(
      "use.mjs",
      `import { Client, Worker } from "cronoq";
       import { runHandler } from "cronoq/testing";
       import { serveThread } from "cronoq/thread";
       import { tracing } from "cronoq/opentelemetry";
       ${USES}`,
    );
  });

  it("is used from CommonJS", async () => {
    await run(
      "use.cjs",
      `const { Client, Worker } = require("cronoq");
       const { runHandler } = require("cronoq/testing");
       const { serveThread } = require("cronoq/thread");
       const { tracing } = require("cronoq/opentelemetry");
       (async () => {${USES}})();`,
    );
  });

  it("has types for both", async () => {
    mkdirSync(join(project, "node_modules/@types"), { recursive: true });
    for (const name of ["node", "../undici-types"]) {
      const place = join("node_modules/@types", name);
      cpSync(join(ROOT, place), join(project, place), { recursive: true });
    }
    writeFileSync(join(project, "typed.mts"), TYPED);
    writeFileSync(join(project, "typed.cts"), TYPED);
    const options = ["--strict", "--noEmit", "--module", "nodenext", "--target", "es2022"];
    const lib = [
      "--lib",
      "es2023,esnext.disposable",
      "--types",
      "node",
      "--exactOptionalPropertyTypes",
    ];
    const tsc = join(ROOT, "node_modules/typescript/bin/tsc");
    const args = [tsc, ...options, ...lib, "--skipLibCheck", "typed.mts", "typed.cts"];
    const ended = await runProgram(process.execPath, args, { cwd: project, patience: PATIENCE_MS });
    assert.deepEqual([ended.stdout, ended.code], ["", 0]);
  });

  it("carries no more than it needs, and says its version", () => {
    const installed = join(project, "node_modules/cronoq");
    assert.deepEqual(readdirSync(installed).sort(), ["README.md", "dist", "package.json"]);
    const manifest = JSON.parse(readFileSync(join(installed, "package.json"), "utf8")) as {
      version: string;
    };
    assert.equal(manifest.version, VERSION);
  });
});
