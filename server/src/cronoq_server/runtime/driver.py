"""The loop: drain, step, commit, release; the only place where thought becomes action.

Rules a change must keep:

1. Nothing of a step is seen before its mutations, and those of all steps before, are durable.
2. One batch is on its way to the store at a time. What steps write meanwhile forms the next one,
   which leaves as soon as the one before is durable.
3. A step that wrote nothing is released after a check of the leadership, or a commit, that began
   after its reads had arrived. The one exception is a heartbeat's answer: it says nothing durable,
   so it waits for no commit while the one before proved the leadership a moment ago.
4. A batch keeps its number and its content however often it is tried.
5. The loop has no helper that could die unseen: an error in it, in the engine or in the store's
   code ends `run`, and with it this leadership.

What a task is, who may run it and when: all that is the engine's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum

import msgspec

from cronoq_server.engine.effects import Dispatch, Effect, Receipt, SnapshotView
from cronoq_server.engine.engine import Engine, Step
from cronoq_server.engine.events import (
    ClockSet,
    DispatchRested,
    DispatchStopped,
    Event,
    Released,
    SnapshotQuery,
)
from cronoq_server.engine.model import SECOND, Duration, Instant, Now
from cronoq_server.engine.timers import NEVER
from cronoq_server.runtime.clock import Alarm, Clock, after, within
from cronoq_server.runtime.inbox import Inbox
from cronoq_server.runtime.loading import Loader
from cronoq_server.runtime.lookups import Lookups
from cronoq_server.runtime.meters import Meters
from cronoq_server.runtime.outbox import Outbox, awaited_calls, volume
from cronoq_server.runtime.recovering import Recovering
from cronoq_server.runtime.refusals import NOT_LEADER, STOPPING, STORE_LATE, Refused
from cronoq_server.runtime.sessions import Sessions
from cronoq_server.runtime.watchers import Watchers
from cronoq_server.runtime.writer import Writer
from cronoq_server.stores.base import Batch, Fenced, Leadership, Rejected, Store, StoreError

log = logging.getLogger(__name__)

RESTORED_INLINE = 10_000
"""With more recovered tasks than this the engine is rebuilt in a thread of its own."""

PROOF_COUNTS: Duration = 2 * SECOND
"""So long after the store confirmed the leadership heartbeats are answered without asking anew."""

LAST_COMMIT: Duration = 2 * SECOND
"""How long the last commit of a server that stops may take beyond its grace."""


class Ending(StrEnum):
    """Why a driver ended."""

    STOPPED = "stopped"
    """It was asked to, and its leadership is released."""
    FENCED = "fenced"
    """Another leadership has begun."""
    REJECTED = "rejected"
    """The store refused a batch for good: recover anew."""


class DriverSettings(msgspec.Struct, frozen=True):
    """What a driver is told once.

    Attributes:
        commit_timeout: After this a commit counts as not confirmed, nanoseconds.
        retention: How far back finished tasks are recovered, nanoseconds.
        step_tasks_max: Most tasks that enter one step.
        batch_mutations_max: A batch with this many mutations is full.
        batch_bytes_max: A batch with payloads and outputs of this size is full; what is written
            behind it waits for it.
        queued_max: Most tasks in calls that wait for a step, and most reports that do.
        unreleased_max: With this many effects and events waiting for the store no step is made.
        watch_buffer: Most events that wait for one watcher.
    """

    commit_timeout: Duration = 30 * SECOND
    retention: Duration = 3600 * SECOND
    step_tasks_max: int = 2000
    batch_mutations_max: int = 20_000
    batch_bytes_max: int = 8 * 1024 * 1024
    queued_max: int = 100_000
    unreleased_max: int = 100_000
    watch_buffer: int = 10_000


class _Made(msgspec.Struct, frozen=True):
    """What a step wants to be released, and when it was made (mono)."""

    number: int
    effects: tuple[Effect, ...]
    at: Instant


class Driver:
    """One leadership at work.

    Attributes:
        clock: Where its time comes from.
        inbox: Takes calls.
        leadership: The term it serves under.
        meters: Figures about its commits.
        recovering: What it took over, and what it still reads.
        sessions: The connected workers.
        store: Where its batches go.
        watchers: Those who watch.
    """

    def __init__(
        self,
        engine: Engine,
        store: Store,
        leadership: Leadership,
        clock: Clock,
        settings: DriverSettings | None = None,
    ) -> None:
        self._settings = settings = settings or DriverSettings()
        self.clock = clock
        self.store = store
        self.leadership = leadership
        self.meters = Meters()
        self.inbox = Inbox(clock, Loader(store), settings.queued_max)
        self.sessions = Sessions(self.inbox)
        self.watchers = Watchers(
            self.inbox,
            clock,
            epoch=leadership.epoch,
            position=leadership.position,
            buffer_max=settings.watch_buffer,
        )
        self._bell = self.inbox.bell
        self.recovering = Recovering(engine, store, leadership)
        self._engine = engine
        self._outbox = Outbox(self.inbox, self.sessions, self.watchers)
        self._lookups = Lookups(engine, store, self.inbox, clock)
        self._writer = Writer(store, leadership, clock, settings.commit_timeout, self._bell)
        self._forming = Batch(leadership.position + 1)
        self._made: list[_Made] = []
        self._covered: list[_Made] = []
        self._unreleased = 0
        self._own: list[Event] = []
        self._released = 0
        self._set_backs = clock.set_backs
        self._wake_at = Now(NEVER, NEVER)
        self._alarm: Alarm | None = None
        self._alarm_at = Now(NEVER, NEVER)
        self._tick = max(1, min(SECOND, settings.commit_timeout // 10))
        self._late = False
        self._judged_at: Instant = clock.now().mono
        self._proven_at: Instant = clock.now().mono - PROOF_COUNTS
        self._lost: Fenced | None = None
        self._recovered = False
        self._closing = False
        self._hopeless = False
        self._progress = asyncio.Event()
        self._ended = asyncio.Event()

    @property
    def ready(self) -> bool:
        """Whether calls are taken: it leads, and the store keeps up."""
        return self._recovered and not self._late and not self._ended.is_set()

    @property
    def store_answers(self) -> bool:
        """Whether the store confirmed what it was last given, within `commit_timeout`."""
        return not (self._late or self._writer.failing)

    @property
    def commits_in_flight(self) -> int:
        """How many batches are on their way to the store: none or one."""
        return int(self._writer.committing)

    @property
    def desired_slots(self) -> Mapping[str, int]:
        """How many slots each pool wants, as last told."""
        return self._outbox.desired

    def on_scaled(self, tell: Callable[[str, int], object]) -> None:
        """Has `tell` called with a pool and its number, whenever that changes."""
        self._outbox.on_scaled = tell

    def on_dispatched(self, tell: Callable[[Dispatch], object]) -> None:
        """Has `tell` called with every dispatch as it goes out; to be said once."""
        self._outbox.on_dispatched(tell)

    async def recover(self) -> int:
        """Loads what the store holds and makes durable what that changes; comes before `run`.

        Returns:
            How many live tasks were taken over.

        Raises:
            Unavailable: The store can't be read.
            Fenced: Another leadership has begun.
            Rejected: The store refuses what recovery has to write.
        """
        try:
            now = await self._take_over()
            while self._write_on(now) or self._writer.busy:
                await self._bell.wait()
                self._bell.clear()
                self._release(self._take_durable())
            self._recovered = True
        except StoreError:
            self._engine.close()
            raise
        finally:
            await self._writer.abandon()
            if not self._recovered:
                await self.recovering.abandon()
        return self.recovering.live

    async def _take_over(self) -> Now:
        """Rebuilds the engine from what the store holds; returns the instant of its step."""
        try:
            await self.recovering.load(self.clock.now().wall - self._settings.retention)
        except asyncio.CancelledError:
            self._engine.close()
            raise
        now = self._read_clock()
        if self.recovering.live > RESTORED_INLINE:
            # Meanwhile the leadership has to be kept and standby's calls to be answered.
            step = await asyncio.to_thread(self._engine.restore, (), now)
        else:
            step = self._engine.restore((), now)
        self._note(step, now)
        self._own.clear()
        return now

    async def run(self) -> Ending:
        """Serves until it is stopped or its leadership ends.

        An error that nobody foresaw is raised, after everything was torn down.
        """
        assert self._recovered, "recover comes first"
        ending: Ending | None = None
        self.recovering.go_on(self._bell.set)
        try:
            while not self._is_done():
                await self._rest()
                self._turn()
            ending = Ending.STOPPED
        except Fenced as error:
            # Its text only: a log record that is kept must not keep this driver alive.
            log.warning("leadership lost: %s", str(error), extra={"action": "leadership_lost"})
            ending = Ending.FENCED
        except Rejected as error:
            _log_rejected(error)
            ending = Ending.REJECTED
        finally:
            await self._leave(ending)
        return ending

    def fence(self, lost: Fenced) -> None:
        """Ends `run` at once as fenced: whoever keeps the leadership found it gone."""
        self._lost = lost
        self._bell.set()

    async def stop(self, grace: Duration) -> None:
        """Stops in order: no attempt starts, running ones may report, then the last commit.

        Until the running attempts have reported or the grace is over, every call is answered.

        Args:
            grace: How long running attempts are waited for, nanoseconds.
        """
        self.inbox.tell(DispatchStopped())
        self.sessions.shutdown("the server is shutting down", not_leader=False)
        deadline = after(self.clock.now(), grace)
        await within(self.clock, deadline, self._attempts_ended())
        self._closing = True
        self.inbox.refuse_new(STOPPING)
        self.sessions.close(STOPPING)
        self._bell.set()
        latest = max(deadline.mono, self.clock.now().mono + LAST_COMMIT)
        if not await within(self.clock, Now(NEVER, latest), self._ended.wait()):
            self._hopeless = True
            self._bell.set()
            await self._ended.wait()

    async def _attempts_ended(self) -> None:
        while not self._ended.is_set():
            self._progress.clear()
            try:
                view = await self.inbox.ask(SnapshotQuery)
            except Refused:
                view = None
            if isinstance(view, SnapshotView) and view.running == 0:
                return
            await self._progress.wait()

    # --- the loop --------------------------------------------------------------------------------

    def _is_done(self) -> bool:
        if not self._closing:
            return False
        waiting = len(self.inbox) or len(self._lookups) or self._made or len(self._forming)
        return self._hopeless or not (waiting or self._writer.busy)

    async def _rest(self) -> None:
        """Waits for something to do, and then one turn more, so that what comes with it joins."""
        if not self._bell.is_set():
            self._arm()
            await self._bell.wait()
        await asyncio.sleep(0)
        self._bell.clear()

    def _arm(self) -> None:
        """Sees to it that the bell rings when the engine wants to be woken."""
        rests = self._is_full() or self._is_stuffed()
        at = Now(NEVER, NEVER) if rests else self._wake_at
        if self._writer.busy or len(self._lookups):
            at = Now(at.wall, min(at.mono, self.clock.now().mono + self._tick))
        have = self._alarm_at
        if self._alarm is not None:
            if have.mono <= at.mono and have.wall <= at.wall:
                return
            self._alarm.cancel()
            self._alarm = None
        if at.mono != NEVER or at.wall != NEVER:
            self._alarm_at = at
            self._alarm = self.clock.call_at(at, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self._bell.set()

    def _turn(self) -> None:
        if self._lost is not None:
            raise self._lost
        now = self._read_clock()
        durable = self._take_durable()
        self._write_on(now)
        self._release(durable)
        self._judge_store(now)
        self._step(now)
        self._write_on(now)

    def _read_clock(self) -> Now:
        now = self.clock.now()
        if self.clock.set_backs != self._set_backs:
            self._set_backs = self.clock.set_backs
            self._own.insert(0, ClockSet())
        return now

    def _step(self, now: Now) -> None:
        """Runs what has arrived through the engine, if there is anything or its time has come."""
        if self._is_stuffed():
            # Leases do not age meanwhile: the engine takes the pause for its own.
            return
        if self._is_full():
            events = self.inbox.drain_heartbeats()
            if not events:
                return
        else:
            room = self._settings.batch_bytes_max - self._forming.size
            arrived = self.inbox.drain(self._settings.step_tasks_max, room)
            forming = self._forming
            made = forming.position if len(forming) else forming.position - 1
            events = self._lookups.sift(arrived, made, self.watchers.ring.position)
            if len(self.inbox):
                self._bell.set()
        if self._released:
            self._own.append(Released(self._released))
            self._released = 0
        read = self.recovering.take()
        if read is not None:
            self._own.append(read)
        if self._own:
            events = self._own + events
            self._own = []
        wake = self._wake_at
        if events or wake.mono <= now.mono or wake.wall <= now.wall:
            self._note(self._engine.step(events, now), now)

    def _note(self, step: Step, now: Now) -> None:
        """Keeps what a step wants written and released."""
        if step.mutations:
            self._forming.add(step.mutations)
        if step.effects:
            self._made.append(_Made(step.number, step.effects, now.mono))
            self._unreleased += volume(step.effects)
            if now.mono - self._proven_at < PROOF_COUNTS and self._writer.busy:
                for effect in step.effects:
                    if type(effect) is Receipt:
                        self.sessions.deliver_early(effect)
        self._wake_at = step.wake_at

    def _is_full(self) -> bool:
        settings, batch = self._settings, self._forming
        return len(batch) >= settings.batch_mutations_max or batch.size >= settings.batch_bytes_max

    def _is_stuffed(self) -> bool:
        """Whether so much waits for the store that even what writes nothing must wait."""
        return self._unreleased >= self._settings.unreleased_max

    def _write_on(self, now: Now) -> bool:
        """Sends what has formed on its way, if the way is free; whether something was sent."""
        if self._writer.busy:
            return False
        batch: Batch | None = self._forming
        if len(self._forming):
            self._forming = Batch(self._forming.position + 1)
        elif self._made:
            batch = None
        else:
            return False
        self._covered, self._made = self._made, []
        self._unreleased = 0
        self._writer.begin(batch, now.mono)
        return True

    def _take_durable(self) -> list[_Made]:
        """Takes the steps that have just become durable.

        Raises:
            Fenced: Another leadership has begun.
            Rejected: The store will never take this batch.
        """
        if not self._writer.is_decided():
            return []
        covered = self._covered
        batch = self._writer.take()
        self._proven_at = self._writer.begun
        self._covered = []
        if batch is not None:
            self.meters.confirmed(batch, self._writer.begun, self.clock.now().mono)
            self.watchers.advance(batch.position)
            self._progress.set()
        return covered

    def _release(self, durable: list[_Made]) -> None:
        release = self._outbox.release
        for made in durable:
            if release(made.effects):
                self._released = made.number
        if self._released:
            self._bell.set()

    # --- a store that is late --------------------------------------------------------------------

    def _judge_store(self, now: Now) -> None:
        """Refuses callers that waited too long, and all new ones while the store is that late."""
        waits = self._writer.waits_since(now.mono)
        late = waits >= self._settings.commit_timeout
        if late != self._late:
            self._late = late
            self._own.append(DispatchRested(late))
            if not self._closing:
                self.inbox.refuse_new(STORE_LATE if late else None)
            if late:
                log.error("the store is late", extra={"action": "store_late"})
            else:
                log.warning("the store has caught up", extra={"action": "store_recovered"})
        looks = len(self._lookups) and now.mono - self._judged_at >= self._tick
        if waits >= self._tick or looks:
            # Seldom while look-ups go on as they should: it looks at every call.
            self._judged_at = now.mono
            self.inbox.refuse_older(now.mono, self._settings.commit_timeout, self._answered())

    def _answered(self) -> Iterable[tuple[int, Instant]]:
        """Calls whose answers wait for the store, with the instant of the answer."""
        for made in (*self._covered, *self._made):
            for call in awaited_calls(made.effects):
                yield call, made.at

    # --- the end ---------------------------------------------------------------------------------

    async def _leave(self, ending: Ending | None) -> None:
        """Lets go of everything: callers, watchers, workers, the leadership, the engine."""
        refusal = STOPPING if ending is Ending.STOPPED else NOT_LEADER
        answered = [call for call, _ in self._answered()]
        self.inbox.close(refusal, answered)
        self.watchers.close(refusal)
        self.sessions.close(refusal)
        if self._alarm is not None:
            self._alarm.cancel()
        if ending is not Ending.STOPPED:
            self.sessions.shutdown("this server leads no more", not_leader=True)
        try:
            await self._writer.abandon()
            await self._lookups.abandon()
            await self.recovering.abandon()
            if ending is not Ending.FENCED:
                last = after(self.clock.now(), LAST_COMMIT)
                await within(self.clock, last, self._give_up_term())
            self.sessions.shutdown("the server has stopped", not_leader=True)
        finally:
            # Also if this is cancelled in its turn: whoever waits for the end must see it.
            self._engine.close()
            self._progress.set()
            self._ended.set()

    async def _give_up_term(self) -> None:
        try:
            await self.store.release_leadership(self.leadership)
        except StoreError as error:
            log.warning(
                "the leadership could not be released, it runs out by itself: %s",
                str(error),
                extra={"action": "leadership_lost"},
            )
        else:
            log.info("the leadership was given back", extra={"action": "leadership_released"})


def _log_rejected(error: Rejected) -> None:
    log.error(
        "the store refused a batch for good: %s",
        str(error),
        extra={
            "action": "store_rejected",
            "mutation": error.kind,
            "task_id": error.task_id,
            "column": error.column,
        },
    )
