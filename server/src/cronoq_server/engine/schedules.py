"""Recurring schedules at work: what is due, what it creates, what may overlap.

An occurrence is created when it is due, never ahead, in the same step as the schedule's advance.
It is a fixed-start task that books nothing, tagged with its schedule, under a key made of the
schedule's name (or its template's key) and its instant: an instant whose key is live or retained
is not created again.

Overlap is judged against every live task of the schedule, also across a failover:

- `skip`: nothing is created while one lives. - `allow`: side by side. - `queue`: behind the one
  before, whatever its outcome. - `queue_on_success`: behind the one before; an end without success
  breaks the chain, and all later ones are skipped until the schedule is put again.

A trigger by hand runs whatever lives, for that is what the hand wants; under a chain it queues
like any other. A backfill creates its occurrences one behind the other, unless overlap is allowed.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from cronoq_server.engine.admission import arrived, new_task
from cronoq_server.engine.cron import (
    Calendar,
    CatchUp,
    Fold,
    Gap,
    decide_due,
    occurrence_key,
    parse,
    trigger_key,
)
from cronoq_server.engine.draft import Draft
from cronoq_server.engine.effects import Backfilled, Done, ScheduleView, Triggered
from cronoq_server.engine.ending import edge_holds, finish, impossible
from cronoq_server.engine.events import (
    BackfillSchedule,
    GetSchedule,
    ListSchedules,
    PauseSchedule,
    PutSchedule,
    RemoveSchedule,
    Scope,
    TriggerSchedule,
)
from cronoq_server.engine.filters import SCHEDULE_TAG
from cronoq_server.engine.judging import resources_refusal
from cronoq_server.engine.lifecycle import Cause
from cronoq_server.engine.model import (
    Dependency,
    EdgeCondition,
    ErrorReason,
    Instant,
    MissPolicy,
    Overlap,
    TaskSpec,
)
from cronoq_server.engine.mutations import RecoveredChunk, ScheduleRemoved, StoredSchedule
from cronoq_server.engine.readiness import settle
from cronoq_server.engine.records import Schedule, Task, TimerKind
from cronoq_server.engine.starts import tolerance_of
from cronoq_server.engine.state import State

LEGACY_TAG = "cronoq.recurring"
"""The tag under which servers of version 0.2 named the schedule."""

_CHAINS = {
    Overlap.QUEUE: EdgeCondition.ON_COMPLETE,
    Overlap.QUEUE_ON_SUCCESS: EdgeCondition.ON_SUCCESS,
}


def put(draft: Draft, event: PutSchedule) -> None:
    """Puts a schedule, new or in place of the one with its name."""
    state, spec, wall = draft.state, event.spec, draft.now.wall
    template = spec.template
    if not state.has_pool(template.pool):
        message = f"template.pool: there is no pool {template.pool!r}"
        draft.refuse(event.call, ErrorReason.POOL_UNKNOWN, message)
        return
    old = state.schedules.get(spec.name)
    if old is not None and not _may_see(old, event.scope):
        message = f"name: {spec.name!r} is in use in a pool that you may not use"
        draft.refuse(event.call, ErrorReason.KEY_IN_USE, message)
        return
    refusal = resources_refusal(state, template)
    if refusal is not None:
        draft.reply(event.call, refusal)
        return
    following = event.calendar.next_after(wall)
    if following is None:
        message = f"cron: {spec.cron!r} is never due again"
        draft.refuse(event.call, ErrorReason.CRON_NEVER_FIRES, message)
        return
    stored = StoredSchedule(
        spec,
        put_at=wall,
        paused=event.paused,
        processed_at=wall,
        next_at=following,
        last_task=old.stored.last_task if old is not None else 0,
        skipped=old.stored.skipped if old is not None else 0,
    )
    _save(draft, Schedule(stored, event.calendar))
    draft.reply(event.call, Done(True))


def _save(draft: Draft, schedule: Schedule) -> None:
    """Takes over a schedule's new state: writes it and arms its next instant."""
    name = schedule.stored.spec.name
    draft.state.schedules[name] = schedule
    draft.saved[name] = schedule
    # One removed in this step and put again is there.
    draft.others = [each for each in draft.others if each != ScheduleRemoved(name)]
    arm(draft.state, schedule)


def arm(state: State, schedule: Schedule) -> None:
    """Wakes the engine when the schedule is due."""
    at = schedule.due_at
    if at is not None:
        state.wall_timers.arm(at, TimerKind.SCHEDULE, schedule.stored.spec.name)


def _may_see(schedule: Schedule, scope: Scope) -> bool:
    return scope is None or schedule.stored.spec.template.pool in scope


def _find(draft: Draft, call: int, name: str, scope: Scope) -> Schedule | None:
    """The schedule of that name; refuses the call if there is none, or none to be seen."""
    schedule = draft.state.schedules.get(name)
    if schedule is None or not _may_see(schedule, scope):
        draft.refuse(call, ErrorReason.SCHEDULE_UNKNOWN, f"name: there is no schedule {name!r}")
        return None
    return schedule


def remove(draft: Draft, event: RemoveSchedule) -> None:
    """Removes a schedule; what it has created stays."""
    schedule = draft.state.schedules.get(event.name)
    if schedule is None or not _may_see(schedule, event.scope):
        draft.reply(event.call, Done(False))
        return
    del draft.state.schedules[event.name]
    draft.saved.pop(event.name, None)
    draft.others.append(ScheduleRemoved(event.name))
    draft.reply(event.call, Done(True))


def get(draft: Draft, event: GetSchedule) -> None:
    """How one schedule stands."""
    schedule = _find(draft, event.call, event.name, event.scope)
    if schedule is not None:
        draft.reply(event.call, ScheduleView(schedule.stored))


def list_all(draft: Draft, event: ListSchedules) -> None:
    """All schedules that the caller may see, by name."""
    schedules = draft.state.schedules
    seen = [schedules[name] for name in sorted(schedules)]
    views = tuple(ScheduleView(s.stored) for s in seen if _may_see(s, event.scope))
    draft.reply(event.call, views)


def pause(draft: Draft, event: PauseSchedule) -> None:
    """Pauses or resumes; what was due during a pause is not caught up."""
    schedule = _find(draft, event.call, event.name, event.scope)
    if schedule is None:
        return
    stored = schedule.stored
    if stored.paused != event.paused:
        changed = replace(stored, paused=event.paused)
        if not event.paused and schedule.calendar is not None:
            wall = draft.now.wall
            changed = replace(
                changed, processed_at=wall, next_at=schedule.calendar.next_after(wall)
            )
        _save(draft, Schedule(changed, schedule.calendar))
    draft.reply(event.call, Done(True))


def trigger(draft: Draft, event: TriggerSchedule) -> None:
    """Creates one occurrence now."""
    schedule = _find(draft, event.call, event.name, event.scope)
    if schedule is None:
        return
    if not draft.state.ids.left():
        draft.refuse(event.call, ErrorReason.IDS_EXHAUSTED, "no task id is left in this range")
        return
    key = trigger_key(_key_base(schedule), draft.now.wall)
    known = draft.state.keys.get(key)
    task_id = known if known is not None else _create(draft, schedule, key, None)
    draft.reply(event.call, Triggered(task_id))


def backfill(draft: Draft, event: BackfillSchedule) -> None:
    """Creates the occurrences of a range, but for those whose keys are live or retained."""
    schedule = _find(draft, event.call, event.name, event.scope)
    if schedule is None:
        return
    if schedule.calendar is None:
        message = f"cron: {schedule.stored.spec.cron!r} can't be read"
        draft.refuse(event.call, ErrorReason.CRON_INVALID, message)
        return
    most = draft.state.settings.backfill_max
    instants = schedule.calendar.between(event.start, event.end, most + 1)
    following = instants[most] if len(instants) > most else None
    created = 0
    for instant in instants[:most]:
        key = occurrence_key(_key_base(schedule), instant)
        if key in draft.state.keys or (event.found and key in event.found):
            continue
        if not draft.state.ids.left():
            break
        created += 1
        if not event.dry_run:
            behind = None
            if schedule.stored.spec.overlap == Overlap.SKIP:
                behind = EdgeCondition.ON_COMPLETE
            _create(draft, schedule, key, None, behind)
    draft.reply(event.call, Backfilled(created, following))


def backfill_keys(state: State, event: BackfillSchedule) -> list[str]:
    """Keys of a backfill that the engine does not hold: the store may know them."""
    schedule = state.schedules.get(event.name)
    if schedule is None or schedule.calendar is None:
        return []
    instants = schedule.calendar.between(event.start, event.end, state.settings.backfill_max)
    keys = [occurrence_key(_key_base(schedule), instant) for instant in instants]
    return [key for key in keys if key not in state.keys]


def fire_due(draft: Draft) -> None:
    """Creates what is due of the schedules whose timers went off in this step.

    Not once the server shuts down: what comes due then is the next leader's to catch up.
    """
    for name in draft.due_schedules if draft.state.dispatching else ():
        schedule = draft.state.schedules.get(name)
        if schedule is not None and schedule.calendar is not None:
            _fire(draft, schedule, schedule.calendar)
    draft.due_schedules.clear()


def _fire(draft: Draft, schedule: Schedule, calendar: Calendar) -> None:
    settings, stored = draft.state.settings, schedule.stored
    spec = stored.spec
    due = decide_due(
        calendar,
        stored.processed_at,
        draft.now.wall,
        tolerance_of(spec.template),
        CatchUp(spec.catch_up),
        settings.catch_up_max,
        settings.catch_up_window,
    )
    skipped = due.skipped
    for instant in (*due.late, *due.on_time):
        key = occurrence_key(_key_base(schedule), instant)
        if key in draft.state.keys or not draft.state.ids.left():
            continue
        if spec.overlap == Overlap.SKIP and draft.state.occurrences.get(spec.name):
            skipped += 1
            continue
        _create(draft, schedule, key, instant)
        lag = max(0, draft.now.wall - instant)
        draft.state.pools[spec.template.pool].quality.lagged.count(lag)
    stored = schedule.stored
    schedule.stored = replace(
        stored,
        processed_at=due.processed,
        next_at=due.next_at,
        skipped=stored.skipped + skipped,
    )
    _save(draft, schedule)


def _key_base(schedule: Schedule) -> str:
    spec = schedule.stored.spec
    return spec.template.key or spec.name


def _create(
    draft: Draft,
    schedule: Schedule,
    key: str,
    start: Instant | None,
    behind: EdgeCondition | None = None,
) -> int:
    """Creates one occurrence and notes it as the schedule's last.

    Args:
        draft: The step.
        schedule: Whose.
        key: Its key.
        start: Its fixed start; None = at once.
        behind: Condition on the one before; None = as the schedule's overlap says.

    Returns:
        The task's id.
    """
    state, stored = draft.state, schedule.stored
    if behind is None:
        behind = _CHAINS.get(Overlap(stored.spec.overlap))
    parent = _chained_to(state, schedule, behind) if behind is not None else 0
    spec = _occurrence_spec(schedule, key, start, parent, behind)
    task = new_task(draft, state.ids.take(), spec)
    _place(draft, task, parent, behind)
    arrived(draft, task)
    schedule.stored = replace(
        schedule.stored,
        last_task=task.id,
        first_task=schedule.stored.first_task or task.id,
    )
    draft.saved[stored.spec.name] = schedule
    return task.id


def _chained_to(state: State, schedule: Schedule, behind: EdgeCondition) -> int:
    """The occurrence that the next one waits for; 0 = none.

    If the last one has ended in its place, an earlier one may still live.
    Since a put, one that has ended counts only if it was created under it: putting the schedule
    again is what mends a broken chain.
    """
    stored = schedule.stored
    last = stored.last_task
    if last in state.tasks:
        return last
    alive = state.occurrences.get(stored.spec.name)
    if alive and (behind == EdgeCondition.ON_COMPLETE or not stored.chain_broken):
        return next(reversed(alive))
    if stored.first_task and last in state.finished:
        return last
    return 0


def _occurrence_spec(
    schedule: Schedule,
    key: str,
    start: Instant | None,
    parent: int,
    behind: EdgeCondition | None,
) -> TaskSpec:
    spec = schedule.stored.spec
    template = spec.template
    tags = [pair for pair in template.tags if pair[0] not in (SCHEDULE_TAG, LEGACY_TAG)]
    tags += [(SCHEDULE_TAG, spec.name), (LEGACY_TAG, spec.name)]
    edges: tuple[Dependency, ...] = ()
    if parent and behind is not None:
        edges = (Dependency(parent, behind),)
    return replace(
        template,
        key=key,
        tags=tuple(sorted(tags)),
        start_at=start,
        start_in=None,
        on_miss=template.on_miss or MissPolicy.RUN_LATE,
        dependencies=edges,
    )


def _place(draft: Draft, task: Task, parent: int, behind: EdgeCondition | None) -> None:
    """Decides where a new occurrence stands: behind the one before, or on its own."""
    state = draft.state
    chain_broken = state.schedules[task.schedule].stored.chain_broken
    if chain_broken and behind == EdgeCondition.ON_SUCCESS:
        # Also if the one before was put back and succeeded: only a put mends a chain.
        _skip(draft, task, "the chain of its schedule is broken")
        return
    if not parent or behind is None:
        settle(draft, task)
        return
    state.set_parents(task, (parent,))
    if parent in state.tasks:
        state.children.setdefault(parent, []).append((task, behind))
        task.unmet = 1
        draft.transition(task, Cause.WAITS_FOR_PARENTS)
        return
    status = state.finished[parent].status
    if edge_holds(behind, status):
        settle(draft, task)
    else:
        _skip(draft, task, impossible(parent, behind, status))


def _skip(draft: Draft, task: Task, why: str) -> None:
    draft.transition(task, Cause.WAITS_FOR_PARENTS)
    finish(draft, task, Cause.PARENT_IMPOSSIBLE, why)


def clock_set(draft: Draft) -> None:
    """The wall clock was set back: schedules go on with their first occurrence after now."""
    wall = draft.now.wall
    for schedule in list(draft.state.schedules.values()):
        calendar = schedule.calendar
        if calendar is not None and schedule.stored.processed_at > wall:
            following = calendar.next_after(wall)
            changed = replace(schedule.stored, processed_at=wall, next_at=following)
            _save(draft, Schedule(changed, calendar))


def restore_schedules(draft: Draft, chunks: Iterable[RecoveredChunk]) -> None:
    """Takes over stored schedules; one that can't be read is kept, shown, and never due."""
    for chunk in chunks:
        for stored in chunk.schedules:
            spec = stored.spec
            parsed = parse(spec.cron, spec.zone, Gap(spec.gap), Fold(spec.fold))
            calendar = parsed if isinstance(parsed, Calendar) else None
            schedule = Schedule(stored, calendar)
            draft.state.schedules[spec.name] = schedule
            draft.state.keep_orphan(spec.template)
            arm(draft.state, schedule)
