"""The benchmarks by name: `python -m tests.bench NAME …`, or `./justw bench NAME …`.

    e2e         the whole system
    console     what looking costs: browsers on the console, and `cronoq top`
    engine      the engine alone
    failover    how long nobody is answered when the leader ends
    flat        whether a task costs the same however much there is
    forwarding  what it costs to be asked through another shard's server
    heartbeats  how late heartbeats are answered beside payloads at the size limit
    http        single submits and batches over HTTP
    idle        many workers and nothing to do
    peers       other job systems beside this one, on the same work
    placement   what one start costs, by what tasks ask for
    recovery    a new leader: from asking for the leadership until it serves
    sdks        what the worker of each SDK manages
    shards      what shards give, and what asking them all costs
    store       a store alone
    page        no benchmark: writes the tables of docs/performance.md from saved results

Only the one that is named is imported: one that needs a database is no matter to the others.
"""

from __future__ import annotations

import importlib
import sys

BENCHES = (
    "console",
    "e2e",
    "engine",
    "failover",
    "flat",
    "forwarding",
    "heartbeats",
    "http",
    "idle",
    "page",
    "peers",
    "placement",
    "recovery",
    "sdks",
    "shards",
    "store",
)


def main() -> int:
    """Runs the benchmark that the command line names."""
    if len(sys.argv) < 2 or sys.argv[1] not in BENCHES:
        names = ", ".join(BENCHES)
        print(f"usage: ./justw bench NAME [--help | …], where NAME is one of {names}")
        return 2
    code: int = importlib.import_module(f"tests.bench.{sys.argv[1]}").main(sys.argv[2:])
    return code


if __name__ == "__main__":
    sys.exit(main())
