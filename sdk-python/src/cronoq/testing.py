"""Decides how a handler is run without a server, and a server on a clock that a test moves.

The handler is called just as a worker would call it: its signature is read, the payload goes
through the codec, and its end becomes an outcome. The server is the program `cronoq-server`, in
memory, on a free port.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ._calls import Caller
from ._endpoint import parse_configured
from ._handlers import AnyHandler, Handler
from ._outcome import Cancelled, Completed, Failed, Nacked, Outcome
from ._payload import Codec, JsonCodec
from ._proto import task_pb2, testing_pb2, workers_pb2
from ._session import Run
from ._transport import Connection, Method
from .attempt import Attempt
from .options import ClientOptions, Seconds, seconds
from .spec import NO_PAYLOAD
from .views import Progress


@dataclass(frozen=True, slots=True)
class HandlerOutcome:
    """How a handler ended.

    Attributes:
        output: What it returned, encoded; None if it did not return.
        content_type: Of the output.
        failure: Message of a failure; None if it did not fail.
        is_permanent: Whether the failure ends the task.
        retry_after_s: Wait that the handler asked for.
        is_cancelled: Whether the handler cancelled its task.
        rejection: Reason for which the handler gave the attempt back.
    """

    codec: Codec
    output: bytes | None = None
    content_type: str = ""
    failure: str | None = None
    is_permanent: bool = False
    retry_after_s: float | None = None
    is_cancelled: bool = False
    rejection: str | None = None

    def value(self, as_type: Any = Any) -> Any:
        """Returns what a client would get as result.

        Raises:
            AssertionError: The handler did not return.
        """
        if self.output is None:
            raise AssertionError(f"the handler did not succeed: {self.failure or self}")
        return self.codec.decode(self.output, self.content_type, as_type)


class _Host:
    """Stands for the worker: knows outputs of parents, hears progress."""

    def __init__(
        self,
        codec: Codec,
        outputs: Mapping[int, Any],
        on_progress: Callable[[Progress], object] | None,
    ) -> None:
        self.codec = codec
        self._outputs = outputs
        self._on_progress = on_progress
        self.run: Run | None = None

    def note_progress(self) -> None:
        if self._on_progress is not None and self.run is not None and self.run.progress:
            self._on_progress(Progress(*self.run.progress))

    async def fetch_output(self, lease: int, task_id: int) -> workers_pb2.Output:
        return self.fetch_output_blocking(lease, task_id)

    def fetch_output_blocking(self, _lease: int, task_id: int) -> workers_pb2.Output:
        output, content_type = self.codec.encode(self._outputs[task_id])
        return workers_pb2.Output(output=output, content_type=content_type)


def _prepare(
    handler: AnyHandler,
    payload: Any,
    codec: Codec,
    outputs: Mapping[int, Any] | None,
    on_progress: Callable[[Progress], object] | None,
    fields: dict[str, Any],
) -> tuple[Handler, Attempt, Run]:
    lease = workers_pb2.Lease(lease=1, task_id=1, attempt=1, kind="test", pool="default")
    if payload is not NO_PAYLOAD:
        lease.payload, lease.content_type = codec.encode(payload)
    names = {"number": "attempt"}
    lease.MergeFrom(workers_pb2.Lease(**{names.get(k, k): v for k, v in fields.items()}))
    lease.parents.extend(outputs or ())
    host = _Host(codec, outputs or {}, on_progress)
    run = host.run = Run(lease, 0.0, 30.0)
    return Handler(handler, codec, ()), Attempt(run, host), run


def _told(outcome: Outcome, codec: Codec) -> HandlerOutcome:
    match outcome:
        case Completed(output, content_type):
            return HandlerOutcome(codec, output=output, content_type=content_type)
        case Failed(message, permanent, retry_after_s):
            return HandlerOutcome(
                codec, failure=message, is_permanent=permanent, retry_after_s=retry_after_s
            )
        case Nacked(reason):
            return HandlerOutcome(codec, rejection=reason)
        case Cancelled():
            return HandlerOutcome(codec, is_cancelled=True)


async def run_handler(
    handler: AnyHandler,
    payload: Any = NO_PAYLOAD,
    *,
    codec: Codec | None = None,
    outputs: Mapping[int, Any] | None = None,
    on_progress: Callable[[Progress], object] | None = None,
    **fields: Any,
) -> HandlerOutcome:
    """Runs an async handler as a worker would.

    Args:
        handler: The function.
        payload: What a client would submit.
        codec: JSON when None.
        outputs: Values of parents by task id.
        on_progress: Called with each progress the handler tells.
        fields: What the attempt tells: `task_id`, `number`, `kind`, `key`, `tags` and so on.
    """
    used = codec or JsonCodec()
    prepared, attempt, run = _prepare(handler, payload, used, outputs, on_progress, fields)
    return _told(await prepared.run_async(attempt, run), used)


def run_handler_blocking(
    handler: AnyHandler,
    payload: Any = NO_PAYLOAD,
    *,
    codec: Codec | None = None,
    outputs: Mapping[int, Any] | None = None,
    on_progress: Callable[[Progress], object] | None = None,
    **fields: Any,
) -> HandlerOutcome:
    """Runs a sync handler as a worker would, on the calling thread; see `run_handler`."""
    used = codec or JsonCodec()
    prepared, attempt, run = _prepare(handler, payload, used, outputs, on_progress, fields)
    return _told(prepared.run_blocking(attempt, run), used)


_SERVING = "serving gRPC on "
_ADVANCE = Method("Testing", "Advance", task_pb2.Empty)
_SETTLE = Method("Testing", "Settle", task_pb2.Empty)
# To advance is to do everything that falls due on the way.
_ADVANCE_TIMEOUT_S = 300.0


class TestServer:
    """A server in memory whose time stands still until it is moved; see `start_test_server`.

    Attributes:
        endpoint: Where it listens, for clients and workers.
    """

    __test__ = False  # pytest: this is no test.

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        options = ClientOptions(endpoint=endpoint)
        self._connection = Connection(options, parse_configured(endpoint, tls=False))
        self._caller = Caller(options, self._connection)

    async def advance(self, by: Seconds) -> None:
        """Moves its clock forward and returns when all that fell due has been done.

        Args:
            by: How far, seconds or a timedelta.

        Raises:
            ValueError: It would go back.
        """
        if seconds(by) < 0:
            raise ValueError("advance: time goes forward only")
        await self._call(_ADVANCE, testing_pb2.AdvanceRequest(seconds=seconds(by)))

    async def settle(self) -> None:
        """Returns when everything that is due has been done."""
        await self._call(_SETTLE, task_pb2.Empty())

    def advance_blocking(self, by: Seconds) -> None:
        """Moves its clock forward, for tests without an event loop; see `advance`."""
        asyncio.run(self.advance(by))

    def settle_blocking(self) -> None:
        """Returns when everything that is due has been done; see `settle`."""
        asyncio.run(self.settle())

    async def _call(self, method: Method[task_pb2.Empty], request: Any) -> None:
        ends_at = asyncio.get_running_loop().time() + _ADVANCE_TIMEOUT_S
        await self._caller.call(method, request, idempotent=False, ends_at=ends_at)

    def close(self) -> None:
        """Closes the connection to it."""
        self._connection.close()


def find_server() -> str:
    """Returns the server's program: CRONOQ_SERVER of the environment, or `cronoq-server`.

    The latter is looked for beside this Python interpreter, then on the path.

    Raises:
        FileNotFoundError: It is nowhere; says how to get it.
    """
    if named := os.environ.get("CRONOQ_SERVER"):
        return named
    beside = str(Path(sys.executable).parent)
    path = os.pathsep.join((beside, os.environ.get("PATH", os.defpath)))
    found = shutil.which("cronoq-server", path=path)
    if found is None:
        raise FileNotFoundError(
            "there is no program cronoq-server: `pip install cronoq-server` into this environment, "
            "or name one in CRONOQ_SERVER"
        )
    return found


@contextlib.asynccontextmanager
async def start_test_server(
    *, command: str | None = None, args: Sequence[str] = ()
) -> AsyncIterator[TestServer]:
    """Starts `cronoq-server --test-clock` on a free port of this machine, for a `with` block.

    Args:
        command: The program; when None, what `find_server` finds.
        args: More arguments, such as `--config` and a path.

    Raises:
        FileNotFoundError: There is no such program; says how to get it.
        OSError: The program cannot be started.
        RuntimeError: It ended before it served; has what it said.
    """
    program = command or find_server()
    fixed = ("--test-clock", "--grpc-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0")
    # The server would take that variable for a setting.
    environment = {name: value for name, value in os.environ.items() if name != "CRONOQ_SERVER"}
    process = await asyncio.create_subprocess_exec(
        program, *fixed, *args, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, env=environment
    )
    said: list[str] = []
    reading = asyncio.ensure_future(_read_all(process.stderr, said))
    try:
        server = TestServer(await _serving_endpoint(process, reading, said))
        try:
            yield server
        finally:
            server.close()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        await process.wait()
        await reading


async def _serving_endpoint(
    process: Process, reading: asyncio.Future[None], said: list[str]
) -> str:
    assert process.stdout is not None
    async for line in process.stdout:
        text = line.decode(errors="replace").strip()
        if text.startswith(_SERVING):
            return text.removeprefix(_SERVING)
        said.append(text)
    await reading
    raise RuntimeError("the server ended before it served:\n" + "\n".join(said))


async def _read_all(source: asyncio.StreamReader | None, said: list[str]) -> None:
    """Reads to the end, so that the server is not held up; keeps the beginning."""
    assert source is not None
    async for line in source:
        if len(said) < 100:
            said.append(line.decode(errors="replace").rstrip())
