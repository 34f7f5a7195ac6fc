"""How a server is put together and how its life goes: the only module that knows all the others.

One process holds one store, one listener and, one after the other, any number of leaderships. Each
leadership has an engine and a driver of its own, recovered anew from the store. The listener
serves while there is one, and stands by in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import uuid
from collections.abc import Callable
from typing import Final

from cronoq_server import __version__
from cronoq_server.api.gate import Gate
from cronoq_server.api.grpc_api import all_handlers
from cronoq_server.api.listener import Listener, claim
from cronoq_server.api.service import Service
from cronoq_server.api.specs import SpecReader
from cronoq_server.config import Address, Config, PoolConfig, ResourceConfig
from cronoq_server.engine import (
    SECOND,
    AutoscaleSettings,
    Duration,
    Engine,
    EngineSettings,
    Overflow,
    PoolSettings,
    ResourceSettings,
    RetryPolicy,
)
from cronoq_server.runtime import (
    NOT_LEADER,
    STOPPING,
    Clock,
    Driver,
    DriverSettings,
    Ending,
    Refused,
    Scalers,
    SystemChance,
    SystemClock,
    Webhook,
    after,
    tame_gc,
)
from cronoq_server.stores import StoreSettings, open_store
from cronoq_server.stores.base import (
    Fenced,
    Leadership,
    Rejected,
    Store,
    StoreError,
    TimeBase,
    Unavailable,
)
from cronoq_server.telemetry import configure

LEADERSHIP_POLL: Final[Duration] = SECOND // 2
"""How often a standby asks for the leadership."""

REJECTIONS_APART: Final[Duration] = 60 * SECOND
"""Two batches refused for good within this time end the process."""

CLOSE_GRACE_S: Final = 1.0
"""How long calls that are being answered may take once the last commit is done."""

OK: Final = 0
FAILED: Final = 1
SECOND_SIGNAL: Final = 130

log = logging.getLogger(__name__)


class Server:
    """One server process, or one within a test.

    Attributes:
        address: Where it serves gRPC, with the real port.
    """

    def __init__(
        self, config: Config, *, clock: Clock | None = None, store: Store | None = None
    ) -> None:
        """Claims the address; nothing is served before `run`.

        Args:
            config: What to serve.
            clock: Where time comes from; this machine's if not given.
            store: Where state is kept; the one of the configuration if not given.

        Raises:
            AddressInUse: Somebody else listens there.
        """
        self.address = claim(config.server.grpc_addr)
        self._config = config
        self._clock = clock or SystemClock()
        self._store = store or open_store(store_settings(config))
        self._driver: Driver | None = None
        self._stopping = asyncio.Event()
        reader = SpecReader(config.limits, [pool.name for pool in config.pools])
        service = Service(config.limits, Gate(config.limits), self.leader)
        self._listener = Listener(
            self.address, config.limits, lambda: all_handlers(service, reader)
        )

    def leader(self) -> Driver:
        """The driver that leads at this moment.

        Raises:
            Refused: This process does not lead, or has stopped.
        """
        if self._driver is None:
            raise Refused(STOPPING if self._stopping.is_set() else NOT_LEADER)
        return self._driver

    def stop(self) -> None:
        """Asks for a shutdown in order; `run` returns when it is done."""
        self._stopping.set()

    async def run(self, announce: Callable[[Address], None]) -> int:
        """Serves until it is stopped.

        Args:
            announce: Called when calls are served, each time that it begins to lead.

        Returns:
            The exit code: 0 after a shutdown in order, 1 if the store refuses what it is given.
        """
        rejected_at: int | None = None
        try:
            while not self._stopping.is_set():
                leadership = await self._acquire()
                if leadership is None:
                    break
                ending = await self._lead(leadership, announce)
                if ending is Ending.REJECTED:
                    now = self._clock.now().mono
                    if rejected_at is not None and now - rejected_at < REJECTIONS_APART:
                        return FAILED
                    rejected_at = now
            return OK
        finally:
            self._stopping.set()
            await self._listener.close(CLOSE_GRACE_S)
            await self._store.close()
            log.info("stopped", extra={"action": "server_stopped"})

    async def _acquire(self) -> Leadership | None:
        """Waits for the leadership; None if the server is stopped before."""
        holder = uuid.uuid4().hex
        while not self._stopping.is_set():
            try:
                wall = self._clock.now().wall
                leadership = await self._store.acquire_leadership(holder, wall, TimeBase())
            except Unavailable as error:
                log.warning("no leadership: %s", error, extra={"action": "store_late"})
                leadership = None
            if leadership is not None:
                return leadership
            await self._listener.stand_by()
            await self._pause(LEADERSHIP_POLL)
        return None

    async def _pause(self, pause: Duration) -> None:
        until = after(self._clock.now(), pause)
        sleep = asyncio.ensure_future(self._clock.sleep_until(until))
        stop = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait((sleep, stop), return_when=asyncio.FIRST_COMPLETED)
        sleep.cancel()
        stop.cancel()

    async def _lead(self, leadership: Leadership, announce: Callable[[Address], None]) -> Ending:
        """Recovers and serves under one leadership, to its end."""
        settings = engine_settings(self._config, leadership, self._store)
        engine = Engine(settings, SystemChance())
        driver = Driver(engine, self._store, leadership, self._clock, driver_settings(self._config))
        try:
            await driver.recover()
        except Fenced:
            return Ending.FENCED
        except (Rejected, Unavailable) as error:
            log.error("recovery failed: %s", error, extra={"action": "store_rejected"})
            with contextlib.suppress(StoreError):  # it runs out by itself
                await self._store.release_leadership(leadership)
            await self._pause(LEADERSHIP_POLL)
            return Ending.REJECTED if isinstance(error, Rejected) else Ending.FENCED
        log.info(
            "leading with epoch %d",
            leadership.epoch,
            extra={"action": "leadership_acquired", "epoch": leadership.epoch},
        )
        return await self._serve(driver, announce)

    async def _serve(self, driver: Driver, announce: Callable[[Address], None]) -> Ending:
        tame_gc()
        async with Scalers(webhooks(self._config), self._clock) as scalers:
            driver.on_scaled(scalers.want)
            return await self._serve_calls(driver, announce)

    async def _serve_calls(self, driver: Driver, announce: Callable[[Address], None]) -> Ending:
        running = asyncio.create_task(driver.run(), name="driver")
        stopping = asyncio.create_task(self._stop_when_asked(driver), name="stop")
        try:
            self._driver = driver
            await self._listener.lead()
            self._say_ready()
            announce(self.address)
            return await running
        finally:
            self._driver = None
            if not self._stopping.is_set():
                await self._listener.stand_by()
            for task in (running, stopping):
                task.cancel()
            await asyncio.gather(running, stopping, return_exceptions=True)

    async def _stop_when_asked(self, driver: Driver) -> None:
        await self._stopping.wait()
        log.info("shutting down", extra={"action": "server_stopping"})
        await driver.stop(nanoseconds(self._config.server.shutdown_grace_s))

    def _say_ready(self) -> None:
        log.info(
            "serving gRPC on %s",
            self.address,
            extra={
                "action": "server_ready",
                "grpc_addr": str(self.address),
                "version": __version__,
            },
        )
        if not self._store.capabilities.survives_restart:
            log.warning(
                "the memory store keeps nothing: a restart loses the queue",
                extra={"action": "memory_store_used"},
            )


def run(config: Config, announce: Callable[[Address], None]) -> int:
    """Serves in this process until a signal, and returns the exit code.

    SIGTERM and SIGINT shut down in order; a second one ends the process at once.

    Args:
        config: What to serve.
        announce: Called with the address when calls are served.

    Raises:
        AddressInUse: Somebody else listens there.
    """
    writer = configure(config.server.log_level, config.server.log_format)
    try:
        with asyncio.Runner(loop_factory=_new_loop) as runner:
            return runner.run(_until_signal(config, announce))
    finally:
        writer.finish()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # not made for every platform
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


async def _until_signal(config: Config, announce: Callable[[Address], None]) -> int:
    server = Server(config)
    loop = asyncio.get_running_loop()
    signals = 0

    def on_signal() -> None:
        nonlocal signals
        signals += 1
        if signals > 1:
            os._exit(SECOND_SIGNAL)
        server.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    return await server.run(announce)


# What the configuration means to the engine and the driver.


def nanoseconds(seconds: float) -> Duration:
    """Seconds of the configuration in the engine's unit."""
    return round(seconds * SECOND)


def webhooks(config: Config) -> list[Webhook]:
    """Who is told how many slots pools want."""
    return [
        Webhook(pool.name, pool.scaler.webhook, os.environ.get(pool.scaler.token_env or "", ""))
        for pool in config.pools
        if pool.scaler.webhook is not None
    ]


def store_settings(config: Config) -> StoreSettings:
    """Which store is opened."""
    return StoreSettings(config.store.kind, config.limits.finished_max, config.outputs.cache_bytes)


def engine_settings(config: Config, leadership: Leadership, store: Store) -> EngineSettings:
    """What an engine is told at the start of a leadership."""
    limits = config.limits
    return EngineSettings(
        pools=tuple(pool_settings(pool) for pool in config.pools),
        resources=tuple(resource_settings(resource) for resource in config.resources),
        epoch=leadership.epoch,
        high_water=leadership.high_water,
        max_pending_total=limits.max_pending_total,
        max_slots_per_worker=limits.max_slots_per_worker,
        key_retention=nanoseconds(limits.key_retention_s),
        finished_max=limits.finished_max,
        max_list=limits.max_list,
        store_remembers=store.capabilities.remembers,
        catch_up_max=limits.catch_up_max,
        catch_up_window=nanoseconds(limits.catch_up_window_s),
        backfill_max=limits.backfill_max,
    )


def pool_settings(pool: PoolConfig) -> PoolSettings:
    """One pool's rules."""
    return PoolSettings(
        name=pool.name,
        max=pool.max,
        max_pending=pool.max_pending,
        overflow=Overflow(pool.overflow),
        lease_ttl=nanoseconds(pool.lease_ttl_s),
        retry=RetryPolicy(
            max_attempts=pool.retry.max_attempts,
            initial_backoff=nanoseconds(pool.retry.initial_backoff_s),
            multiplier=pool.retry.multiplier,
            max_backoff=nanoseconds(pool.retry.max_backoff_s),
            jitter=pool.retry.jitter,
        ),
        default_duration=nanoseconds(pool.default_duration_s),
        max_slots_per_worker=pool.max_slots_per_worker,
        fair_share=pool.fair_share,
        tenant_weights=pool.tenant_weights,
        await_unknown_dependencies=nanoseconds(pool.await_unknown_dependencies_s),
        reservable_fraction=pool.reservable_fraction,
        max_hold=nanoseconds(pool.max_hold_s),
        autoscale=AutoscaleSettings(
            min=pool.min,
            target_utilization=pool.autoscale.target_utilization,
            drain_time=nanoseconds(pool.autoscale.drain_time_s),
            interval=nanoseconds(pool.autoscale.interval_s),
            stabilization_window=nanoseconds(pool.autoscale.stabilization_window_s),
            cooldown=nanoseconds(pool.autoscale.cooldown_s),
            max_step_up=pool.autoscale.max_step_up,
            max_step_down=pool.autoscale.max_step_down,
        ),
    )


def resource_settings(resource: ResourceConfig) -> ResourceSettings:
    """One resource's rules."""
    return ResourceSettings(
        name=resource.name,
        kind=resource.kind,
        permits=resource.permits or 0,
        rate=resource.rate or 0.0,
        burst=resource.burst or 0,
        per_value=resource.per_value,
    )


def driver_settings(config: Config) -> DriverSettings:
    """What a driver is told."""
    limits = config.limits
    return DriverSettings(
        commit_timeout=nanoseconds(config.store.commit_timeout_s),
        retention=nanoseconds(config.store.retention_s),
        batch_mutations_max=limits.max_batch_mutations,
        queued_max=limits.max_queued_reports,
        watch_buffer=limits.watch_buffer,
    )
