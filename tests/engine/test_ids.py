"""Task ids and lease ids: layout, order, carry and exhaustion."""

from __future__ import annotations

import pytest

from cronoq_server.engine import effects, ids
from cronoq_server.engine.model import ErrorReason, Refusal
from tests.engine.harness import World, spec


@pytest.mark.parametrize(
    ("shard", "epoch", "first"),
    [(1, 1, 72058693549555713), (2, 1, 144116287587483649), (None, 1, (1 << 48) + 1)],
)
def test_first_id_of_a_leadership_is_the_published_value(
    shard: int | None, epoch: int, first: int
) -> None:
    """EN-10: shard, epoch and sequence lie where everybody expects them."""
    assert World(shard=shard, epoch=epoch).add(spec()) == first


def test_ids_start_above_the_high_water_mark() -> None:
    """EN-11: a mark above the epoch's first id wins, so that no id is used twice."""
    mark = ids.pack(None, 5, 77)
    assert World(epoch=3, high_water=mark).add(spec()) == mark + 1
    assert World(epoch=6, high_water=mark).add(spec()) == ids.pack(None, 6, 1)


def test_epoch_beyond_sixteen_bits_is_written_as_the_highest() -> None:
    """EN-11: ids go on rising above the mark when the epoch does not fit any more."""
    source = ids.IdSource(None, 70_000, ids.pack(None, 0xFFFF, 9))
    assert source.take() == ids.pack(None, 0xFFFF, 10)


def test_sequence_that_overflows_carries_into_the_epoch() -> None:
    """EN-11: the next id after a full sequence is the next number, whatever epoch it shows."""
    full = ids.pack(1, 4, (1 << 40) - 1)
    source = ids.IdSource(1, 4, full)
    assert source.take() == full + 1 == ids.pack(1, 5, 0)
    assert ids.shard_of(full + 1) == 1


def test_sequence_never_carries_into_the_shard() -> None:
    """EN-11: the last id of a shard is followed by a refusal, not by another shard's id."""
    last = (2 << 56) - 1
    source = ids.IdSource(1, 1, last - 1)
    assert source.left() == 1
    assert source.take() == source.last == last
    assert source.left() == 0
    with pytest.raises(ids.IdsExhausted):
        source.take()


def test_unsharded_ids_end_at_sixty_four_bits() -> None:
    """EN-11: without shards the whole range is there."""
    assert ids.IdSource(None, 1, ids.ID_MAX - 1).take() == ids.ID_MAX


def test_exhausted_ids_are_refused_not_raised() -> None:
    """EN-24: a caller is refused, alone, in a batch or among many; nothing is created."""
    world = World(shard=200, high_water=(201 << 56) - 2)
    batch = world.submit(spec(), spec())
    assert isinstance(batch, Refusal)
    assert batch.reason == ErrorReason.IDS_EXHAUSTED
    assert world.add(spec()) == (201 << 56) - 1
    single = world.submit(spec())
    assert isinstance(single, Refusal)
    assert single.reason == ErrorReason.IDS_EXHAUSTED
    assert world.snapshot().live_tasks == 1


def test_lease_ids_have_the_epoch_above_a_rising_counter() -> None:
    """EN-12: 24 bits of epoch, 40 bits that rise with every lease sent."""
    world = World(epoch=(1 << 24) + 3)
    world.add(spec(), spec())
    session = world.join(2)
    assert list(world.out[session]) == [(3 << 40) + 1, (3 << 40) + 2]


def test_high_water_mark_of_a_batch_is_its_last_id() -> None:
    """EN-11: a leader that never submitted anything goes on above the one before."""
    world = World()
    first = world.add(spec())
    world.crash()
    world.crash()
    assert isinstance(world.submit(spec()), effects.Admitted)
    assert world.ledger.high_water > first
