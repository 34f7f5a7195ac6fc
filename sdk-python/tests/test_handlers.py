"""Holds handlers to how they are called: by their type hints, with typed payloads."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import sys
from typing import Any

import msgspec
import pydantic
import pytest

from cronoq import (
    Attempt,
    Cancel,
    Client,
    JsonCodec,
    MsgpackCodec,
    PayloadError,
    Permanent,
    Reject,
    Retryable,
    TransformingCodec,
    Worker,
    ZlibTransform,
)
from cronoq.testing import run_handler, run_handler_blocking


@dataclasses.dataclass
class Point:
    """A plain value."""

    x: int
    y: int = 0


class Move(msgspec.Struct):
    """A value of msgspec's kind."""

    start: Point
    when: datetime.datetime


class Order(pydantic.BaseModel):
    """A value of pydantic's kind."""

    id: int
    lines: list[str] = []


class Color(enum.Enum):
    """A value with a name."""

    RED = "red"


async def _point(point: Point) -> int:
    return point.x + point.y


async def _order(order: Order) -> Order:
    return order


async def _orders(orders: list[Order]) -> dict[str, Order]:
    return {str(order.id): order for order in orders}


async def _move(move: Move) -> str:
    return f"{move.start.x} {move.when.year}"


async def _color(color: Color) -> Color:
    return color


async def _bytes(raw: bytes) -> bytes:
    return raw + b"!"


async def _untyped(value) -> Any:  # type: ignore[no-untyped-def]
    return value


async def _nothing() -> str:
    return "nothing"


async def _both(order: Order, attempt: Attempt) -> str:
    return f"{order.id} {attempt.number}"


async def _by_name(attempt, point: Point) -> str:  # type: ignore[no-untyped-def]
    return f"{point.x} {attempt.number}"


class _Object:
    async def __call__(self, point: Point) -> int:
        return point.x

    async def method(self, point: Point) -> int:
        return point.y


MOVE = {"start": {"x": 1, "y": 0}, "when": "2030-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("handler", "payload", "value"),
    [
        (_point, {"x": 1, "y": 2}, 3),
        (_point, Point(1), 1),
        (_order, {"id": 5}, {"id": 5, "lines": []}),
        (_order, Order(id=5, lines=["a"]), {"id": 5, "lines": ["a"]}),
        (
            _orders,
            [Order(id=1), Order(id=2)],
            {"1": {"id": 1, "lines": []}, "2": {"id": 2, "lines": []}},
        ),
        (_move, MOVE, "1 2030"),
        (_color, Color.RED, "red"),
        (_untyped, {"any": [1, None]}, {"any": [1, None]}),
        (_untyped, None, None),
        (_nothing, 1, "nothing"),
        (_both, Order(id=7), "7 4"),
        (_by_name, Point(3), "3 4"),
        (_Object(), Point(3), 3),
        (_Object().method, Point(3, 9), 9),
    ],
)
@pytest.mark.parametrize("codec", [JsonCodec(), MsgpackCodec()], ids=["json", "msgpack"])
async def test_payloads_are_decoded_into_the_hinted_type(
    handler: Any, payload: Any, value: Any, codec: Any
) -> None:
    """And values encoded again, whatever they are made of."""
    outcome = await run_handler(handler, payload, number=4, codec=codec)
    assert value == outcome.value()


async def test_bytes_stay_bytes() -> None:
    """In both directions."""
    outcome = await run_handler(_bytes, b"raw")
    assert (outcome.output, outcome.content_type) == (b"raw!", "application/octet-stream")


async def test_a_task_without_payload_is_none_where_that_is_allowed() -> None:
    """Else a permanent failure."""
    assert (await run_handler(_untyped)).value() is None
    refused = await run_handler(_point)
    assert refused.failure == "the task has no payload, but Point is wanted"
    assert refused.is_permanent


@pytest.mark.parametrize(
    ("error", "fields"),
    [
        (Retryable("again", retry_after=datetime.timedelta(seconds=2)), ("again", False, 2.0)),
        (Permanent("never"), ("never", True, None)),
        (ValueError("odd"), ("ValueError: odd", False, None)),
    ],
)
async def test_the_test_helper_tells_failures(error: Exception, fields: Any) -> None:
    """As the server would hear of them."""

    async def handler() -> None:
        raise error

    outcome = await run_handler(handler)
    assert fields == (outcome.failure, outcome.is_permanent, outcome.retry_after_s)
    with pytest.raises(AssertionError, match=fields[0]):
        outcome.value()


def test_the_test_helper_runs_sync_handlers() -> None:
    """On the calling thread, with what it is told about the attempt."""
    progress: list[Any] = []

    def handler(attempt: Attempt, point: Point) -> list[Any]:
        attempt.progress("half", fraction=0.5)
        return [attempt.key, attempt.tags, attempt.output_blocking(9, int), point.x]

    outcome = run_handler_blocking(
        handler, Point(5), key="k", tags={"a": "b"}, outputs={9: 41}, on_progress=progress.append
    )
    assert outcome.value() == ["k", {"a": "b"}, 41, 5]
    assert [(said.data, said.fraction) for said in progress] == [(b"half", 0.5)]


def test_the_test_helper_tells_cancels_and_rejects() -> None:
    """They are no failures."""

    def cancel() -> None:
        raise Cancel("no")

    def reject() -> None:
        raise Reject("full")

    assert run_handler_blocking(cancel).is_cancelled
    assert run_handler_blocking(reject).rejection == "full"


async def test_a_parent_without_output_in_a_test_is_an_error() -> None:
    """A test says which outputs there are."""

    async def handler(attempt: Attempt) -> Any:
        return await attempt.output(1)

    assert "KeyError" in str((await run_handler(handler)).failure)


def _keyword_only(*, point: Point) -> None:
    """Cannot be called."""


def _two(a: int, b: int) -> None:
    """Which one is the payload?"""


@pytest.mark.parametrize("handler", [_keyword_only, _two])
def test_a_signature_that_cannot_be_called_is_refused(handler: Any) -> None:
    """When it is registered, not when a task comes."""
    with pytest.raises(TypeError, match="handler"):
        Worker().handler("x")(handler)


def test_a_type_that_cannot_be_found_is_refused() -> None:
    """With a word about why."""

    class Local:
        """Not at module level."""

    def handler(value: Local) -> None:
        """Cannot be resolved from here."""

    with pytest.raises(TypeError, match="module level"):
        Worker().handler("x")(handler)


# --- codecs ---------------------------------------------------------------------------------------


def _zlib(**options: int) -> TransformingCodec:
    return TransformingCodec(JsonCodec(), [ZlibTransform(**options)])


class _Xor:
    """Stands for an encryption."""

    name = "xor"

    def wrap(self, payload: bytes) -> bytes:
        return bytes(byte ^ 42 for byte in payload)

    def unwrap(self, payload: bytes) -> bytes:
        return bytes(byte ^ 42 for byte in payload)


def test_transforms_wrap_and_unwrap_in_order() -> None:
    """The content type names them, and the reader follows it."""
    codec = TransformingCodec(JsonCodec(), [ZlibTransform(min_bytes=1), _Xor()])
    payload, content_type = codec.encode(["a"] * 1000)
    assert content_type == "application/json;transform=zlib;transform=xor"
    assert len(payload) < 100
    assert codec.decode(payload, content_type, list[str]) == ["a"] * 1000


def test_short_payloads_are_not_compressed() -> None:
    """And say so by what they do not say."""
    assert _zlib().encode("short") == (b'"short"', "application/json")
    assert _zlib().decode(b'"short"', "application/json", str) == "short"


@pytest.mark.regression("R18")
@pytest.mark.parametrize(
    ("payload", "options", "message"),
    [
        (b"not zlib", {}, "is not zlib"),
        (b"x\x9c\xcb\xc8", {}, "cut off"),
        (_zlib(min_bytes=1).encode("x" * 5000)[0], {"max_bytes": 1000}, "more than 1000 bytes"),
    ],
)
def test_broken_compression_is_a_payload_error(
    payload: bytes, options: dict[str, int], message: str
) -> None:
    """Never an endless or partial value."""
    with pytest.raises(PayloadError, match=message):
        _zlib(**options).decode(payload, "application/json;transform=zlib", str)


def test_compression_may_be_unpacked_without_a_limit() -> None:
    """The largest number there is stands for none."""
    codec = _zlib(min_bytes=1, max_bytes=sys.maxsize)
    assert codec.decode(*codec.encode("x" * 5000), str) == "x" * 5000


@pytest.mark.parametrize("value", [object(), {1j: 1}, "\ud800", [lambda: 0]])
@pytest.mark.parametrize("codec", [JsonCodec(), MsgpackCodec()], ids=["json", "msgpack"])
def test_what_cannot_be_encoded_is_a_payload_error(value: Any, codec: Any) -> None:
    """Before anything is sent."""
    with pytest.raises(PayloadError, match="cannot encode"):
        codec.encode(value)


def test_deep_nesting_is_a_payload_error() -> None:
    """Not the end of the process."""
    with pytest.raises(PayloadError):
        JsonCodec().decode(b"[" * 1_000_000, "application/json", Any)


async def test_a_client_needs_no_loop_to_be_made() -> None:
    """Only to be used."""
    assert repr(Client("h:1")) == "Client('h:1')"
