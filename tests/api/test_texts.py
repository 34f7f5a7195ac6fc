"""Which texts are storable, and what becomes of those that are not."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from cronoq_server.api import texts

HOUR = 3600 * 1_000_000_000


@given(st.text(st.characters(categories=["Cc", "Cs", "L", "So"]), max_size=300))
def test_cleaned_text_can_be_stored(text: str) -> None:
    """Whatever a worker says, what is left encodes as UTF-8 and has no NUL."""
    cleaned = texts.clean(text, 200)
    cleaned.encode()
    assert "\0" not in cleaned
    assert len(cleaned) <= 200


def test_bad_characters_are_replaced_one_by_one() -> None:
    """NUL and lone surrogates become U+FFFD; the rest stays."""
    assert texts.clean("a\0b\ud800c\n") == "a\ufffdb\ufffdc\n"


def test_long_text_is_cut_and_marked() -> None:
    """A megabyte of message keeps its beginning and says that it was cut."""
    cleaned = texts.clean("x" * 1_000_000)
    assert len(cleaned) == texts.MESSAGE_MAX
    assert cleaned.startswith("xxx")
    assert cleaned.endswith("(1000000 characters, cut)")


def test_wish_for_the_next_attempt_is_bounded() -> None:
    """At most a day; what is no duration is no wish."""
    assert texts.clean_delay(1.5) == 1_500_000_000
    assert texts.clean_delay(1e300) == 24 * HOUR
    assert texts.clean_delay(math.inf) == 24 * HOUR
    assert texts.clean_delay(-1) is None
    assert texts.clean_delay(math.nan) is None
    assert texts.clean_delay(None) is None


def test_fraction_is_from_zero_to_one() -> None:
    """Progress beyond its bounds is brought back to them."""
    assert texts.clean_fraction(1.5) == 1.0
    assert texts.clean_fraction(-math.inf) == 0.0
    assert texts.clean_fraction(math.nan) is None
