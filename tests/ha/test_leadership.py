"""How long a leader believes in itself, and what ends its belief."""

from __future__ import annotations

import asyncio

import pytest

from cronoq_server.engine.model import SECOND
from cronoq_server.ha.leadership import Candidate, Keeper, TermSettings
from cronoq_server.stores.base import Fenced, Leadership, TimeBase
from cronoq_server.stores.memory import MemoryDisk, MemoryStore
from cronoq_server.testing.faults import Fault, FaultyStore, ManualClock, settle
from tests.ha.rig import TERM


async def kept(
    store: FaultyStore, clock: ManualClock, settings: TermSettings = TERM
) -> tuple[Keeper, asyncio.Task[object]]:
    """A term that is being kept."""
    term: Leadership | None = await store.acquire_leadership("a", clock.now().wall, TimeBase())
    assert term is not None
    keeper = Keeper(term, clock, settings)
    keeping = asyncio.ensure_future(keeper.run())
    await settle()
    return keeper, keeping


@pytest.fixture
def store() -> FaultyStore:
    """A store of one's own."""
    return FaultyStore(MemoryStore(MemoryDisk()))


async def end(keeping: asyncio.Task[object]) -> None:
    """Ends a keeper that would go on for ever."""
    assert not keeping.done()
    keeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await keeping


async def test_term_is_confirmed_though_nothing_is_written(store: FaultyStore) -> None:
    """An idle leader asks once per keepalive, and may believe in itself all the time."""
    clock = ManualClock()
    keeper, keeping = await kept(store, clock)
    await clock.advance(60 * SECOND)
    assert store.checks == 60
    assert keeper.is_trusted()
    await end(keeping)


async def test_trust_lapses_while_the_store_is_away_and_comes_back(store: FaultyStore) -> None:
    """Without confirmations the belief ends in time; the term itself is not given up."""
    clock = ManualClock()
    keeper, keeping = await kept(store, clock)
    store.add_faults(*[Fault.OUTAGE] * 7)
    await clock.advance(4 * SECOND)
    assert keeper.is_trusted()
    await clock.advance(2 * SECOND)
    assert not keeper.is_trusted()
    await clock.advance(2 * SECOND)
    assert keeper.is_trusted()
    await end(keeping)


async def test_trust_counts_from_the_beginning_of_a_check(store: FaultyStore) -> None:
    """An answer that was long under way confirms the past, not the present."""
    clock = ManualClock()
    keeper, keeping = await kept(store, clock)
    store.hold_answers()
    await clock.advance(6 * SECOND)
    assert not keeper.is_trusted()
    store.let_go()
    await settle()
    assert not keeper.is_trusted()
    await clock.advance(SECOND)
    assert keeper.is_trusted()
    await end(keeping)


async def test_process_that_was_stopped_believes_nothing(store: FaultyStore) -> None:
    """After a pause beyond the trust window the belief is gone before anything else happens."""
    clock = ManualClock()
    keeper, keeping = await kept(store, clock)
    clock.stand_still(40 * SECOND)
    assert not keeper.is_trusted()
    await settle()
    assert keeper.is_trusted()
    await end(keeping)


async def test_fenced_term_ends_the_keeper(store: FaultyStore) -> None:
    """The store's word is final."""
    clock = ManualClock()
    _, keeping = await kept(store, clock)
    store.add_faults(Fault.FENCED)
    await clock.advance(SECOND)
    assert keeping.done()
    with pytest.raises(Fenced):
        keeping.result()


async def test_store_of_one_process_is_not_asked(store: FaultyStore) -> None:
    """Without a keepalive nothing runs, and the leader always believes."""
    clock = ManualClock()
    keeper, keeping = await kept(store, clock, TermSettings(keepalive=None))
    await clock.advance(3600 * SECOND)
    assert (store.checks, keeper.is_trusted()) == (0, True)
    await end(keeping)


async def test_every_acquisition_has_a_holder_of_its_own() -> None:
    """A process that leads again is not mistaken for the one it was."""
    disk, clock = MemoryDisk(), ManualClock()
    candidate = Candidate(MemoryStore(disk), clock)
    first = await candidate.ask()
    assert first is not None
    one = disk.holder
    await MemoryStore(disk).release_leadership(first)
    assert await candidate.ask() is not None
    assert None not in (one, disk.holder)
    assert one != disk.holder
