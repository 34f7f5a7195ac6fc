"""What Prometheus is told: one reading of the leader per scrape, in the exposition format.

Rules a change must keep:

1. A scrape asks the engine once, whatever number of families it fills; scrapes within a second
   share one reading, so that nobody can make work by asking often.
2. Labels are names that the configuration gives, never what callers choose: no keys, tags or
   tenants, and no values of `per_value` resources.
3. Counts begin anew with each leadership, as Prometheus expects of a restarted process.
4. A leader whose store does not answer says so: what only the engine knows is left out then, and
   nobody waits for it longer than a scrape may take.

The families and their meanings are listed by `FAMILIES`, from which the reference is written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import msgspec
from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from cronoq_server.engine import (
    SECOND,
    ErrorReason,
    Instant,
    ListResources,
    PoolView,
    Priority,
    ResourceView,
    SnapshotQuery,
    SnapshotView,
    Spread,
)
from cronoq_server.runtime.driver import Driver
from cronoq_server.runtime.refusals import Refused

TOKEN: Final = 10**9
"""Parts that the engine counts a token of a bucket in."""

SHARED_FOR: Final = SECOND
"""Scrapes that come within this time of a reading get the same one."""


ANSWER_WITHIN_S: Final = 5.0
"""How long the engine is waited for; half of what Prometheus gives a scrape."""


class Family(msgspec.Struct, frozen=True):
    """One metric: its name without the prefix, what it means, and its labels."""

    name: str
    kind: str
    meaning: str
    labels: tuple[str, ...] = ()


def _gauge(name: str, meaning: str, *labels: str) -> Family:
    return Family(name, "gauge", meaning, labels)


def _counter(name: str, meaning: str, *labels: str) -> Family:
    return Family(name, "counter", meaning, labels)


def _histogram(name: str, meaning: str, *labels: str) -> Family:
    return Family(name, "histogram", meaning, labels)


FAMILIES: Final = (
    _gauge("info", "Always 1; carries the version of the server.", "version"),
    _gauge("leader", "1 while this process leads and may be sent calls, else 0."),
    _gauge("epoch", "The fencing epoch of this leadership."),
    _gauge("shard_unavailable", "1 while another shard does not answer this server.", "peer"),
    _gauge("store_up", "1 while the store confirms what it is given, else 0."),
    _gauge("commits_in_flight", "Batches on their way to the store."),
    _histogram("commit_seconds", "From handing a batch to the store to its confirmation."),
    _histogram("commit_mutations", "How many mutations a batch had."),
    _gauge("tasks_pending", "Tasks that have not ended and do not run.", "pool", "priority"),
    _gauge("tasks_running", "Tasks with an attempt under way."),
    _gauge("oldest_ready_seconds", "Age of the task that has been ready for longest.", "pool"),
    _counter("tasks_submitted", "Tasks admitted."),
    _counter("tasks_dispatched", "Attempts handed to workers.", "pool"),
    _counter("tasks_finished", "Tasks that ended, by how.", "status"),
    _counter("retries", "Attempts that were followed by another."),
    _counter("timeouts", "Attempts ended by their time limit."),
    _counter("lease_expiries", "Attempts given up because their worker fell silent."),
    _counter("stale_reports", "Reports about leases that were no longer held."),
    _histogram("queue_wait_seconds", "From ready to handed to a worker.", "pool"),
    _histogram("run_seconds", "How long the lease of an attempt was out.", "pool"),
    _histogram("schedule_lag_seconds", "How late occurrences of schedules were created.", "pool"),
    _gauge("workers", "Connected workers.", "pool"),
    _gauge("slots", "Slots of connected workers.", "pool"),
    _gauge("slots_busy", "Slots with an attempt in them.", "pool"),
    _gauge("slots_stuck", "Slots whose aborted attempt has not ended.", "pool"),
    _gauge("slots_held", "Slots kept free for a fixed start.", "pool"),
    _gauge("slots_desired", "Slots that the pool wants, for an autoscaler.", "pool"),
    _gauge("reservations", "Fixed starts in the pool's calendar.", "pool"),
    _gauge("pool_paused", "1 while the pool is paused, else 0.", "pool"),
    _gauge("priority_adherence_ratio", "Share of starts that passed over no better one.", "pool"),
    _gauge("fixed_start_hit_ratio", "Share of fixed starts that were met.", "pool"),
    _gauge("schedule_efficiency_ratio", "Busy slots to those that could be busy.", "pool"),
    _counter("slot_seconds", "Slot time used by attempts.", "pool"),
    _gauge("resource_permits", "Size of a semaphore.", "resource"),
    _gauge("resource_held", "Permits of a semaphore that are taken.", "resource"),
    _gauge("resource_tokens", "Tokens in a bucket.", "resource"),
    _gauge("resource_waiting", "Waiting tasks that want the resource.", "resource"),
)
"""Every family there is, in order of output; each name gets the prefix `cronoq_`."""

_BY_NAME: Final = {family.name: family for family in FAMILIES}
_TYPES: Final = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}


class Reading(msgspec.Struct, frozen=True):
    """What one scrape is made of.

    Attributes:
        ready: Whether this process leads and may be sent calls.
        at: Wall instant of the snapshot.
        driver: The leader's driver; None on a standby.
        view: Its snapshot; None without `driver`, and while its store does not answer.
        resources: Its resources, with `view`.
    """

    ready: bool
    at: Instant = 0
    driver: Driver | None = None
    view: SnapshotView | None = None
    resources: tuple[ResourceView, ...] = ()


class Metrics:
    """The metrics of one process."""

    def __init__(
        self,
        version: str,
        leader: Callable[[], Driver],
        is_ready: Callable[[], bool],
        peers: Callable[[], Mapping[str, bool]] = dict,
    ) -> None:
        """Reads nothing before it is asked.

        Args:
            version: The version of this server.
            leader: The driver that leads at this moment; raises `Refused` when there is none.
            is_ready: Whether calls may be sent to this process.
            peers: The other shards by name, and whether each answers; empty without shards.
        """
        self._leader = leader
        self._is_ready = is_ready
        self._registry = CollectorRegistry()
        self._collector = _Readings(version, peers)
        self._registry.register(self._collector)
        for process in (ProcessCollector, PlatformCollector, GCCollector):
            process(registry=self._registry)
        self._shared: tuple[Instant, Reading] | None = None

    async def render(self, accept: str = "") -> tuple[str, bytes]:
        """One scrape.

        Args:
            accept: The `Accept` header: OpenMetrics if it asks for it, else the text format.

        Returns:
            The content type and the body.
        """
        encode, content_type = choose_encoder(accept)
        self._collector.reading = await self._read()
        return content_type, encode(self._registry)

    async def _read(self) -> Reading:
        try:
            driver = self._leader()
        except Refused:  # a standby: that is an answer, too
            return Reading(False)
        now = driver.clock.now()
        if self._shared is not None:
            at, shared = self._shared
            if shared.driver is driver and 0 <= now.mono - at < SHARED_FOR:
                return shared
        if not driver.store_answers:
            return Reading(self._is_ready(), now.wall, driver)
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                view = await driver.inbox.ask(SnapshotQuery)
                resources = await driver.inbox.ask(ListResources)
        except TimeoutError:
            return Reading(self._is_ready(), now.wall, driver)
        except Refused as refused:
            if refused.refusal.reason in (ErrorReason.NOT_LEADER, ErrorReason.STOPPING):
                return Reading(False)
            return Reading(self._is_ready(), now.wall, driver)
        assert isinstance(view, SnapshotView)
        assert isinstance(resources, tuple)
        shown = tuple(r for r in resources if isinstance(r, ResourceView))
        reading = Reading(self._is_ready(), now.wall, driver, view, shown)
        self._shared = (now.mono, reading)
        return reading


class _Readings(Collector):
    """Turns the last reading into families."""

    def __init__(self, version: str, peers: Callable[[], Mapping[str, bool]]) -> None:
        self.reading = Reading(False)
        self._version = version
        self._peers = peers

    def describe(self) -> Iterable[Metric]:
        """Nothing is collected to learn the names."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All families that the reading has something for."""
        reading = self.reading
        yield _single("info", 1, self._version)
        yield _single("leader", int(reading.ready))
        if reading.driver is None:
            return
        peers = sorted(self._peers().items())
        yield _many("shard_unavailable", [((name,), int(not answers)) for name, answers in peers])
        yield from _of_driver(reading.driver)
        if reading.view is None:
            return
        yield from _of_tasks(reading.view)
        yield from _of_pools(reading.view.pools, reading.at)
        yield from _of_resources(reading.resources)


def _new(name: str) -> Metric:
    family = _BY_NAME[name]
    make = _TYPES[family.kind]
    metric: Metric = make(f"cronoq_{name}", family.meaning, labels=family.labels)
    return metric


def _single(name: str, value: float, *labels: str) -> Metric:
    return _many(name, [(labels, value)])


def _many(name: str, values: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
    metric = _new(name)
    assert isinstance(metric, GaugeMetricFamily | CounterMetricFamily)
    for labels, value in values:
        metric.add_metric(labels, value)
    return metric


def _spreads(
    name: str, spreads: Iterable[tuple[tuple[str, ...], Spread]], unit: int = SECOND
) -> Metric:
    family = _BY_NAME[name]
    metric = HistogramMetricFamily(f"cronoq_{name}", family.meaning, labels=family.labels)
    for labels, spread in spreads:
        below, buckets = 0, []
        bounds = [repr(bound / unit) for bound in spread.bounds] + ["+Inf"]
        for bound, count in zip(bounds, spread.counts, strict=True):
            below += count
            buckets.append((bound, below))
        metric.add_metric(labels, buckets, spread.total / unit)
    return metric


def _of_driver(driver: Driver) -> Iterator[Metric]:
    yield _single("epoch", driver.leadership.epoch)
    yield _single("store_up", int(driver.store_answers))
    yield _single("commits_in_flight", driver.commits_in_flight)
    yield _spreads("commit_seconds", [((), driver.meters.commit_time.spread())])
    yield _spreads("commit_mutations", [((), driver.meters.batch_size.spread())], unit=1)


def _of_tasks(view: SnapshotView) -> Iterator[Metric]:
    totals = view.totals
    yield _single("tasks_running", view.running)
    yield _single("tasks_submitted", totals.submitted)
    ends = ("succeeded", "failed", "dead_lettered", "cancelled", "skipped", "missed", "shed")
    yield _many("tasks_finished", [((end,), getattr(totals, end)) for end in ends])
    yield _single("retries", totals.retries)
    yield _single("timeouts", totals.timeouts)
    yield _single("lease_expiries", totals.lease_expiries)
    yield _single("stale_reports", totals.stale_completions)


def _of_pools(pools: tuple[PoolView, ...], at: Instant) -> Iterator[Metric]:
    def each(name: str, value: Callable[[PoolView], float]) -> Metric:
        return _many(name, [((pool.name,), value(pool)) for pool in pools])

    classes = [priority.name.lower() for priority in Priority]
    yield _many(
        "tasks_pending",
        [
            ((pool.name, name), count)
            for pool in pools
            for name, count in zip(classes, pool.pending_by_class, strict=True)
        ],
    )
    yield each("oldest_ready_seconds", lambda pool: _age(pool.oldest_ready_at, at))
    yield each("tasks_dispatched", lambda pool: pool.dispatched)
    yield _spreads("queue_wait_seconds", [((pool.name,), pool.waited) for pool in pools])
    yield _spreads("run_seconds", [((pool.name,), pool.ran) for pool in pools])
    yield _spreads("schedule_lag_seconds", [((pool.name,), pool.lagged) for pool in pools])
    yield each("workers", lambda pool: pool.workers_connected)
    yield each("slots", lambda pool: pool.capacity)
    yield each("slots_busy", lambda pool: pool.busy)
    yield each("slots_stuck", lambda pool: pool.stuck)
    yield each("slots_held", lambda pool: pool.held)
    yield each("slots_desired", lambda pool: pool.desired)
    yield each("reservations", lambda pool: pool.reservations)
    yield each("pool_paused", lambda pool: int(pool.paused))
    yield each("priority_adherence_ratio", lambda pool: pool.priority_adherence)
    yield each("fixed_start_hit_ratio", lambda pool: pool.fixed_start_hit_rate)
    yield each("schedule_efficiency_ratio", lambda pool: pool.schedule_efficiency)
    yield each("slot_seconds", lambda pool: pool.cost)


def _age(since: Instant | None, at: Instant) -> float:
    return 0.0 if since is None else max(0, at - since) / SECOND


def _of_resources(resources: tuple[ResourceView, ...]) -> Iterator[Metric]:
    shared = [resource for resource in resources if not resource.per_value]
    semaphores = [resource for resource in shared if resource.kind == "semaphore"]
    buckets = [resource for resource in shared if resource.kind == "token_bucket"]
    yield _many("resource_permits", [((r.name,), r.permits) for r in semaphores])
    yield _many("resource_held", [((r.name,), r.held) for r in semaphores])
    yield _many("resource_tokens", [((r.name,), r.tokens / TOKEN) for r in buckets])
    yield _many("resource_waiting", [((r.name,), r.waiting) for r in shared])
