"""One term at a time, and nobody's writes but its own."""

from __future__ import annotations

import asyncio

import pytest

from cronoq_server.stores.base import Fenced, TimeBase
from cronoq_server.testing.builders import EPOCH_START, batch, inserted
from cronoq_server.testing.store_suite.place import (
    Place,
    acquire,
    ids,
    lead,
    opened,
    recovered,
    usurp,
    written,
)


class TestLeadership:
    """One term at a time, each with a higher epoch."""

    async def test_a_fresh_place_begins_at_nothing(self, place: Place) -> None:
        """The first term finds no batch and no id."""
        _, leadership = await opened(place)
        assert (leadership.position, leadership.high_water) == (0, 0)
        assert leadership.epoch >= 1

    async def test_nobody_else_leads_while_a_term_holds(self, place: Place) -> None:
        """A second replica is told to wait, and the first goes on."""
        _, leadership = await opened(place)
        assert await acquire(await place.open()) is None
        await leadership.check()

    async def test_a_released_term_makes_room_at_once(self, place: Place) -> None:
        """The next replica leads under a higher epoch."""
        store, first = await opened(place)
        await store.release_leadership(first)
        second = await lead(await place.open())
        assert second.epoch > first.epoch

    async def test_the_same_replica_can_lead_again(self, place: Place) -> None:
        """A term after one's own has a higher epoch as well."""
        store, first = await opened(place)
        await store.release_leadership(first)
        second = await lead(store)
        assert second.epoch > first.epoch

    async def test_a_lapsed_term_makes_room(self, place: Place) -> None:
        """A holder that is believed gone is succeeded."""
        store, first = await opened(place)
        _, second = await usurp(place, store, first)
        assert second.epoch > first.epoch
        await second.check()

    async def test_a_check_finds_out_about_a_successor(self, place: Place) -> None:
        """Who was replaced learns it when it asks."""
        store, first = await opened(place)
        await usurp(place, store, first)
        with pytest.raises(Fenced):
            await first.check()

    async def test_a_check_finds_out_about_a_release(self, place: Place) -> None:
        """A term that was released holds no more, even with nobody after it."""
        store, leadership = await opened(place)
        await store.release_leadership(leadership)
        with pytest.raises(Fenced):
            await leadership.check()

    async def test_a_late_release_leaves_the_successor_alone(self, place: Place) -> None:
        """Releasing a term that is over ends nobody else's."""
        store, first = await opened(place)
        _, second = await usurp(place, store, first)
        await store.release_leadership(first)
        await second.check()
        assert await acquire(await place.open()) is None


class TestFencing:
    """At most one term's writes are accepted."""

    # Covers R1.
    async def test_a_past_term_cannot_commit(self, place: Place) -> None:
        """Its commit fails, and leaves nothing."""
        store, first = await opened(place)
        other, second = await usurp(place, store, first)
        with pytest.raises(Fenced):
            await store.commit(first, batch(1, inserted(1)))
        assert (await recovered(other, second)).live == ()

    async def test_a_released_term_cannot_commit(self, place: Place) -> None:
        """Who gave up leadership writes nothing any more."""
        store, leadership = await opened(place)
        await store.release_leadership(leadership)
        with pytest.raises(Fenced):
            await store.commit(leadership, batch(1, inserted(1)))

    async def test_a_past_term_cannot_even_repeat_itself(self, place: Place) -> None:
        """The retry of a batch that is there already is fenced, not confirmed."""
        store, first = await written(place, inserted(1))
        await usurp(place, store, first)
        with pytest.raises(Fenced):
            await store.commit(first, batch(1, inserted(1)))

    # Covers R5.
    async def test_a_past_term_cannot_recover(self, place: Place) -> None:
        """A replica that was replaced while it recovers does not go on with half a truth."""
        store, first = await opened(place)
        await usurp(place, store, first)
        with pytest.raises(Fenced):
            await recovered(store, first)

    # Covers R1.
    @pytest.mark.parametrize("head_start", range(12))
    async def test_a_commit_and_a_takeover_never_both_succeed_unseen(
        self, place: Place, head_start: int
    ) -> None:
        """The new term sees the old commit, or that commit fails, or there is no new term yet."""
        old, first = await opened(place)
        await place.lapse(old, first)
        new = await place.open()
        committing = asyncio.ensure_future(old.commit(first, batch(1, inserted(1))))
        for _ in range(head_start):
            await asyncio.sleep(0)
        second = await acquire(new)
        (outcome,) = await asyncio.gather(committing, return_exceptions=True)
        if second is None:  # the commit came between its look and its lock, as a sign of life
            assert outcome is None
            return
        seen = ids((await recovered(new, second)).live)
        if outcome is None:
            assert (second.position, seen) == (1, [1])
        else:
            assert isinstance(outcome, Fenced)
            assert (second.position, seen) == (0, [])


class TestHolders:
    """A holder is a name, whatever is in it."""

    @pytest.mark.parametrize("holder", ["it's me", "a\\' OR ''='", "$1 {} %s ?", "東京"])
    async def test_any_name_can_lead(self, place: Place, holder: str) -> None:
        """It is compared, never read as part of a statement."""
        store = await place.open()
        leadership = await store.acquire_leadership(holder, EPOCH_START, TimeBase())
        assert leadership is not None
        await store.commit(leadership, batch(1, inserted(1)))
        await leadership.check()
        await store.release_leadership(leadership)
        with pytest.raises(Fenced):
            await store.commit(leadership, batch(2, inserted(2)))
