"""What is done with each effect once its step is durable.

Effects are performed in the order of their steps, in one go: whoever waits for several of them
wakes up once and finds them together. Performing an effect never waits for anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from cronoq_server.engine.effects import (
    CancelAttempt,
    Dispatch,
    Dropped,
    Effect,
    Joined,
    NotJoined,
    Publish,
    Receipt,
    Reply,
    Results,
    Scaled,
    Watching,
)
from cronoq_server.runtime.inbox import Inbox
from cronoq_server.runtime.sessions import Sessions
from cronoq_server.runtime.watchers import Watchers


class Outbox:
    """Hands effects to whom they concern.

    Attributes:
        desired: The number of slots that each pool wants, as last told.
        on_scaled: Told of each change of it.
    """

    __slots__ = ("_handlers", "desired", "on_scaled")

    def __init__(self, inbox: Inbox, sessions: Sessions, watchers: Watchers) -> None:
        self.desired: dict[str, int] = {}
        self.on_scaled: Callable[[str, int], object] | None = None

        def to_session(effect: Any) -> None:
            sessions.deliver(effect.session, effect)

        self._handlers: dict[type, Callable[[Any], object]] = {
            CancelAttempt: to_session,
            Dispatch: to_session,
            Dropped: to_session,
            Joined: to_session,
            NotJoined: to_session,
            Publish: watchers.publish,
            Receipt: to_session,
            Reply: lambda effect: inbox.resolve(effect.call, effect.answer),
            Results: inbox.push,
            Scaled: self._scaled,
            Watching: watchers.begin,
        }

    def _scaled(self, effect: Scaled) -> None:
        self.desired[effect.pool] = effect.desired
        if self.on_scaled is not None:
            self.on_scaled(effect.pool, effect.desired)

    def on_dispatched(self, tell: Callable[[Dispatch], object]) -> None:
        """Has `tell` called with every dispatch as it goes out."""
        deliver = self._handlers[Dispatch]

        def both(effect: Dispatch) -> None:
            deliver(effect)
            tell(effect)

        self._handlers[Dispatch] = both

    def handles(self, kind: type) -> bool:
        """Whether effects of this type can be performed."""
        return kind in self._handlers

    def release(self, effects: Iterable[Effect]) -> bool:
        """Performs a step's effects; true if leases went out with them."""
        handlers = self._handlers
        dispatched = False
        for effect in effects:
            kind = type(effect)
            handlers[kind](effect)
            if kind is Dispatch:
                dispatched = True
        return dispatched


def awaited_calls(effects: Iterable[Effect]) -> Iterable[int]:
    """Calls that one of these effects would answer for good."""
    for effect in effects:
        if isinstance(effect, Reply | Watching) or (isinstance(effect, Results) and effect.last):
            yield effect.call


def volume(effects: Iterable[Effect]) -> int:
    """How many effects these are, each published event counting as one."""
    return sum(len(e.events) if type(e) is Publish else 1 for e in effects)
