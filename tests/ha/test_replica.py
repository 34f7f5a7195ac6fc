"""One replica's life: who leads, what ends it, what is left to the next one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable

import pytest

from cronoq_server.engine.engine import Engine, Step
from cronoq_server.engine.model import SECOND, ErrorReason, Now, Status
from cronoq_server.engine.mutations import RecoveredChunk
from cronoq_server.ha import Outcome
from cronoq_server.ha import replica as replicas
from cronoq_server.runtime import Refused, after, driver
from cronoq_server.stores.memory import MemoryDisk
from cronoq_server.testing.faults import Fault, ManualClock, settle
from tests.ha import rig
from tests.ha.rig import Node, eventually


@pytest.fixture
def disk() -> MemoryDisk:
    """What the replicas of a test share."""
    return MemoryDisk()


@pytest.fixture
def clock() -> ManualClock:
    """The clock that the replicas of a test share."""
    return ManualClock()


def reason(node: Node) -> ErrorReason:
    """Why a node does not lead."""
    with pytest.raises(Refused) as caught:
        node.replica.leader()
    return caught.value.refusal.reason


async def test_one_leads_and_one_stands_by(disk: MemoryDisk, clock: ManualClock) -> None:
    """Of two replicas one is ready; the other says that it does not lead."""
    first, second = Node(disk, clock), Node(disk, clock)
    first.start()
    await settle()
    second.start()
    await clock.advance(10 * SECOND)
    assert (first.roles, second.roles) == (["leads 1"], ["stands by"])
    assert (first.is_ready(), second.is_ready()) == (True, False)
    assert reason(second) is ErrorReason.NOT_LEADER
    await second.stop()
    await first.stop()


async def test_clean_stop_hands_over_within_one_poll(disk: MemoryDisk, clock: ManualClock) -> None:
    """A leader that stops gives the leadership back; what it acknowledged is there."""
    first, second = Node(disk, clock), Node(disk, clock)
    first.start()
    await settle()
    second.start()
    await settle()
    task_id = await first.submit()
    assert await eventually(clock, first.stop()) is Outcome.STOPPED
    assert reason(first) is ErrorReason.STOPPING
    await clock.advance(SECOND // 2)
    assert second.roles == ["stands by", "leads 2"]
    assert await second.status(task_id) == Status.READY
    await second.stop()


async def test_leader_that_was_replaced_notices_without_a_call(
    disk: MemoryDisk, clock: ManualClock
) -> None:
    """One keepalive after a takeover the old leader stands by, though nobody asked it anything."""
    first, second = Node(disk, clock), Node(disk, clock)
    first.start()
    await settle()
    disk.lapsed = True
    second.start()
    await settle()
    assert second.roles == ["leads 2"]
    assert first.roles == ["leads 1"]
    await clock.advance(SECOND)
    assert first.roles == ["leads 1", "steps down", "stands by"]
    assert not first.is_ready()
    assert second.is_ready()
    await first.stop()
    await second.stop()


async def test_readiness_follows_trust(disk: MemoryDisk, clock: ManualClock) -> None:
    """A leader that cannot confirm its term is not ready, and is again when it can."""
    node = Node(disk, clock)
    node.start()
    await settle()
    node.store.add_faults(*[Fault.OUTAGE] * 8)
    await clock.advance(7 * SECOND)
    assert not node.is_ready()
    await clock.advance(2 * SECOND)
    assert node.is_ready()
    assert node.roles == ["leads 1"]
    await node.stop()


async def test_refused_batch_is_recovered_from_once_a_minute(
    disk: MemoryDisk, clock: ManualClock
) -> None:
    """What the store will never take ends the term; twice within a minute, the process."""
    node = Node(disk, clock)
    node.start()
    await settle()
    for epoch in (1, 2):
        assert node.roles[-1] == f"leads {epoch}"
        node.store.add_faults(Fault.REJECTED)
        with pytest.raises(Refused):
            await node.submit()
        await clock.advance(61 * SECOND)
    node.store.add_faults(Fault.REJECTED)
    with pytest.raises(Refused):
        await node.submit()
    await clock.advance(SECOND)
    node.store.add_faults(Fault.REJECTED)
    with pytest.raises(Refused):
        await node.submit()
    assert node.running is not None
    assert await node.running is Outcome.REJECTED


async def test_term_lost_during_recovery_serves_nothing(
    disk: MemoryDisk, clock: ManualClock
) -> None:
    """Who is replaced while it recovers never opens, and may lead again later."""
    first = Node(disk, clock)
    first.start()
    await settle()
    task_id = await first.submit()
    await eventually(clock, first.stop())
    slow = Node(disk, clock)
    slow.store.hold_recovery()
    slow.start()
    await settle()
    disk.lapsed = True
    other = Node(disk, clock)
    other.start()
    await settle()
    assert other.roles == ["leads 3"]
    await clock.advance(SECOND)
    assert slow.roles == ["stands by"]
    slow.store.let_go()
    await eventually(clock, other.stop())
    await clock.advance(SECOND)
    assert slow.roles == ["stands by", "leads 4"]
    assert await slow.status(task_id) == Status.READY
    await slow.stop()


async def test_stop_during_recovery_gives_the_term_back(
    disk: MemoryDisk, clock: ManualClock
) -> None:
    """A process that is stopped before it serves leaves the leadership to others at once."""
    node = Node(disk, clock)
    node.store.hold_recovery()
    node.start()
    await settle()
    held = [disk.holder]
    assert await node.stop() is Outcome.STOPPED
    held.append(disk.holder)
    assert [holder is not None for holder in held] == [True, False]
    assert node.roles == []


async def test_stop_during_recovery_does_not_wait_for_a_silent_store(
    disk: MemoryDisk, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that does not even take the term back holds up the end for a moment only."""

    async def never(_: object) -> None:
        await asyncio.Event().wait()

    node = Node(disk, clock)
    node.store.hold_recovery()
    monkeypatch.setattr(node.store, "release_leadership", never)
    node.start()
    await settle()
    began = clock.now().mono
    assert await eventually(clock, node.stop()) is Outcome.STOPPED
    assert clock.now().mono - began < 3 * SECOND


async def test_large_recovery_leaves_the_event_loop_free(
    disk: MemoryDisk, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many tasks are taken over in a thread, so that the lease is kept meanwhile."""
    threads: list[str] = []

    class Watched(Engine):
        """Notes where it is rebuilt."""

        def restore(self, recovered: Iterable[RecoveredChunk], now: Now) -> Step:
            """As ever."""
            threads.append(threading.current_thread().name)
            return super().restore(recovered, now)

    monkeypatch.setattr(rig, "Engine", Watched)
    monkeypatch.setattr(driver, "RESTORED_INLINE", 2)
    for submits in (2, 1, 0):
        node = Node(disk, clock)
        node.start()
        await node.leads.wait()
        for _ in range(submits):
            task_id = await node.submit()
        assert await node.status(task_id) == Status.READY
        await node.stop()
    main = threading.main_thread().name
    assert [thread == main for thread in threads] == [True, True, False]


@pytest.mark.regression("R36")
@pytest.mark.parametrize("companion", ["Keeper", "Pruner"])
@pytest.mark.parametrize("lived", [0, SECOND])
async def test_dead_companion_never_leaves_a_leader_half_alive(
    disk: MemoryDisk,
    clock: ManualClock,
    companion: str,
    lived: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A defect beside the driver ends the process, after it gave the leadership back."""

    class Broken(getattr(replicas, companion)):  # type: ignore[misc]
        """Dies after a while."""

        async def run(self) -> None:
            """Fails as no foresight would have it."""
            await clock.sleep_until(after(clock.now(), lived))
            raise LookupError("a defect, on purpose")

    monkeypatch.setattr(replicas, companion, Broken)
    node = Node(disk, clock)
    node.start()
    await clock.advance(2 * SECOND)
    assert node.running is not None
    assert node.running.done()
    with pytest.raises(LookupError, match="on purpose"):
        await node.running
    assert node.roles[-1:] != ["leads 1"]
    assert disk.holder is None
