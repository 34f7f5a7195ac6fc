"""How an operation asks the engine, and what all of them share: limits, places, names.

Names of tasks are resolved here for callers who are bound to a tenant; see `tenancy`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from cronoq_server.api import tenancy
from cronoq_server.api.auth import Principal
from cronoq_server.api.gate import Gate
from cronoq_server.api.rates import SubmitRates
from cronoq_server.api.tracing import Tracing
from cronoq_server.config import LimitsConfig
from cronoq_server.engine import ErrorReason, Event, Get, Instant, Refusal, TaskRef, TaskView
from cronoq_server.runtime.driver import Driver
from cronoq_server.runtime.refusals import Refused, task_unknown

A = TypeVar("A")

NO_ANSWER: Final = Refusal(
    ErrorReason.STORE_UNAVAILABLE, "no answer within request_timeout_s; the outcome is unknown"
)


class Asking:
    """Asks whoever leads.

    Attributes:
        limits: Bounds on what callers may ask for.
        gate: Counts callers.
        rates: Counts what each caller submits.
        tracing: Records what happens to tasks that come within a trace; None = nobody wants it.
    """

    def __init__(self, limits: LimitsConfig, gate: Gate, leader: Callable[[], Driver]) -> None:
        """Serves whoever leads.

        Args:
            limits: Bounds on what callers may ask for.
            gate: Counts callers.
            leader: The driver of this moment; raises `Refused` when this process does not lead.
        """
        self.limits = limits
        self.gate = gate
        self.rates = SubmitRates(limits.submits_per_second_per_token)
        self.tracing: Tracing | None = None
        self._leader = leader

    def replace_limits(self, limits: LimitsConfig) -> None:
        """Takes other bounds from now on."""
        self.limits = limits
        self.gate.replace(limits)
        self.rates.per_second = limits.submits_per_second_per_token

    # Asking

    def wall(self) -> Instant:
        """What time it is.

        Raises:
            Refused: This server does not lead.
        """
        return self._leader().clock.now().wall

    async def request(self, kind: type[A], build: Callable[[int], Event]) -> A:
        """Asks the engine for an answer of one kind, as one of the bounded requests.

        Raises:
            Refused: The engine refuses, nobody leads, or too many ask.
        """
        with self.gate.request():
            return await self._ask(self._leader(), kind, build)

    async def _ask(
        self,
        driver: Driver,
        kind: type[A],
        build: Callable[[int], Event],
        *,
        bounded: bool = True,
    ) -> A:
        """Asks the engine; `bounded` by the server's own timeout."""
        try:
            async with asyncio.timeout(self.limits.request_timeout_s if bounded else None):
                answer = await driver.inbox.ask(build)
        except TimeoutError as error:
            raise Refused(NO_ANSWER) from error
        if isinstance(answer, Refusal):
            raise Refused(answer)
        assert isinstance(answer, kind), answer
        return answer

    # Names

    def _look(self, who: Principal) -> tenancy.Look:
        """Shows tasks in a caller's pools, whoever their tenant is."""

        async def look(target: TaskRef) -> TaskView:
            return await self._ask(
                self._leader(), TaskView, lambda call: Get(call, target, scope=who.pools)
            )

        return look

    async def _own(self, who: Principal, target: TaskRef) -> TaskRef:
        """The name to use for a task that a caller may deal with."""
        if who.tenant is None:
            return target
        return await tenancy.own_task(who, target, self._look(who))

    async def _id(self, who: Principal, target: TaskRef) -> int:
        """The id of a task that a caller may deal with: what is logged names no keys."""
        own = await self._own(who, target)
        return own if isinstance(own, int) else (await self._look(who)(own)).task_id

    async def _look_up(
        self, who: Principal, names: Sequence[TaskRef]
    ) -> list[tuple[TaskRef, int | Refusal]]:
        """The ids behind names, or why there are none."""
        found: list[tuple[TaskRef, int | Refusal]] = []
        for start in range(0, len(names), tenancy.LOOKUPS_AT_ONCE):
            some = names[start : start + tenancy.LOOKUPS_AT_ONCE]
            ids = await asyncio.gather(*(self._id_of(who, name) for name in some))
            found += zip(some, ids, strict=True)
        return found

    async def _id_of(self, who: Principal, name: TaskRef) -> int | Refusal:
        try:
            view = await self._look(who)(name)
        except Refused as refused:
            if refused.refusal.reason is ErrorReason.TASK_UNKNOWN:
                return refused.refusal
            raise
        if who.tenant is not None and view.spec.tenant != who.tenant:
            return task_unknown(name)
        return view.task_id
