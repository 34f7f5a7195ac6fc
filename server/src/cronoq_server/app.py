"""How a server is put together: the only module that knows all the others.

One process holds one store, one listener for gRPC and one for HTTP, and a replica that leads
whenever it can. The listeners serve while it does, and stand by in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, NoReturn

import msgspec

from cronoq_server import __version__
from cronoq_server.api.auth import Authenticator
from cronoq_server.api.console import pages
from cronoq_server.api.console.history import History
from cronoq_server.api.console.pages import About, Shown
from cronoq_server.api.grpc_api import all_handlers
from cronoq_server.api.http.gateway import HttpServer, application
from cronoq_server.api.http.profiling import Profiler
from cronoq_server.api.listener import SERVICES, TESTING, Listener, claim
from cronoq_server.api.metrics import Metrics
from cronoq_server.api.specs import SpecReader
from cronoq_server.api.testing_api import ClockService
from cronoq_server.api.tls import Certificates
from cronoq_server.api.tracing import Tracing
from cronoq_server.assembly import (
    engine_settings,
    replica_settings,
    services,
    store_settings,
    told_of_leader,
    topology,
    webhooks,
)
from cronoq_server.config import Address, Config, ConfigError, localized
from cronoq_server.engine import Engine, Reconfigured
from cronoq_server.ha import Outcome, Replica
from cronoq_server.reloading import plan
from cronoq_server.runtime import (
    Clock,
    Driver,
    Scalers,
    SystemChance,
    SystemClock,
    free_spared,
    tame_gc,
)
from cronoq_server.runtime.manual_clock import ManualClock
from cronoq_server.runtime.refusals import Refused
from cronoq_server.stores import open_store
from cronoq_server.stores.base import Leadership, Store
from cronoq_server.telemetry import configure

CLOSE_GRACE_S: Final = 1.0
"""How long calls that are being answered may take once the last commit is done."""

OK: Final = 0
FAILED: Final = 1
SECOND_SIGNAL: Final = 130

log = logging.getLogger(__name__)


class ReplicaRole:
    """What a process is at this moment, for those who answer by it."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    @property
    def is_leading(self) -> bool:
        """Whether calls are served."""
        return self._replica.leading

    @property
    def is_ready(self) -> bool:
        """Whether calls should be sent here."""
        return self._replica.ready

    @property
    def is_stopping(self) -> bool:
        """Whether it was asked to stop."""
        return self._replica.stopping


class Server:
    """One server process, or one within a test.

    Attributes:
        address: Where it serves gRPC, with the real port.
        leader: The driver that leads at this moment; raises `Refused` when there is none.
        metrics: What Prometheus is told.
        authenticator: Knows who callers are.
        history: What the console's charts are drawn from.
        service: What callers ask.
        reader: Reads the tasks that they submit.
        certificates: What the server shows of itself; None without TLS.
        peers: The servers of other shards; None without shards.
    """

    def __init__(
        self, config: Config, *, clock: Clock | None = None, store: Store | None = None
    ) -> None:
        """Claims the addresses; nothing is served before `run`.

        Args:
            config: What to serve.
            clock: Where time comes from; this machine's if not given. One that is moved by hand
                may be moved over gRPC.
            store: Where state is kept; the one of the configuration if not given.

        Raises:
            AddressInUse: Somebody else listens there.
        """
        self.address = claim(config.server.grpc_addr)
        if config.server.http_addr.port:
            claim(config.server.http_addr)
        self._config = config
        self._leadership: Leadership | None = None
        tls = config.server.tls
        self.certificates = Certificates(tls) if tls.cert is not None else None
        self._clock = clock or SystemClock()
        own = localized(config)
        self._store = store or open_store(store_settings(own))
        settings = replica_settings(own)
        if isinstance(clock, ManualClock):
            # A grace time that does not pass would never be over.
            settings = msgspec.structs.replace(settings, grace=0)
        self._replica = Replica(self._store, self._clock, self._engine, settings, self)
        self.leader = self._replica.leader
        self.metrics = Metrics(
            __version__, self.leader, lambda: self._replica.ready, self._shards_answering
        )
        self.reader = SpecReader(config.limits, [pool.name for pool in config.pools])
        self.service, admin, self.peers = services(config, self.leader, self.reader)
        self._tracing: Tracing | None = None
        if config.server.otlp_endpoint is not None:
            self.follow(Tracing.to_collector(config.server.otlp_endpoint, __version__))
        self.history = History()
        self._defect: BaseException | None = None
        self.authenticator = Authenticator(config.auth)
        handlers = all_handlers(self.service, admin, self.reader, self.authenticator)
        names: tuple[str, ...] = SERVICES
        if isinstance(clock, ManualClock):
            handlers.append(ClockService(clock, self.leader).handler(self.authenticator))
            names = (*names, TESTING)
        self._listener = Listener(
            self.address,
            config.limits,
            lambda: handlers,
            certificates=self.certificates,
            services=names,
        )
        self._http = HttpServer(
            config,
            application(
                __version__,
                self.service,
                admin,
                self.reader,
                self.metrics.render,
                pages.routes(self.history, self._about(), self.authenticator),
                Profiler() if config.server.profiling else None,
            ),
            ReplicaRole(self._replica),
            self.authenticator,
            self.metrics.render,
            self.certificates.http_context() if self.certificates is not None else None,
            pages.is_public,
        )
        self._announce: Callable[[Address], None] = lambda _: None

    @property
    def http_address(self) -> Address:
        """Where it serves HTTP; with the real port once it runs."""
        return self._http.address

    @property
    def http_connections(self) -> int:
        """How many connections there are over HTTP."""
        return self._http.connections

    def _shards_answering(self) -> dict[str, bool]:
        """The other shards, and whether each answers."""
        return {} if self.peers is None else self.peers.answering()

    def _about(self) -> About:
        """What the console says of this server."""
        config = self._config
        place = "" if config.server.shard is None else f", shard {config.server.shard}"
        return About(
            __version__, f"{config.store.kind}{place}", str(self.address), self._shown_shards
        )

    def _shown_shards(self, pools: frozenset[str] | None) -> list[Shown]:
        """The shards that somebody who may use these pools (None = all) may know of."""
        if self.peers is None:
            return []
        owners = topology(self._config)
        return [
            Shown(
                shard.name,
                shard.number,
                sorted(shard.pools),
                shard.endpoint,
                shard is owners.own,
                shard is owners.own or self.peers.answers(shard),
            )
            for shard in owners.shards
            if shard.is_open_to(pools)
        ]

    def follow(self, tracing: Tracing) -> None:
        """Has what happens to traced tasks recorded from now on; said before or while serving."""
        self._tracing = self.service.tracing = tracing
        with contextlib.suppress(Refused):  # nobody leads yet
            self._follow_dispatches(self.leader(), tracing)

    def _follow_dispatches(self, driver: Driver, tracing: Tracing) -> None:
        driver.on_dispatched(lambda sent: tracing.dispatched(sent, driver.clock.now().wall))

    def stop(self) -> None:
        """Asks for a shutdown in order; `run` returns when it is done."""
        self._replica.stop()

    def reload(self, read: Config) -> tuple[str, ...]:
        """Takes what can be taken live of a configuration that was read again.

        Certificates are read again even if their files have the same names.

        Returns:
            Paths whose change waits for a restart.

        Raises:
            OSError: A file is gone since it was checked; nothing has changed.
        """
        config, taken, waiting = plan(self._config, read)
        if self.certificates is not None:
            self.certificates.replace(config.server.tls)
        self.authenticator.replace(config.auth)
        self.service.replace_limits(config.limits)
        self.reader.replace_limits(config.limits)
        self._http.replace_limits(config.limits)
        self._config = config
        self._tell_engine()
        log.info(
            "settings read again; changed: %s",
            ", ".join(taken) or "nothing",
            extra={"action": "settings_reloaded", "changed": list(taken)},
        )
        if waiting:
            log.warning(
                "what can't change while the server runs waits for a restart: %s",
                ", ".join(waiting),
                extra={"action": "reload_refused", "waiting": list(waiting)},
            )
        return waiting

    async def run(self, announce: Callable[[Address], None]) -> int:
        """Serves until it is stopped.

        Args:
            announce: Called when calls are served, each time that it begins to lead.

        Returns:
            The exit code: 0 after a shutdown in order, 1 if the store refuses what it is given.

        Raises:
            AddressInUse: Somebody else was faster to listen.
            Unusable: The store must not be used as it is set up.
        """
        self._announce = announce
        probing = None if self.peers is None else asyncio.create_task(self.peers.run())
        if probing is not None:
            probing.add_done_callback(self._stop_for)
        try:
            await self._http.start()
            outcome = await self._replica.run()
            if self._defect is not None:
                raise self._defect
            return OK if outcome is Outcome.STOPPED else FAILED
        finally:
            self._replica.stop()
            if probing is not None:
                probing.cancel()
                await asyncio.wait({probing})
            await asyncio.gather(
                self._listener.close(CLOSE_GRACE_S), self._http.close(CLOSE_GRACE_S)
            )
            await self._store.close()
            if self._tracing is not None:
                await asyncio.to_thread(self._tracing.close)
            log.info("stopped", extra={"action": "server_stopped"})

    @asynccontextmanager
    async def leading(self, driver: Driver) -> AsyncIterator[None]:
        """See `Stage.leading`."""
        tame_gc()
        async with AsyncExitStack() as stack:
            if self._tracing is not None:
                self._follow_dispatches(driver, self._tracing)
            sampling = asyncio.create_task(self.history.run(driver), name="history")
            sampling.add_done_callback(self._stop_for)
            stack.push_async_callback(_end, sampling)
            hooks = webhooks(localized(self._config))
            if hooks:  # an HTTP client takes long to make, and callers wait
                scalers = await stack.enter_async_context(Scalers(hooks, self._clock))
                driver.on_scaled(scalers.want)
            assert self._leadership is not None
            told = told_of_leader(self._config, self._leadership.epoch, self.address)
            await self._listener.lead(told)
            self._http.lead()
            self._say_ready()
            self._announce(self.address)
            yield

    def _stop_for(self, beside: asyncio.Task[Any]) -> None:
        """Stops for a defect in what runs beside the replica: half a server is none."""
        if not beside.cancelled() and (error := beside.exception()) is not None:
            self._defect = self._defect or error
            self._replica.stop()

    async def stand_by(self) -> None:
        """See `Stage.stand_by`."""
        self._http.stand_by()
        await self._listener.stand_by()
        free_spared()

    def _engine(self, leadership: Leadership) -> Engine:
        self._leadership = leadership
        settings = engine_settings(localized(self._config), leadership, self._store)
        return Engine(settings, SystemChance())

    def _tell_engine(self) -> None:
        """Tells the engine of the configuration that holds now; a later one is made with it."""
        if self._leadership is None:
            return
        settings = engine_settings(localized(self._config), self._leadership, self._store)
        with contextlib.suppress(Refused):  # nobody leads
            self.leader().inbox.tell(Reconfigured(settings))

    def _say_ready(self) -> None:
        log.info(
            "serving gRPC on %s, HTTP on %s",
            self.address,
            self.http_address,
            extra={
                "action": "server_ready",
                "grpc_addr": str(self.address),
                "http_addr": str(self.http_address),
                "version": __version__,
            },
        )
        addresses = (self._config.server.grpc_addr, self._config.server.http_addr)
        is_open = not all(address.is_loopback for address in addresses)
        if self.authenticator.is_on and self.certificates is None and is_open:
            log.warning(
                "tokens travel unencrypted: there is no [server.tls]",
                extra={"action": "tokens_unencrypted"},
            )
        if not self._store.capabilities.survives_restart:
            log.warning(
                "the memory store keeps nothing: a restart loses the queue",
                extra={"action": "memory_store_used"},
            )


async def _end(task: asyncio.Task[NoReturn]) -> None:
    task.cancel()
    await asyncio.wait({task})


def run(
    config: Config,
    announce: Callable[[Address], None],
    *,
    reread: Callable[[], Config] | None = None,
    test_clock: bool = False,
) -> int:
    """Serves in this process until a signal, and returns the exit code.

    SIGTERM and SIGINT shut down in order; a second one ends the process at once. SIGHUP reads the
    configuration again.

    Args:
        config: What to serve.
        announce: Called with the address when calls are served.
        reread: Reads the configuration again; raises `ConfigError` if it has mistakes.
        test_clock: Whether time stands still until somebody moves it over gRPC.

    Raises:
        AddressInUse: Somebody else listens there.
        Unusable: The store must not be used as it is set up.
    """
    writer = configure(config.server.log_level, config.server.log_format)
    try:
        with asyncio.Runner(loop_factory=_new_loop) as runner:
            return runner.run(_until_signal(config, announce, reread, test_clock))
    finally:
        writer.finish()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # not made for every platform
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


async def _until_signal(
    config: Config,
    announce: Callable[[Address], None],
    reread: Callable[[], Config] | None,
    test_clock: bool,
) -> int:
    clock = None
    if test_clock:
        clock = ManualClock(time.time_ns(), time.monotonic_ns())
        log.warning("time stands still until a test moves it", extra={"action": "test_clock_used"})
    server = Server(config, clock=clock)
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
    if reread is not None:
        loop.add_signal_handler(signal.SIGHUP, _reload, server, reread)
    return await server.run(announce)


def _reload(server: Server, reread: Callable[[], Config]) -> None:
    """Takes the configuration as it is now, or says why it stays as it was."""
    try:
        server.reload(reread())
    except (ConfigError, OSError, ssl.SSLError) as error:
        log.error(
            "the configuration stays as it was: %s", error, extra={"action": "reload_refused"}
        )
