"""Fixed starts: what is booked at admission, when a slot is held, what a missed start means.

A booking is judged against the pool's `max`, not against who is connected; a pool without `max`
has no limit. It covers the stretch from start - tolerance to start + expected duration +
tolerance, and goes back when the task's first attempt ends, when the start is missed, or when the
task ends in any other way. From `max_hold` before the start one suitable slot is kept free.
"""

from __future__ import annotations

from typing import TypeAlias

from cronoq_server.engine.draft import Draft
from cronoq_server.engine.ending import finish
from cronoq_server.engine.judging import Newcomer
from cronoq_server.engine.lifecycle import Cause
from cronoq_server.engine.model import (
    SECOND,
    ErrorReason,
    Instant,
    MissPolicy,
    PoolSettings,
    Refusal,
    TaskSpec,
)
from cronoq_server.engine.records import Pool, Task, TimerKind
from cronoq_server.engine.state import State

DEFAULT_TOLERANCE = SECOND
"""How late a fixed start may be when its spec does not say."""


Stretch: TypeAlias = tuple[Instant, Instant]
"""A stretch of wall time: start included, end not."""


def tolerance_of(spec: TaskSpec) -> int:
    """How late, and how early, a fixed start may be, in nanoseconds."""
    return DEFAULT_TOLERANCE if spec.tolerance is None else spec.tolerance


def bookable(settings: PoolSettings) -> int | None:
    """How many bookings may overlap; None = no limit."""
    if settings.max is None:
        return None
    return max(1, int(settings.max * settings.reservable_fraction))


def _stretch(pool: Pool, spec: TaskSpec, start: Instant) -> Stretch:
    expected = spec.duration_hint
    if expected is None:
        expected = pool.means.get(spec.kind, pool.settings.default_duration)
    tolerance = tolerance_of(spec)
    return start - tolerance, start + max(1, expected) + tolerance


def start_of(spec: TaskSpec, created_at: Instant) -> Instant | None:
    """The wall instant of a fixed start, if the spec has one."""
    if spec.start_at is not None:
        return spec.start_at
    return None if spec.start_in is None else created_at + spec.start_in


def book_all(draft: Draft, newcomers: list[Newcomer]) -> dict[int, Stretch] | Refusal:
    """Books the fixed starts of a batch, all or none.

    Returns:
        The stretch booked for each newcomer that has a start, by its index; or the refusal.
    """
    booked: dict[int, Stretch] = {}
    for newcomer in newcomers:
        spec = newcomer.spec
        pool = draft.state.pools[spec.pool]
        start = start_of(spec, draft.now.wall)
        limit = bookable(pool.settings)
        if start is None or limit is None or newcomer.doom:
            continue
        stretch = _stretch(pool, spec, start)
        if pool.bookings.most(*stretch) >= limit:
            give_back_all(draft.state, newcomers, booked)
            return Refusal(
                ErrorReason.RESERVATION_CONFLICT,
                f"start: pool {spec.pool!r} has {limit} fixed starts booked around that time, "
                "which is as many as it may",
                (("index", str(newcomer.index)),),
            )
        pool.bookings.add(*stretch)
        booked[newcomer.index] = stretch
    return booked


def give_back_all(state: State, newcomers: list[Newcomer], booked: dict[int, Stretch]) -> None:
    """Takes back what was booked for a batch that does not get in."""
    for newcomer in newcomers:
        stretch = booked.get(newcomer.index)
        if stretch is not None:
            state.pools[newcomer.spec.pool].bookings.remove(*stretch)


def book_again(state: State, task: Task) -> None:
    """Books a recovered task's start anew; what was admitted is not refused."""
    pool = state.pools[task.spec.pool]
    if task.miss_at is None or bookable(pool.settings) is None:
        return
    assert task.due_at is not None
    task.booked = _stretch(pool, task.spec, task.due_at)
    pool.bookings.add(*task.booked)


def watch_start(draft: Draft, task: Task) -> None:
    """Sees to it that a slot is held for a task that waits for its fixed start."""
    assert task.due_at is not None
    hold_at = task.due_at - draft.state.pools[task.spec.pool].settings.max_hold
    if hold_at <= draft.now.wall:
        hold(draft, task)
    else:
        draft.state.wall_timers.arm(hold_at, TimerKind.HOLD, task)


def hold(draft: Draft, task: Task) -> None:
    """From now on a suitable slot is kept for this task."""
    task.held = True
    draft.state.placement.hold(task)


def start_missed(draft: Draft, task: Task) -> None:
    """A fixed start passed by more than its tolerance: the miss policy decides."""
    draft.state.pools[task.spec.pool].quality.starts.count(0, 1)
    policy = task.spec.on_miss
    if policy == MissPolicy.SKIP:
        finish(draft, task, Cause.MISSED, "missed its fixed start")
    elif policy == MissPolicy.FAIL:
        finish(draft, task, Cause.FAILED_PERMANENTLY, "missed its fixed start")
    else:
        task.miss_at = None
        if task.held:
            task.held = False
            draft.state.placement.unhold(task)
        if task.booked is not None:
            draft.state.unbook(task)
