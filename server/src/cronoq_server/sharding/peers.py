"""How other shards' servers are reached: a channel for each, probed every second.

Rules a change must keep:

1. Whoever did not answer its last probe is not asked: nobody waits for the dead.
2. A peer's endpoint may be a balancer in front of leader and standbys. An answer that says "not
   the leader" executed nothing, so that the call is made again on a fresh connection, within
   `peer_timeout_s`. Any other loss is the caller's to judge.
3. Nothing here waits for a peer unless a call for it does; probes run by themselves.
4. A call whose channel is closed under it ends as one whose peer was lost. Left as it comes, it
   would look to its caller as if that one had been cancelled, and who reads would hear no end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import grpc
import msgspec
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cronoq_server.engine.model import ErrorReason
from cronoq_server.sharding.answers import reason_of
from cronoq_server.sharding.topology import Shard

PROBE_EVERY_S: Final = 1.0
AGAIN_AFTER_S: Final = 0.05
"""Between two tries of a call that reached a standby."""

PROBES_MAX: Final = 3
"""Connections that one probe makes at most, if it reaches standbys."""

RETIRED_FOR_S: Final = 3600.0
"""How long calls on a channel that was replaced may go on."""

EPOCH_KEY: Final = "cronoq-epoch"
REPLICA_KEY: Final = "cronoq-replica"
"""Metadata of a leader's answer to a probe: its epoch, and where that replica itself listens."""

Metadata = tuple[tuple[str, str], ...]

log = logging.getLogger(__name__)


class Leader(msgspec.Struct, frozen=True):
    """Who answered a probe as leader.

    Attributes:
        epoch: Its epoch; empty if it did not say.
        replica: Where it listens itself, `host:port`; empty if it did not say.
    """

    epoch: str = ""
    replica: str = ""


class PeerSettings(msgspec.Struct, frozen=True):
    """How peers are reached.

    Attributes:
        timeout_s: How long reaching a peer, or its part in a read of many, may take, seconds.
        message_bytes_max: Largest message that is accepted, bytes.
        ca: File with the certificates that sign those of peers; None = the system's.
        cert: File with this server's certificate for peers that ask for one.
        key: File with its key.
    """

    timeout_s: float = 2.0
    message_bytes_max: int = 5 * 1024 * 1024
    ca: str | None = None
    cert: str | None = None
    key: str | None = None


Connect = Callable[[Shard, PeerSettings], grpc.aio.Channel]
"""Makes a channel to the servers of a shard."""


def open_channel(shard: Shard, settings: PeerSettings) -> grpc.aio.Channel:
    """A channel to the servers of a shard, which connects when it is used.

    Raises:
        OSError: A certificate's file can't be read.
    """
    target = urlsplit(shard.endpoint)
    host = f"[{target.hostname}]" if ":" in (target.hostname or "") else target.hostname
    port = target.port or (443 if shard.is_encrypted else 80)
    options = _options(settings)
    if not shard.is_encrypted:
        return grpc.aio.insecure_channel(f"{host}:{port}", options=options)
    credentials = grpc.ssl_channel_credentials(
        _content(settings.ca), _content(settings.key), _content(settings.cert)
    )
    return grpc.aio.secure_channel(f"{host}:{port}", credentials, options=options)


def _options(settings: PeerSettings) -> list[tuple[str, int]]:
    return [
        ("grpc.use_local_subchannel_pool", 1),  # or a new channel would share old connections
        ("grpc.max_receive_message_length", settings.message_bytes_max),
        ("grpc.max_send_message_length", settings.message_bytes_max),
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.ping_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.initial_reconnect_backoff_ms", 100),
        # Also how long a connection may take to be there: to a far peer that is a while.
        ("grpc.min_reconnect_backoff_ms", int(1e3 * settings.timeout_s)),
        ("grpc.max_reconnect_backoff_ms", 1000),
    ]


class Peer:
    """The servers of one other shard.

    Attributes:
        shard: Which one.
        answers: Whether it answered its last probe, as a leader.
        leader: Who did; None = nobody.
        stands_by: Whether the last probe reached servers, none of which leads.
        timeout_s: How long reaching it, or its part in a read of many, may take, seconds.
    """

    def __init__(
        self, shard: Shard, settings: PeerSettings, connect: Connect = open_channel
    ) -> None:
        """Connects to nobody before `probe` or a call."""
        self.shard = shard
        self.answers = False
        self.leader: Leader | None = None
        self.stands_by = False
        self.timeout_s = settings.timeout_s
        self._settings = settings
        self._connect = connect
        self._channel = connect(shard, settings)
        self._calls: set[grpc.aio.Call] = set()
        self._retired: set[asyncio.Task[None]] = set()

    async def call(
        self,
        method: str,
        request: Message,
        answer: type[Message],
        metadata: Metadata,
        timeout_s: float | None,
    ) -> Any:
        """Makes one call.

        Args:
            method: Its full name, `/package.Service/Method`.
            request: What is asked.
            answer: The message that comes back.
            metadata: What travels with it.
            timeout_s: How long the answer may take, seconds; None = for ever.

        Raises:
            grpc.aio.AioRpcError: The peer refused, or was lost.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            spent = loop.time() - began
            left = None if timeout_s is None else max(0.0, timeout_s - spent)
            channel = self._channel
            ask = channel.unary_unary(method, type(request).SerializeToString, answer.FromString)
            call = ask(request, timeout=left, metadata=metadata)
            self._calls.add(call)
            try:
                return await call
            except grpc.aio.AioRpcError as error:
                if not self._is_worth_another(error, loop.time() - began):
                    raise
            except asyncio.CancelledError as error:
                raise _end_of(error) from None
            finally:
                self._calls.discard(call)
            self._replace(channel)
            await asyncio.sleep(AGAIN_AFTER_S)

    async def stream(
        self,
        method: str,
        request: Message,
        answer: type[Message],
        metadata: Metadata,
        timeout_s: float | None,
    ) -> AsyncGenerator[Any, None]:
        """Makes one call with many answers; see `call`. Closing it cancels the call."""
        loop = asyncio.get_running_loop()
        began, heard = loop.time(), False
        while True:
            spent = loop.time() - began
            left = None if timeout_s is None else max(0.0, timeout_s - spent)
            channel = self._channel
            ask = channel.unary_stream(method, type(request).SerializeToString, answer.FromString)
            call = ask(request, timeout=left, metadata=metadata)
            self._calls.add(call)
            try:
                async for message in call:
                    heard = True
                    yield message
                return
            except grpc.aio.AioRpcError as error:
                if heard or not self._is_worth_another(error, loop.time() - began):
                    raise
            except asyncio.CancelledError as error:
                raise _end_of(error) from None
            finally:
                self._calls.discard(call)
                call.cancel()
            self._replace(channel)
            await asyncio.sleep(AGAIN_AFTER_S)

    async def probe(self) -> None:
        """Asks whether a leader answers; where a standby does, one more connection is tried."""
        for tries_left in reversed(range(PROBES_MAX)):
            self.stands_by = False
            self.leader = await self._ask_who_leads()
            if not self.stands_by or not tries_left:
                break
            self._renew()
            await asyncio.sleep(AGAIN_AFTER_S)
        found = self.leader is not None
        if found != self.answers:
            log.info(
                "shard %s %s",
                self.shard.name,
                "answers" if found else "does not answer",
                extra={"action": "peer_changed", "shard": self.shard.name, "answers": found},
            )
        self.answers = found
        if not found:
            self._renew()

    async def _ask_who_leads(self) -> Leader | None:
        """Asks whoever is reached now; None = nobody, or one that stands by, which is noted."""
        call = health_pb2_grpc.HealthStub(self._channel).Check(
            health_pb2.HealthCheckRequest(service="cronoq.v1.Tasks"),
            timeout=self._settings.timeout_s,
        )
        try:
            answer = await call
            told = {str(key): str(value) for key, value in await call.trailing_metadata()}
        except grpc.aio.AioRpcError as error:
            # A server without that service answers, and that is enough.
            return Leader() if error.code() is grpc.StatusCode.UNIMPLEMENTED else None
        if answer.status != health_pb2.HealthCheckResponse.SERVING:
            self.stands_by = True
            return None
        return Leader(told.get(EPOCH_KEY, ""), told.get(REPLICA_KEY, ""))

    async def close(self) -> None:
        """Ends every call."""
        for call in self._calls:  # on channels that were replaced as on the present one
            call.cancel()
        for task in list(self._retired):
            task.cancel()
        await asyncio.gather(*self._retired, return_exceptions=True)
        await self._channel.close()

    def _is_worth_another(self, error: grpc.aio.AioRpcError, spent_s: float) -> bool:
        again = (ErrorReason.NOT_LEADER, ErrorReason.STOPPING)
        return reason_of(error) in again and spent_s + AGAIN_AFTER_S < self._settings.timeout_s

    def _replace(self, channel: grpc.aio.Channel) -> None:
        """Makes the next call connect anew, unless another call has seen to it already."""
        if channel is self._channel:
            self._renew()

    def _renew(self) -> None:
        """Makes the next call connect anew; calls under way keep their connection.

        While a certificate's file can't be read, as in the middle of being exchanged, the channel
        that there is goes on.
        """
        try:
            new = self._connect(self.shard, self._settings)
        except OSError as error:
            log.warning(
                "shard %s: no new connection: %s",
                self.shard.name,
                error,
                extra={"action": "peer_unconnectable", "shard": self.shard.name},
            )
            return
        old, self._channel = self._channel, new
        task = asyncio.create_task(old.close(RETIRED_FOR_S))
        self._retired.add(task)
        task.add_done_callback(self._retired.discard)


class Peers:
    """The servers of all other shards."""

    def __init__(
        self, shards: Iterable[Shard], settings: PeerSettings, connect: Connect = open_channel
    ) -> None:
        """Prepares a peer for each shard; `run` probes them.

        Args:
            shards: All but one's own.
            settings: How they are reached.
            connect: Makes a channel, each time that one is needed.
        """
        self._peers = {shard.name: Peer(shard, settings, connect) for shard in shards}

    def of(self, shard: Shard) -> Peer:
        """The servers of a shard that is not one's own."""
        return self._peers[shard.name]

    def answers(self, shard: Shard) -> bool:
        """Whether a shard answered its last probe."""
        return self._peers[shard.name].answers

    def answering(self) -> dict[str, bool]:
        """The shards by name, and whether each answered its last probe."""
        return {name: peer.answers for name, peer in self._peers.items()}

    def missing(self) -> list[str]:
        """The shards that did not."""
        return [name for name, peer in self._peers.items() if not peer.answers]

    async def probe(self) -> None:
        """Asks every shard once."""
        await asyncio.gather(*(peer.probe() for peer in self._peers.values()))

    async def run(self, pause: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Probes until it is cancelled, then closes every connection.

        Each peer is probed by itself, so that a slow one does not hide what became of the others.
        """
        peers = self._peers.values()
        try:
            async with asyncio.TaskGroup() as probes:
                for peer in peers:
                    probes.create_task(_probe(peer, pause), name=f"probe of {peer.shard.name}")
        finally:
            await asyncio.gather(*(peer.close() for peer in peers))


async def _probe(peer: Peer, pause: Callable[[float], Awaitable[None]]) -> None:
    while True:
        await peer.probe()
        await pause(PROBE_EVERY_S)


def _end_of(error: asyncio.CancelledError) -> BaseException:
    """What a call that ended so ended with: its caller was cancelled, or its channel closed."""
    task = asyncio.current_task()
    if task is None or task.cancelling():
        return error
    nothing = grpc.aio.Metadata()
    text = "the connection was closed"
    return grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, nothing, nothing, text)


def _content(path: str | None) -> bytes | None:
    """What a file holds now: certificates are read anew with each connection."""
    return None if path is None else Path(path).read_bytes()
