"""A filter of keys never denies one that was noted, and lets few others past."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cronoq_server.stores.pg_keys import KeyFilter, that_may_hold

PLACES = [141, 546]
"""Bits of `order-17` in the smallest filter; stored filters hold them there for ever."""


@given(st.lists(st.text(max_size=30), max_size=200), st.integers(1, 300))
def test_what_was_noted_may_be_there(keys: list[str], rows: int) -> None:
    """Whatever the keys, and if there are more of them than were expected."""
    made = KeyFilter.for_rows(rows)
    made.add(keys)
    assert that_may_hold(keys, [(7, made)]) == ([7] * len(keys), keys)


def test_it_reads_the_same_in_another_process() -> None:
    """Bits are where they were when it was stored."""
    made = KeyFilter.for_rows(64)
    made.add(["order-17"])
    assert made.stored() == KeyFilter(made.stored()).stored()
    places = [i for i in range(1024) if made.stored()[i >> 3] >> (i & 7) & 1]
    assert places == PLACES


@pytest.mark.parametrize("form", ["{}", "order-{:08}", "{}/daily", "a long name before it {}"])
def test_few_strange_keys_get_past_it(form: str) -> None:
    """Also where keys differ by a number only."""
    made = KeyFilter.for_rows(20_000)
    made.add(form.format(n) for n in range(20_000))
    past, _ = that_may_hold((form.format(n) for n in range(20_000, 40_000)), [(1, made)])
    assert len(past) < 600


def test_an_empty_one_holds_nothing() -> None:
    """A segment without keys is never looked into for one."""
    made = KeyFilter.for_rows(500_000)
    assert len(made.stored()) == 1 << 20
    assert that_may_hold(map(str, range(1000)), [(1, made)]) == ([], [])


def test_what_is_not_known_may_be_there() -> None:
    """Segments of several sizes side by side, one of them without a filter."""
    small, large = KeyFilter.for_rows(100), KeyFilter.for_rows(10_000)
    small.add(["a"])
    large.add(["b"])
    segments = [(1, small), (2, None), (3, large)]
    assert that_may_hold(["a", "b", "c"], segments) == ([2, 1, 2, 3, 2], ["a", "a", "b", "b", "c"])
