"""Holds functions that are tasks to what their authors expect: called, bound, sent, run, typed."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import json
from typing import Any, assert_type

import pydantic
import pytest
from scripted_server import PATIENCE_S, ScriptedServer

from cronoq import (
    App,
    AppHandle,
    Attempt,
    CronoqError,
    PayloadError,
    Permanent,
    Priority,
    RetryPolicy,
)
from cronoq.testing import run_handler, run_handler_blocking


@dataclasses.dataclass
class Point:
    """A plain value."""

    x: int
    y: int = 0


class Order(pydantic.BaseModel):
    """A value of pydantic's kind."""

    id: int
    lines: list[str] = []


@dataclasses.dataclass
class Basket:
    """A plain value with models inside."""

    orders: list[Order]


# What a type checker would not let pass.
OPAQUE: Any = object()
WORD: Any = "one"
WRONG: Any = {"x": "a"}

app = App(pool="office", slots=4)


@app.task
async def add(left: int, right: int = 1) -> int:
    """Adds."""
    return left + right


@app.task(kind="mail.send", pool="mail", retries=2, timeout=30, priority=Priority.HIGH)
def send(to: str, /, *parts: str, at: datetime.date, raw: bytes = b"", **headers: int) -> str:
    """Sends."""
    return f"{to} {'+'.join(parts)} {at.year} {raw!r} {headers}"


@app.task
async def bill(order: Order, point: Point | None, attempt: Attempt | None = None) -> Basket:
    """Takes what a model and a dataclass hold, and the attempt."""
    if attempt is not None and attempt.number > 1:
        raise Permanent("once is enough")
    lines = [*order.lines, str(point)]
    return Basket([Order(id=order.id, lines=lines)])


@app.task
def total(basket: Basket) -> int:
    """Takes a dataclass with models inside."""
    return sum(order.id for order in basket.orders)


async def test_a_task_function_called_directly_is_the_function() -> None:
    """Unit tests need nothing else."""
    assert await add(1, 2) == 3
    assert send("ann", "a", "b", at=datetime.date(2030, 1, 1), x=1) == "ann a+b 2030 b'' {'x': 1}"
    assert (add.__name__, add.__doc__, add.kind, send.kind) == ("add", "Adds.", "add", "mail.send")
    assert (await bill(Order(id=1), None)).orders[0].lines == ["None"]


def test_a_call_travels_as_an_object_by_parameter_name() -> None:
    """What is left to its default is not sent; options of the decorator go along."""
    spec = send.spec("ann", "a", "b", at=datetime.date(2030, 1, 1), raw=b"hi", x=1)
    assert json.loads(spec.payload) == {
        "to": "ann",
        "parts": ["a", "b"],
        "at": "2030-01-01",
        "raw": "aGk=",
        "headers": {"x": 1},
    }
    assert (spec.kind, spec.pool, spec.timeout, spec.content_type) == (
        "mail.send",
        "mail",
        30,
        "application/json",
    )
    assert (spec.retry, spec.priority) == (RetryPolicy(max_attempts=3), Priority.HIGH)
    assert (add.spec(1).payload, add.spec(1).pool) == (b'{"left":1}', "office")


def test_options_of_one_call_replace_those_of_the_decorator() -> None:
    """And leave the function as it is."""
    spec = send.options(key="k", timeout=5).spec("ann", at=datetime.date(2030, 1, 1))
    assert (spec.key, spec.timeout, spec.pool, spec.kind) == ("k", 5, "mail", "mail.send")
    assert send.spec("ann", at=datetime.date(2030, 1, 1)).timeout == 30


async def _run(task: Any, spec: Any, **fields: Any) -> Any:
    run = run_handler if asyncio.iscoroutinefunction(task.function) else _run_blocking
    outcome = await run(task.handler(), json.loads(spec.payload), **fields)
    return outcome.value(task.returns) if outcome.failure is None else outcome.failure


async def _run_blocking(*args: Any, **fields: Any) -> Any:
    return run_handler_blocking(*args, **fields)


async def test_a_worker_gets_the_arguments_as_their_hints_say() -> None:
    """Dataclasses, models, dates, bytes, rest arguments, and the attempt."""
    sent = send.spec("ann", "a", "b", at=datetime.date(2030, 1, 1), raw=b"hi", x=1)
    assert await _run(send, sent) == "ann a+b 2030 b'hi' {'x': 1}"
    basket = await _run(bill, bill.spec(Order(id=7, lines=["a"]), Point(1)))
    assert basket == Basket([Order(id=7, lines=["a", "Point(x=1, y=0)"])])
    assert await _run(bill, bill.spec(Order(id=7), None), number=2) == "once is enough"
    assert await _run(total, total.spec(Basket([Order(id=7), Order(id=8)]))) == 15
    assert await _run(add, add.spec(right=5, left=4)) == 9


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: add.spec(), "task 'add': missing a required argument: 'left'"),  # type: ignore[call-arg]
        (lambda: add.spec(1, 2, 3), "task 'add': too many positional arguments"),  # type: ignore[call-arg]
        (lambda: add.spec(1, up=2), "unexpected keyword argument 'up'"),  # type: ignore[call-arg]
        (lambda: bill.spec(Order(id=1), None, attempt=None), "unexpected keyword .*'attempt'"),
        (lambda: add.options(timout=3), "task 'add': .*timout.*; options are those"),  # type: ignore[call-arg]
    ],
)
def test_a_call_that_does_not_bind_names_the_argument(call: Any, message: str) -> None:
    """As Python does, with the task's name."""
    with pytest.raises(TypeError, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bill.spec(Order(id=1), OPAQUE), "task 'bill': argument 'point': cannot encode"),
        (lambda: add.spec(WORD), "task 'add': argument 'left': .*int.*str"),
        (lambda: bill.spec(Order(id=1), WRONG), r"argument 'point': .*\$.x"),
    ],
)
def test_an_argument_that_cannot_travel_is_named(call: Any, message: str) -> None:
    """One without a JSON form, and one that the worker could not read."""
    with pytest.raises(PayloadError, match=message):
        call()


def test_arguments_are_not_checked_where_that_is_not_wanted() -> None:
    """Reading large ones takes time."""
    quick = App(check_arguments=False)

    @quick.task
    def double(n: int) -> int:
        return 2 * n

    assert double.spec("one").payload == b'{"n":"one"}'  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ([1, 2], "task 'add': no object of arguments: .*array"),
        ({"right": 1}, "task 'add': argument 'left' is missing"),
        ({"left": 1, "up": 2}, "task 'add': there is no argument 'up'"),
        ({"left": "1"}, "task 'add': argument 'left': .*int"),
        (b"raw", "arguments are no object but application/octet-stream"),
    ],
)
async def test_arguments_of_strangers_that_do_not_fit_fail_for_good(
    payload: Any, message: str
) -> None:
    """Another attempt would meet the same bytes."""
    outcome = await run_handler(add.handler(), payload)
    assert outcome.is_permanent
    with pytest.raises(AssertionError, match=message):
        outcome.value()


async def test_a_task_without_payload_is_a_call_without_arguments() -> None:
    """Schedules made by hand have none."""
    tick_app = App()

    @tick_app.task
    async def tick(times: int = 3) -> int:
        return times

    assert (await run_handler(tick.handler())).value() == 3


def test_mistakes_at_the_decorator_are_refused_there() -> None:
    """With a word on what to do."""
    strict = App()

    @strict.task
    def once() -> None:
        """Nothing."""

    with pytest.raises(ValueError, match="kind 'once' has a function already"):
        strict.task(kind="once")(once.function)
    with pytest.raises(ValueError, match="retries and retry"):
        strict.task(kind="a", retries=1, retry=RetryPolicy())(once.function)
    with pytest.raises(ValueError, match="retries is -1"):
        strict.task(kind="b", retries=-1)(once.function)
    with pytest.raises(TypeError, match="no function with a name"):
        strict.task(3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="a method has nobody"):

        class _Holder:
            @strict.task
            def method(self) -> None:
                """Nobody would be `self`."""


async def test_what_is_no_task_function_cannot_be_submitted() -> None:
    """The error says how to make it one."""

    def plain() -> None:
        """No decorator."""

    with pytest.raises(TypeError, match="plain is no task function: decorate it"):
        await app.submit(plain)  # type: ignore[call-overload]


def test_an_app_without_functions_has_no_worker() -> None:
    """The usual reason is a module that nobody imported."""
    with pytest.raises(ValueError, match="is the module imported"):
        App().worker()


def test_where_the_server_is_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the app says it."""
    monkeypatch.delenv("CRONOQ_ENDPOINT", raising=False)
    assert App().endpoint == "127.0.0.1:7070"
    monkeypatch.setenv("CRONOQ_ENDPOINT", "queue:1")
    monkeypatch.setenv("CRONOQ_TOKEN", "secret")
    assert App().endpoint == "queue:1"
    assert App().client.options.token == "secret"
    assert App("other:2").endpoint == "other:2"
    assert App("other:2", token="own").client.options.token == "own"


async def _types() -> None:
    """Never run: what a type checker knows of submissions."""
    assert_type(await app.submit(add, 1, right=2), AppHandle[int])
    assert_type(await app.submit(total, Basket([])), AppHandle[int])
    assert_type(await add.options(delay=5).submit(1), AppHandle[int])
    assert_type(await (await app.submit(bill, Order(id=1), None)).result(), Basket)
    assert_type(app.blocking.submit(add, 1).result(), int)
    assert_type(await app.submit_many([]), list[AppHandle[Any] | CronoqError])


async def test_a_stop_does_not_wait_for_a_server_to_take_the_schedules(
    server: ScriptedServer,
) -> None:
    """A signal that comes while no server answers ends the program."""
    app = App(server.endpoint)

    @app.task(schedule="@hourly")
    async def tick() -> None:
        pass

    asked = asyncio.Event()

    async def never(_request: Any) -> None:
        asked.set()
        await asyncio.get_running_loop().create_future()

    server.on_admin("GetRecurring", never)
    running = asyncio.create_task(app.run())
    await asyncio.wait_for(asked.wait(), PATIENCE_S)
    await app.stop()
    await asyncio.wait_for(running, PATIENCE_S)
