"""Outputs beside a durable store: the newest, up to so many bytes, as long as their tasks."""

from __future__ import annotations

from cronoq_server.engine.mutations import Output
from cronoq_server.stores.output_cache import OutputCache
from cronoq_server.testing.builders import output

ENTRY = 200 + 100
"""What an output of a hundred bytes counts."""


def test_the_oldest_make_room() -> None:
    """As many as fit are here; the others are to be asked for."""
    cache = OutputCache(3 * ENTRY)
    cache.put(output(n, bytes(100)) for n in range(1, 6))
    found, missing = cache.split([1, 2, 3, 4, 5])
    assert (sorted(found), missing) == ([3, 4, 5], [1, 2])


def test_what_is_put_again_is_new() -> None:
    """Its last content counts, and so does its last place."""
    cache = OutputCache(2 * ENTRY)
    cache.put([output(1, bytes(100)), output(2, bytes(100)), output(1, b"x" * 100)])
    cache.put([output(3, bytes(100))])
    assert cache.split([1, 2, 3]) == (
        {1: Output(b"x" * 100, ""), 3: Output(bytes(100), "")},
        [2],
    )


def test_what_is_forgotten_makes_room() -> None:
    """One by one, or all at once; what is not there is no mistake."""
    cache = OutputCache(2 * ENTRY)
    cache.put([output(1, bytes(100)), output(2, bytes(100))])
    cache.drop(1)
    cache.drop(99)
    cache.put([output(3, bytes(100))])
    assert sorted(cache.split([1, 2, 3])[0]) == [2, 3]
    cache.clear()
    cache.put([output(4, bytes(100)), output(5, bytes(100))])
    assert sorted(cache.split([2, 3, 4, 5])[0]) == [4, 5]


def test_nothing_is_kept_without_room() -> None:
    """A bound of zero turns it off."""
    cache = OutputCache(0)
    cache.put([output(1, b"")])
    assert cache.split([1]) == ({}, [1])
