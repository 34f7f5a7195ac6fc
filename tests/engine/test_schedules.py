"""Schedules at work: what is due, what may overlap, and what survives a failover."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cronoq_server.engine import effects
from cronoq_server.engine.cron import Calendar, CatchUp, Fold, Gap, parse
from cronoq_server.engine.events import (
    BackfillSchedule,
    ClockSet,
    DispatchStopped,
    GetSchedule,
    ListSchedules,
    PauseSchedule,
    PutSchedule,
    Redrive,
    RemoveSchedule,
    TriggerSchedule,
)
from cronoq_server.engine.model import (
    SECOND,
    ErrorReason,
    MissPolicy,
    Overlap,
    PoolSettings,
    Refusal,
    ResourceSettings,
    ScheduleSpec,
    Status,
    TaskSpec,
)
from cronoq_server.engine.mutations import ScheduleRemoved, ScheduleSaved, TaskInserted
from cronoq_server.engine.timers import NEVER
from tests.engine.harness import FOREVER, WALL_ZERO, World, after, spec

DONE = effects.Done(changed=True)
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
TO_MINUTE = -WALL_ZERO % MINUTE
"""From the beginning of a world to its first full minute."""


def putting(
    world: World,
    name: str = "s",
    cron: str = "* * * * *",
    template: TaskSpec | None = None,
    paused: bool = False,
    scope: frozenset[str] | None = None,
    **fields: Any,
) -> PutSchedule:
    """The event of putting a schedule; its calendar is parsed as the edge does."""
    asked = ScheduleSpec(name, cron, template or spec(), **fields)
    calendar = parse(cron, asked.zone, Gap(asked.gap), Fold(asked.fold))
    assert isinstance(calendar, Calendar)
    return PutSchedule(world.call(), asked, calendar, paused, scope)


def put(world: World, *args: Any, **how: Any) -> None:
    """Puts a schedule that must be accepted."""
    assert world.ask(putting(world, *args, **how)) == DONE


def stored(world: World, name: str = "s") -> Any:
    """How a schedule stands, as a caller sees it."""
    view = world.ask(GetSchedule(world.call(), name))
    assert isinstance(view, effects.ScheduleView)
    return view.stored


def occurrences(world: World) -> list[TaskSpec]:
    """The specs of all tasks ever created."""
    return [row.spec for row in world.ledger.rows.values()]


def refused(answer: Any, reason: ErrorReason) -> None:
    """The answer is a refusal for this reason."""
    assert isinstance(answer, Refusal), answer
    assert answer.reason == reason


# --- putting, showing, removing ------------------------------------------------------------------


def test_occurrence_is_created_when_due() -> None:
    """EN-120: with its schedule's advance in one step, as a fixed start, tagged, under its key."""
    world = World()
    put(world, template=spec("mail", payload=b"x", tags=(("a", "b"), ("cronoq.schedule", "no"))))
    assert world.wake_at.wall == world.wall + TO_MINUTE == stored(world).next_at
    world.advance(TO_MINUTE - 1)
    assert not world.ledger.rows
    world.advance(1)
    (task,) = world.ledger.rows
    made = world.ledger.rows[task].spec
    assert made.key == "s@2023-11-14T22:14:00Z"
    assert made.start_at == world.wall
    assert made.tags == (("a", "b"), ("cronoq.recurring", "s"), ("cronoq.schedule", "s"))
    assert (made.kind, made.payload) == ("mail", b"x")
    step = next(t.step for t in world.taken if t.step.mutations and t.now.wall == world.wall)
    assert [type(m) for m in step.mutations] == [TaskInserted, ScheduleSaved]
    assert stored(world).last_task == task
    assert stored(world).next_at == world.wall + MINUTE
    assert world.page(schedule="s").tasks[0].task_id == task


def test_template_key_is_the_base_of_occurrence_keys() -> None:
    """SC-30: the template's key, or else the schedule's name."""
    world = World()
    put(world, template=spec(key="base"))
    world.advance(TO_MINUTE)
    assert occurrences(world)[0].key == "base@2023-11-14T22:14:00Z"


def test_instant_whose_key_is_there_is_not_created_again() -> None:
    """EN-120: somebody was faster; the schedule goes on."""
    world = World()
    put(world, overlap=Overlap.ALLOW)
    world.add(spec(key="s@2023-11-14T22:14:00Z", delay=HOUR))
    world.advance(TO_MINUTE)
    assert len(world.ledger.rows) == 1
    world.advance(MINUTE)
    assert len(world.ledger.rows) == 2


def test_put_is_refused_where_its_tasks_would_be() -> None:
    """EN-121: unknown pool or resource, a name in a foreign pool, an expression that is over."""
    world = World(
        PoolSettings("a"), PoolSettings("b"), resources=(ResourceSettings("gpu", permits=1),)
    )
    where = spec(pool="a")
    refused(world.ask(putting(world, template=spec(pool="x"))), ErrorReason.POOL_UNKNOWN)
    many = spec(pool="a", resources=(("gpu", 2),))
    refused(world.ask(putting(world, template=many)), ErrorReason.RESOURCE_EXCEEDS_CAPACITY)
    put(world, template=where)
    foreign = putting(world, template=spec(pool="b"), scope=frozenset("b"))
    refused(world.ask(foreign), ErrorReason.KEY_IN_USE)
    assert stored(world).spec.template == where
    gap = putting(world, cron="30 2 29 2 *", template=where, gap=Gap.SKIP)
    over = msgspec.structs.replace(gap, calendar=_NeverAgain())
    refused(world.ask(over), ErrorReason.CRON_NEVER_FIRES)


class _NeverAgain:
    """A calendar that its zone's clock changes keep from ever being due."""

    def next_after(self, _instant: int) -> None:
        """Nothing comes."""


def test_scope_hides_schedules() -> None:
    """EN-121: reading, changing and removing a foreign one is like that of none."""
    world = World(PoolSettings("a"), PoolSettings("b"))
    put(world, name="one", template=spec(pool="a"))
    put(world, name="two", template=spec(pool="b"))
    only = frozenset("b")
    names = [v.stored.spec.name for v in world.ask(ListSchedules(world.call()))]
    assert names == ["one", "two"]
    mine = world.ask(ListSchedules(world.call(), only))
    assert [v.stored.spec.name for v in mine] == ["two"]
    for target in ("one", "none"):
        for event in (
            GetSchedule(world.call(), target, only),
            PauseSchedule(world.call(), target, True, only),
            TriggerSchedule(world.call(), target, only),
            BackfillSchedule(world.call(), target, 0, 1, scope=only),
        ):
            refused(world.ask(event), ErrorReason.SCHEDULE_UNKNOWN)
        gone = world.ask(RemoveSchedule(world.call(), target, only))
        assert gone == effects.Done(changed=False)
    assert len(world.ask(ListSchedules(world.call()))) == 2


def test_removed_schedule_creates_nothing_more() -> None:
    """EN-121: what it has created stays."""
    world = World()
    put(world)
    world.advance(TO_MINUTE)
    assert world.ask(RemoveSchedule(world.call(), "s")) == DONE
    assert world.taken[-1].step.mutations == (ScheduleRemoved("s"),)
    world.advance(HOUR)
    assert len(world.ledger.rows) == 1
    assert world.snapshot().live_tasks == 1
    world.crash()
    refused(world.ask(GetSchedule(world.call(), "s")), ErrorReason.SCHEDULE_UNKNOWN)


def test_removed_and_put_again_in_one_step_is_there() -> None:
    """EN-121: the last word counts, also for the store."""
    world = World()
    put(world)
    gone, back = RemoveSchedule(world.call(), "s"), putting(world, cron="0 * * * *")
    world.step(gone, back)
    world.crash()
    assert stored(world).spec.cron == "0 * * * *"
    world.step(putting(world), RemoveSchedule(world.call(), "s"))
    world.crash()
    refused(world.ask(GetSchedule(world.call(), "s")), ErrorReason.SCHEDULE_UNKNOWN)


def test_put_again_begins_anew_from_now() -> None:
    """EN-121: occurrences between the old schedule's last and now are not caught up."""
    world = World()
    put(world, cron="0 0 1 1 *")
    world.advance(TO_MINUTE + HOUR)
    put(world)
    assert stored(world).next_at == world.wall + MINUTE
    assert not world.ledger.rows


# --- overlap -------------------------------------------------------------------------------------


def test_skip_creates_none_while_one_lives() -> None:
    """EN-122: alive is anything that has not ended; what is passed over is counted."""
    world = World()
    put(world, overlap=Overlap.SKIP)
    world.advance(TO_MINUTE)
    session = world.join()
    world.advance(2 * MINUTE)
    assert len(world.ledger.rows) == 1
    assert stored(world).skipped == 2
    world.complete(session, *world.out[session])
    state = world.engine._state
    for task in list(state.tasks):
        world.cancel(task)
    world.advance(MINUTE)
    assert len(world.ledger.rows) == 2


def test_guard_holds_across_a_failover() -> None:
    """EN-122: an occurrence of before is not overlapped by the next leader's."""
    world = World()
    put(world, overlap=Overlap.SKIP, template=spec(start_in=None))
    world.advance(TO_MINUTE)
    world.join()
    (task,) = world.ledger.rows
    assert world.status(task) == Status.RUNNING
    world.crash()
    world.advance(MINUTE)
    assert list(world.ledger.rows) == [task]
    world.cancel(task)
    world.advance(MINUTE)
    assert len(world.ledger.rows) == 2


def test_allow_runs_them_side_by_side() -> None:
    """EN-122: no guard at all."""
    world = World()
    put(world, overlap=Overlap.ALLOW)
    world.advance(TO_MINUTE + 2 * MINUTE)
    session = world.join(slots=5)
    assert len(world.out[session]) == 3


@pytest.mark.parametrize("good", [True, False])
def test_queue_chains_them_whatever_the_outcome(good: bool) -> None:
    """EN-122: one behind the other, in order."""
    world = World()
    put(world, overlap=Overlap.QUEUE)
    world.advance(TO_MINUTE + 2 * MINUTE)
    session = world.join(slots=5)
    seen = []
    for _ in range(3):
        lease = world.lease(session)
        seen.append(lease.spec.key)
        world.complete(session) if good else world.fail(session, permanent=True)
    assert seen == [f"s@2023-11-14T22:{m}:00Z" for m in (14, 15, 16)]


def test_broken_chain_skips_all_that_follow_until_the_schedule_is_put_again() -> None:
    """EN-122: one end without success is enough, also over a failover."""
    world = World(key_retention=10 * MINUTE)
    put(world, overlap=Overlap.QUEUE_ON_SUCCESS)
    world.advance(TO_MINUTE + MINUTE)
    first, second = world.ledger.rows
    session = world.join()
    world.fail(session, permanent=True)
    assert world.status(second) == Status.SKIPPED
    assert stored(world).chain_broken
    world.advance(HOUR)
    assert {world.status(task) for task in list(world.ledger.rows)[1:]} == {Status.SKIPPED}
    world.crash(gap=HOUR)
    world.advance(MINUTE)
    assert world.status(max(world.ledger.rows)) == Status.SKIPPED
    put(world, overlap=Overlap.QUEUE_ON_SUCCESS)
    assert not stored(world).chain_broken
    world.advance(MINUTE)
    assert world.status(max(world.ledger.rows)) == Status.READY
    assert world.status(first) == Status.FAILED


def test_chain_goes_on_while_all_succeed() -> None:
    """EN-122: each one waits for the success of the one before."""
    world = World()
    put(world, overlap=Overlap.QUEUE_ON_SUCCESS)
    session = world.join()
    world.advance(TO_MINUTE)
    for _ in range(3):
        world.complete(session)
        world.advance(MINUTE)
    statuses = [world.status(task) for task in world.ledger.rows]
    assert statuses == [Status.SUCCEEDED] * 3 + [Status.RUNNING]
    assert not stored(world).chain_broken


def test_schedule_put_again_still_waits_for_a_live_occurrence() -> None:
    """EN-122: a new chain begins behind what runs, not beside it."""
    world = World()
    put(world, overlap=Overlap.QUEUE_ON_SUCCESS)
    session = world.join(slots=2)
    world.advance(TO_MINUTE)
    put(world, overlap=Overlap.QUEUE_ON_SUCCESS)
    world.advance(MINUTE)
    first, second = world.ledger.rows
    assert world.status(second) == Status.BLOCKED
    world.complete(session)
    assert world.lease(session).task_id == second
    assert world.status(first) == Status.SUCCEEDED


def test_schedule_put_again_waits_for_one_that_lives_ahead_of_the_last() -> None:
    """EN-122: the last one has ended in its place, but what it stood behind still runs."""
    world = World()
    put(world, overlap=Overlap.QUEUE_ON_SUCCESS)
    world.advance(TO_MINUTE + MINUTE)
    first, second = world.ledger.rows
    world.cancel(second)
    put(world, overlap=Overlap.QUEUE_ON_SUCCESS)
    world.advance(MINUTE)
    third = max(world.ledger.rows)
    assert (world.status(first), world.status(third)) == (Status.READY, Status.BLOCKED)
    world.crash()
    assert (world.status(first), world.status(third)) == (Status.READY, Status.BLOCKED)
    session = world.join(slots=2)
    assert next(iter(world.out[session].values())).task_id == first
    world.complete(session)
    assert world.status(third) == Status.RUNNING


@pytest.mark.parametrize("ends", [True, False])
def test_success_of_one_put_back_does_not_mend_a_broken_chain(ends: bool) -> None:
    """EN-122: what follows is skipped until the schedule is put again, and not by chance."""
    world = World()
    put(world, overlap=Overlap.QUEUE_ON_SUCCESS)
    session = world.join()
    world.advance(TO_MINUTE)
    (first,) = world.ledger.rows
    world.fail(session, permanent=True)
    found = world.ledger.find([first], [])
    assert world.ask(Redrive(world.call(), first, found=found)) == DONE
    if ends:
        world.complete(session)
    world.advance(MINUTE)
    assert stored(world).chain_broken
    assert world.status(max(world.ledger.rows)) == Status.SKIPPED


# --- late ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("catch_up", "made", "skipped"),
    [(CatchUp.LATEST, 2, 59), (CatchUp.NONE, 1, 60), (CatchUp.ALL, 6, 55)],
)
def test_missed_occurrences_are_caught_up_as_told(
    catch_up: CatchUp, made: int, skipped: int
) -> None:
    """SC-42, SC-43, SC-44: after an hour without a leader, and one that is in time."""
    world = World(catch_up_max=5)
    put(world, overlap=Overlap.ALLOW, catch_up=catch_up)
    world.crash(gap=TO_MINUTE + HOUR)
    world.step()
    assert len(world.ledger.rows) == made
    assert stored(world).skipped == skipped
    world.crash()
    world.step()
    assert len(world.ledger.rows) == made


def test_schedules_stand_still_while_the_server_shuts_down() -> None:
    """SC-48: every call is answered still; what came due meanwhile is the next leader's."""
    world = World()
    put(world, cron="0 * * * *")
    world.step(DispatchStopped())
    put(world, "t", cron="0 * * * *")
    world.advance(2 * HOUR)
    assert not world.ledger.rows
    assert world.wake_at.wall == NEVER
    world.crash()
    world.step()
    made = sorted(one.key for one in occurrences(world))
    assert made == ["s@2023-11-15T00:00:00Z", "t@2023-11-15T00:00:00Z"]
    assert (stored(world).skipped, stored(world, "t").skipped) == (1, 1)


@pytest.mark.parametrize(
    ("policy", "status"),
    [(0, Status.READY), (MissPolicy.SKIP, Status.MISSED), (MissPolicy.FAIL, Status.FAILED)],
)
def test_late_occurrence_follows_its_miss_policy(policy: int, status: Status) -> None:
    """EN-120: it is a fixed start like any other; without a word it runs late."""
    world = World()
    put(world, cron="0 * * * *", template=spec(on_miss=policy))
    world.crash(gap=2 * HOUR)
    world.advance(SECOND)
    (task,) = world.ledger.rows
    assert world.status(task) == status


def test_clock_set_back_a_lot_goes_on_with_what_comes_then() -> None:
    """EN-123: the first occurrence after the new time; one whose key is there is not made twice."""
    world = World()
    put(world, overlap=Overlap.ALLOW)
    world.advance(TO_MINUTE + 2 * MINUTE)
    assert len(world.ledger.rows) == 3
    world.wall -= 2 * HOUR
    world.step(ClockSet())
    assert stored(world).next_at == world.wall + MINUTE
    world.advance(MINUTE)
    assert len(world.ledger.rows) == 4
    world.advance(2 * HOUR)
    keys = [made.key for made in occurrences(world)]
    assert len(keys) == len(set(keys)) == 2 * 60 + 1


def test_paused_schedule_creates_nothing_and_catches_nothing_up() -> None:
    """EN-124: durable, seen in its view; resumed, it goes on with what comes next."""
    world = World()
    put(world, paused=True)
    world.advance(TO_MINUTE)
    assert not world.ledger.rows
    assert world.ask(PauseSchedule(world.call(), "s", False)) == DONE
    assert stored(world).next_at == world.wall + MINUTE
    assert world.ask(PauseSchedule(world.call(), "s", False)) == DONE
    assert not world.taken[-1].step.mutations
    world.ask(PauseSchedule(world.call(), "s", True))
    world.crash(gap=HOUR)
    world.step()
    assert stored(world).paused
    world.ask(PauseSchedule(world.call(), "s", False))
    world.advance(MINUTE)
    assert len(world.ledger.rows) == 1
    assert stored(world).skipped == 0


# --- by hand -------------------------------------------------------------------------------------


def test_trigger_runs_one_now() -> None:
    """EN-125: whatever lives, under a key of its own; behind the one before where they queue."""
    world = World()
    put(world, overlap=Overlap.SKIP)
    session = world.join(slots=5)
    world.advance(TO_MINUTE)
    answer = world.ask(TriggerSchedule(world.call(), "s"))
    assert isinstance(answer, effects.Triggered)
    assert world.status(answer.task_id) == Status.RUNNING
    assert world.view(answer.task_id).spec.key == "s@2023-11-14T22:14:00.000000000Z"
    assert world.view(answer.task_id).spec.start_at is None
    assert len(world.out[session]) == 2
    again = world.ask(TriggerSchedule(world.call(), "s"))
    assert again == answer
    put(world, name="q", overlap=Overlap.QUEUE)
    first = world.ask(TriggerSchedule(world.call(), "q"))
    world.leap(1)
    second = world.ask(TriggerSchedule(world.call(), "q"))
    assert world.status(first.task_id) == Status.RUNNING
    assert world.status(second.task_id) == Status.BLOCKED


def test_backfill_creates_a_range_once() -> None:
    """EN-125: bounded, with a cursor; live and retained keys are left out; or only counted."""
    world = World(backfill_max=4)
    put(world, overlap=Overlap.ALLOW)
    world.advance(TO_MINUTE + HOUR - 1)
    for task in list(world.engine._state.tasks):
        world.cancel(task)
    put(world, name="b", overlap=Overlap.ALLOW)
    start = WALL_ZERO + TO_MINUTE
    world.add(spec(key="b@2023-11-14T22:15:00Z"))

    def fill(first: int, dry_run: bool = False) -> Any:
        event = BackfillSchedule(world.call(), "b", first, start + 4 * MINUTE, dry_run)
        ids, keys = world.engine.wants(event)
        found = world.ledger.find(ids, keys)
        return world.ask(msgspec.structs.replace(event, found=found))

    before = len(world.ledger.rows)
    assert fill(start, dry_run=True) == effects.Backfilled(3, start + 4 * MINUTE)
    assert len(world.ledger.rows) == before
    assert fill(start) == effects.Backfilled(3, start + 4 * MINUTE)
    assert fill(start + 4 * MINUTE) == effects.Backfilled(1, None)
    assert fill(start) == effects.Backfilled(0, start + 4 * MINUTE)
    keys = [made.key for made in occurrences(world)[before:]]
    assert keys == [f"b@2023-11-14T22:{m}:00Z" for m in (14, 16, 17, 18)]


def test_backfill_leaves_out_what_only_the_store_knows() -> None:
    """EN-125: a key that ended long ago is no reason to run again."""
    world = World(key_retention=SECOND)
    put(world)
    world.advance(TO_MINUTE)
    world.complete(world.join())
    world.leap(10 * SECOND)
    event = BackfillSchedule(world.call(), "s", WALL_ZERO, world.wall)
    _, keys = world.engine.wants(event)
    assert keys == ["s@2023-11-14T22:14:00Z"]
    found = world.ledger.find([], keys)
    answer = world.ask(msgspec.structs.replace(event, found=found))
    assert answer == effects.Backfilled(0, None)
    assert world.engine.wants(BackfillSchedule(1, "none", 0, 1)) == ([], [])


def test_backfill_of_a_guarded_schedule_runs_one_after_the_other() -> None:
    """EN-125: asked for by hand, but never side by side unless overlap is allowed."""
    world = World()
    put(world, cron="0 * * * *", overlap=Overlap.SKIP)
    end = world.wall + 3 * HOUR
    answer = world.ask(BackfillSchedule(world.call(), "s", world.wall, end))
    assert answer == effects.Backfilled(3, None)
    session = world.join(slots=5)
    assert len(world.out[session]) == 1
    for _ in range(3):
        world.fail(session, permanent=True)
    assert {world.status(task) for task in world.ledger.rows} == {Status.FAILED}


def test_exhausted_ids_stop_schedules_without_an_error() -> None:
    """EN-24: by hand it is refused; when due, nothing is created."""
    world = World(shard=200, high_water=(201 << 56) - 2)
    put(world)
    assert isinstance(world.ask(TriggerSchedule(world.call(), "s")), effects.Triggered)
    world.leap(1)
    refused(world.ask(TriggerSchedule(world.call(), "s")), ErrorReason.IDS_EXHAUSTED)
    event = BackfillSchedule(world.call(), "s", world.wall, world.wall + HOUR)
    assert world.ask(event).created == 0
    for task in list(world.engine._state.tasks):
        world.cancel(task)
    world.advance(TO_MINUTE + MINUTE)
    assert len(world.ledger.rows) == 1


def test_child_that_awaits_an_occurrence_gets_it() -> None:
    """EN-34: a key that a schedule brings is there like one that a caller brings."""
    world = World(PoolSettings("default", await_unknown_dependencies=HOUR))
    put(world)
    child = world.add(spec(dependencies=after("s@2023-11-14T22:14:00Z")))
    session = world.join()
    world.advance(TO_MINUTE)
    world.complete(session)
    assert world.lease(session).task_id == child


# --- recovery ------------------------------------------------------------------------------------


@pytest.mark.regression("R25")
def test_schedule_that_can_not_be_read_any_more_is_kept_and_never_due() -> None:
    """EN-126: shown, removable, put again; backfill says why not."""
    world = World()
    put(world)
    kept = world.ledger.schedules["s"]
    bad = msgspec.structs.replace(kept, spec=msgspec.structs.replace(kept.spec, cron="broken"))
    world.ledger.schedules["s"] = bad
    world.crash()
    world.advance(HOUR)
    assert not world.ledger.rows
    assert stored(world).spec.cron == "broken"
    event = BackfillSchedule(world.call(), "s", 0, FOREVER)
    assert world.engine.wants(event) == ([], [])
    refused(world.ask(event), ErrorReason.CRON_INVALID)
    world.wall -= 2 * HOUR
    world.step(ClockSet())
    world.ask(PauseSchedule(world.call(), "s", True))
    world.ask(PauseSchedule(world.call(), "s", False))
    assert stored(world).next_at == kept.next_at
    put(world)
    world.advance(2 * MINUTE)
    assert len(world.ledger.rows) == 1


def test_thousand_schedules_due_at_once_are_created_once_over_a_failover() -> None:
    """EN-126: what is committed has advanced; what is not fires again, under the same key."""
    world = World(checks=False)
    world.step(*(putting(world, name=f"{n:04d}") for n in range(1000)))
    world.advance(TO_MINUTE)
    assert len(world.ledger.rows) == 1000
    world.crash()
    world.step()
    assert len(world.ledger.rows) == 1000
    assert {s.next_at for s in world.ledger.schedules.values()} == {world.wall + MINUTE}
