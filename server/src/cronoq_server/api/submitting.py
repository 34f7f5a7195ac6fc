"""How tasks are handed in: for which pools and tenant, how often, how long they may wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cronoq_server.api import tenancy
from cronoq_server.api.asking import Asking
from cronoq_server.api.auth import Operation, Principal, require
from cronoq_server.engine import (
    MILLISECOND,
    SECOND,
    YEAR,
    Admitted,
    Duration,
    Refusal,
    Submit,
    SubmitMode,
    TaskSpec,
)
from cronoq_server.runtime.refusals import Refused

ANSWER_MARGIN: Duration = 50 * MILLISECOND
"""A parked call is refused this long before its deadline, so that the refusal arrives."""


class Submitting(Asking):
    """The operations that admit tasks."""

    async def submit(
        self,
        who: Principal,
        specs: Sequence[TaskSpec],
        mode: SubmitMode,
        remaining_s: float | None,
    ) -> Admitted:
        """Admits tasks.

        Args:
            who: The caller.
            specs: The tasks, checked.
            mode: How they belong together.
            remaining_s: Seconds until the caller's deadline; None = it has none.

        Raises:
            Refused: The tasks can't be admitted.
        """
        require(who, Operation.SUBMIT)
        allowed: list[TaskSpec] = []
        for index, spec in enumerate(specs):
            own = tenancy.permitted(who, spec)
            if isinstance(own, Refusal):
                raise Refused(tenancy.at_index(len(specs), index, own))
            allowed.append(own)
        for index, refusal in (await self._foreign(who, allowed)).items():
            raise Refused(tenancy.at_index(len(specs), index, refusal))
        return await self._admit(who, allowed, mode, remaining_s)

    async def submit_many(
        self, who: Principal, specs: Sequence[TaskSpec | Refusal]
    ) -> tuple[Admitted, Mapping[int, Refusal]]:
        """Admits tasks that stand each on its own.

        Args:
            who: The caller.
            specs: The tasks; a refusal stands for one that did not pass its checks.

        Returns:
            What became of those that passed, in order, and the refusals by index.

        Raises:
            Refused: None of them could be looked at.
        """
        require(who, Operation.SUBMIT)
        checked = [s if isinstance(s, Refusal) else tenancy.permitted(who, s) for s in specs]
        refused = {at: one for at, one in enumerate(checked) if isinstance(one, Refusal)}
        if who.tenant is not None:
            places = [at for at, one in enumerate(checked) if at not in refused]
            some = [one for one in checked if not isinstance(one, Refusal)]
            foreign = await self._foreign(who, some)
            refused |= {places[index]: refusal for index, refusal in foreign.items()}
        passed = [
            one for at, one in enumerate(checked) if at not in refused and isinstance(one, TaskSpec)
        ]
        if not passed:
            self._leader()
            return Admitted([]), refused
        return await self._admit(who, passed, SubmitMode.MANY, None), refused

    async def _admit(
        self, who: Principal, specs: list[TaskSpec], mode: SubmitMode, remaining_s: float | None
    ) -> Admitted:
        driver = self._leader()
        parks = mode is not SubmitMode.MANY
        now = driver.clock.now()
        self.rates.take(who.name, len(specs), now.mono)
        until = now.mono + _parking_time(remaining_s)
        with self.gate.request(may_park=parks):
            admitted = await self._ask(
                driver,
                Admitted,
                lambda call: Submit(call, specs, mode, until, who.pools, tenant=who.tenant),
                bounded=not parks,
            )
        if self.tracing is not None:
            self.tracing.admitted(driver, specs, admitted, now)
        return admitted

    async def _foreign(self, who: Principal, specs: Sequence[TaskSpec]) -> dict[int, Refusal]:
        """What names another tenant's task as things stand.

        The engine has the last word: things may have changed when it comes to the submit.
        """
        if who.tenant is None:
            return {}
        return await tenancy.foreign_names(who, specs, self._look(who))


def _parking_time(remaining_s: float | None) -> Duration:
    """How long a submit may be parked: up to shortly before its caller's deadline."""
    if remaining_s is None:
        return YEAR
    remaining = max(0, min(YEAR, round(remaining_s * SECOND)))
    return max(remaining // 2, remaining - ANSWER_MARGIN)
