"""Servers of many shards in one process: `python -m tests.bench.neighbours ENTRY PORT,PORT,…`.

Each is a whole server with a memory store and a few tasks. It knows itself and the shard `entry`,
which asks it; if all knew all, their probes of each other would be what is measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Iterator, Sequence

from cronoq import Client, CronoqError, TaskSpec
from cronoq_server import config as configuration
from cronoq_server.app import Server

READY = "neighbours of "
TASKS = 20
"""Tasks that wait in each shard."""


def pool_of(number: int) -> str:
    """The pool of the shard with this number."""
    return f"pool-{number}"


def config_text(own: int, ports: dict[int, int]) -> str:
    """The configuration of one shard's server.

    Args:
        own: Its number.
        ports: Where each shard that it knows serves, by number.
    """
    text = f'[server]\nhttp_addr = "127.0.0.1:0"\nlog_level = "error"\nshard = "{own}"\n'
    text += f'grpc_addr = "127.0.0.1:{ports[own]}"\n'
    for number in ports:
        text += f'[[pools]]\nname = "{pool_of(number)}"\nmax_pending = 10_000_000\n'
    for number, port in ports.items():
        text += (
            f'[[shards]]\nname = "{number}"\nnumber = {number}\n'
            f'pools = ["{pool_of(number)}"]\nendpoint = "http://127.0.0.1:{port}"\n'
        )
    return text


def every_server(entry: int, ports: Sequence[int]) -> Iterator[Server]:
    """A server for each port; the shard at the first has number 2."""
    for number, port in enumerate(ports, start=2):
        known = {1: entry, number: port}
        yield Server(configuration.parse(config_text(number, known)))


async def fill(number: int, port: int) -> None:
    """Hands in the tasks that wait in a shard."""
    async with Client(f"127.0.0.1:{port}") as client:
        specs = [TaskSpec("wait", b"x" * 200, pool=pool_of(number)) for _ in range(TASKS)]
        for answer in await client.submit_many(specs):
            if isinstance(answer, CronoqError):
                raise answer


async def main() -> None:
    """Serves until SIGTERM."""
    logging.disable(logging.WARNING)
    entry, ports = int(sys.argv[1]), [int(port) for port in sys.argv[2].split(",")]
    async with asyncio.TaskGroup() as group:
        for server in every_server(entry, ports):
            serving = asyncio.Event()
            group.create_task(server.run(lambda _, told=serving: told.set()))  # type: ignore[misc]
            await serving.wait()
        for number, port in enumerate(ports, start=2):
            await fill(number, port)
        print(f"{READY}{entry}", flush=True)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
