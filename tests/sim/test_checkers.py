"""The checkers of the simulator themselves: what they let pass, and what they must not."""

from __future__ import annotations

import pytest

from cronoq_server.engine.cron import occurrence_key
from cronoq_server.engine.model import SECOND, PoolSettings, ScheduleSpec
from cronoq_server.engine.mutations import Mutation, ScheduleSaved, StoredSchedule, TaskInserted
from cronoq_server.engine.placement.turns import Turns
from cronoq_server.stores.base import Batch
from tests.engine.harness import WALL_ZERO, World, spec
from tests.sim.accounts import Accounts
from tests.sim.clockwork import Timeline
from tests.sim.oracle import Known, Occurrences

MINUTE = 60 * SECOND
NOON = WALL_ZERO // MINUTE * MINUTE
"""An instant at which a schedule of every minute is due."""


def saved(put_at: int, processed_at: int, skipped: int = 0) -> ScheduleSaved:
    """A schedule of every minute, as it was written."""
    every_minute = ScheduleSpec("minutely", "* * * * *", spec())
    return ScheduleSaved(
        StoredSchedule(every_minute, put_at=put_at, processed_at=processed_at, skipped=skipped)
    )


def created(number: int, minute: int) -> TaskInserted:
    """The occurrence of a minute after noon."""
    at = NOON + minute * MINUTE
    return TaskInserted(number, at, spec(key=occurrence_key("minutely", at)))


@pytest.mark.parametrize(
    ("passed_over", "is_broken"), [(1, True), (2, False), (3, False), (4, False), (5, True)]
)
def test_instants_that_were_created_before_a_put_count_once(
    passed_over: int, is_broken: bool
) -> None:
    """Of five instants one is created, and two were there, created under a clock that was ahead."""
    known = Known(World().settings, Timeline())
    batches: list[list[Mutation]] = [
        [saved(NOON, NOON)],
        [created(1, 1), created(2, 2), saved(NOON, NOON + 2 * MINUTE)],
        [saved(NOON + 1, NOON + 1)],
        [created(3, 5), saved(NOON + 1, NOON + 5 * MINUTE, passed_over)],
    ]
    for position, mutations in enumerate(batches, 1):
        batch = Batch(position)
        batch.add(mutations)
        known.chronicle.write(1, batch)

    Occurrences(known).judge_counts()

    assert bool(known.violations) == is_broken


class Watched(World):
    """A pool with fair shares, watched by the simulator's accounts."""

    def __init__(self, max_pending: int, max_slots: int | None = None) -> None:
        super().__init__(
            PoolSettings("default", fair_share=True, max_pending=max_pending, max=max_slots)
        )
        self.known = Known(self.settings, Timeline())
        self.accounts = Accounts(self.engine, self.known)

    def _take(self, happened: object, step: object) -> None:
        super()._take(happened, step)  # type: ignore[arg-type]
        if hasattr(self, "accounts"):
            self.accounts.stepped(step, self.now)  # type: ignore[arg-type]

    def wait_in_line(self, tenant: str, count: int) -> None:
        """So many tasks of a tenant are handed in, each of a second."""
        tasks = [spec(tenant=tenant, duration_hint=SECOND) for _ in range(count)]
        self.submit(*tasks, patience=MINUTE)
        self.leap(SECOND)


def test_tenant_that_runs_out_within_a_step_is_not_compared() -> None:
    """Its last task starts, others go on; only then there is room for its next one."""
    world = Watched(max_pending=21)
    world.wait_in_line("many", 20)
    world.wait_in_line("few", 1)
    world.wait_in_line("few", 1)

    world.join(15)

    assert [lease.spec.tenant for lease in world.leases.values()].count("few") == 1
    assert sum(world.snapshot().pools[0].pending_by_class) == 7
    assert world.known.violations == []


def test_fixed_start_counts_as_what_its_tenant_got() -> None:
    """Whose slot was held for a long task waits until the others have had as much."""
    world = Watched(max_pending=60, max_slots=50)
    worker = world.join(1)
    world.add(spec(tenant="one", start_in=2 * SECOND, duration_hint=10 * SECOND))
    world.advance(3 * SECOND)
    world.wait_in_line("one", 20)
    world.wait_in_line("other", 20)

    for _ in range(18):
        world.complete(worker)
        world.leap(SECOND)

    assert world.known.violations == []


def test_tenant_that_waits_all_the_time_and_gets_nothing_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same line, with a tenant that is never charged for what it starts."""
    charge = Turns.charge
    monkeypatch.setattr(
        Turns, "charge", lambda self, task: task.demand.tenant == "few" and charge(self, task)
    )
    world = Watched(max_pending=40)
    world.wait_in_line("many", 20)
    world.wait_in_line("few", 10)

    world.join(15)

    assert {each.promise for each in world.known.violations} == {"fair shares"}
