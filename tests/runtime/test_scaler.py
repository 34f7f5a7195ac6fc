"""Webhooks are told the newest wish, one request at a time, whatever they answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import httpx
import pytest

from cronoq_server.engine.model import SECOND, Now
from cronoq_server.runtime.clock import Alarm
from cronoq_server.runtime.scaler import Scalers, Webhook
from cronoq_server.testing.faults import ManualClock

HOOK = Webhook("gpu", "https://scaler.example/pools", "a-token-of-some-length")


class Receiver:
    """A webhook that keeps each request until the test answers it."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[tuple[httpx.Request, asyncio.Future[int]]] = asyncio.Queue()
        self.under_way = 0
        self.most_under_way = 0

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        """Takes a request and waits for the test to decide its status."""
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        await self.asked.put((request, answer))
        try:
            status = await answer
            if status == 0:
                raise httpx.ConnectError("nobody there")
            return httpx.Response(status)
        finally:
            self.under_way -= 1

    async def next(self) -> tuple[dict[str, object], asyncio.Future[int]]:
        """The next request's body, and what to set its status with (0 = broken connection)."""
        request, answer = await asyncio.wait_for(self.asked.get(), 10)
        return json.loads(request.content), answer


class Pauses(ManualClock):
    """A clock that tells when somebody begins to wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: asyncio.Queue[Now] = asyncio.Queue()

    def call_at(self, at: Now, ring: Callable[[], object]) -> Alarm:
        """As ever."""
        self.begun.put_nowait(at)
        return super().call_at(at, ring)


@pytest.fixture
def receiver() -> Receiver:
    """A webhook under the test's control."""
    return Receiver()


def scalers(receiver: Receiver, clock: ManualClock) -> Scalers:
    """Scalers whose network is the receiver."""
    return Scalers([HOOK], clock, httpx.MockTransport(receiver))


async def test_wish_is_posted_with_its_token(receiver: Receiver) -> None:
    """The webhook learns pool and number, under the configured token."""
    async with scalers(receiver, ManualClock()) as told:
        told.want("gpu", 3)
        request, answer = await receiver.asked.get()
        assert request.headers["authorization"] == "Bearer a-token-of-some-length"
        assert json.loads(request.content) == {"pool": "gpu", "desired": 3, "number": 1}
        answer.set_result(204)


async def test_only_newest_wish_follows_a_slow_answer(receiver: Receiver) -> None:
    """While a request is out wishes replace each other, and requests never overlap."""
    async with scalers(receiver, ManualClock()) as told:
        told.want("gpu", 1)
        first, answer = await receiver.next()
        for desired in (2, 3, 4):
            told.want("gpu", desired)
        assert receiver.asked.empty()
        answer.set_result(200)
        second, answer = await receiver.next()
        answer.set_result(200)
    assert (first["desired"], second["desired"]) == (1, 4)
    assert second["number"] == 2
    assert receiver.most_under_way == 1


@pytest.mark.parametrize("status", [0, 400, 500])
async def test_failure_is_tried_again_with_the_newest_wish(receiver: Receiver, status: int) -> None:
    """A webhook that fails gets what is wanted by then, after a pause."""
    clock = ManualClock()
    async with scalers(receiver, clock) as told:
        told.want("gpu", 1)
        _, answer = await receiver.next()
        answer.set_result(status)
        told.want("gpu", 5)
        await clock.advance(SECOND)
        again, answer = await receiver.next()
        assert again["desired"] == 5
        answer.set_result(200)


@pytest.mark.parametrize(
    ("hook", "transport"),
    [
        (Webhook("gpu", "http://-scaler.\N{LATIN SMALL LETTER U WITH DIAERESIS}/"), True),
        (Webhook("gpu", "http://xn--/"), True),
        (
            Webhook("gpu", "http://scaler.example/", "schl\N{LATIN SMALL LETTER U WITH DIAERESIS}"),
            True,
        ),
        (Webhook("gpu", "http://127.0.0.1:99999/"), False),
    ],
    ids=["host", "punycode", "token", "port"],
)
async def test_webhook_that_can_not_even_be_asked_fails_like_any_other(
    receiver: Receiver, caplog: pytest.LogCaptureFixture, hook: Webhook, transport: bool
) -> None:
    """Somebody is told, again and again, and its line lives on."""
    clock = Pauses()
    mock = httpx.MockTransport(receiver) if transport else None
    async with Scalers([hook], clock, mock) as told:
        told.want("gpu", 1)
        for seconds in (1, 2, 4):
            await asyncio.wait_for(clock.begun.get(), 10)
            await clock.advance(seconds * SECOND)
    assert {record.action for record in caplog.records} == {"scaler_failed"}  # type: ignore[attr-defined]
    assert hook.url not in caplog.text


async def test_wish_that_was_told_is_not_told_again(receiver: Receiver) -> None:
    """Going up and back down while a request is out leaves nothing to say."""
    async with scalers(receiver, ManualClock()) as told:
        told.want("gpu", 2)
        _, answer = await receiver.next()
        told.want("gpu", 9)
        told.want("gpu", 2)
        told.want("other", 7)
        answer.set_result(200)
        told.want("gpu", 3)
        body, answer = await receiver.next()
        assert body["desired"] == 3
        answer.set_result(200)


async def test_end_does_not_wait_for_a_webhook(receiver: Receiver) -> None:
    """A server that stops leaves requests behind."""
    async with scalers(receiver, ManualClock()) as told:
        told.want("gpu", 2)
        await receiver.next()
    assert receiver.under_way == 0


def test_webhook_does_not_show_its_secrets() -> None:
    """Neither token nor address gets into a log by way of a repr."""
    assert "token" not in repr(HOOK)
    assert "scaler.example" not in repr(HOOK)
