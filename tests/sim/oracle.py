"""The promises, each with a small checker that watches for the first time it is broken.

Checkers see four things: batches as the database accepts them, leases as workers get them,
answers as callers get them, and (in `accounts`) the engine's tables after its steps. They never
look at how the engine decides.

A call whose outcome is unknown may or may not have happened: no checker assumes either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cronoq_server.engine import effects
from cronoq_server.engine.cron import Calendar, Fold, Gap, occurrence_key, parse
from cronoq_server.engine.ending import edge_holds
from cronoq_server.engine.filters import SCHEDULE_TAG
from cronoq_server.engine.model import (
    DEFAULT_RETRY,
    FIRST_TERMINAL,
    Dependency,
    Duration,
    EngineSettings,
    MissPolicy,
    Overflow,
    Overlap,
    ResourceSettings,
    Status,
    TaskRef,
    TaskSpec,
)
from cronoq_server.engine.mutations import StatusChanged, TaskInserted
from cronoq_server.engine.policies import effective_retry
from cronoq_server.stores.base import Batch
from tests.sim.chronicle import Chronicle
from tests.sim.clockwork import Timeline


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken."""

    promise: str
    text: str


class Broken(Exception):
    """Ends a world: there is a violation to look at."""


class Known:
    """What everybody in a world agrees on, and what callers and workers did so far.

    Attributes:
        chronicle: What was committed.
        settings: The engine's settings, but for epoch and high-water mark.
        timeline: The world's time.
        violations: What went wrong so far.
        started: Attempts that a handler ran: (task, attempt) → lease.
        succeeded: Attempts of which a worker said that they succeeded.
        failed_for_good: Tasks of which a worker said that trying again is of no use.
        cancelled: Tasks that a worker cancelled.
        asked_redrive: Tasks that callers wanted to be put back.
        asked_cancel: Tasks, or keys, that callers wanted to be cancelled.
        backfilled: Schedules of which a range was created by hand.
        asked_delete: Tasks, or keys, that callers wanted to be deleted.
        bulk: Whether anything was done in bulk so far.
        set_forward: Whether a wall clock was ever set forward: a new leader may then take what
            ended for long past.
        first: Called right before the first violation is noted.
        set_back: Whether one was ever set back.
    """

    def __init__(self, settings: EngineSettings, timeline: Timeline) -> None:
        self.chronicle = Chronicle()
        self.settings = settings
        self.timeline = timeline
        self.violations: list[Violation] = []
        self.started: dict[tuple[int, int], int] = {}
        self.succeeded: dict[tuple[int, int], None] = {}
        self.failed_for_good: dict[int, None] = {}
        self.cancelled: dict[int, None] = {}
        self.asked_redrive: dict[TaskRef, None] = {}
        self.asked_cancel: dict[TaskRef, None] = {}
        self.backfilled: dict[str, None] = {}
        self.asked_delete: dict[TaskRef, None] = {}
        self.bulk = False
        self.set_forward = False
        self.set_back = False
        self.first: Callable[[], object] = lambda: None
        self.pools = {pool.name: pool for pool in settings.pools}

    def broken(self, promise: str, text: str) -> None:
        """Notes a violation."""
        if not self.violations:
            self.first()
        self.violations.append(Violation(promise, text))

    def resource(self, name: str) -> ResourceSettings | None:
        """The rules of a resource, by its own name or as `name:value`."""
        stem = name.split(":", 1)[0]
        return next((r for r in self.settings.resources if r.name in (name, stem)), None)

    def budget(self, spec: TaskSpec) -> int:
        """Attempts that one budget of a task allows."""
        pool = effective_retry(self.pools[spec.pool].retry, DEFAULT_RETRY)
        return effective_retry(spec.retry, pool).max_attempts


# --- what the database accepts -------------------------------------------------------------------


class OneLeader:
    """At most one leader's writes are accepted, in one sequence."""

    promise = "at most one leader commits"

    def __init__(self, known: Known) -> None:
        self._known = known

    def before(self, epoch: int, latest: int, batch: Batch) -> None:
        """Looks at a batch that was just accepted, against what was there before."""
        chronicle = self._known.chronicle
        if epoch != latest or epoch < chronicle.epoch:
            self._known.broken(
                self.promise, f"epoch {epoch} committed batch {batch.position} under {latest}"
            )
        if batch.position != chronicle.position + 1:
            self._known.broken(self.promise, f"batch {batch.position} follows {chronicle.position}")


class Ids:
    """Ids are never used twice, and rise."""

    promise = "ids rise and are never reused"

    def __init__(self, known: Known) -> None:
        self._known = known

    def before(self, _epoch: int, _latest: int, batch: Batch) -> None:
        """Looks at the ids of a batch."""
        chronicle, last = self._known.chronicle, self._known.chronicle.high_water
        shard = self._known.settings.shard
        for row in batch.inserted:
            if row.task_id <= last or row.task_id in chronicle.rows:
                self._known.broken(self.promise, f"id {row.task_id} follows {last}")
            if shard is not None and row.task_id >> 56 != shard:
                self._known.broken(self.promise, f"id {row.task_id} is not of shard {shard}")
            last = row.task_id


class Transitions:
    """Each change of a task is one that may happen, once."""

    promise = "state transitions happen exactly once"

    def __init__(self, known: Known) -> None:
        self._known = known

    def before(self, _epoch: int, _latest: int, batch: Batch) -> None:
        """Looks at the changes of a batch."""
        known, chronicle = self._known, self._known.chronicle
        fresh: dict[int, TaskInserted] = {row.task_id: row for row in batch.inserted}
        for task_id, change in batch.changed.items():
            row = fresh.get(task_id) or chronicle.rows.get(task_id)
            if row is None:
                known.broken(self.promise, f"task {task_id} changes, but was never inserted")
                continue
            before = chronicle.changes.get(task_id)
            text = self._wrong(row.spec, before, change)
            if text:
                known.broken(self.promise, f"task {task_id}: {text} ({before} -> {change})")

    def _wrong(self, spec: TaskSpec, before: StatusChanged | None, change: StatusChanged) -> str:
        known = self._known
        budget = known.budget(spec)
        had, allowed = (0, budget) if before is None else (before.attempt, before.attempts_max)
        if change.attempt < had:
            return "attempt numbers rise"
        if change.attempt > had + 1:
            return "attempts are counted one by one"
        if change.attempt > change.attempts_max:
            return "no attempt beyond the budget"
        ended = before is not None and before.status >= FIRST_TERMINAL
        if change.attempts_max != allowed or ended:
            wanted = self._was_asked(change.task_id, spec)
            if not wanted:
                return "only a redrive leaves an end, or gives another budget"
            if change.attempts_max - budget not in (had, change.attempt):
                return "a redrive gives exactly one budget more"
        return self._unfounded(spec, change)

    def _was_asked(self, task_id: int, spec: TaskSpec) -> bool:
        known = self._known
        return known.bulk or task_id in known.asked_redrive or spec.key in known.asked_redrive

    def _unfounded(self, spec: TaskSpec, change: StatusChanged) -> str:
        """Why this end has no reason in what callers and workers did; empty = it has."""
        known, status, task_id = self._known, change.status, change.task_id
        if status == Status.SUCCEEDED and (task_id, change.attempt) not in known.succeeded:
            return "succeeded, but no worker said so"
        if status == Status.DEAD_LETTERED and change.attempt != change.attempts_max:
            return "dead-lettered with attempts left"
        if (
            status == Status.FAILED
            and task_id not in known.failed_for_good
            and not (spec.on_miss == MissPolicy.FAIL and not change.attempt)
        ):
            return "failed for good, but nobody said so"
        if status == Status.SHED and known.pools[spec.pool].overflow not in (
            Overflow.SHED_LOWEST,
            Overflow.SHED_OLDEST,
        ):
            return "shed from a pool that sheds nothing"
        if status == Status.MISSED and change.attempt:
            return "missed, though it had started"
        if status == Status.CANCELLED and not (
            known.bulk
            or task_id in known.asked_cancel
            or spec.key in known.asked_cancel
            or task_id in known.cancelled
        ):
            return "cancelled, but nobody asked for it"
        return ""


class Keys:
    """A key names one task while that one lives or is remembered."""

    promise = "a key is unique while its task is live or retained"

    def __init__(self, known: Known) -> None:
        self._known = known
        self._ended_at: dict[int, int] = {}

    def before(self, _epoch: int, _latest: int, batch: Batch) -> None:
        """Looks at the keys of new tasks."""
        known, chronicle = self._known, self._known.chronicle
        now = known.timeline.now
        for row in batch.inserted:
            key = row.spec.key
            for other in chronicle.by_key.get(key, ()) if key else ():
                if other in chronicle.live and self._lives_on(other, batch):
                    known.broken(self.promise, f"{key!r}: {row.task_id} beside live {other}")
                elif self._is_retained(other, now, row, chronicle):
                    known.broken(self.promise, f"{key!r}: {row.task_id} beside retained {other}")
        for task_id, change in batch.changed.items():
            if change.status >= FIRST_TERMINAL:
                self._ended_at[task_id] = now

    def _lives_on(self, other: int, batch: Batch) -> bool:
        """A live one may have ended, and have been forgotten, within the same batch."""
        change = batch.changed.get(other)
        return change is None or change.status < FIRST_TERMINAL

    def _is_retained(self, other: int, now: int, row: TaskInserted, chronicle: Chronicle) -> bool:
        known = self._known
        ended = self._ended_at.get(other)
        if ended is None or other in chronicle.deleted or known.set_forward:
            return False
        if len(chronicle.rows) > known.settings.finished_max:
            return False
        return now - ended < known.settings.key_retention - MARGIN and row.task_id > other


MARGIN: Duration = 60_000_000_000
"""What a batch may take from its steps to the database."""


class Edges:
    """A task starts only when its dependencies hold, and is skipped only when one never can."""

    promise = "dependencies decide"

    def __init__(self, known: Known) -> None:
        self._known = known

    def after(self, batch: Batch) -> None:
        """Looks at changes of tasks with dependencies, once all ends of the batch are known."""
        known, chronicle = self._known, self._known.chronicle
        for task_id, change in batch.changed.items():
            spec = chronicle.rows[task_id].spec
            if not spec.dependencies or task_id in chronicle.redriven:
                continue
            if change.status == Status.RUNNING and change.attempt == 1:
                for edge in spec.dependencies:
                    if known.set_forward and not known.settings.store_remembers:
                        continue  # a parent may have been forgotten, which counts as satisfied
                    if not self._held(edge.target, edge.condition):
                        known.broken(self.promise, f"task {task_id} started before {edge}")
                    elif self._contradicts(task_id, edge, True):
                        known.broken(self.promise, f"task {task_id} started in spite of {edge}")
            elif change.status == Status.SKIPPED and not self._is_doomed(task_id, spec):
                known.broken(self.promise, f"task {task_id} was skipped for no reason: {change}")

    def _contradicts(self, task_id: int, edge: Dependency, held: bool) -> bool:
        """Whether the end that counts for an edge by id says that it did not hold, or that it did.

        That is the parent's last end when the task came, or else its first one after that, whatever
        became of the parent when it was put back.
        """
        chronicle, parent = self._known.chronicle, edge.target
        if not isinstance(parent, int) or parent in chronicle.deleted:
            return False
        end = chronicle.decisive_end(parent, chronicle.inserted_at[task_id])
        return end is not None and end != 0 and edge_holds(edge.condition, end) is not held

    def _parents(self, target: TaskRef) -> Iterable[int]:
        return (
            self._known.chronicle.by_key.get(target, ()) if isinstance(target, str) else (target,)
        )

    def _held(self, target: TaskRef, condition: int) -> bool:
        chronicle = self._known.chronicle
        return any(
            parent in chronicle.deleted or edge_holds(condition, status)
            for parent in self._parents(target)
            for _, status in chronicle.ends.get(parent, ())
        )

    def _is_doomed(self, task_id: int, spec: TaskSpec) -> bool:
        ends, by_key = self._known.chronicle.ends, self._known.chronicle.by_key
        if any(name == SCHEDULE_TAG for name, _ in spec.tags):
            return True
        for edge in spec.dependencies:
            if isinstance(edge.target, str) and (
                edge.target not in by_key or self._known.pools[spec.pool].await_unknown_dependencies
            ):
                return True
            for parent in self._parents(edge.target):
                if any(
                    not edge_holds(edge.condition, s) for _, s in ends.get(parent, ())
                ) and not self._contradicts(task_id, edge, False):
                    return True
        return False


class Occurrences:
    """Schedules: nothing beside what the overlap rule allows, no instant twice."""

    promise = "an overlap guard holds, also across failovers"

    def __init__(self, known: Known) -> None:
        self._known = known

    def after(self, batch: Batch) -> None:
        """Looks at new occurrences, and at what runs side by side."""
        chronicle = self._known.chronicle
        for row in batch.inserted:
            name = _schedule_of(row.spec)
            if name and row.spec.start_at is not None:
                self._is_alone(name, row, batch)
        for task_id, change in batch.changed.items():
            if change.status == Status.RUNNING:
                name = _schedule_of(chronicle.rows[task_id].spec)
                if name:
                    self._is_in_line(name, task_id)

    def _overlap(self, name: str) -> int:
        stored = self._known.chronicle.schedules.get(name)
        return 0 if stored is None else stored.spec.overlap

    def _is_alone(self, name: str, row: TaskInserted, batch: Batch) -> None:
        chronicle = self._known.chronicle
        if self._overlap(name) != Overlap.SKIP:
            return
        for other in chronicle.occurrences[name]:
            if other < row.task_id and other in chronicle.live:
                change = batch.changed.get(other)
                if change is not None and change.status == Status.READY:
                    continue  # put back by hand, maybe later in this very batch
                self._known.broken(self.promise, f"{name}: {row.task_id} beside live {other}")

    def _is_in_line(self, name: str, task_id: int) -> None:
        chronicle = self._known.chronicle
        if self._overlap(name) not in (Overlap.QUEUE, Overlap.QUEUE_ON_SUCCESS):
            return
        for other in chronicle.occurrences[name]:
            if other == task_id or other not in chronicle.running:
                continue
            if task_id in chronicle.redriven or other in chronicle.redriven:
                continue
            self._known.broken(self.promise, f"{name}: {task_id} runs beside {other}")

    def judge_counts(self) -> None:
        """Every instant of a schedule became an occurrence, or was counted as passed over."""
        known, chronicle = self._known, self._known.chronicle
        if known.set_back:
            return
        for name, stored in chronicle.schedules.items():
            put, spec = chronicle.puts[name], stored.spec
            calendar = parse(spec.cron, spec.zone, Gap(spec.gap), Fold(spec.fold))
            if name in known.backfilled:
                continue  # what was passed over may have been created after all
            if name in chronicle.was_paused or not isinstance(calendar, Calendar):
                continue
            instants = calendar.between(put.processed_at + 1, stored.processed_at, INSTANTS_MAX)
            if len(instants) == INSTANTS_MAX:
                continue
            base = spec.template.key or name
            ids = [chronicle.by_key.get(occurrence_key(base, at), ()) for at in instants]
            created = sum(any(i > chronicle.put_above[name] for i in each) for each in ids)
            # What the schedule had created before it was put again, under a clock that was ahead,
            # is not created anew when it is due; it is passed over like others when it is not.
            before = sum(bool(each) for each in ids) - created
            passed = stored.skipped - put.skipped
            if not len(instants) - created - before <= passed <= len(instants) - created:
                known.broken(
                    "every instant of a schedule is accounted for",
                    f"{name}: {len(instants)} instants, {created} created, {before} were there, "
                    f"{passed} passed over",
                )


INSTANTS_MAX = 3000


def _schedule_of(spec: TaskSpec) -> str:
    return next((value for name, value in spec.tags if name == SCHEDULE_TAG), "")


# --- what workers get ----------------------------------------------------------------------------


class Handlers:
    """What reaches a handler is durable, counted, and reaches it once."""

    def __init__(self, known: Known) -> None:
        self._known = known

    def given(self, worker: str, lease: effects.Lease) -> None:
        """A worker has received a lease."""
        known, chronicle = self._known, self._known.chronicle
        who = f"{worker} got attempt {lease.attempt} of {lease.task_id}"
        if lease.task_id not in chronicle.rows:
            known.broken("nothing is dispatched before it is durable", f"{who}: no such task")
        elif chronicle.attempt(lease.task_id) < lease.attempt:
            known.broken("nothing is dispatched before it is durable", f"{who}: not written")

    def ran(self, worker: str, lease: effects.Lease) -> None:
        """A worker has begun to run an attempt."""
        known, name = self._known, (lease.task_id, lease.attempt)
        if name in known.started:
            known.broken(
                "an attempt runs once",
                f"{worker} runs attempt {lease.attempt} of {lease.task_id} under {lease.lease}, "
                f"which ran under {known.started[name]}",
            )
        known.started[name] = lease.lease


# --- what callers get ----------------------------------------------------------------------------


class Answers:
    """What was answered is durable: no crash can take it back."""

    promise = "what was acknowledged or shown is durable"

    def __init__(self, known: Known) -> None:
        self._known = known

    def admitted(self, specs: list[TaskSpec], answer: effects.Admitted) -> None:
        """A submit was acknowledged."""
        rows = self._known.chronicle.rows
        for index, task_id in enumerate(answer.ids):
            if not task_id:
                continue
            row = rows.get(task_id)
            if row is None:
                self._known.broken(self.promise, f"task {task_id} was acknowledged, not written")
            elif index in answer.duplicates:
                if row.spec.key != specs[index].key:
                    self._known.broken(self.promise, f"{task_id} is no duplicate of {specs[index]}")
            elif row.spec != specs[index]:
                self._known.broken(self.promise, f"task {task_id} was written differently")

    def cancelled(self, target: TaskRef) -> None:
        """A cancel was acknowledged: the task ended as cancelled."""
        chronicle = self._known.chronicle
        ids = chronicle.by_key.get(target, ()) if isinstance(target, str) else (target,)
        # Put back in the batch that cancelled it, its end leaves no trace.
        if any(chronicle.has_ended(i, Status.CANCELLED) or i in chronicle.redriven for i in ids):
            return
        if not any(i in self._known.asked_redrive for i in (*ids, target)) and not self._known.bulk:
            self._known.broken(self.promise, f"{target} was said to be cancelled, it is not")

    def denied(self, target: TaskRef | None) -> None:
        """Somebody was told that there is no such task, though there was one when he asked."""
        known = self._known
        row = known.chronicle.rows.get(target) if isinstance(target, int) else None
        if row is None or target in known.asked_delete or row.spec.key in known.asked_delete:
            return
        known.broken("a task that is there is known", f"there is no task {target}, it was said")

    def shown(self, view: effects.TaskView) -> None:
        """A task was shown."""
        self.saw(view.task_id, view.status, view.attempt)

    def saw(self, task_id: int, status: int, attempt: int) -> None:
        """Somebody was told that a task stands so."""
        chronicle = self._known.chronicle
        if task_id not in chronicle.rows:
            self._known.broken(self.promise, f"task {task_id} was shown, not written")
        elif chronicle.attempt(task_id) < attempt:
            self._known.broken(
                self.promise, f"attempt {attempt} of {task_id} was shown, not written"
            )
        elif status >= FIRST_TERMINAL and not self._may_have_ended(task_id, status):
            self._known.broken(
                self.promise, f"task {task_id} was shown as {Status(status).name}, it never was"
            )

    def _may_have_ended(self, task_id: int, status: int) -> bool:
        chronicle, known = self._known.chronicle, self._known
        if chronicle.has_ended(task_id, status):
            return True
        key = chronicle.rows[task_id].spec.key
        return known.bulk or task_id in known.asked_redrive or key in known.asked_redrive


class Oracle:
    """All checkers together.

    Attributes:
        known: What they know.
        handlers: Watches what workers get.
        answers: Watches what callers get.
        occurrences: Watches what schedules create.
    """

    def __init__(self, known: Known) -> None:
        self.known = known
        self.handlers = Handlers(known)
        self.answers = Answers(known)
        self._before = (OneLeader(known), Ids(known), Transitions(known), Keys(known))
        self.occurrences = Occurrences(known)
        self._after = (Edges(known), self.occurrences)

    def committed(self, epoch: int, latest: int, batch: Batch) -> None:
        """The database has accepted a batch of a writer, while `latest` is its last epoch."""
        for checker in self._before:
            checker.before(epoch, latest, batch)
        self.known.chronicle.write(epoch, batch)
        for later in self._after:
            later.after(batch)

    def judge_end(self, waiting: Iterable[str]) -> None:
        """The world has healed and come to rest: everything must have ended."""
        known, chronicle = self.known, self.known.chronicle
        for task_id in chronicle.live:
            known.broken(
                "every task ends",
                f"task {task_id} has not: {chronicle.changes.get(task_id)} of "
                f"{chronicle.rows[task_id].spec}",
            )
        for who in waiting:
            known.broken("every wait gets its end", who)
