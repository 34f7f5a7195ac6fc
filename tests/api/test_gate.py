"""How many callers are let in at a time."""

from __future__ import annotations

import asyncio

import pytest

from cronoq_server.api import gate
from cronoq_server.config import LimitsConfig
from cronoq_server.engine import ErrorReason
from cronoq_server.runtime.refusals import Refused

LIMITS = LimitsConfig(max_concurrent_requests=1, max_waiters=1, max_concurrent_streams=1)


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("request", ErrorReason.TOO_MANY_REQUESTS),
        ("waiter", ErrorReason.TOO_MANY_REQUESTS),
        ("stream", ErrorReason.TOO_MANY_STREAMS),
    ],
)
def test_one_too_many_is_refused(place: str, reason: ErrorReason) -> None:
    """Each kind has a bound of its own, and leaving makes room again."""
    door = gate.Gate(LIMITS)
    with getattr(door, place)():
        with pytest.raises(Refused) as caught:
            getattr(door, place)().__enter__()
        assert caught.value.refusal.reason is reason
    with getattr(door, place)():
        pass


async def test_parked_submit_becomes_a_waiter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A submit that gets no answer leaves its place to short calls, if waiters have room."""
    monkeypatch.setattr(gate, "PARKED_AFTER_S", 0)
    door = gate.Gate(LIMITS)
    with door.request(may_park=True):
        assert (door.inside("requests"), door.inside("waiters")) == (1, 0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (door.inside("requests"), door.inside("waiters")) == (0, 1)
        with door.request(may_park=True):
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert (door.inside("requests"), door.inside("waiters")) == (1, 1)
    assert (door.inside("requests"), door.inside("waiters")) == (0, 0)
