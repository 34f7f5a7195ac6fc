"""Drives an engine by hand: manual clocks, chosen chance, and a model of the store behind it.

`World.step` does what the runtime does, without waiting for anything: the step's mutations are
committed to a `Ledger`, its effects are performed, and the engine is told that they are out. After
every step the invariants are checked. `World.crash` throws the engine away and restores a new one
from exactly what was committed, so that any test can ask what a failover would leave.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable
from typing import Any

import msgspec

from cronoq_server.engine import effects, events
from cronoq_server.engine.engine import Engine, Step
from cronoq_server.engine.model import (
    FIRST_TERMINAL,
    SECOND,
    Dependency,
    EdgeCondition,
    EngineSettings,
    Now,
    Pairs,
    PoolSettings,
    Progress,
    Refusal,
    Status,
    TaskFilter,
    TaskRef,
    TaskSpec,
)
from cronoq_server.engine.policies import Chance
from cronoq_server.engine.views import merge_page, stored_view
from tests.engine.invariants import check
from tests.engine.ledger import Ledger

WALL_ZERO = 1_700_000_000 * SECOND
"""Where the wall clock of every world begins."""

MONO_ZERO = 1_000 * SECOND
"""Where the monotonic clock of every world begins."""

FOREVER = 1 << 62
"""A mono instant that no test reaches."""

AT_ONCE_MAX = 10
"""How often in a row an engine may ask to be woken at once."""


class Highest:
    """Chance that always draws the highest number: every backoff is its bound."""

    def below(self, bound: int) -> int:
        """The highest number allowed."""
        return bound - 1


class Lowest:
    """Chance that always draws zero."""

    def below(self, bound: int) -> int:
        """Zero, which is always allowed."""
        return min(0, bound)


class Dice:
    """Chance from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def below(self, bound: int) -> int:
        """The next number of the sequence that the seed began."""
        return self._random.randrange(bound)


class Taken(msgspec.Struct, frozen=True):
    """One recorded step."""

    events: tuple[events.Event, ...]
    now: Now
    step: Step


def spec(kind: str = "work", /, pool: str = "default", **fields: Any) -> TaskSpec:
    """A task that says nothing but what the test is about."""
    return TaskSpec(pool=pool, kind=kind, **fields)


def after(*targets: TaskRef, on: EdgeCondition = EdgeCondition.ON_SUCCESS) -> tuple[Any, ...]:
    """Dependencies on these tasks, all under one condition."""
    return tuple(Dependency(target, on) for target in targets)


class World:
    """An engine, its clocks, its store, and what it has said so far.

    Attributes:
        wall: The wall clock, Unix nanoseconds.
        mono: The monotonic clock, nanoseconds.
        ledger: What was committed.
        taken: All steps since the world began.
        replies: The answer of each call.
        results: What each waiting call was told, in order.
        leases: All leases ever handed out, by id.
        out: Leases of each session that it has not reported on, in order of dispatch.
        aborts: What each session was told to stop.
        joined: The answer to each registration.
        published: Status events, in order.
        scaled: The last number of slots each pool was said to want.
        releases: Whether the engine is told at once that its effects are out.
    """

    def __init__(
        self,
        *pools: PoolSettings,
        chance: Chance | None = None,
        checks: bool = True,
        **settings: Any,
    ) -> None:
        self.settings = EngineSettings(pools=pools or (PoolSettings("default"),), **settings)
        self.wall = WALL_ZERO
        self.mono = MONO_ZERO
        self.ledger = Ledger()
        self.taken: list[Taken] = []
        self.replies: dict[int, Any] = {}
        self.results: dict[int, list[effects.Results]] = {}
        self.leases: dict[int, effects.Lease] = {}
        self.out: dict[int, dict[int, effects.Lease]] = {}
        self.aborts: dict[int, list[tuple[int, str]]] = {}
        self.receipts: dict[int, effects.Receipt] = {}
        self.joined: dict[int, effects.Joined | Refusal] = {}
        self.dropped: list[int] = []
        self.published: list[effects.StatusEvent] = []
        self.watching: dict[int, effects.Watching] = {}
        self.scaled: dict[str, int] = {}
        self.releases = True
        self.checks = checks
        self._chance = chance or Highest()
        self._calls = 0
        self._sessions = 0
        self._highest: dict[int, int] = {}
        self._sent: dict[int, list[int]] = {}
        self.engine = Engine(self.settings, self._chance)
        self._take((), self.engine.restore([], self.now))

    @property
    def now(self) -> Now:
        """Both readings."""
        return Now(self.wall, self.mono)

    @property
    def wake_at(self) -> Now:
        """When the engine wants to be woken."""
        return self.taken[-1].step.wake_at

    # --- steps -----------------------------------------------------------------------------------

    def step(self, *happened: events.Event) -> Step:
        """One step now: decided, committed, performed, and told to be out."""
        step = self.engine.step(happened, self.now)
        self._take(happened, step)
        if self.releases and any(isinstance(e, effects.Dispatch) for e in step.effects):
            self.release(step.number)
        return step

    def release(self, number: int) -> Step:
        """Tells the engine that the effects of all steps up to this one are out."""
        event = events.Released(number)
        step = self.engine.step([event], self.now)
        self._take((event,), step)
        if self.releases and any(isinstance(e, effects.Dispatch) for e in step.effects):
            self.release(step.number)
        return step

    def _take(self, happened: Iterable[events.Event], step: Step) -> None:
        self.taken.append(Taken(tuple(happened), self.now, step))
        self.ledger.commit(step.mutations)
        for effect in step.effects:
            self._perform(effect)
        if self.checks:
            check(self.engine)

    def _perform(self, effect: effects.Effect) -> None:
        match effect:
            case effects.Reply(call, answer):
                assert call not in self.replies, "a call is answered once"
                self.replies[call] = answer
            case effects.Results():
                told = self.results.setdefault(effect.call, [])
                assert not told or not told[-1].last, "after its last word a call is over"
                told.append(effect)
            case effects.Dispatch(session, leases):
                assert isinstance(self.joined[session], effects.Joined)
                for lease in leases:
                    self._handed_out(session, lease)
            case effects.CancelAttempt(session, aborts):
                self.aborts.setdefault(session, []).extend(aborts)
            case effects.Receipt():
                self.receipts[effect.session] = effect
            case effects.Joined():
                self.joined[effect.session] = effect
            case effects.NotJoined(session, refusal):
                self.joined[session] = refusal
            case effects.Dropped(session):
                self.dropped.append(session)
            case effects.Publish(published):
                self.published += published
            case effects.Watching():
                self.watching[effect.call] = effect
            case effects.Scaled(pool, desired):
                self.scaled[pool] = desired

    def _handed_out(self, session: int, lease: effects.Lease) -> None:
        assert lease.lease not in self.leases, "a lease is offered once"
        mine = self._sent.setdefault(session, [0])
        assert lease.lease > mine[-1], "leases rise in the order of sending"
        mine.append(lease.lease)
        assert lease.attempt >= self._highest.get(lease.task_id, 0), "attempt numbers rise"
        change = self.ledger.changes[lease.task_id]
        assert (change.status, change.attempt) == (Status.RUNNING, lease.attempt)
        self._highest[lease.task_id] = lease.attempt
        self.leases[lease.lease] = lease
        self.out.setdefault(session, {})[lease.lease] = lease

    # --- time ------------------------------------------------------------------------------------

    def leap(self, duration: int) -> Step:
        """Both clocks go on; the engine sees nothing of it but one step at the end."""
        self.wall += duration
        self.mono += duration
        return self.step()

    def advance(self, duration: int) -> None:
        """Both clocks go on, and the engine is woken whenever it asked for it."""
        end = self.mono + duration
        at_once = 0
        while self.mono < end:
            wake = self.wake_at
            hop = min(wake.mono - self.mono, wake.wall - self.wall, end - self.mono)
            at_once = at_once + 1 if hop <= 0 else 0
            assert at_once < AT_ONCE_MAX, "the engine asks to be woken again and again"
            self.leap(max(hop, 1))

    def jump_wall(self, by: int) -> Step:
        """Somebody sets the wall clock."""
        self.wall += by
        return self.step()

    # --- callers ---------------------------------------------------------------------------------

    def call(self) -> int:
        """A new call's number."""
        self._calls += 1
        return self._calls

    def submit(self, *specs: TaskSpec, **how: Any) -> Any:
        """Hands in tasks, together unless `mode` says otherwise; None = the call is parked."""
        event = self.submission(*specs, **how)
        self.step(event)
        return self.replies.get(event.call)

    def submission(
        self,
        *specs: TaskSpec,
        mode: events.SubmitMode | None = None,
        patience: int = 0,
        scope: events.Scope = None,
        tenant: str | None = None,
    ) -> events.Submit:
        """The event of a submit, with what the store knows of the names it needs."""
        if mode is None:
            mode = events.SubmitMode.ONE if len(specs) == 1 else events.SubmitMode.BATCH
        until = self.mono + patience
        event = events.Submit(self.call(), list(specs), mode, until, scope, tenant=tenant)
        ids, keys = self.engine.wants(event)
        found = self.ledger.find(ids, keys)
        return msgspec.structs.replace(event, found=found) if found else event

    def add(self, *specs: TaskSpec, **how: Any) -> Any:
        """Submits what must get in; returns its id, or the list of ids of several."""
        admitted = self.submit(*specs, **how)
        assert isinstance(admitted, effects.Admitted), admitted
        return admitted.ids[0] if len(specs) == 1 else admitted.ids

    def cancel(self, target: TaskRef, scope: events.Scope = None) -> Any:
        """Cancels a task."""
        return self.ask(events.Cancel(self.call(), target, scope))

    def ask(self, event: Any) -> Any:
        """One step for one call; returns its answer, or None when there is none yet."""
        self.step(event)
        return self.replies.get(event.call)

    def wait(
        self,
        *ids: int,
        keys: tuple[str, ...] = (),
        patience: int | None = None,
        scope: events.Scope = None,
    ) -> int:
        """Begins to wait for tasks; returns the call."""
        until = None if patience is None else self.mono + patience
        event = events.Wait(self.call(), ids, keys, until, scope)
        self.step(event)
        return event.call

    def told(self, call: int) -> list[tuple[int, Status]]:
        """The ends a waiting call was told, in order."""
        results = [result for each in self.results.get(call, []) for result in each.results]
        return [(result.task_id, Status(result.status)) for result in results]

    def is_over(self, call: int) -> bool:
        """Whether a waiting call has had its last word."""
        told = self.results.get(call)
        return bool(told) and told[-1].last  # type: ignore[index]

    def page(
        self,
        after_id: int = 0,
        limit: int = 100,
        newest_first: bool = False,
        scope: events.Scope = None,
        **wanted: Any,
    ) -> effects.Page:
        """One page of a listing, live and finished tasks together."""
        event = events.ListTasks(
            self.call(), TaskFilter(**wanted), after_id, limit, newest_first, scope
        )
        part = self.ask(event)
        assert isinstance(part, effects.PartPage)
        stored = [self.ledger.stored(i) for i in sorted(self.ledger.ends)] if part.finished else []
        pools, statuses = part.filter.pools, part.filter.statuses
        stored = [
            task
            for task in stored
            if (not pools or task.spec.pool in pools)
            and (not statuses or stored_view(task).status in statuses)
            and (
                not after_id
                or (task.task_id < after_id if newest_first else task.task_id > after_id)
            )
        ]
        if newest_first:
            stored.reverse()
        cursor = stored[limit - 1].task_id if len(stored) > limit else 0
        return merge_page(part, stored[:limit], cursor)

    # --- workers ---------------------------------------------------------------------------------

    def join(
        self,
        slots: int = 1,
        pool: str = "default",
        *,
        kinds: tuple[str, ...] = (),
        labels: Pairs = (),
        protocol: int = 4,
        credential: str = "worker",
        resume: events.Resume | None = None,
    ) -> int:
        """A worker registers; returns its session."""
        event = self.registration(
            slots,
            pool,
            kinds=kinds,
            labels=labels,
            protocol=protocol,
            credential=credential,
            resume=resume,
        )
        self.step(event)
        return event.session

    def registration(
        self,
        slots: int = 1,
        pool: str = "default",
        *,
        kinds: tuple[str, ...] = (),
        labels: Pairs = (),
        protocol: int = 4,
        credential: str = "worker",
        resume: events.Resume | None = None,
    ) -> events.WorkerJoined:
        """The event of a registration."""
        self._sessions += 1
        number = self._sessions
        return events.WorkerJoined(
            number,
            pool,
            slots,
            f"worker-{number}",
            labels,
            kinds,
            protocol,
            credential,
            b"token-%d" % number,
            resume=resume,
        )

    def resume(self, old: int, *named: int, slots: int = 1, **how: Any) -> int:
        """A worker comes back with the token of the session it had."""
        before = self.joined.get(old)
        token = before.token if isinstance(before, effects.Joined) else b"token-%d" % old
        word = events.Resume(token, named)
        held = self.out.pop(old, {})
        session = self.join(slots, resume=word, **how)
        answer = self.joined[session]
        if isinstance(answer, effects.Joined):
            adopted = {lease: held[lease] for lease in answer.adopted if lease in held}
            self.out[session] = {**adopted, **self.out.get(session, {})}
        return session

    def lose(self, session: int, clean: bool = False) -> Step:
        """A worker's stream ends."""
        return self.step(events.WorkerLost(session, clean))

    def report(self, session: int, *reports: events.Report, number: int = 0) -> Step:
        """A worker reports; a number of 0 is not looked at."""
        for each in reports:
            self.out.get(session, {}).pop(each.lease, None)
        return self.step(events.AttemptsReported(session, list(reports), number))

    def complete(self, session: int, *leases: int, output: bytes = b"out") -> Step:
        """A worker returns results, of all leases it has if none is named."""
        done = leases or tuple(self.out.get(session, {}))
        return self.report(session, *(events.Completed(i, output, "text/plain") for i in done))

    def fail(
        self,
        session: int,
        *leases: int,
        permanent: bool = False,
        retry_after: int | None = None,
        message: str = "broken",
    ) -> Step:
        """A worker's handlers fail, all of them if none is named."""
        failed = leases or tuple(self.out.get(session, {}))
        return self.report(
            session, *(events.Failed(i, message, permanent, retry_after) for i in failed)
        )

    def nack(self, session: int, *leases: int) -> Step:
        """A worker gives attempts back unrun, all of them if none is named."""
        refused = leases or tuple(self.out.get(session, {}))
        return self.report(session, *(events.Nacked(i, "not mine") for i in refused))

    def beat(
        self,
        session: int,
        *named: int,
        last: int | None = None,
        number: int = 1,
        progress: tuple[tuple[int, Progress], ...] = (),
    ) -> Step:
        """A heartbeat; `last` is the highest lease read, by default the highest there is."""
        highest = max(self.leases, default=0) if last is None else last
        return self.step(events.HeartbeatsRead(session, list(named), progress, number, highest))

    def lease(self, session: int) -> effects.Lease:
        """The one lease that a session has."""
        (lease,) = self.out.get(session, {}).values()
        return lease

    def lease_of(self, task_id: int) -> effects.Lease:
        """The lease that a task was handed out under last."""
        return next(x for x in reversed(self.leases.values()) if x.task_id == task_id)

    # --- looking ---------------------------------------------------------------------------------

    def status(self, target: TaskRef) -> Status:
        """How a task stands, as a caller would see it."""
        return Status(self.view(target).status)

    def view(self, target: TaskRef) -> effects.TaskView:
        """A task as a caller would see it; asking changes nothing."""
        event = events.Get(self.call(), target)
        answer = self.ask(event)
        if isinstance(answer, effects.FromStore):
            found = self.ledger.find(
                [t for t in (answer.target,) if isinstance(t, int)],
                [t for t in (answer.target,) if isinstance(t, str)],
            )
            return stored_view(found[answer.target])
        assert isinstance(answer, effects.TaskView), answer
        return answer

    def detail(self, target: TaskRef) -> effects.TaskDetail:
        """A live task with everything around it."""
        answer = self.ask(events.Get(self.call(), target, True))
        assert isinstance(answer, effects.TaskDetail), answer
        return answer

    def ended(self, task_id: int) -> bool:
        """Whether a task's end was committed."""
        change = self.ledger.changes.get(task_id)
        return change is not None and change.status >= FIRST_TERMINAL

    def snapshot(self) -> effects.SnapshotView:
        """Counts of all pools."""
        answer = self.ask(events.SnapshotQuery(self.call()))
        assert isinstance(answer, effects.SnapshotView)
        return answer

    # --- failover --------------------------------------------------------------------------------

    def crash(self, gap: int = 0, **changed: Any) -> Step:
        """The leader dies; after `gap` a new one, in a new process, leads from what was committed.

        Sessions, calls and clocks of the old process are gone with it.

        Args:
            gap: How long nobody leads, nanoseconds.
            changed: Settings that differ from now on.
        """
        self.engine.close()
        return self._lead_anew(gap, changed)

    def heir(self, gap: int = 0) -> World:
        """The world as it would be if the leader died now; this one goes on."""
        other = copy.copy(self)
        other.ledger = self.ledger.copy()
        other.taken, other.published, other.dropped = [], [], []
        for name in ("replies", "results", "aborts", "receipts", "watching"):
            setattr(other, name, {})
        other.out, other.leases, other.joined = {}, {}, {}
        other._highest, other._sent = dict(self._highest), {}
        other._lead_anew(gap, {})
        return other

    def _lead_anew(self, gap: int, changed: dict[str, Any]) -> Step:
        self.wall += gap
        self.mono = 7 * SECOND
        self.settings = msgspec.structs.replace(
            self.settings,
            epoch=self.settings.epoch + 1,
            high_water=self.ledger.high_water,
            **changed,
        )
        self.out.clear()
        self.leases.clear()
        self.joined.clear()
        self.engine = Engine(self.settings, self._chance)
        horizon = self.wall - self.settings.key_retention
        step = self.engine.restore(self.ledger.recovered(horizon), self.now)
        self._take((), step)
        return step
