# Every command that a person or CI runs. Call it through ./justw, which sets the tools up first.

set shell := ["bash", "-euo", "pipefail", "-c"]

# List the recipes
[private]
default:
    @just --list --unsorted

# Make or refresh .venv (justw has done it by the time this runs)
setup:
    @echo "ready: $(python --version), $(just --version)"

# Resolve the lock file anew from the pyproject files (with --upgrade: to the newest versions)
lock *args:
    @uv pip compile --quiet --system-certs --universal --python-version 3.11 --generate-hashes \
      --no-header --no-emit-index-url --no-emit-find-links --output-file requirements/dev.txt \
      --group pyproject.toml:dev --extra pydantic {{args}} server/pyproject.toml sdk-python/pyproject.toml
