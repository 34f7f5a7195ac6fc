"""One step in the making: what it has changed, what it must write, what it will say.

Handlers change the state only together with the draft: a task whose change must survive is put
into `changed`, and written once at the end, however often it changed within the step. Effects are
gathered per receiver, so that one session or call gets one effect per step.
"""

from __future__ import annotations

from cronoq_server.engine.effects import (
    Answer,
    CancelAttempt,
    Dispatch,
    Effect,
    Lease,
    Publish,
    Receipt,
    Reply,
    Result,
    Results,
    StatusEvent,
)
from cronoq_server.engine.lifecycle import Cause, next_status
from cronoq_server.engine.model import PENDING, ErrorReason, Now, Pairs, Refusal, Status
from cronoq_server.engine.mutations import (
    Mutation,
    OutputStored,
    ScheduleSaved,
    StatusChanged,
    TaskInserted,
)
from cronoq_server.engine.records import Attempt, Pool, Schedule, Session, Task
from cronoq_server.engine.state import State

_FIRST_WRITTEN = Status.RUNNING
_LIVES_AGAIN = Status.READY
_PENDING = tuple(int(status in PENDING) for status in range(len(Status) + 1))


class Draft:
    """What a step will return, while its events are being handled.

    Attributes:
        state: The tables.
        now: The step's two readings.
        lease_now: The instant on the leases' own clock, which stands still while the leader
            could not listen.
        inserted: Tasks admitted, in order.
        changed: Tasks whose change must be written, by id.
        saved: Schedules whose state must be written, by name.
        others: Mutations that are not about a task's status.
        newly_ready: Tasks that became ready in this step, to be put in line at its end.
        unblocked: Tasks whose last edge was satisfied in this step.
        regrant: Pools in which slots were given back.
        touched: Sessions whose free slots may have changed.
    """

    __slots__ = (
        "aborts",
        "attempts",
        "changed",
        "dispatches",
        "due_schedules",
        "effects",
        "events",
        "inserted",
        "lease_now",
        "newly_ready",
        "now",
        "others",
        "outputs",
        "overdue",
        "receipts",
        "regrant",
        "replies",
        "results",
        "room_made",
        "saved",
        "state",
        "touched",
        "unblocked",
    )

    def __init__(self, state: State, now: Now) -> None:
        self.state = state
        self.now = now
        self.lease_now = now.mono - state.ttl_shift
        self.inserted: list[Mutation] = []
        self.changed: dict[int, Task] = {}
        self.outputs: list[Mutation] = []
        self.effects: list[Effect] = []
        self.replies: list[Effect] = []
        self.results: dict[int, list[Result]] = {}
        self.dispatches: dict[int, list[Lease]] = {}
        self.attempts: list[Attempt] = []
        self.aborts: dict[int, list[tuple[int, str]]] = {}
        self.receipts: dict[int, Session] = {}
        self.events: list[StatusEvent] = []
        self.newly_ready: list[Task] = []
        self.touched: dict[int, Session] = {}
        self.unblocked: list[Task] = []
        self.saved: dict[str, Schedule] = {}
        self.others: list[Mutation] = []
        self.due_schedules: list[str] = []
        self.overdue: list[int] = []
        self.regrant: dict[str, Pool] = {}
        self.room_made = False

    def transition(self, task: Task, cause: Cause) -> None:
        """Moves a task along the lifecycle table and keeps the counts."""
        before = task.status
        task.status = after = next_status(before, cause)
        pool = self.state.pools[task.spec.pool]
        counts = pool.counts
        counts[before] -= 1
        counts[after] += 1
        change = _PENDING[after] - _PENDING[before]
        if change:
            if change < 0:
                self.room_made = True
            pool.pending += change
            pool.pending_by_class[task.priority] += change
            self.state.pending += change
        if self.state.watches:
            self.publish(task)

    def publish(self, task: Task) -> None:
        """Tells watchers how the task stands now."""
        spec = task.spec
        self.events.append(
            StatusEvent(
                task.id,
                spec.pool,
                spec.key,
                task.status,
                task.attempt,
                self.now.wall,
                task.message,
                task.progress,
            )
        )

    def insert(self, task: Task) -> None:
        """Writes a new task."""
        self.inserted.append(TaskInserted(task.id, task.created_at, task.spec))

    def reply(self, call: int, answer: Answer) -> None:
        """Answers a call."""
        self.replies.append(Reply(call, answer))

    def refuse(self, call: int, reason: ErrorReason, message: str, details: Pairs = ()) -> None:
        """Refuses a call."""
        self.replies.append(Reply(call, Refusal(reason, message, details)))

    def tell(self, call: int, result: Result) -> None:
        """Adds a result for a waiting call."""
        told = self.results.get(call)
        if told is None:
            self.results[call] = [result]
        else:
            told.append(result)

    def abort(self, session: Session, lease: int, reason: str) -> None:
        """Tells a worker to stop a handler."""
        self.aborts.setdefault(session.number, []).append((lease, reason))

    def mutations(self) -> tuple[Mutation, ...]:
        """Everything this step must write: new tasks, then last changes, then outputs."""
        wall = self.now.wall
        rows = self.inserted
        rows += [ScheduleSaved(schedule.stored) for schedule in self.saved.values()]
        rows += self.others
        if not self.changed:
            return tuple(rows)
        outputs = {row.task_id for row in self.outputs if isinstance(row, OutputStored)}
        for task in self.changed.values():
            status = task.status
            rows.append(
                StatusChanged(
                    task.id,
                    # What is derived from spec and parents is not written; a redrive says only
                    # that the task lives again.
                    status if status >= _FIRST_WRITTEN else _LIVES_AGAIN,
                    task.attempt,
                    task.attempts_max,
                    wall,
                    task.started_at,
                    task.retry_at,
                    task.message,
                    task.progress,
                    task.history,
                    task.id in outputs,
                    task.put_back,
                )
            )
        rows += self.outputs
        return tuple(rows)

    def all_effects(self) -> tuple[Effect, ...]:
        """Effects in the order in which they are performed."""
        effects = self.effects
        for session, aborts in self.aborts.items():
            effects.append(CancelAttempt(session, tuple(aborts)))
        for seen in self.receipts.values():
            effects.append(Receipt(seen.number, seen.reports_seen, seen.beat_seen))
        for session, leases in self.dispatches.items():
            effects.append(Dispatch(session, leases))
        effects += self.replies
        waits = self.state.waits
        for call, results in self.results.items():
            wait = waits[call]
            wait.left -= len(results)
            last = wait.left == 0
            if last:
                del waits[call]
                self.state.mono_timers.disarmed()
            effects.append(Results(call, results, last=last))
        if self.events:
            effects.append(Publish(self.events))
        return tuple(effects)
