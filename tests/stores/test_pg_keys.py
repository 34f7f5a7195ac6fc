"""A filter of keys never denies one that was noted, and lets few others past."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cronoq_server.stores.pg_keys import KeyFilter

PLACES = [141, 546]
"""Bits of `order-17` in the smallest filter; stored filters hold them there for ever."""


@given(st.lists(st.text(max_size=30), max_size=200), st.integers(1, 300))
def test_what_was_noted_may_be_there(keys: list[str], rows: int) -> None:
    """Whatever the keys, and if there are more of them than were expected."""
    made = KeyFilter.for_rows(rows)
    made.add(keys)
    assert all(made.may_hold(key) for key in keys)


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
    past = sum(made.may_hold(form.format(n)) for n in range(20_000, 40_000))
    assert past < 600


def test_an_empty_one_holds_nothing() -> None:
    """A segment without keys is never looked into for one."""
    made = KeyFilter.for_rows(500_000)
    assert len(made.stored()) == 1 << 20
    assert not any(made.may_hold(str(n)) for n in range(1000))
