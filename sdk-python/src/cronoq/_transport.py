"""Decides how connections are made and what their failures mean.

Uses gRPC's threaded stack, not its asyncio one, on purpose: a fork leaves the asyncio stack's
poller behind, and a child that touches it hangs or crashes, while the threaded stack (with fork
support on) lets the child dial anew. A session's heartbeats also must not depend on an event loop
that user code may block. Calls come back to the caller's loop one batch at a time, so the threads
cost little.

Rules a change must keep: a channel is never used by another process than the one that made it;
a token travels in call metadata only; certificate files are read again when they have changed.
"""

from __future__ import annotations

import asyncio
import collections
import functools
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

# Read by gRPC when it is first imported; a program that imported it before decides for itself.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "1")

import grpc
from google.rpc import error_details_pb2, status_pb2

from ._endpoint import Endpoint
from .errors import (
    ClosedError,
    CronoqError,
    ErrorReason,
    NotLeaderError,
    StoppingError,
    UnavailableError,
    error_for,
)
from .options import ConnectOptions, TlsOptions, seconds

SHARD_ENDPOINT_KEY = "cronoq-shard-endpoint"
_STATUS_KEY = "grpc-status-details-bin"
_ERROR_DOMAIN = "cronoq"
# Messages a stream may be ahead of its reader; beyond it the server feels the back pressure.
STREAM_BUFFER = 64
# A connection is this old, in seconds, before a client leaves it because nobody leads there: so it
# makes at most ten in a second while nobody leads anywhere.
LEAVE_AFTER_S = 0.1

Request = TypeVar("Request")
Response = TypeVar("Response")
Metadata = Sequence[tuple[str, str | bytes]]


class _Message(Protocol):
    def SerializeToString(self) -> bytes: ...  # noqa: N802


class Method(Generic[Response]):
    """One method of a service: its path and what it answers."""

    __slots__ = ("name", "path", "response")

    def __init__(self, service: str, name: str, response: type[Response]) -> None:
        self.name = name
        self.path = f"/cronoq.v1.{service}/{name}"
        self.response = response

    def read(self, message: bytes) -> Response:
        """Parses an answer."""
        return self.response.FromString(message)  # type: ignore[attr-defined,no-any-return]


def _write(message: _Message) -> bytes:
    return message.SerializeToString()


class Dialer:
    """Makes channels to any endpoint with one set of options."""

    def __init__(self, options: ConnectOptions) -> None:
        self._tls = options.tls
        self._channel_options: list[tuple[str, int]] = [
            ("grpc.enable_retries", 0),
            ("grpc.initial_reconnect_backoff_ms", _ms(options.backoff.initial)),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.keepalive_time_ms", _ms(options.keepalive.interval)),
            ("grpc.keepalive_timeout_ms", _ms(options.keepalive.timeout)),
            ("grpc.http2.max_pings_without_data", 0),
            # Without it an unanswered ping is noticed after a minute, whatever the line above says.
            ("grpc.http2.ping_timeout_ms", _ms(options.keepalive.timeout)),
            # The server bounds what it sends; a limit here would turn its larger one into a break.
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_reconnect_backoff_ms", _ms(options.backoff.maximum)),
            # The name is gRPC's; it bounds one attempt to connect.
            ("grpc.min_reconnect_backoff_ms", _ms(options.connect_timeout)),
            # Each channel has connections of its own: a fresh channel is a fresh connection.
            ("grpc.use_local_subchannel_pool", 1),
        ]

    def dial(self, endpoint: Endpoint, token: str | None) -> Channel:
        """Returns a new channel whose calls carry `token`; nothing is sent before its first call.

        Raises:
            OSError: A certificate file cannot be read.
        """
        if not endpoint.is_encrypted:
            plain = grpc.insecure_channel(endpoint.target, options=self._channel_options)
            return Channel(plain, token)
        credentials = _credentials(self._tls or TlsOptions())
        secure = grpc.secure_channel(endpoint.target, credentials, options=self._channel_options)
        return Channel(secure, token)

    def certificates_version(self) -> tuple[int, ...]:
        """Changes when a certificate file does."""
        tls = self._tls
        if tls is None:
            return ()
        paths = (tls.ca, tls.cert, tls.key)
        return tuple(_modified(path) for path in paths if path is not None)


def _ms(duration: Any) -> int:
    return max(1, round(seconds(duration) * 1000))


def _modified(path: str | Path) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0  # Being replaced just now; the next look sees the new file.


def _credentials(tls: TlsOptions) -> grpc.ChannelCredentials:
    def read(path: str | Path | None) -> bytes | None:
        return None if path is None else Path(path).read_bytes()

    return grpc.ssl_channel_credentials(read(tls.ca), read(tls.key), read(tls.cert))


class Channel:
    """Calls over one connection, of the process that made it."""

    def __init__(self, channel: grpc.Channel, token: str | None) -> None:
        self.made_at = time.monotonic()
        self.on_not_leader: Callable[[Channel], None] = lambda _: None
        self._channel = channel
        self._lock = threading.Lock()
        self._open_calls = 0
        self._is_over = False
        self._metadata: Metadata = () if token is None else (("authorization", f"Bearer {token}"),)
        self._callables: dict[str, Any] = {}

    def _callable(self, kind: str, method: Method[Any]) -> Any:
        made = self._callables.get(method.path)
        if made is None:
            make = getattr(self._channel, kind)
            made = make(method.path, request_serializer=_write, response_deserializer=method.read)
            self._callables[method.path] = made
        return made

    async def unary(
        self, method: Method[Response], request: _Message, timeout: float | None
    ) -> Response:
        """Makes one call and returns its answer.

        Raises:
            CronoqError: The call failed; the class says how.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        try:
            call = self._callable("unary_unary", method).future(
                request, timeout=timeout, metadata=self._metadata
            )
        except ValueError as error:
            raise self._closed() from error
        self._count(call)
        call.add_done_callback(functools.partial(_wake, loop, done))
        try:
            await done
        except asyncio.CancelledError:
            call.cancel()
            raise
        if call.code() is not grpc.StatusCode.OK:
            raise self._failed(call)
        return call.result()  # type: ignore[no-any-return]

    def blocking_unary(
        self, method: Method[Response], request: _Message, timeout: float | None
    ) -> Response:
        """Makes one call on the calling thread; for code that runs in threads.

        Raises:
            CronoqError: The call failed; the class says how.
        """
        try:
            answer = self._callable("unary_unary", method)(
                request, timeout=timeout, metadata=self._metadata
            )
        except grpc.RpcError as error:
            raise call_error(error) from error
        except ValueError as error:
            raise self._closed() from error
        return answer  # type: ignore[no-any-return]

    def stream(
        self, method: Method[Response], request: _Message, timeout: float | None
    ) -> ServerStream[Response]:
        """Opens a stream of answers, read on the running loop."""
        try:
            call = self._callable("unary_stream", method)(
                request, timeout=timeout, metadata=self._metadata
            )
        except ValueError as error:
            raise self._closed() from error
        self._count(call)
        return ServerStream(call, asyncio.get_running_loop(), self._failed)

    def exchange(self, method: Method[Response], requests: Iterator[_Message]) -> Any:
        """Opens a stream in both directions; the caller iterates over it on its own thread."""
        return self._callable("stream_stream", method)(requests, metadata=self._metadata)

    def _count(self, call: Any) -> None:
        with self._lock:
            self._open_calls += 1
        call.add_done_callback(self._uncount)

    def _uncount(self, _call: object) -> None:
        with self._lock:
            self._open_calls -= 1

    def _closed(self) -> CronoqError:
        """GRPC says ValueError when a channel was closed just before the call."""
        if self._is_over:
            return client_closed()
        return UnavailableError("the connection was closed", executed=False)

    def _failed(self, call: Any) -> CronoqError:
        if self._is_over:
            return client_closed()
        error = call_error(call)
        if isinstance(error, NotLeaderError | StoppingError):
            self.on_not_leader(self)
        return error

    @property
    def is_idle(self) -> bool:
        """Whether no call is under way."""
        return not self._open_calls

    def close(self, *, for_good: bool = False) -> None:
        """Ends all calls and the connection; for good, if its calls shall not be made elsewhere."""
        self._is_over = for_good
        self._channel.close()


def client_closed() -> ClosedError:
    """What every call of a closed client fails with."""
    return ClosedError("the client is closed")


# Channels that were open when this process was forked off. They belong to the parent; destroying
# them here would reach into its connections, so they are kept for good.
_inherited: list[Channel] = []


class Connection:
    """A client's way to one server: the channel of this process, made anew when it must be."""

    def __init__(self, options: ConnectOptions, endpoint: Endpoint) -> None:
        self._dialer = Dialer(options)
        self._endpoint = endpoint
        self._token = options.token
        self._lock = threading.Lock()
        self._channel: Channel | None = None
        self._pid = 0
        self._certificates: tuple[int, ...] = ()
        self._retired: list[Channel] = []
        self._is_closed = False

    def channel(self) -> Channel:
        """Returns the channel to use for a call that begins now.

        It is another one after a call whose answer was that the server does not lead.

        Raises:
            ClosedError: The connection was closed; a call that waited to be made again ends so.
            OSError: A certificate file cannot be read.
        """
        if self._pid != os.getpid():
            self._adopt_process()
        channel = self._channel
        if channel is not None and not self._endpoint.is_encrypted:
            return channel
        with self._lock:
            return self._renewed()

    def _adopt_process(self) -> None:
        """The first call in a process: what a parent made, its lock included, is not ours."""
        if self._channel is not None:
            _inherited.append(self._channel)
        _inherited.extend(self._retired)
        self._lock = threading.Lock()
        self._channel = None
        self._retired = []
        self._pid = os.getpid()

    def _renewed(self) -> Channel:
        if self._is_closed:
            raise client_closed()
        version = self._dialer.certificates_version()
        if self._channel is not None and version == self._certificates:
            return self._channel
        try:
            fresh = self._dialer.dial(self._endpoint, self._token)
        except OSError:
            if self._channel is None:
                raise
            # The files are being replaced just now; the next call looks again.
            return self._channel
        if self._channel is not None:
            # Calls under way go on there; it is closed with the connection.
            self._retired.append(self._channel)
        self._channel = fresh
        self._channel.on_not_leader = self._leave
        self._certificates = version
        return self._channel

    def _leave(self, channel: Channel) -> None:
        """Has the next call dial anew: behind the same address somebody else may lead."""
        with self._lock:
            is_young = time.monotonic() - channel.made_at < LEAVE_AFTER_S
            if channel is not self._channel or is_young:
                return
            for retired in [other for other in self._retired if other.is_idle]:
                self._retired.remove(retired)
                retired.close()
            self._retired.append(channel)
            self._channel = None

    def close(self) -> None:
        """Ends all calls and connections of this process."""
        if self._pid != os.getpid():
            return
        with self._lock:
            self._is_closed = True
            channels = [*self._retired]
            if self._channel is not None:
                channels.append(self._channel)
            self._retired, self._channel = [], None
        for channel in channels:
            channel.close(for_good=True)


def _wake(loop: asyncio.AbstractEventLoop, done: asyncio.Future[None], _call: object) -> None:
    post(loop, _settle, done)


def _settle(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


def post(loop: asyncio.AbstractEventLoop, act: Callable[..., object], *arguments: Any) -> bool:
    """Has a loop of another thread call `act`; False when that loop is closed."""
    try:
        loop.call_soon_threadsafe(act, *arguments)
    except RuntimeError:
        return False
    return True


class ServerStream(Generic[Response]):
    """Messages of one stream, read by a thread of its own, handed to one loop."""

    def __init__(
        self,
        call: Any,
        loop: asyncio.AbstractEventLoop,
        failed: Callable[[Any], CronoqError] | None = None,
    ) -> None:
        self._call = call
        self._loop = loop
        self._failed = failed or call_error
        self._items: collections.deque[Response] = collections.deque()
        self._room = threading.Semaphore(STREAM_BUFFER)
        self._ended = False
        self._wakeup = asyncio.Event()
        self._awake = False
        threading.Thread(target=self._read, name="cronoq-stream", daemon=True).start()

    def _read(self) -> None:
        try:
            for message in self._call:
                # A cancelled stream gives room, so this thread always ends.
                self._room.acquire()
                self._items.append(message)
                self._nudge()
        except grpc.RpcError:
            pass  # The status is read from the call.
        self._ended = True
        post(self._loop, self._wakeup.set)

    def _nudge(self) -> None:
        # One wake-up per batch: whoever finds the flag down raises it.
        if not self._awake:
            self._awake = True
            post(self._loop, self._wakeup.set)

    def __aiter__(self) -> AsyncIterator[Response]:
        return self._drain()

    async def _drain(self) -> AsyncIterator[Response]:
        while True:
            self._awake = False
            self._wakeup.clear()
            ended = self._ended
            while self._items:
                message = self._items.popleft()
                self._room.release()
                yield message
            if ended and not self._items:
                break
            if not self._items and not self._ended:
                await self._wakeup.wait()
        if self._call.code() is not grpc.StatusCode.OK:
            raise self._failed(self._call)

    def cancel(self) -> None:
        """Ends the stream; its reader sees CANCELLED."""
        self._call.cancel()
        self._room.release(STREAM_BUFFER)


def call_error(call: Any) -> CronoqError:
    """Returns the exception for a call that failed."""
    code: grpc.StatusCode = call.code()
    message = call.details() or code.name.lower()
    reason: ErrorReason | None = None
    details: dict[str, str] = {}
    is_answer = False
    for key, value in _metadata_of(call):
        if key == _STATUS_KEY and isinstance(value, bytes):
            is_answer = True
            reason, found = read_error_info(value)
            details.update(found)
        elif key.startswith("cronoq-"):
            details[key] = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    # What has status details came from a server, whatever its text quotes.
    executed = False if not is_answer and _was_never_sent(code, message) else None
    return error_for(code.name, message, reason=reason, details=details, executed=executed)


def _metadata_of(call: Any) -> Iterator[tuple[str, str | bytes]]:
    yield from call.initial_metadata() or ()
    yield from call.trailing_metadata() or ()


def read_error_info(status: bytes) -> tuple[ErrorReason | None, dict[str, str]]:
    """Returns reason and details of a serialized google.rpc.Status."""
    from google.protobuf.message import DecodeError

    try:
        return error_info_of(status_pb2.Status.FromString(status))
    except DecodeError:
        return None, {}


def error_info_of(status: status_pb2.Status) -> tuple[ErrorReason | None, dict[str, str]]:
    """Returns reason and details of a google.rpc.Status; none when it carries none of ours."""
    from google.protobuf.message import DecodeError

    for detail in status.details:
        info = error_details_pb2.ErrorInfo()
        try:
            is_info = detail.Unpack(info)
        except DecodeError:
            continue  # It says nothing; the status itself still says that the call failed.
        if is_info and info.domain == _ERROR_DOMAIN:
            return ErrorReason.from_wire(info.reason), dict(info.metadata)
    return None, {}


def status_error(status: status_pb2.Status, place: str = "") -> CronoqError:
    """Returns the exception for a status that travels inside a message.

    Args:
        status: The status.
        place: Where in the request the server says the fault is, such as `tasks[3].`. It is left
            out: the caller knows of one task only, not of the request that carried it.
    """
    reason, details = error_info_of(status)
    if place:
        details.pop("index", None)
        details = {name: text.removeprefix(place) for name, text in details.items()}
    code = _CODE_NAMES.get(status.code, "UNKNOWN")
    message = status.message.removeprefix(place)
    return error_for(code, message, reason=reason, details=details)


_CODE_NAMES: dict[int, str] = {code.value[0]: code.name for code in grpc.StatusCode}

# What gRPC says when there was no connection to send the call on.
_NEVER_SENT = (
    "failed to connect to all addresses",
    "connections to all backends failing",
    "dns resolution failed",
    "name resolution",
    "connection refused",
)


def _was_never_sent(code: grpc.StatusCode, message: str) -> bool:
    if code is not grpc.StatusCode.UNAVAILABLE:
        return False
    text = message.lower()
    return any(mark in text for mark in _NEVER_SENT)


def is_unavailable(error: CronoqError) -> bool:
    """True when the same call may succeed at another time or server."""
    return isinstance(error, UnavailableError)
