"""When old tasks are let go: in small steps, all of them, and none that is young."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cronoq_server.engine.model import SECOND, Dependency, Status
from cronoq_server.runtime import PruneSettings, pruner
from cronoq_server.stores.base import FinishedQuery
from cronoq_server.stores.memory import MemoryDisk, MemoryStore
from cronoq_server.testing.builders import EPOCH_START, batch, changed, inserted
from cronoq_server.testing.faults import ManualClock, settle
from tests.ha.rig import TERM, Node

HOUR = 3600 * SECOND
SETTINGS = PruneSettings(keep=HOUR, interval=60 * SECOND, batch=10)


def ended(disk: MemoryDisk, count: int, at: Callable[[int], int]) -> None:
    """Puts ended tasks into a store, each with a batch of its own."""
    for task_id in range(1, count + 1):
        disk.write(batch(disk.position + 1, inserted(task_id), changed(task_id, at=at(task_id))), 0)


async def kept(disk: MemoryDisk) -> list[int]:
    """Ids of the ended tasks that are there."""
    page = await MemoryStore(disk).find_finished(FinishedQuery(limit=10_000))
    return [task.task_id for task in page.tasks]


@pytest.fixture
def clock() -> ManualClock:
    """An hour after the first ends."""
    return ManualClock(wall=EPOCH_START + HOUR)


async def started(disk: MemoryDisk, clock: ManualClock) -> Node:
    """A replica that leads and prunes."""
    node = Node(disk, clock, TERM, SETTINGS)
    node.start()
    await settle()
    assert node.is_ready()
    return node


async def test_old_ends_go_within_one_interval_in_small_steps(clock: ManualClock) -> None:
    """A backlog is worked off at once, ten tasks a commit, and what is young stays."""
    disk = MemoryDisk()
    ended(disk, 100, lambda number: EPOCH_START + number * SECOND)
    node = await started(disk, clock)
    before = disk.position
    await clock.advance(59 * SECOND)
    assert len(await kept(disk)) == 100
    await clock.advance(6 * SECOND)
    assert await kept(disk) == list(range(60, 101))
    assert disk.position - before == 6
    await node.stop()


async def test_pruning_goes_on(clock: ManualClock) -> None:
    """Each interval lets go of what has become old in it, until all has."""
    disk = MemoryDisk()
    ended(disk, 100, lambda number: EPOCH_START + number * SECOND)
    node = await started(disk, clock)
    await clock.advance(181 * SECOND)
    assert await kept(disk) == []
    await node.stop()


async def test_end_that_hides_older_ones_is_no_endless_loop(clock: ManualClock) -> None:
    """What cannot be let go yet is tried once an interval, not again and again."""
    disk = MemoryDisk()
    ended(disk, 3, lambda number: EPOCH_START + (HOUR if number == 1 else 0))
    node = await started(disk, clock)
    before = disk.position
    await clock.advance(65 * SECOND)
    assert disk.position - before <= 3
    await node.stop()


async def test_parents_of_waiting_tasks_stay_and_hide_nobody(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thirty of them are the oldest, and no look shows more than ten."""
    monkeypatch.setattr(pruner, "LOOK", 10)
    disk = MemoryDisk()
    ended(disk, 100, lambda _: EPOCH_START - HOUR)
    parents = tuple(map(Dependency, (*range(1, 31), 101)))
    rows = (inserted(101), inserted(102, dependencies=parents))
    disk.write(batch(disk.position + 1, *rows), 0)
    node = await started(disk, clock)
    await clock.advance(70 * SECOND)
    assert await kept(disk) == list(range(1, 31))
    await node.stop()


async def test_live_tasks_are_never_let_go(clock: ManualClock) -> None:
    """However old, a task that has not ended stays."""
    disk = MemoryDisk()
    node = await started(disk, clock)
    task_id = await node.submit()
    await clock.advance(3 * HOUR)
    assert await node.status(task_id) == Status.READY
    await node.stop()


async def test_failed_look_is_made_again(clock: ManualClock) -> None:
    """A store that can't be searched for a while does not end the pruning."""
    disk = MemoryDisk()
    ended(disk, 30, lambda number: EPOCH_START + number * SECOND)
    node = await started(disk, clock)
    node.store.fail_searches(1)
    await clock.advance(61 * SECOND)
    assert len(await kept(disk)) == 20
    await clock.advance(60 * SECOND)
    assert await kept(disk) == []
    await node.stop()
