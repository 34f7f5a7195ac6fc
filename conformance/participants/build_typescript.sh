#!/usr/bin/env bash
# Builds the TypeScript participant with its SDK into a directory of its own, the first argument: the
# SDK's own dist is taken away and made anew by its tests, which may run beside this suite.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P)
place=$1
sdk=$place/sdk-typescript
participant=$place/conformance/participants/typescript

cd -- "$root/sdk-typescript"
[[ -d node_modules ]] || npm ci --no-audit --no-fund
mkdir -p -- "$sdk" "$participant"
node node_modules/typescript/bin/tsc -p tsconfig.json --outDir "$sdk/dist/esm"
cp -- package.json "$sdk/"
ln -sfn -- "$root/sdk-typescript/node_modules" "$sdk/node_modules"
cp -- "$root"/conformance/participants/typescript/*.mjs "$participant/"
