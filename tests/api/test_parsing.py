"""Messages are parsed as far as it takes to know what they are worth."""

from __future__ import annotations

import random

import pytest

from cronoq_server._proto import task_pb2, tasks_pb2
from cronoq_server.api.rpc import LARGE_BYTES, MEMBERS_MAX, Malformed, end_of_fields, parser

MANY = b"\x0a\x00" * (LARGE_BYTES + MEMBERS_MAX)
parse = parser(tasks_pb2.SubmitBatchRequest)


@pytest.mark.parametrize(
    "before",
    [b"", b"\x10\x01", b"\x19" + b"x" * 8, b"\x25" + b"x" * 4, b"\x1a\x02hi", b"\xf8\x7f\x01"],
)
def test_a_batch_of_far_too_many_is_parsed_up_to_one_too_many(before: bytes) -> None:
    """Whatever unknown fields of whatever wire type stand before its members."""
    parsed = parse(before + MANY)
    assert isinstance(parsed, tasks_pb2.SubmitBatchRequest)
    assert MEMBERS_MAX <= len(parsed.tasks) <= MEMBERS_MAX + 1


def test_a_large_batch_within_the_limit_is_parsed_whole() -> None:
    """To its last member."""
    tasks = [task_pb2.TaskSpec(payload=b"x" * 200, key=f"k{n}") for n in range(MEMBERS_MAX)]
    batch = tasks_pb2.SubmitBatchRequest(tasks=tasks)
    content = batch.SerializeToString()
    assert len(content) > LARGE_BYTES
    assert parse(content) == batch


@pytest.mark.parametrize("seed", range(20))
def test_fields_of_nonsense_end_somewhere(seed: int) -> None:
    """Within the message, and the parser judges what they are."""
    content = random.Random(seed).randbytes(5000)
    assert 0 <= end_of_fields(content, 100) <= len(content)
    assert end_of_fields(content, 100_000) == len(content)
    large = content * (LARGE_BYTES // len(content) + 2)
    assert isinstance(parse(large), tasks_pb2.SubmitBatchRequest | Malformed)


def test_groups_hide_no_members() -> None:
    """What stands in a group counts like what does not."""
    content = b"\x13" + MANY
    assert end_of_fields(content, 100) == 1 + 2 * 99
