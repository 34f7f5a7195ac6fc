// Builds both forms of the package: ES modules in dist/esm, CommonJS in dist/cjs.

import { execFileSync } from "node:child_process";
import { rmSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("..", import.meta.url));
const tsc = fileURLToPath(new URL("../node_modules/typescript/bin/tsc", import.meta.url));

function compile(...args) {
    execFileSync(process.execPath, [tsc, ...args], { cwd: root, stdio: "inherit" });
}

rmSync(`${root}/dist`, { recursive: true, force: true });
compile("-p", "tsconfig.json");
// The same source, checked already.
compile("-p", "tsconfig.cjs.json", "--noCheck");
writeFileSync(`${root}/dist/cjs/package.json`, '{ "type": "commonjs" }\n');
