"""Listings by single facts look only at tasks that have them, whatever comes and goes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cronoq_server.engine.filters import passes
from cronoq_server.engine.index import Postings
from cronoq_server.engine.model import TaskFilter, TaskSpec

KINDS = ("default", "mail", "report")
TENANTS = ("", "a", "b")
TAGS = ((), (("x", "1"),), (("x", "1"), ("y", "2")), (("x", "2"),))

specs = st.builds(
    TaskSpec,
    pool=st.just("default"),
    kind=st.sampled_from(KINDS),
    tenant=st.sampled_from(TENANTS),
    tags=st.sampled_from(TAGS),
)
filters = st.builds(
    TaskFilter,
    kinds=st.sampled_from([(), ("mail",), ("default",), ("mail", "report"), ("unseen",)]),
    tenants=st.sampled_from([(), ("a",), ("a", "b"), ("",)]),
    tags=st.sampled_from(TAGS),
)


@given(st.lists(specs, max_size=30), st.data())
def test_narrowest_list_holds_all_that_match(tasks: list[TaskSpec], data: st.DataObject) -> None:
    """After any comings and goings, no task that a filter lets through is missed."""
    living: dict[int, TaskSpec] = {}
    postings = Postings(living)
    for task_id, spec in enumerate(tasks, 1):
        living[task_id] = spec
        postings.add(task_id, spec)
        if data.draw(st.booleans()):
            gone = data.draw(st.sampled_from(sorted(living)))
            ended = living.pop(gone)
            postings.left(gone, ended)
    wanted = data.draw(filters)
    expected = [i for i, spec in living.items() if passes(spec, 3, wanted)]
    narrowest = postings.narrowest(wanted)
    if narrowest is not None:
        seen = [i for i in narrowest.walk(0, newest_first=False) if i in living]
        assert [i for i in seen if passes(living[i], 3, wanted)] == expected


def test_what_nobody_has_any_more_is_forgotten() -> None:
    """A kind that is gone leaves no list behind, or kinds without number would."""
    living: dict[int, TaskSpec] = {}
    postings = Postings(living)
    for task_id in range(1, 2001):
        spec = TaskSpec("default", f"kind-{task_id}")
        living[task_id] = spec
        postings.add(task_id, spec)
        del living[task_id]
        postings.left(task_id, spec)
        found = postings.narrowest(TaskFilter(kinds=(spec.kind,)))
        assert found is not None
        assert len(found) == 0
    assert not postings._lists


@pytest.mark.parametrize("wanted", [TaskFilter(), TaskFilter(kinds=("default",))])
def test_common_values_have_no_list(wanted: TaskFilter) -> None:
    """What nearly all tasks have is looked for among all of them."""
    assert Postings({}).narrowest(wanted) is None
