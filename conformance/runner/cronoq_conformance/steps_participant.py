"""Decides what the steps about participants do: commands, answers, facts."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from time import monotonic
from typing import Any

from .judge import mismatch, shown
from .stage import Failure, Stage, Step

Fields = Mapping[str, Any]

# Small, so that nothing takes long; RR-05 makes a window of half a second of it.
WORKER_OPTIONS = {
    "endpoint": "{a}",
    "backoff_initial": 0.05,
    "backoff_max": 0.3,
    "connect_timeout": 2,
    "drain_timeout": 5,
}
CLIENT_OPTIONS = {
    "endpoint": "{a}",
    "backoff_initial": 0.02,
    "backoff_max": 0.2,
    "connect_timeout": 2,
    "deadline": 15,
}


def check(pattern: Any, observed: Any) -> None:
    """Compares; raises Failure if it is not so."""
    problem = mismatch(pattern, observed)
    if problem:
        raise Failure(problem)


async def answer_of(stage: Stage, answer: asyncio.Future[dict[str, Any]], fields: Fields) -> None:
    """Waits for an answer, compares it and keeps it."""
    try:
        got = await answer
    except asyncio.CancelledError:
        if answer.cancelled():
            raise Failure("the participant ended without an answer") from None
        raise
    wanted = "failed" if "fails" in fields else "done"
    if got["fact"] != wanted:
        raise Failure(f"answered {shown(got)}")
    check(fields.get("fails", fields.get("expect", {})), got)
    if "as" in fields:
        stage.saved[fields["as"]] = got


def options(stage: Stage, usual: Fields, said: Fields | None, fields: Fields) -> dict[str, Any]:
    """Returns the options of a worker or client; null takes one away."""
    tls = stage.tls_options() if fields.get("tls", True) else {}
    merged = {**usual, **tls, **(said or {})}
    return {name: stage.resolve(value) for name, value in merged.items() if value is not None}


async def worker(stage: Stage, said: Any, fields: Fields) -> None:
    """Starts a worker."""
    usual = WORKER_OPTIONS
    if stage.cluster is not None and not stage.peers:
        usual = {**usual, "endpoint": "{cluster}", **stage.credentials()}
    command: dict[str, Any] = {"options": options(stage, usual, said, fields)}
    for name in ("handlers", "default_handler", "until_signal"):
        if name in fields:
            command[name] = fields[name]
    if "handlers" not in fields and "default_handler" not in fields:
        command["default_handler"] = {"act": "echo"}
    participant = await stage.participant(fields.get("by", "it"), fields.get("language"))
    await answer_of(stage, participant.send("start_worker", command), fields)


async def client(stage: Stage, said: Any, fields: Fields) -> None:
    """Starts a client."""
    usual = CLIENT_OPTIONS
    if stage.cluster is not None and not stage.peers:
        usual = {**usual, "endpoint": "{cluster}", **stage.credentials()}
    command = {"options": options(stage, usual, said, fields)}
    participant = await stage.participant(fields.get("by", "it"), fields.get("language"))
    await answer_of(stage, participant.send("start_client", command), fields)


async def ask(stage: Stage, name: Any, fields: Fields) -> None:
    """Gives a command and waits for its answer."""
    participant = await stage.participant(fields.get("by", "it"))
    await answer_of(stage, participant.send(name, fields.get("with", {})), fields)


async def until(stage: Stage, name: Any, fields: Fields) -> None:
    """Gives a command again and again until its answer is as expected."""
    participant = await stage.participant(fields.get("by", "it"))
    while True:
        got = await participant.send(name, fields.get("with", {}))
        if got["fact"] == "done" and not mismatch(fields["expect"], got):
            return
        await asyncio.sleep(0.1)


async def send(stage: Stage, name: Any, fields: Fields) -> None:
    """Gives a command whose answer a later step awaits."""
    participant = await stage.participant(fields.get("by", "it"))
    answer = participant.send(name, fields.get("with", {}))
    if "as" in fields:
        stage.answers[fields["as"]] = answer


async def await_answer(stage: Stage, name: Any, fields: Fields) -> None:
    """Waits for the answer to an earlier command."""
    await answer_of(stage, stage.answers[name], {"as": name, **fields})


async def await_case(stage: Stage, name: Any, _: Fields) -> None:
    """Waits for an answer that the case of the scenario describes: `expect` or `fails`."""
    wanted = {key: stage.saved[key] for key in ("expect", "fails") if key in stage.saved}
    await answer_of(stage, stage.answers[name], stage.resolve(wanted))


async def numbered_tasks(stage: Stage, name: Any, fields: Fields) -> None:
    """Keeps a list of tasks with keys 1, 2 …."""
    stage.saved[name] = [{"kind": "work", "key": str(n)} for n in range(1, fields["count"] + 1)]


async def numbered_outcomes(stage: Stage, name: Any, _: Fields) -> None:
    """Fails unless the outcomes of numbered tasks are in their order."""
    ids = [int(outcome["task_id"]) for outcome in stage.saved[name]["outcomes"]]
    if ids != list(range(1, len(ids) + 1)):
        raise Failure(f"outcomes are not in the order of the tasks: {shown(ids)}")


async def unanswered(stage: Stage, name: Any, _: Fields) -> None:
    """Fails if an earlier command has its answer already."""
    if stage.answers[name].done():
        raise Failure(f"answered {shown(stage.answers[name].result())}")


async def fact(stage: Stage, name: Any, fields: Fields) -> None:
    """Waits for a fact."""
    participant = await stage.participant(fields.get("by", "it"))
    found = await participant.fact(name, fields.get("like", {}))
    if "as" in fields:
        stage.saved[fields["as"]] = found


async def no_fact(stage: Stage, name: Any, fields: Fields) -> None:
    """Fails if there is such a fact."""
    participant = await stage.participant(fields.get("by", "it"))
    found = participant.unread(name, fields.get("like", {}))
    if found:
        raise Failure(f"there is {shown(found[0])}")


async def facts(stage: Stage, name: Any, fields: Fields) -> None:
    """Waits for so many facts of one kind; compares them as a list."""
    participant = await stage.participant(fields.get("by", "it"))
    found = [await participant.fact(name, fields.get("like", {})) for _ in range(fields["count"])]
    check(fields.get("expect", {"present": True}), found)


async def most_running(stage: Stage, pattern: Any, fields: Fields) -> None:
    """Compares how many handlers ran at once."""
    check(pattern, (await stage.participant(fields.get("by", "it"))).most_running)


async def signal(stage: Stage, name: Any, fields: Fields) -> None:
    """Sends the participant a signal."""
    (await stage.participant(fields.get("by", "it"))).signal(name)


async def ended(stage: Stage, code: Any, fields: Fields) -> None:
    """Waits until the participant has ended, with this exit code."""
    check(code, await (await stage.participant(fields.get("by", "it"))).ended())


async def logs(stage: Stage, pattern: Any, fields: Fields) -> None:
    """Compares what the participant has logged, as one text."""
    participant = await stage.participant(fields.get("by", "it"))
    check(pattern, "\n".join(participant.log))


async def mark(stage: Stage, name: Any, _: Fields) -> None:
    """Remembers this instant."""
    stage.marks[name] = monotonic()


async def elapsed(stage: Stage, name: Any, fields: Fields) -> None:
    """Compares the time since a mark; for scenarios whose subject is time."""
    check({k: v for k, v in fields.items() if k.startswith("at_")}, monotonic() - stage.marks[name])


async def pause(_: Stage, seconds: Any, __: Fields) -> None:
    """Lets time pass; for scenarios whose subject is time."""
    await asyncio.sleep(seconds)


async def set_value(stage: Stage, name: Any, fields: Fields) -> None:
    """Keeps a value under a name."""
    stage.saved[name] = fields["to"]


async def long_text(stage: Stage, name: Any, fields: Fields) -> None:
    """Keeps a long text under a name."""
    stage.saved[name] = "x" * fields["size"]


async def rises(_: Stage, values: Any, __: Fields) -> None:
    """Fails unless each value is higher than the one before."""
    numbers = [int(value) for value in values]
    if any(first >= second for first, second in itertools.pairwise(numbers)):
        raise Failure(f"{numbers} do not rise")


async def is_ready(stage: Stage, wanted: Any, fields: Fields) -> None:
    """Asks the readiness probe until it says so: other threads of the SDK set it."""
    participant = await stage.participant(fields.get("by", "it"))
    # The probe is a question, no fact.
    while (await participant.send("is_ready", {})).get("ready") is not wanted:  # noqa: ASYNC110
        await asyncio.sleep(0.02)


STEPS: dict[str, Step] = {
    "worker": worker,
    "client": client,
    "ask": ask,
    "until": until,
    "send": send,
    "await": await_answer,
    "await_case": await_case,
    "numbered_tasks": numbered_tasks,
    "numbered_outcomes": numbered_outcomes,
    "unanswered": unanswered,
    "fact": fact,
    "facts": facts,
    "no_fact": no_fact,
    "most_running": most_running,
    "signal": signal,
    "ended": ended,
    "logs": logs,
    "mark": mark,
    "elapsed": elapsed,
    "pause": pause,
    "set": set_value,
    "rises": rises,
    "long_text": long_text,
    "ready": is_ready,
}
