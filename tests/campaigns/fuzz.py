"""Throws requests of every kind at a server, and sees what becomes of it and of others beside it.

`./justw campaign fuzz [--cases N] [--seed S] [--silent N] [--only PART]` starts a server process,
and lets each part of the attack have its share of the cases while a well-behaved client goes on
with its work. It fails if any call ends as INTERNAL or UNKNOWN, if the server's log has a traceback
or an error, if its memory grows from one half to the other, or if the client is slowed down.

Attack and client share the machine with the server, so that load alone slows the client down. What
counts is what nonsense adds to that: before each part of the attack the same callers send as much
as they can that makes sense, and the client's p99 beside the attack may be at most twice its p99
beside that.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import resource
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import grpc
from schemathesis.generation import GenerationMode

from tests.campaigns._fuzz_requests import METHODS, Method, Requests
from tests.campaigns._http_cases import attack_bytes, attack_routes

CONFIG = """
[server]
grpc_addr = "127.0.0.1:0"
http_addr = "127.0.0.1:0"
log_level = "info"
shutdown_grace_s = 1
[limits]
max_message_bytes = 1_048_576
max_pending_total = 2000
max_wait_s = 0.05
finished_max = 1000
key_retention_s = 5
[store]
retention_s = 5
[outputs]
cache_bytes = 1_000_000
[[pools]]
name = "default"
overflow = "reject"
[[pools]]
name = "quiet"
[[resources]]
name = "gpu"
permits = 2
"""
MIB = 1024 * 1024
PATIENCE_S = 5.0
"""How long an answer may take: a busy server is late, one that hangs does not answer."""

GROWTH_BYTES = 64 * MIB
"""How much more memory the server may have after the second half than after the first."""

SLOWED_FLOOR_S = 0.25
"""A p99 below this counts as undisturbed, whatever it was before."""

WRITTEN_TOO_LATE = "Internal error from Core"
"""What the client's own library says, with INTERNAL, of a write to a call that has ended before."""

FORBIDDEN = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)


@dataclass
class Server:
    """A server under attack.

    Attributes:
        grpc: Where it serves gRPC.
        http: Where it serves HTTP.
        pid: Its process; 0 if it is this one.
        log: Where its log goes.
    """

    grpc: str
    http: str
    pid: int
    log: Path

    def memory(self) -> int:
        """Bytes that it has in memory."""
        text = Path(f"/proc/{self.pid}/status").read_text()
        (line,) = (line for line in text.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) * 1024

    def complaints(self) -> list[str]:
        """Lines of its log that must not be there."""
        found = []
        for line in self.log.read_text(errors="replace").splitlines():
            if (
                not line.startswith("{")
                or json.loads(line)["level"] == "error"
                or "exception" in line
            ):
                found.append(line)
        return found


@dataclass
class Report:
    """What came of an attack.

    Attributes:
        ends: How often calls ended in which way.
        faults: What must not be.
    """

    ends: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def count(self, method: Method, code: grpc.StatusCode, content: bytes, text: str) -> None:
        """Notes how a call ended."""
        if text == WRITTEN_TOO_LATE:
            self.ends["ended while written to"] += 1
            return
        self.ends[code.name] += 1
        if code in FORBIDDEN:
            self.faults.append(f"{method.path} {code.name} {text}: {content[:200].hex()}")


async def attack_calls(
    address: str, cases: int, seed: int, report: Report, *, spoils: bool = True
) -> None:
    """Calls methods with valid, nearly valid and meaningless messages, many at a time.

    Args:
        address: Where they are served.
        cases: How many calls.
        seed: Other calls for each.
        report: Told how they end.
        spoils: Whether messages are spoilt at all.
    """
    requests = Requests(random.Random(seed), spoils=spoils)
    options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        left = iter(range(cases))

        async def caller() -> None:
            for _ in left:
                method, contents = requests.next()
                code, text = await called(channel, method, contents)
                report.count(method, code, b"".join(contents), text)

        await asyncio.gather(*(caller() for _ in range(16)))


async def called(
    channel: grpc.aio.Channel, method: Method, contents: Sequence[bytes]
) -> tuple[grpc.StatusCode, str]:
    """How a call with these bytes as messages ends; one that goes on by right counts as OK."""
    kind = {
        (False, False): channel.unary_unary,
        (False, True): channel.unary_stream,
        (True, True): channel.stream_stream,
    }[method.streams]
    make: Any = kind(method.path, request_serializer=None, response_deserializer=None)
    given = contents[0] if not method.streams[0] else None
    call = make(given, timeout=PATIENCE_S) if given is not None else make(timeout=PATIENCE_S)
    try:
        if method.streams[0]:
            for content in contents:
                await call.write(content)
            await call.done_writing()
        if method.streams[1]:
            async with asyncio.timeout(0.2):
                while await call.read() is not grpc.aio.EOF:
                    pass
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    except (TimeoutError, asyncio.InvalidStateError):
        call.cancel()
        return grpc.StatusCode.OK, "goes on"
    return await call.code(), await call.details() or ""


async def attack_connections(
    address: str, cases: int, seed: int, report: Report, *, spoils: bool = True
) -> None:
    """Opens connections and says things that are no HTTP/2, or not all of it, or byte by byte.

    Args:
        address: Where they are served.
        cases: How many connections.
        seed: Other connections for each.
        report: Told that they ended.
        spoils: Whether anything but the beginning of HTTP/2 is said, and not all of that.
    """
    chance = random.Random(seed)
    host, _, port = address.rpartition(":")
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
    left = iter(range(cases))

    async def caller() -> None:
        for _ in left:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(host, int(port))
                rubbish, step = preface, len(preface)
                if spoils:
                    rubbish = preface[: chance.randrange(len(preface) + 1)]
                    rubbish += chance.randbytes(chance.choice((0, 1, 9, 40, 400)))
                    step = chance.choice((1, 7, len(rubbish) or 1))
                try:
                    for at in range(0, len(rubbish), step):
                        writer.write(rubbish[at : at + step])
                        await writer.drain()
                    if chance.random() < 0.5:
                        writer.write_eof()
                        await asyncio.wait_for(reader.read(), PATIENCE_S * 4)
                finally:
                    writer.close()
                    with contextlib.suppress(OSError):
                        await writer.wait_closed()
            report.ends["connection"] += 1

    await asyncio.gather(*(caller() for _ in range(16)))


@contextlib.asynccontextmanager
async def silence(address: str, count: int) -> AsyncIterator[None]:
    """Holds connections open that say nothing."""
    host, _, port = address.rpartition(":")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    silent = []
    for start in range(0, count, 200):
        some = range(start, min(count, start + 200))
        opened = [asyncio.open_connection(host, int(port)) for _ in some]
        silent += [writer for _, writer in await asyncio.gather(*opened)]
    try:
        yield
    finally:
        for writer in silent:
            writer.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Neighbour:
    """A client beside the attack, in a process of its own so that the attack's work is not its."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, address: str, *calls: str) -> Neighbour:
        """Begins to work, so many times or until it is asked for its figure."""
        pipe = asyncio.subprocess.PIPE
        command = (sys.executable, "-m", "tests.campaigns._neighbour", address, *calls)
        return cls(await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe))

    async def p99_s(self) -> float:
        """Ends it, and tells what 99 of 100 of its rounds stayed below."""
        output, _ = await self._process.communicate(b"")
        return float(output)


@contextlib.asynccontextmanager
async def server_process() -> AsyncIterator[Server]:
    """A server of its own process."""
    with tempfile.TemporaryDirectory(prefix="cronoq-fuzz-") as folder, _sink(folder) as sink:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "cronoq_server", "--config", f"{folder}/cronoq.toml"),
            stdout=asyncio.subprocess.PIPE,
            stderr=sink,
            env={**os.environ, "GRPC_VERBOSITY": "NONE"},
        )
        assert process.stdout is not None
        address = (await process.stdout.readline()).decode().removeprefix("serving gRPC on ")
        log = Path(sink.name)
        try:
            yield Server(address.strip(), await _http_address(log), process.pid, log)
        finally:
            process.terminate()
            await process.communicate()


def _sink(folder: str) -> BinaryIO:
    """Writes the configuration, and opens the log."""
    Path(folder, "cronoq.toml").write_text(CONFIG)
    return Path(folder, "log").open("wb")


async def _http_address(log: Path) -> str:
    """Where it serves HTTP, as soon as its log, which a thread writes, has said so."""
    async with asyncio.timeout(30):
        while True:
            for line in _lines(log):
                if '"server_ready"' in line:
                    return str(json.loads(line)["http_addr"])
            await asyncio.sleep(0.05)


def _lines(log: Path) -> list[str]:
    return log.read_text().splitlines()


Part = Callable[[Server, int, int, Report, bool], Awaitable[None]]


async def _calls(server: Server, cases: int, seed: int, report: Report, spoils: bool) -> None:
    await attack_calls(server.grpc, cases, seed, report, spoils=spoils)


async def _connections(server: Server, cases: int, seed: int, report: Report, spoils: bool) -> None:
    await attack_connections(server.grpc, cases // 20, seed, report, spoils=spoils)


async def _http(server: Server, cases: int, seed: int, report: Report, spoils: bool) -> None:
    modes = tuple(GenerationMode) if spoils else (GenerationMode.POSITIVE,)
    some = cases // 2
    for found in (
        await asyncio.to_thread(attack_routes, server.http, some, seed, modes),
        await asyncio.to_thread(attack_bytes, server.http, some, seed, breaks=spoils),
    ):
        report.ends += Counter({f"HTTP {end}": count for end, count in found.ends.items()})
        report.faults += [f"HTTP {fault}" for fault in found.faults]


PARTS: dict[str, Part] = {"calls": _calls, "connections": _connections, "http": _http}
"""The parts of the attack; each gets the server, a number of cases, a seed, the report, and whether
it is to make nonsense."""

CONTROL_SHARE = 8
"""One in so many cases more are sent that make sense, for comparison."""


async def run(parts: Sequence[str], cases: int, seed: int, silent: int) -> Report:
    """Attacks a server with parts of the attack, in two halves, and judges what came of it."""
    report = Report()
    async with server_process() as server:
        calm_s = await (await Neighbour.start(server.grpc, "200")).p99_s()
        print(f"p99 of a client beside: {calm_s * 1e3:.1f} ms with nobody else there", flush=True)
        memory = []
        async with silence(server.grpc, silent):
            for half in range(2):
                for part in parts:
                    some = cases // len(parts) // 2
                    seen = await beside(server, part, some // CONTROL_SHARE, seed, Report(), False)
                    slowed = await beside(server, part, some, seed * 2 + half, report, True)
                    judge_neighbour(report, part, seen, slowed)
                memory.append(server.memory())
        judge_memory(report, memory)
        report.faults += server.complaints()
    return report


async def beside(
    server: Server, part: str, cases: int, seed: int, report: Report, spoils: bool
) -> float:
    """What 99 of 100 rounds of a client took beside a part of the attack.

    Or beside what that would be if it made sense.
    """
    neighbour = await Neighbour.start(server.grpc)
    await PARTS[part](server, cases, seed, report, spoils)
    return await neighbour.p99_s()


def judge_neighbour(report: Report, part: str, sense_s: float, nonsense_s: float) -> None:
    """Adds what a client beside says against the server."""
    print(
        f"p99 of a client beside {part}: {sense_s * 1e3:.1f} ms if they make sense, "
        f"{nonsense_s * 1e3:.1f} ms if they do not",
        flush=True,
    )
    if nonsense_s > max(2 * sense_s, SLOWED_FLOOR_S):
        report.faults.append(f"the client beside {part} was slowed down")


def judge_memory(report: Report, memory: Sequence[int]) -> None:
    """Adds what its memory says against the server."""
    print(f"memory after each half: {[round(one / MIB) for one in memory]} MiB")
    if memory[1] > memory[0] + GROWTH_BYTES:
        report.faults.append("memory grows")


def main(arguments: Sequence[str]) -> int:
    """Runs the campaign and returns 1 if it found anything."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--silent", type=int, default=10_000, help="connections that say nothing")
    parser.add_argument("--only", choices=sorted(PARTS), action="append")
    given = parser.parse_args(arguments)
    parts = given.only or sorted(PARTS)
    print(
        f"{given.cases} cases of {', '.join(parts)} with seed {given.seed}, {len(METHODS)} methods"
    )
    report = asyncio.run(run(parts, given.cases, given.seed, given.silent))
    for end, count in report.ends.most_common():
        print(f"{count:8} {end}")
    for fault in report.faults[:20]:
        print(f"FAULT {fault}")
    print(f"{len(report.faults)} faults")
    return int(bool(report.faults))
