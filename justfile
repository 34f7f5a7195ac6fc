# Every command that a person or CI runs. Call it through ./justw, which sets the tools up first.

set positional-arguments
set shell := ["bash", "-euo", "pipefail", "-c"]

python_sources := "server/src sdk-python conformance demo proto tests tools"

[private]
default:
    @just --list --unsorted

# Make or refresh .venv (justw has done it by the time this runs)
setup:
    @echo "ready: $(python --version), $(just --version)"

# Start a server and a worker and do real work with them (--path DIR for another folder)
[no-exit-message]
demo *args:
    @python -m demo.main "$@"

# Generate the code of all languages from proto/, and the blocking Python client
gen:
    python proto/gen.py
    python sdk-python/tools/gen_blocking.py

# Fail if the generated code is not what proto/ says
[no-exit-message]
gen-check:
    python proto/gen.py --check

# Hold the proto files against the style rules
[no-exit-message]
proto-lint:
    python proto/gen.py --lint

# Hold the proto files against the last commit on main: what is published stays readable
[no-exit-message]
proto-breaking:
    python proto/gen.py --breaking

# Format the Python code (--check only looks)
[no-exit-message]
fmt *args:
    ruff format "$@" {{python_sources}}

# Lint the Python code (--fix mends what can be mended)
[no-exit-message]
lint *args:
    ruff check "$@" {{python_sources}}

# Check the types, strictly
[no-exit-message]
types:
    mypy server/src sdk-python/src conformance demo proto tests tools

# Check who imports whom
[no-exit-message]
layers:
    lint-imports --no-logo --cache-dir .import_linter_cache

# Run everything in CI order, or only the named parts; ends with "N passed, N failed"
[no-exit-message]
test *parts:
    @python tools/run_all.py "$@"

# Run Python tests, all or those under a path
[no-exit-message]
test-py *args:
    python -m pytest "$@"

# Check and test the Go SDK
[no-exit-message]
sdk-go:
    @cd sdk-go && unformatted=$(gofmt -l .) && { [ -z "$unformatted" ] || { echo "gofmt: $unformatted"; exit 1; }; }
    cd sdk-go && go vet ./... && go test -timeout 300s ./...
    cd sdk-go/cronoqotel && go vet ./... && go test -timeout 300s ./...
    cd conformance/participants/go && go vet ./...

# Check the judge of histories: it explains the right ones and refuses the wrong ones
[no-exit-message]
history:
    @command -v go >/dev/null || { echo "the judge of histories is written in Go: install it (1.24 or newer)"; exit 1; }
    @cd tests/campaigns/history && unformatted=$(gofmt -l .) && { [ -z "$unformatted" ] || { echo "gofmt: $unformatted"; exit 1; }; }
    cd tests/campaigns/history && go vet ./... && go test -timeout 300s ./...

# Check, build and test the TypeScript SDK (its tests are compiled, which checks all types)
[no-exit-message]
sdk-typescript:
    cd sdk-typescript && npm ci --no-audit --no-fund && npm run --silent lint
    cd sdk-typescript && npm run --silent build && npm run --silent test

# Check, test and document the Rust SDK
[no-exit-message]
sdk-rust:
    cd sdk-rust && cargo fmt --check
    cd sdk-rust && CARGO_TARGET_DIR="$CRONOQ_CACHE/rust-target" cargo clippy --quiet --locked --all-targets --all-features -- -D warnings
    cd sdk-rust && CARGO_TARGET_DIR="$CRONOQ_CACHE/rust-target" cargo test --quiet --locked --all-features
    cd sdk-rust && CARGO_TARGET_DIR="$CRONOQ_CACHE/rust-target" RUSTDOCFLAGS="-D warnings" cargo doc --quiet --locked --no-deps --all-features

# Simulate whole replicas on virtual time (--seeds N, --seed S, --processes P, --mutants)
[no-exit-message]
sim *args:
    @python -m tests.sim "$@"

# Run at length what CI has a short form of: `campaign NAME`; without a name, the list
[no-exit-message]
campaign *args:
    @PYTHONPATH=conformance/runner python -m tests.campaigns "$@"

# Hold the SDKs of all languages against one list of scenarios (run, list, explain RULE)
[no-exit-message]
conformance *args:
    @PYTHONPATH=conformance/runner python -m cronoq_conformance "$@"

# Measure (engine, e2e; --json for programs)
[no-exit-message]
bench *args:
    @PYTHONPATH=conformance/runner python -m tests.bench "$@"

# Build all packages, install each in a clean place, run its quickstart; SBOMs go into dist (--write, PART …)
[no-exit-message]
release-check *args:
    python -m tools.release "$@"

# Write the generated pages, build the site into build/site, check it: links resolve, examples run
[no-exit-message]
docs:
    python -m tools.render_docs
    NO_MKDOCS_2_WARNING=1 mkdocs build --strict --quiet
    python -m pytest tests/tidy/test_docs.py tests/tidy/test_doc_blocks.py tests/docs

# Resolve the lock file anew from the pyproject files (--upgrade: to the newest versions)
lock *args:
    uv pip compile --quiet --system-certs --universal --python-version 3.11 --generate-hashes \
      --no-header --no-emit-index-url --no-emit-find-links --output-file requirements/dev.txt \
      --group pyproject.toml:dev --extra cli --extra otel --extra pydantic "$@" server/pyproject.toml sdk-python/pyproject.toml
