// Runs the tests, all or those whose file names begin with one of the arguments.

import { execFileSync, spawnSync } from "node:child_process";
import { existsSync, readdirSync, rmSync } from "node:fs";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("..", import.meta.url));
const tsc = fileURLToPath(new URL("../node_modules/typescript/bin/tsc", import.meta.url));
const server = fileURLToPath(new URL("../../.venv/bin/cronoq-server", import.meta.url));
const wanted = process.argv.slice(2);

rmSync(`${root}/build`, { recursive: true, force: true });
execFileSync(process.execPath, [tsc, "-p", "tsconfig.test.json"], { cwd: root, stdio: "inherit" });

const files = readdirSync(`${root}/build/test`)
    .filter((name) => name.endsWith(".test.js"))
    .filter((name) => wanted.length === 0 || wanted.some((prefix) => name.startsWith(prefix)))
    .map((name) => `build/test/${name}`);
const environment = { ...process.env };
if (environment.CRONOQ_SERVER === undefined && existsSync(server)) {
    environment.CRONOQ_SERVER = server;
}
// Warnings are errors.
const args = [
    "--throw-deprecation",
    "--enable-source-maps",
    "--test",
    "--test-reporter=spec",
    "--test-concurrency=2",
];
const run = spawnSync(process.execPath, [...args, ...files], {
    cwd: root,
    env: environment,
    stdio: "inherit",
});
process.exit(files.length === 0 ? 1 : (run.status ?? 1));
