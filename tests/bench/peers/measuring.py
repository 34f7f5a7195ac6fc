"""One turn of one peer: started, measured in every way, ended.

Workers stand still while submission alone is measured; then they are let go, and the time until all
has ended is the time to drain. How many jobs a part has follows from what the peer did before, so
that a part takes about as long for a slow peer as for a quick one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.bench.environment import ROOT, quantile
from tests.bench.peers import brokers, trees
from tests.bench.peers.registry import Peer, Setting
from tests.bench.peers.talking import Client, PeerFailed, last_lines, start
from tests.stores.pg import Cluster

PAUSE_S = 0.005
LINE_BYTES = 20


@dataclasses.dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured: seconds of a part, probes on the idle system, jobs of a part."""

    seconds: float
    idle: int
    least: int = 50
    most: int = 100_000

    def jobs(self, rate: float) -> int:
        """Jobs that take the seconds of a part at this rate."""
        return int(min(self.most, max(self.least, rate * self.seconds)))


@dataclasses.dataclass(frozen=True, slots=True)
class Running:
    """A peer that is up: its client, and the roots of everything else."""

    client: Client
    broker: tuple[int, ...]
    workers: tuple[int, ...]
    probes: Path
    versions: dict[str, str]

    @property
    def everything(self) -> tuple[int, ...]:
        """All roots whose processor time a job costs."""
        return (self.client.pid, *self.broker, *self.workers)


@contextlib.contextmanager
def _broker(peer: Peer, folder: Path, cluster: Cluster | None) -> Iterator[brokers.Place]:
    kind, _, store = peer.broker.partition(":")
    with contextlib.ExitStack() as stack:
        if kind == "redis":
            yield stack.enter_context(brokers.redis(folder))
            return
        database = None
        if "postgres" in (kind, store):
            assert cluster is not None
            database = stack.enter_context(brokers.postgres(cluster))
            store = database.url
        if kind == "postgres":
            assert database is not None
            yield database
            return
        server = stack.enter_context(brokers.SERVERS[kind](folder, store))
        roots = (*server.roots, *(database.roots if database else ()))
        yield brokers.Place(server.url, roots)


@contextlib.contextmanager
def running(peer: Peer, setting: Setting, cluster: Cluster | None) -> Iterator[Running]:
    """A peer with fresh data whose workers have done a first job."""
    with contextlib.ExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory(prefix="cronoq-peer-"))
        folder = Path(name)
        place = stack.enter_context(_broker(peer, folder, cluster))
        probes = folder / "probes"
        env = {
            "PEER_URL": place.url,
            "PEER_PROBES": str(probes),
            "PEER_SLOTS": str(setting.slots),
            "PYTHONPATH": f"{ROOT / 'tests/bench/peers/adapters'}",
        }
        client = stack.enter_context(Client(peer.client, folder, env, folder / "client.log"))
        versions = client.ask("prepare").get("versions", {})
        roots = []
        for command in setting.commands:
            words = [word.replace("{url}", place.url) for word in command]
            process = start(words, folder, env, folder / "worker.log")
            stack.callback(trees.end, process)
            roots.append(process.pid)
        stack.enter_context(_with_word_of(folder / "worker.log"))
        client.ask("idle", count=1, pause_s=0, seconds=0)
        yield Running(client, place.roots, tuple(roots), probes, versions)


@contextlib.contextmanager
def _with_word_of(log: Path) -> Iterator[None]:
    """Adds to a failure what workers had to say last."""
    try:
        yield
    except PeerFailed as error:
        said = last_lines(log)
        raise PeerFailed(f"{error}; workers: {said}" if said else str(error)) from error


def _starts(probes: Path, since: int) -> list[float]:
    """Milliseconds that starts took which were noted down later than so many bytes."""
    return sorted(int(line) / 1e6 for line in probes.read_bytes()[since:].split())


def _quantiles(name: str, milliseconds: list[float]) -> dict[str, float]:
    return {
        f"{name}_p50_ms": round(quantile(milliseconds, 0.5), 2),
        f"{name}_p99_ms": round(quantile(milliseconds, 0.99), 2),
    }


def through(peer: Running, count: int, how: str) -> float:
    """Jobs a second, from the first submission until all have ended."""
    return count / float(peer.client.ask("through", count=count, how=how)["seconds"])


def _submitted(peer: Running, count: int, how: str) -> tuple[float, float]:
    """Submits while workers stand still, then lets them go: jobs a second of both."""
    with trees.paused(*peer.workers):
        submit_s = peer.client.ask("submit", count=count, how=how)["seconds"]
    return count / submit_s, count / peer.client.ask("settle")["seconds"]


def _latencies(peer: Running, sizes: Sizes, rate: float) -> dict[str, float]:
    """How long starts take on an idle system and at half of what it manages."""
    since = peer.probes.stat().st_size
    peer.client.ask("idle", count=sizes.idle, pause_s=PAUSE_S, seconds=2 * sizes.seconds)
    idle = _quantiles("start_idle", _starts(peer.probes, since))
    since = peer.probes.stat().st_size
    answer = peer.client.ask("load", rate=rate / 2, seconds=2 * sizes.seconds)
    peer.client.ask("settle")
    loaded = _quantiles("start_half_load", _starts(peer.probes, since))
    return {**idle, **loaded, "half_load_per_s": round(answer["rate"])}


def warmed(peer: Running, sizes: Sizes) -> float:
    """Runs jobs that do not count, a few and then more if it is quick; returns the rate."""
    rate = through(peer, sizes.least, "bulk")
    return through(peer, sizes.jobs(rate / 2), "bulk")


def turn(peer: Running, sizes: Sizes, known: dict[str, Any], *, mixed: bool) -> dict[str, Any]:
    """Measures everything once; `known` are the figures of the turn before, if there was one."""
    warm = warmed(peer, sizes)
    bulk_rate = known.get("through_bulk_per_s", warm)
    single_rate = known.get("through_single_per_s", bulk_rate / 2)
    found: dict[str, Any] = {}
    if "through_single_per_s" not in known:
        single_rate = through(peer, sizes.jobs(single_rate / 10), "single")
    count = sizes.jobs(bulk_rate)
    before = trees.cpu_seconds(*peer.everything)
    found["through_bulk_per_s"] = round(through(peer, count, "bulk"), 1)
    used = trees.cpu_seconds(*peer.everything) - before
    found["cpu_s_per_1000"] = round(used / count * 1000, 4)
    found["memory_mb"] = round(trees.memory_mb(*peer.broker, *peer.workers), 1)
    submit, drain = _submitted(peer, count, "bulk")
    found |= {"submit_bulk_per_s": round(submit, 1), "drain_per_s": round(drain, 1)}
    count = sizes.jobs(single_rate)
    found["submit_single_per_s"] = round(_submitted(peer, count, "single")[0], 1)
    found["through_single_per_s"] = round(through(peer, count, "single"), 1)
    if mixed:
        found["through_mixed_per_s"] = round(through(peer, sizes.jobs(bulk_rate), "mixed"), 1)
    found |= _latencies(peer, sizes, found["through_bulk_per_s"])
    return found


def attempt(peer: Peer, setting: Setting, cluster: Cluster | None, sizes: Sizes) -> float:
    """End-to-end rate with one setting, for choosing among several."""
    with running(peer, setting, cluster) as system:
        return through(system, sizes.jobs(warmed(system, sizes)), "bulk")
