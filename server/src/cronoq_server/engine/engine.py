"""The step: events and an instant in, mutations and effects out.

A step handles what is due by the clock, then its events in the order given, then expired leases
and timeouts (so that whoever was heard in this step is not expired by it), then parked callers,
and last it puts ready tasks in line and dispatches.

The engine raises only on a broken invariant, and then its leader must stop. Everything a caller
can do wrong is a refusal, as a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from cronoq_server.engine import (
    admission,
    attempts,
    capacity,
    events,
    judging,
    queries,
    readiness,
    recovery,
    redrive,
    schedules,
    workers,
)
from cronoq_server.engine.draft import Draft
from cronoq_server.engine.effects import Effect
from cronoq_server.engine.model import SECOND, EngineSettings, Now
from cronoq_server.engine.mutations import Mutation, RecoveredChunk
from cronoq_server.engine.policies import Chance
from cronoq_server.engine.state import State
from cronoq_server.engine.timers import NEVER

LISTENING_GAP: int = SECOND
"""A longer time between two steps is time in which the leader could not listen: no lease ages."""

CLOCK_DRIFT_MAX: int = SECOND
"""The wall clock drifting this far from the monotonic one makes deadlines be looked at anew.

In one leap or bit by bit; a deadline begins to press at least five seconds before, so that this is
soon enough, and rare enough for what takes a look at every task.
"""


class Step(msgspec.Struct, frozen=True):
    """What one step wants done.

    Attributes:
        number: The step's number, rising by one.
        mutations: Write these, all or none, before any effect is seen.
        effects: Do these, in order, once the write is durable.
        wake_at: Step again when either reading is reached, even if nothing happens.
    """

    number: int
    mutations: tuple[Mutation, ...]
    effects: tuple[Effect, ...]
    wake_at: Now


class Engine:
    """The pure state machine of one leadership."""

    def __init__(self, settings: EngineSettings, chance: Chance) -> None:
        """An engine without any tasks; `restore` comes first, then any number of steps.

        Args:
            settings: Its rules.
            chance: Its only source of chance.
        """
        self._state = State(settings, chance)
        self._number = 0
        self._offset: int | None = None
        self._handlers: dict[type, Callable[[Draft, Any], None]] = {
            events.Submit: admission.submit,
            events.AttemptsReported: attempts.reported,
            events.HeartbeatsRead: attempts.heartbeats,
            events.Released: attempts.released,
            events.Unsent: attempts.unsent,
            events.WorkerJoined: workers.joined,
            events.WorkerLost: workers.lost,
            events.SlotsSet: workers.slots_set,
            events.Cancel: queries.cancel,
            events.Get: queries.get,
            events.ListTasks: queries.list_tasks,
            events.Wait: queries.wait,
            events.Watch: queries.watch,
            events.Unwatch: queries.unwatch,
            events.Forget: queries.forget,
            events.SnapshotQuery: queries.take_snapshot,
            events.ListWorkers: queries.list_workers,
            events.GetOutput: queries.get_output,
            events.Redrive: redrive.redrive,
            events.Delete: redrive.delete,
            events.Bulk: redrive.bulk,
            events.PutSchedule: schedules.put,
            events.RemoveSchedule: schedules.remove,
            events.GetSchedule: schedules.get,
            events.ListSchedules: schedules.list_all,
            events.PauseSchedule: schedules.pause,
            events.TriggerSchedule: schedules.trigger,
            events.BackfillSchedule: schedules.backfill,
            events.SetPoolPaused: capacity.set_pool_paused,
            events.ResizeResource: capacity.resize_resource,
            events.ListResources: capacity.list_resources,
            events.Reconfigured: capacity.reconfigure,
            events.Prune: capacity.prune,
            events.ClockSet: _clock_set,
            events.DispatchStopped: _dispatch_stopped,
            events.DispatchRested: _dispatch_rested,
            events.EndsRead: _ends_read,
        }
        self._restoration: recovery.Restoration | None = recovery.Restoration(self._state)

    def load(self, chunk: RecoveredChunk) -> None:
        """Takes over one piece of what a store gave back; `restore` comes when all are there."""
        assert self._restoration is not None, "it was restored"
        self._restoration.take(chunk)

    def restore(self, recovered: Iterable[RecoveredChunk], now: Now) -> Step:
        """Takes over the pieces that are left, and decides where everything stands.

        Its step is committed before anything is served.
        """
        restoration = self._restoration
        assert restoration is not None, "it was restored"
        for chunk in recovered:
            restoration.take(chunk)
        self._restoration = None
        self._state.last_mono = now.mono
        self._offset = now.wall - now.mono
        draft = Draft(self._state, now)
        restoration.settle(draft)
        return self._finish(draft)

    def step(self, happened: Sequence[events.Event], now: Now) -> Step:
        """Handles events in order, and everything that is due at `now`.

        Args:
            happened: What has happened since the last step.
            now: Not before the last step's `mono`.

        Raises:
            InvariantError: The engine contradicts itself; its leader must stop.
        """
        state = self._state
        self._keep_time(now)
        draft = Draft(state, now)
        readiness.wake(draft)
        schedules.fire_due(draft)
        handlers = self._handlers
        for event in happened:
            handlers[type(event)](draft, event)
        attempts.expire(draft)
        return self._finish(draft)

    def wants(self, event: events.Event) -> tuple[list[int], list[str]]:
        """Ids and keys that must be looked up in the store before `event` may enter."""
        state = self._state
        if type(event) is events.Redrive or type(event) is events.Delete:
            return redrive.lookups(state, event.target)
        if not state.settings.store_remembers:
            return [], []
        if type(event) is events.Submit:
            return judging.wants(state, event)
        if type(event) is events.BackfillSchedule:
            return [], schedules.backfill_keys(state, event)
        return [], []

    @property
    def remembers_more(self) -> bool:
        """Whether it has room for more ended tasks."""
        return len(self._state.finished) < self._state.settings.finished_max

    def close(self) -> None:
        """Drops all state, so that records that the garbage collector does not track are freed."""
        self._restoration = None
        self._state.close()

    def _keep_time(self, now: Now) -> None:
        """Gaps between steps don't age leases; a jump of the wall clock moves deadlines."""
        state = self._state
        gap = now.mono - state.last_mono
        assert gap >= 0, "the monotonic clock went back"
        if self._number and gap > LISTENING_GAP:
            state.ttl_shift += gap - LISTENING_GAP
        offset = now.wall - now.mono
        if self._offset is None or abs(offset - self._offset) > CLOCK_DRIFT_MAX:
            readiness.clock_moved(state, now)
            self._offset = offset

    def _finish(self, draft: Draft) -> Step:
        """Settles what the events left open, dispatches, and puts the step together."""
        state = self._state
        workers.top_up(draft)
        while True:
            admission.unpark(draft)
            readiness.settle_unblocked(draft)
            readiness.line_up(draft)
            attempts.dispatch(draft)
            # Dispatch makes room in the queue, and whoever gets in then may start at once.
            if not (draft.room_made and state.parked):
                break
        capacity.sample_pools(draft)
        self._number += 1
        if draft.attempts:
            state.unreleased.append((self._number, draft.attempts))
        if state.retention:
            state.forget_finished(draft.now.mono)
        step = Step(self._number, draft.mutations(), draft.all_effects(), self._wake_at(draft))
        state.last_mono = draft.now.mono
        return step

    def _wake_at(self, draft: Draft) -> Now:
        state = self._state
        mono = state.mono_timers.next()
        for leases in state.lease_lists.values():
            due = leases.next()
            if due != NEVER:
                # While leases are out the engine is woken often enough to notice a pause.
                mono = min(mono, due + state.ttl_shift, draft.now.mono + LISTENING_GAP)
        for timeouts in state.timeout_lists.values():
            mono = min(mono, timeouts.next())
        mono = min(mono, capacity.next_sample(state))
        if state.dispatching and not state.resting:
            # Else nothing could be started then, and asking for it again and again would never end.
            for change in state.placement.next_change():
                if change is not None:
                    mono = min(mono, change)
        return Now(state.wall_timers.next(), mono)


def _clock_set(draft: Draft, _event: events.ClockSet) -> None:
    schedules.clock_set(draft)


def _dispatch_stopped(draft: Draft, _event: events.DispatchStopped) -> None:
    draft.state.dispatching = False


def _ends_read(draft: Draft, event: events.EndsRead) -> None:
    recovery.remember_more(draft, event.tasks)


def _dispatch_rested(draft: Draft, event: events.DispatchRested) -> None:
    draft.state.resting = event.resting
