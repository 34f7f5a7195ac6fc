"""Decides which free slot is kept for a task with a fixed start.

A hold takes one suitable free slot out of everybody's reach, at once or as soon as there is one.
If its session goes or loses the slot, the hold waits for the next one. Holds that wait are served
in the order in which they were asked for, before anything is dispatched.

This module does not know when a hold begins or ends: the engine says so.
"""

from __future__ import annotations

from cronoq_server.engine.placement.roster import HELD_BIT, Roster, Session
from cronoq_server.engine.placement.waiting import Waiting


class Hold:
    """One task's claim on a slot; `session` is None while there is no slot for it."""

    __slots__ = ("number", "session", "task")

    def __init__(self, number: int, task: Waiting) -> None:
        self.number = number
        self.task = task
        self.session: Session | None = None


class Holds:
    """The holds of one pool."""

    __slots__ = ("_by_task", "_numbers", "_roster", "_waiting")

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._by_task: dict[int, Hold] = {}
        self._waiting: list[Hold] = []
        self._numbers = 0

    def __len__(self) -> int:
        return len(self._by_task)

    def __contains__(self, task: Waiting) -> bool:
        return task.id in self._by_task

    @property
    def held(self) -> int:
        """How many slots are kept now."""
        return len(self._by_task) - len(self._waiting)

    def session_for(self, task: Waiting) -> Session | None:
        """Returns the session that keeps a slot for a task."""
        hold = self._by_task.get(task.id)
        return None if hold is None else hold.session

    def add(self, task: Waiting) -> None:
        """Asks for a slot; `serve` gives it."""
        assert task.id not in self._by_task, task.id
        self._numbers += 1
        hold = Hold(self._numbers, task)
        self._by_task[task.id] = hold
        self._waiting.append(hold)

    def drop(self, task: Waiting) -> bool:
        """Ends the hold of a task; returns True if a slot became free for others."""
        hold = self._by_task.pop(task.id, None)
        if hold is None:
            return False
        session = hold.session
        if session is None:
            self._waiting.remove(hold)
            return False
        session.held -= 1
        return self._roster.set_free(session, session.told - session.held)

    def consume(self, task: Waiting) -> Session:
        """Ends a hold whose slot its task takes now."""
        hold = self._by_task.pop(task.id)
        session = hold.session
        assert session is not None
        session.held -= 1
        session.told -= 1
        return session

    def serve(self) -> list[Waiting]:
        """Keeps free slots for the holds that wait; returns the tasks that have one now."""
        served = []
        if self._waiting and self._roster.free != HELD_BIT:
            left = []
            for hold in self._waiting:
                demand = hold.task.demand
                if demand.fits & self._roster.free:
                    session = self._roster.take(demand.fits)
                    session.held += 1
                    session.told += 1
                    hold.session = session
                    served.append(hold.task)
                else:
                    left.append(hold)
            self._waiting = left
        return served

    def lose(self, session: Session, slots: int) -> list[Waiting]:
        """Lets the newest holds of a session go until at most `slots` are left.

        Returns:
            The tasks that lost their slot and wait for another one.
        """
        lost = []
        if session.held > slots:
            mine = [hold for hold in self._by_task.values() if hold.session is session]
            for hold in mine[slots:]:
                hold.session = None
                session.held -= 1
                self._waiting.append(hold)
                lost.append(hold.task)
            self._waiting.sort(key=lambda hold: hold.number)
        return lost
