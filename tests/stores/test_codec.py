"""Columns and blobs: numbers keep their order, blobs outlive the build that wrote them."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cronoq_server.api import texts
from cronoq_server.engine.model import (
    YEAR,
    Dependency,
    PastAttempt,
    Progress,
    RetryPolicy,
    Status,
    TaskSpec,
)
from cronoq_server.engine.mutations import TaskInserted
from cronoq_server.stores.codec import (
    encode_change,
    id_spans,
    read_change,
    read_spec,
    schedule_of,
    signed,
    signed_list,
    task_row,
    unsigned,
)
from cronoq_server.testing.builders import EPOCH_START, changed, inserted

SIGN = 1 << 63
LAST = (1 << 64) - 1


@given(st.integers(0, LAST))
def test_a_signed_id_is_the_same_id(number: int) -> None:
    """There and back, within what SQL can hold."""
    assert -SIGN <= signed(number) < SIGN
    assert unsigned(signed(number)) == number


def test_numbers_that_are_no_ids_are_not_looked_for() -> None:
    """They would name other tasks."""
    assert signed_list([-1, 1, LAST, LAST + 1]) == [1, -1]


@pytest.mark.parametrize(
    ("after", "newest_first", "expected"),
    [
        (0, False, [(1, SIGN - 1), (-SIGN, -1)]),
        (7, False, [(8, SIGN - 1), (-SIGN, -1)]),
        (SIGN - 1, False, [(-SIGN, -1)]),
        (SIGN, False, [(-SIGN + 1, -1)]),
        (LAST, False, []),
        (0, True, [(-SIGN, -1), (0, SIGN - 1)]),
        (7, True, [(0, 6)]),
        (SIGN, True, [(0, SIGN - 1)]),
        (SIGN + 1, True, [(-SIGN, -SIGN), (0, SIGN - 1)]),
        (LAST, True, [(-SIGN, -2), (0, SIGN - 1)]),
    ],
)
def test_spans_behind_a_cursor(
    after: int, newest_first: bool, expected: list[tuple[int, int]]
) -> None:
    """Numbers without the highest bit come before those with it."""
    assert id_spans(after, newest_first=newest_first) == expected


@given(st.integers(0, LAST), st.booleans(), st.lists(st.integers(1, LAST)))
def test_spans_hold_exactly_what_lies_behind(
    after: int, newest_first: bool, numbers: list[int]
) -> None:
    """Reading span by span, each in its direction, gives the order of unsigned numbers."""
    read: list[int] = []
    for low, high in id_spans(after, newest_first=newest_first):
        inside = {signed(n) for n in numbers if low <= signed(n) <= high}
        read += [unsigned(n) for n in sorted(inside, reverse=newest_first)]
    if newest_first:
        behind = {n for n in numbers if not after or n < after}
    else:
        behind = {n for n in numbers if n > after}
    assert read == sorted(behind, reverse=newest_first)


def test_a_payload_is_a_column_of_its_own() -> None:
    """Its bytes are not in the blob, and come back when they are given."""
    row = task_row(inserted(1, payload=b"secret bytes", tags=(("cronoq.schedule", "nightly"),)))
    assert b"secret bytes" not in row[7]
    assert (row[6], row[8]) == ("nightly", b"secret bytes")
    assert read_spec(row[7], None) == TaskSpec(
        "default", "default", tags=(("cronoq.schedule", "nightly"),)
    )


def test_a_task_of_no_schedule_names_none() -> None:
    """Other tags do not count."""
    assert schedule_of((("a", "b"),)) is None


def test_a_field_of_a_later_build_is_passed_over() -> None:
    """A leader of the version before reads what a newer one wrote."""
    blob = msgspec.msgpack.encode({"pool": "p", "kind": "k", "shape": "round"})
    assert read_spec(blob, b"x") == TaskSpec("p", "k", b"x")
    change = msgspec.msgpack.decode(encode_change(changed(3)))
    assert read_change(3, msgspec.msgpack.encode([*change, "later"])) == changed(3)


def test_a_change_comes_back_from_its_blob() -> None:
    """Every field of it."""
    past = PastAttempt(1, "w", 1, 2, "failed", "why")
    change = changed(
        7,
        Status.RETRYING,
        retry_at=9,
        message="m",
        progress=Progress(b"\0", 0.25),
        history=(past,),
        has_output=True,
    )
    assert read_change(7, encode_change(change)) == change


@given(st.binary())
def test_garbage_is_unreadable_and_no_error(blob: bytes) -> None:
    """Whatever lies in a column."""
    spec, change = read_spec(blob, None), read_change(1, blob)
    assert spec is None or isinstance(spec, TaskSpec)
    assert change is None or change.task_id == 1


def test_an_edge_to_the_highest_id_comes_back() -> None:
    """Ids in a blob are unsigned."""
    spec = TaskSpec("p", "k", dependencies=(Dependency(LAST),))
    row = task_row(TaskInserted(LAST, EPOCH_START, spec))
    assert row[0] == -1
    assert read_spec(row[7], None) == spec


@pytest.mark.parametrize("field", ["deadline_at", "start_at", "not_before"])
@pytest.mark.parametrize("instant", [0, (1 << 62) + 1, texts.INSTANT_MAX])
def test_every_instant_that_admission_accepts_can_be_led_from(field: str, instant: int) -> None:
    """A task of a far future is no damaged row: a failover must not end it."""
    spec = TaskSpec("p", "k", **{field: texts.instant(instant, field)})  # type: ignore[arg-type]
    assert read_spec(task_row(TaskInserted(1, EPOCH_START, spec))[7], None) == spec


def test_the_largest_durations_and_counts_can_be_led_from() -> None:
    """The same for all that has another bound."""
    most = texts.UINT32_MAX
    spec = TaskSpec(
        "p",
        "k",
        start_in=YEAR,
        tolerance=YEAR,
        duration_hint=YEAR,
        timeout=YEAR,
        expires_in=YEAR,
        retry=RetryPolicy(most, YEAR, 1e308, YEAR),
        resources=(("r", most),),
    )
    assert read_spec(task_row(TaskInserted(1, EPOCH_START, spec))[7], None) == spec
