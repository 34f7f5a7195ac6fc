"""The benchmarks by name: `python -m tests.bench NAME …`, or `./justw bench NAME …`.

engine      the engine alone
e2e         the whole system
placement   what one start costs, by what tasks ask for
store       a store alone
page        no benchmark: writes the tables of docs/performance.md from saved results
"""

from __future__ import annotations

import sys

from tests.bench import e2e, engine, idle, page, placement, store

BENCHES = {
    "e2e": e2e.main,
    "engine": engine.main,
    "idle": idle.main,
    "page": page.main,
    "placement": placement.main,
    "store": store.main,
}


def main() -> int:
    """Runs the benchmark that the command line names."""
    names = ", ".join(BENCHES)
    if len(sys.argv) < 2 or sys.argv[1] not in BENCHES:
        print(f"usage: ./justw bench NAME [--help | …], where NAME is one of {names}")
        return 2
    return BENCHES[sys.argv[1]](sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
