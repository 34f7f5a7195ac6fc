"""How answers look on the wire, and that no message grows beyond the limit."""

from __future__ import annotations

import pytest

from cronoq_server._proto import task_pb2, tasks_pb2
from cronoq_server.api import convert
from cronoq_server.api.specs import SpecReader
from cronoq_server.config import LimitsConfig
from cronoq_server.engine import (
    SECOND,
    Admitted,
    ErrorReason,
    Page,
    PastAttempt,
    Progress,
    Refusal,
    Result,
    StatusEvent,
    TaskDetail,
    TaskFilter,
    TaskSpec,
    TaskView,
)
from cronoq_server.runtime.refusals import Refused
from cronoq_server.runtime.watchers import WatchBatch

READER = SpecReader(LimitsConfig(), ["default"])
BUG = "\N{BUG}"
LIMIT = 100_000


def view(task_id: int, spec: TaskSpec, message: str = "") -> TaskView:
    """A finished task."""
    return TaskView(task_id, spec, 7, 3, 3, 10, 20, 30, message, has_output=False)


def test_results_are_split_by_size() -> None:
    """Outputs and messages of any size come whole, in order, below the limit."""
    results = [Result(n, 6, BUG * (n % 500), b"x" * (n * 37 % 9000), BUG) for n in range(1, 200)]
    messages = list(convert.result_messages(results, LIMIT, with_output=True))
    assert all(message.ByteSize() <= LIMIT for message in messages)
    read = [result for message in messages for result in message.results]
    assert [(r.id, r.message, r.output) for r in read] == [
        (r.task_id, r.message, r.output) for r in results
    ]
    (bare,) = convert.result_messages(results[:100], LIMIT, with_output=False)
    assert all(not result.HasField("output") for result in bare.results)
    assert all(result.output_available for result in bare.results)


def test_result_tells_whether_there_is_an_output() -> None:
    """Absent, kept elsewhere and empty are three different things."""
    absent, elsewhere, empty = (task_pb2.TaskResult() for _ in range(3))
    convert.fill_result(absent, Result(1, 7))
    convert.fill_result(elsewhere, Result(1, 6, fetch=True))
    convert.fill_result(empty, Result(1, 6, output=b""))
    shown = [(r.output_available, r.HasField("output")) for r in (absent, elsewhere, empty)]
    assert shown == [(False, False), (True, False), (True, True)]


def test_events_are_split_by_size_and_carry_their_cursor() -> None:
    """Each message ends with the cursor behind its last event."""
    events = [
        (
            StatusEvent(n, "p" * 64, BUG * 64, 7, n, n, BUG * (n % 700), Progress(b"x" * 1024, 1)),
            b"%d" % n,
        )
        for n in range(1, 200)
    ]
    batch = WatchBatch(events, b"199")
    messages = list(convert.event_messages(batch, LIMIT, with_cursors=True))
    assert len(messages) > 1
    for message in messages:
        assert message.ByteSize() <= LIMIT
        assert message.cursor == b"%d" % message.events[-1].id
    assert [event.id for message in messages for event in message.events] == list(range(1, 200))
    assert [m.cursor for m in convert.single_events(batch, with_cursors=True)] == [
        cursor for _, cursor in events
    ]


def test_bookmark_is_a_cursor_alone() -> None:
    """Nothing happened: only where the watcher stands."""
    batch = WatchBatch([], b"here")
    (message,) = convert.event_messages(batch, LIMIT, with_cursors=True)
    assert (message.cursor, len(message.events)) == (b"here", 0)
    (single,) = convert.single_events(batch, with_cursors=True)
    assert (single.cursor, single.id) == (b"here", 0)


def test_page_is_cut_behind_what_fits() -> None:
    """The cursor of a cut page is its last task, the cursor of a whole one is the engine's."""
    spec = TaskSpec("p", "k", tags=tuple((f"{n}", BUG * 256) for n in range(32)))
    page = Page(tuple(view(n, spec) for n in range(1, 10)), 99)
    cut = convert.list_response(page, LIMIT)
    assert cut.ByteSize() <= LIMIT
    assert 0 < len(cut.tasks) < 9
    assert cut.next_after == cut.tasks[-1].id
    assert convert.list_response(page, 10 * LIMIT).next_after == 99


def test_detail_gives_up_long_messages_first() -> None:
    """Twenty long failures and a payload at the limit still are one message, payload whole."""
    limit = LimitsConfig().max_message_bytes
    spec = TaskSpec("p", "k", b"x" * (READER.task_bytes_max - 100))
    attempts = tuple(PastAttempt(n, "w", 1, 2, "failed", BUG * 8192) for n in range(20))
    detail = convert.detail_response(
        TaskDetail(view(1, spec, BUG * 8192), attempts, (), tuple(range(1, 101))), limit
    )
    assert detail.ByteSize() <= limit
    assert detail.spec.payload == spec.payload
    assert [attempt.number for attempt in detail.attempts] == list(range(20))


def test_short_detail_is_whole() -> None:
    """Messages that fit are not touched."""
    attempt = PastAttempt(1, "w", 1, 2, "failed", "why")
    detail = convert.detail_response(
        TaskDetail(view(1, TaskSpec("p", "k")), (attempt,), (), ()), LIMIT
    )
    assert detail.attempts[0].message == "why"
    assert (detail.info.created_unix_ns, detail.info.finished_unix_ns) == (10, 30)


def test_outcomes_keep_the_order_of_the_request() -> None:
    """What was refused before and after the engine saw it, and what was there, in its place."""
    refusal = Refusal(ErrorReason.QUEUE_FULL, "full")
    admitted = Admitted([11, 12, 0], (1,), ((2, refusal),))
    bad = Refusal(ErrorReason.INVALID_FIELD, "bad")
    outcomes = convert.submit_many_response(admitted, {0: bad, 3: bad}).outcomes
    shown = [
        (o.response.id, o.response.duplicate) if o.HasField("response") else o.error.message
        for o in outcomes
    ]
    assert shown == ["bad", (11, False), (12, True), "bad", "full"]


def test_filter_is_read_as_it_was_said() -> None:
    """All parts of a filter reach the engine."""
    request = tasks_pb2.ListTasksRequest(
        pools=["a"],
        statuses=[task_pb2.TASK_STATUS_READY],
        kinds=["k"],
        keys=["key"],
        tags={"b": "2", "a": "1"},
        tenants=["t"],
        schedule="s",
    )
    assert convert.read_filter(request, READER) == TaskFilter(
        ("a",), (3,), ("k",), ("key",), (("a", "1"), ("b", "2")), ("t",), "s"
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"pools": ["a b"]},
        {"statuses": [13]},
        {"kinds": [""]},
        {"keys": ["\0"]},
        {"tags": {"a": "\n"}},
        {"tenants": ["ä"]},
        {"schedule": "a b"},
        {"kinds": ["k"] * 1001},
    ],
)
def test_wrong_filter_is_refused(fields: dict[str, object]) -> None:
    """What could match nothing, or is too long, is an error."""
    request = tasks_pb2.ListTasksRequest(**fields)  # type: ignore[arg-type]
    with pytest.raises(Refused, match=next(iter(fields))):
        convert.read_filter(request, READER)


def test_waits_are_cut_to_the_servers_limit() -> None:
    """No wish, a short wish, a long one, and one that is no duration."""
    assert convert.read_wait(None, "timeout_s", 60) == 60 * SECOND
    assert convert.read_wait(1.5, "timeout_s", 60) == 1_500_000_000
    assert convert.read_wait(1e6, "timeout_s", 60) == 60 * SECOND
    with pytest.raises(Refused, match="timeout_s: must be 0 or more seconds, not -1"):
        convert.read_wait(-1, "timeout_s", 60)
