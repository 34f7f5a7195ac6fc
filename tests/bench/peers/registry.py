"""Who is measured: where each keeps its tasks, how its processes are started, and with what.

Every setting is one that the peer's documentation names. A full run tries all of them and
goes on with the quickest; the first one is the usual one, for quick runs.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable

from tests.bench.peers import installing
from tests.bench.peers.installing import ADAPTERS, CRATE, CRATE_WORKER, NODE, PYTHON, RIVER

Command = tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """How the work is spread: commands of worker processes, and slots in each."""

    text: str
    commands: tuple[Command, ...]
    slots: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Peer:
    """One competitor.

    Attributes:
        name: For the command line.
        title: For people.
        broker: `redis`, `postgres`, or a server with its store: `ours:STORE`, `crate:STORE`.
        install: Puts it into the cache, or raises `PeerFailed`.
        client: The command of its client.
        settings: How its workers may be started, the usual one first.
        bulk: What its bulk submission is.
        keeps: What of a result is stored.
        durable: How at-least-once and durability are asked for.
        mix: What limits and priorities were switched on; empty if it has neither.
    """

    name: str
    title: str
    broker: str
    install: Callable[[], None]
    client: Command
    settings: tuple[Setting, ...]
    bulk: str
    keeps: str
    durable: str
    mix: str = ""


def _python(adapter: str) -> Command:
    return (str(PYTHON), str(ADAPTERS / adapter))


def _workers(adapter: Command, processes: int, slots: int) -> Setting:
    text = f"{processes} × {slots} slots" if processes > 1 else f"{slots} slots"
    return Setting(text, ((*adapter, "worker"),) * processes, slots)


_OURS = (sys.executable, str(ADAPTERS / "ours.py"))
_PROCRASTINATE = _python("with_procrastinate.py")
_RQ_POOL = (str(PYTHON), "-m", "rq.cli", "worker-pool", "-q", "-u", "{url}", "urgent", "default")
_COOLDOWN = "5ms"
"""How often River may fetch, and its client may say that there is something to fetch."""
_GRAPHILE = ("node", str(NODE / "graphile.mjs"))
_BULLMQ = ("node", str(NODE / "bullmq.mjs"))
_SIMPLE = ("-w", "rq.worker.SimpleWorker")


def _celery(pool: str, slots: int) -> Command:
    quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "WARNING")
    program = (str(PYTHON), "-m", "celery", "-A", "with_celery", "worker")
    return (*program, "-P", pool, "-c", str(slots), *quiet)


def _dramatiq(processes: int, threads: int) -> Setting:
    program = (str(PYTHON), "-m", "dramatiq", "with_dramatiq", "--skip-logging")
    command = (*program, "-p", str(processes), "-t", str(threads))
    return Setting(f"{processes} processes × {threads} threads", (command,), threads)


def _pgqueuer(processes: int, batch: int) -> Setting:
    command = (*_python("with_pgqueuer.py"), "worker")
    return Setting(f"{processes} × batches of {batch}", (command,) * processes, batch)


def _river(slots: int, cooldown: str) -> Setting:
    text = f"MaxWorkers {slots}, FetchCooldown {cooldown}"
    return Setting(text, ((str(RIVER), "worker", cooldown),), slots)


def _ours(store: str, title: str) -> Peer:
    return Peer(
        name=f"cronoq-{store}",
        title=f"cronoq, {title}",
        broker=f"ours:{store}",
        install=installing.nothing,
        client=(*_OURS, "client"),
        settings=(_workers(_OURS, 2, 500), _workers(_OURS, 1, 500), _workers(_OURS, 2, 100)),
        bulk="submit_many",
        keeps="status and output, each delivered to the client and compared",
        durable="leases, retries; every commit synced",
        mix="a semaphore, a token bucket, four priorities",
    )


def _crate_workers(processes: int, slots: int) -> Setting:
    text = f"{processes} × {slots} slots" if processes > 1 else f"{slots} slots"
    return Setting(text, ((str(CRATE_WORKER),),) * processes, slots)


def _with_crate(name: str, title: str, broker: str) -> Peer:
    return Peer(
        name=name,
        title=title,
        broker=broker,
        install=installing.crate,
        client=(*_OURS, "client"),
        settings=(_crate_workers(1, 500), _crate_workers(1, 100), _crate_workers(2, 500)),
        bulk="submit_many of our Python client",
        keeps="status and output, each delivered to the client and compared",
        durable="leases, retries; its store as it comes",
        mix="a semaphore, a token bucket, four priorities",
    )


PEERS = (
    _ours("sqlite", "SQLite"),
    _ours("postgres", "PostgreSQL"),
    _with_crate("crate-sqlite", f"cronoq-server {CRATE} (Rust), SQLite", "crate:sqlite"),
    _with_crate("crate-postgres", f"cronoq-server {CRATE} (Rust), PostgreSQL", "crate:postgres"),
    dataclasses.replace(
        _with_crate("crate-worker", f"cronoq, SQLite, worker {CRATE} (Rust)", "ours:sqlite"),
        durable="leases, retries; every commit synced",
    ),
    Peer(
        name="celery",
        title="Celery",
        broker="redis",
        install=installing.python,
        client=(*_python("with_celery.py"), "client"),
        settings=(
            Setting("prefork, 2 processes, prefetch 4", (_celery("prefork", 2),), 4),
            Setting("prefork, 2 processes, prefetch 64", (_celery("prefork", 2),), 64),
            Setting("10 threads, prefetch 4", (_celery("threads", 10),), 4),
        ),
        bulk="group",
        keeps="status and return value",
        durable="appendfsync always, acks_late, reject_on_worker_lost",
        mix="a rate limit in each worker, four priorities",
    ),
    Peer(
        name="dramatiq",
        title="Dramatiq",
        broker="redis",
        install=installing.python,
        client=(*_python("with_dramatiq.py"), "client"),
        settings=(_dramatiq(2, 8), _dramatiq(2, 32), _dramatiq(1, 8)),
        bulk="none: send by 64 threads",
        keeps="return value",
        durable="appendfsync always; acknowledged after the work",
        mix="limits of concurrency and rate, four priorities",
    ),
    Peer(
        name="pgqueuer",
        title="PgQueuer",
        broker="postgres",
        install=installing.python,
        client=(*_python("with_pgqueuer.py"), "client"),
        settings=(_pgqueuer(2, 100), _pgqueuer(2, 10), _pgqueuer(1, 100)),
        bulk="enqueue with lists",
        keeps="a line in its log",
        durable="fsync and synchronous_commit on, logged tables",
        mix="a limit of concurrency, four priorities",
    ),
    Peer(
        name="rq",
        title="RQ",
        broker="redis",
        install=installing.python,
        client=(*_python("with_rq.py"), "client"),
        settings=(
            Setting("pool of 2 SimpleWorkers", ((*_RQ_POOL, "-n", "2", *_SIMPLE),)),
            Setting("pool of 4 SimpleWorkers", ((*_RQ_POOL, "-n", "4", *_SIMPLE),)),
            Setting("pool of 2 Workers, which fork", ((*_RQ_POOL, "-n", "2"),)),
        ),
        bulk="enqueue_many",
        keeps="return value",
        durable="appendfsync always; started tasks are registered until they end",
        mix="two queues in order",
    ),
    Peer(
        name="procrastinate",
        title="Procrastinate",
        broker="postgres",
        install=installing.python,
        client=(*_PROCRASTINATE, "client"),
        settings=(
            _workers(_PROCRASTINATE, 2, 10),
            _workers(_PROCRASTINATE, 2, 30),
            _workers(_PROCRASTINATE, 1, 30),
        ),
        bulk="batch_defer_async",
        keeps="status",
        durable="fsync and synchronous_commit on",
        mix="four priorities",
    ),
    Peer(
        name="river",
        title="River",
        broker="postgres",
        install=installing.go,
        client=(str(RIVER), "client", _COOLDOWN),
        settings=(_river(1000, _COOLDOWN), _river(100, "100ms"), _river(2000, "2ms")),
        bulk="InsertManyFast",
        keeps="status and output, recorded with the task",
        durable="fsync and synchronous_commit on",
        mix="four priorities",
    ),
    Peer(
        name="graphile-worker",
        title="graphile-worker",
        broker="postgres",
        install=installing.node,
        client=(*_GRAPHILE, "client"),
        settings=(
            Setting("24 tasks, localQueue 500", ((*_GRAPHILE, "worker", "batched"),), 24),
            Setting("10 tasks", ((*_GRAPHILE, "worker"),), 10),
            Setting("2 × 10 tasks", ((*_GRAPHILE, "worker"),) * 2, 10),
        ),
        bulk="addJobs",
        keeps="nothing, ended tasks are deleted",
        durable="fsync and synchronous_commit on",
        mix="four priorities",
    ),
    Peer(
        name="bullmq",
        title="BullMQ",
        broker="redis",
        install=installing.node,
        client=(*_BULLMQ, "client"),
        settings=(
            _workers(_BULLMQ, 2, 50),
            _workers(_BULLMQ, 1, 100),
            _workers(_BULLMQ, 1, 50),
        ),
        bulk="addBulk",
        keeps="return value",
        durable="appendfsync always; stalled tasks are started again",
        mix="limits of concurrency and rate, four priorities",
    ),
)
BY_NAME = {peer.name: peer for peer in PEERS}
