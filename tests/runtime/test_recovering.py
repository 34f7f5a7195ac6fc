"""What ended lately is read while the leader serves, and never hides what happened since."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable

import pytest

from cronoq_server.engine.engine import Engine, Step
from cronoq_server.engine.events import Delete, EndsRead, Redrive
from cronoq_server.engine.model import Now, Status, TaskRef
from cronoq_server.engine.mutations import RecoveredChunk, StoredTask
from cronoq_server.runtime import recovering
from cronoq_server.runtime.manual_clock import ManualClock
from cronoq_server.runtime.recovering import Recovering
from cronoq_server.stores import memory
from cronoq_server.stores.base import Fenced, TimeBase, Unavailable
from cronoq_server.stores.memory import MemoryDisk, MemoryStore
from cronoq_server.testing.builders import EPOCH_START, batch, changed, inserted, submit, task
from cronoq_server.testing.faults import FaultyStore
from tests.runtime.rig import Rig, done, real_engine, settle

ENDED = range(1, 26)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of ten, and one piece is waited for."""
    monkeypatch.setattr(memory, "CHUNK", 10)
    monkeypatch.setattr(recovering, "ENDED_FIRST", 1)


async def filled() -> MemoryDisk:
    """A disk with tasks that ended one after the other."""
    disk = MemoryDisk()
    store = MemoryStore(disk)
    term = await store.acquire_leadership("before", EPOCH_START, TimeBase())
    assert term is not None
    for number in ENDED:
        rows = [inserted(number, key=f"key-{number}"), changed(number)]
        await store.commit(term, batch(number, *rows))
    await store.release_leadership(term)
    return disk


def remembered(engine: Engine) -> list[int]:
    """Ids of the ended tasks that an engine keeps, in the order in which it would forget them."""
    return [task_id for _, task_id in engine._state.retention]


@pytest.mark.usefixtures("small")
async def test_the_rest_is_read_while_it_serves() -> None:
    """The newest are there first, then all, oldest to be forgotten first."""
    disk = await filled()
    rig = Rig(ManualClock(), disk, FaultyStore(MemoryStore(disk, remembers=True)))
    counts: list[int] = []

    def made(epoch: int, high_water: int) -> Engine:
        return _Noting(real_engine(epoch, high_water), counts)

    await rig.lead(made)
    await settle()
    assert counts[0] == 10
    assert remembered(rig.engine) == list(ENDED)
    assert rig.driver.recovering.ended == len(ENDED)
    answer = await done(rig.submit(task(key="key-1")))
    assert list(answer.ids) == [1]
    await rig.stop()


class _Noting(Engine):
    """Notes how many ended tasks it had when it was restored."""

    def __init__(self, like: Engine, counts: list[int]) -> None:
        super().__init__(like._state.settings, like._state.chance)
        self._counts = counts

    def restore(self, recovered: Iterable[RecoveredChunk], now: Now) -> Step:
        """As ever."""
        step = super().restore(recovered, now)
        self._counts.append(len(self._state.finished))
        return step


@pytest.mark.usefixtures("small")
async def test_a_store_that_answers_no_look_ups_is_read_to_the_end_first() -> None:
    """Nobody else would know what is left out."""
    disk = await filled()
    store = MemoryStore(disk, remembers=False)
    term = await store.acquire_leadership("now", EPOCH_START, TimeBase())
    assert term is not None
    engine = real_engine(term.epoch, term.high_water)
    taken = Recovering(engine, store, term)
    await taken.load(0)
    assert taken.ended == len(ENDED)


@pytest.mark.usefixtures("small")
async def test_reading_on_ends_with_the_leadership() -> None:
    """Whoever reads under a term that is over is told so."""
    disk = await filled()
    store = MemoryStore(disk, remembers=True)
    term = await store.acquire_leadership("now", EPOCH_START, TimeBase())
    assert term is not None
    taken = Recovering(real_engine(term.epoch, term.high_water), store, term)
    await taken.load(0)
    disk.lapsed = True
    assert await MemoryStore(disk).acquire_leadership("next", EPOCH_START, TimeBase()) is not None
    taken.go_on(lambda: None)
    await settle()
    with pytest.raises(Fenced):
        taken.take()


@pytest.mark.usefixtures("small")
async def test_what_cannot_be_read_on_is_left_to_look_ups(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The leader serves all the same, and says so."""
    disk = await filled()
    store = MemoryStore(disk, remembers=True)
    term = await store.acquire_leadership("now", EPOCH_START, TimeBase())
    assert term is not None
    taken = Recovering(real_engine(term.epoch, term.high_water), store, term)
    await taken.load(0)
    taken._rest = _broken()
    taken.go_on(lambda: None)
    await settle()
    with caplog.at_level(logging.WARNING):
        assert taken.take() is None
    assert "look-ups find them" in caplog.text


async def _broken() -> AsyncIterator[RecoveredChunk]:
    if ENDED:
        raise Unavailable("gone")
    yield RecoveredChunk()


def ended(task_id: int, key: str = "") -> StoredTask:
    """A failed task as a store gives it back."""
    change = changed(task_id, Status.FAILED)
    return StoredTask(task_id, EPOCH_START, task(key=key), change, 1)


def test_what_was_read_late_never_hides_what_happened_since() -> None:
    """A task that was deleted or put back meanwhile is not remembered as ended, nor is its key."""
    engine = real_engine(2, 10)
    clock = ManualClock()
    engine.restore([RecoveredChunk(finished=(ended(3), ended(2)))], clock.now())
    again: dict[TaskRef, StoredTask] = {2: ended(2)}
    engine.step([Redrive(1, 2, None, found=again), Delete(2, 3, None, found={})], clock.now())
    engine.step([submit(3, task(key="k"))], clock.now())
    newer = engine._state.keys["k"]
    engine.step([EndsRead((ended(3), ended(2), ended(1, "k")))], clock.now())
    state = engine._state
    assert list(state.finished) == [1]
    assert state.tasks[2].status == Status.READY
    assert state.keys["k"] == newer
