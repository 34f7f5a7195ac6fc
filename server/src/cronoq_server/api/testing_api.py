"""What tests in any language may do to the clock of a server that was started for them.

Time moves alarm by alarm, and at each the server does all that is due before it moves on. Workers
are other processes: what they do about it is not waited for.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

import grpc

from cronoq_server._proto import task_pb2, testing_pb2
from cronoq_server.api import texts
from cronoq_server.api.auth import Authenticator
from cronoq_server.api.rpc import Body, Context, service_handler
from cronoq_server.engine import SECOND, YEAR, SnapshotQuery
from cronoq_server.runtime.driver import Driver
from cronoq_server.runtime.manual_clock import ManualClock, settle

ROUNDS = 2
"""Questions after which everything that was due, and what it led to, has been done."""


class ClockService:
    """The service `cronoq.v1.Testing`."""

    def __init__(self, clock: ManualClock, leader: Callable[[], Driver]) -> None:
        """Moves a clock.

        Args:
            clock: The one that the server goes by.
            leader: The driver of this moment; raises `Refused` when this process does not lead.
        """
        self._clock = clock
        self._leader = leader
        self._moving = asyncio.Lock()

    def handler(self, authenticator: Authenticator) -> grpc.GenericRpcHandler:
        """The service's handler."""
        bodies: dict[str, Body] = {"Advance": self.advance, "Settle": self.settle}
        return service_handler(testing_pb2.DESCRIPTOR, "Testing", bodies, authenticator)

    async def advance(
        self, request: testing_pb2.AdvanceRequest, _context: Context
    ) -> task_pb2.Empty:
        """Moves the clock forward."""
        seconds = request.seconds
        if math.isnan(seconds) or not 0 < seconds <= YEAR / SECOND:
            text = f"must be above 0 and at most a year ({YEAR // SECOND} s), not {seconds:g}"
            raise texts.invalid("seconds", text)
        async with self._moving:
            await self._clock.advance(round(seconds * SECOND))
            await self._rest()
        return task_pb2.Empty()

    async def settle(self, _request: task_pb2.Empty, _context: Context) -> task_pb2.Empty:
        """Returns when everything that is due has been done."""
        async with self._moving:
            await self._rest()
        return task_pb2.Empty()

    async def _rest(self) -> None:
        for _ in range(ROUNDS):
            await settle()
            # Its answer leaves when all steps before it are durable and their effects are out.
            await self._leader().inbox.ask(SnapshotQuery)
