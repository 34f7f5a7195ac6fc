"""Golden traces: the main stories, step by step, as they were when somebody last read them."""

from __future__ import annotations

import pytest

from tests.engine.stories import STORIES, TRACES, trace


@pytest.mark.parametrize("name", STORIES)
def test_story_is_told_as_before(name: str) -> None:
    """EN-08: every write, effect and instant of waking; `python -m tests.engine.stories` renews."""
    told = (TRACES / f"{name}.txt").read_text(encoding="utf-8")
    assert told == trace(STORIES[name])


def test_no_trace_is_without_a_story() -> None:
    """A trace that nothing writes any more would be kept for ever."""
    assert sorted(path.stem for path in TRACES.iterdir()) == sorted(STORIES)
