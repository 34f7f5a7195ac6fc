"""Decides whether reports survive a connection that breaks every two seconds.

    ./justw campaign cuts [--minutes 5] [--lang L] [--rate 500] [--every 2]

For each language a worker of 64 slots works behind a proxy that resets its connection again and
again, while tasks come at a steady rate. Most end at once; one in sixty is held for up to three
seconds, so that leases are out at every cut. In the end every task has succeeded, each was started
once in all, and the server has counted no retry, no expired lease and no lost worker's attempt.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from cronoq_conformance.cluster import Cluster
from cronoq_conformance.languages import ROOT, Language, build, read_languages
from cronoq_conformance.participant import Fact, Participant, ParticipantError
from cronoq_conformance.proxy import Proxy
from cronoq_conformance.run import environment

from cronoq_server._proto import admin_pb2_grpc, task_pb2, tasks_pb2, tasks_pb2_grpc

SLOTS = 64
HELD_ONE_IN = 60  # with HELD_S this takes less than half of the slots
HELD_S = 3.0
BATCH_MAX = 1000
TICK_S = 0.1
END_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Options:
    """How long, how fast, how often."""

    minutes: float
    rate: int
    every_s: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one language's run came to; empty problems are a pass."""

    tasks: int
    cuts: int
    problems: tuple[str, ...]


class Run:
    """One language's worker, its proxy, its server."""

    def __init__(self, language: str, command: Sequence[str], options: Options) -> None:
        self._options = options
        self._worker = Participant(command, ROOT, environment())
        self._submitted: set[int] = set()
        self._starts: Counter[int] = Counter()
        self._chance = random.Random(language)

    async def play(self) -> Verdict:
        """Plays it and says what it came to."""
        with tempfile.TemporaryDirectory(prefix="cronoq-cuts-") as folder:
            cluster = Cluster(Path(folder), store="sqlite")
            await cluster.start()
            proxy = Proxy([("127.0.0.1", cluster.replicas[0].port)])
            await proxy.start()
            try:
                return await self._play(cluster, proxy)
            finally:
                await self._worker.close()
                await proxy.stop()
                await cluster.stop()

    async def _play(self, cluster: Cluster, proxy: Proxy) -> Verdict:
        await self._worker.start()
        await self._worker.send(
            "start_worker",
            {
                "options": {"endpoint": proxy.endpoint, "slots": SLOTS},
                "handlers": {"quick": {"act": "complete"}, "held": {"act": "block"}},
            },
        )
        await self._worker.fact("connected", {})
        self._worker.on_fact = self._note
        async with grpc.aio.insecure_channel(cluster.endpoint) as channel:
            cutting = asyncio.create_task(self._cut(proxy))
            await self._submit(tasks_pb2_grpc.TasksStub(channel))
            cutting.cancel()
            problems = await self._judge(admin_pb2_grpc.AdminStub(channel))
        return Verdict(len(self._submitted), len(proxy.accepted_at) - 1, tuple(problems))

    async def _submit(self, stub: Any) -> None:
        """Submits at the rate, whatever becomes of the worker."""
        ends_at = time.monotonic() + self._options.minutes * 60
        begun = time.monotonic()
        while (now := time.monotonic()) < ends_at:
            due = int((now - begun) * self._options.rate) - len(self._submitted)
            due = min(due, BATCH_MAX)  # a machine that was busy catches up by and by
            if due > 0:
                request = tasks_pb2.SubmitManyRequest()
                for _ in range(due):
                    is_held = self._chance.randrange(HELD_ONE_IN) == 0
                    request.tasks.add(kind="held" if is_held else "quick")
                answer = await stub.SubmitMany(request)
                self._submitted.update(outcome.response.id for outcome in answer.outcomes)
            await asyncio.sleep(TICK_S)

    def _note(self, fact: Fact) -> None:
        """Counts a start, and lets each held task go some time after its own."""
        if fact["fact"] != "attempt_started":
            return
        self._starts[int(fact["task_id"])] += 1
        if fact["kind"] == "held":
            delay = self._chance.uniform(0.1, HELD_S)
            asyncio.get_running_loop().call_later(delay, self._finish, fact)

    def _finish(self, fact: Fact) -> None:
        ending = {"task_id": fact["task_id"], "behaviour": {"act": "complete"}}
        # One that is on its way as the program is ended has nobody to go to.
        with contextlib.suppress(ParticipantError):
            self._worker.send("finish_attempt", ending)

    async def _cut(self, proxy: Proxy) -> None:
        while True:
            await asyncio.sleep(self._options.every_s)
            proxy.cut()

    async def _judge(self, stub: Any) -> list[str]:
        """Waits until all have ended and counts what happened on both sides."""
        totals = await self._settled(stub)
        expected = len(self._submitted)
        problems = []
        if totals.succeeded != expected:
            problems.append(f"{totals.succeeded} of {expected} tasks succeeded")
        for name in ("retries", "lease_expiries", "timeouts", "failed", "dead_lettered"):
            if count := getattr(totals, name):
                problems.append(f"{count} {name}")
        starts = self._starts
        twice = [task for task, count in starts.items() if count > 1]
        if twice:
            problems.append(f"{len(twice)} tasks started more than once, {twice[:5]} among them")
        if missing := len(self._submitted - starts.keys()):
            problems.append(f"{missing} tasks never started")
        return problems

    async def _settled(self, stub: Any) -> Any:
        ends_at = time.monotonic() + END_TIMEOUT_S
        while True:
            snapshot = await stub.Snapshot(task_pb2.Empty())
            if not snapshot.live_tasks or time.monotonic() > ends_at:
                return snapshot.totals
            await asyncio.sleep(TICK_S)


async def _run(languages: Sequence[Language], options: Options) -> int:
    commands = await build(languages)
    failed = 0
    for language, command in commands.items():
        verdict = await Run(language, command, options).play()
        failed += bool(verdict.problems)
        what = "; ".join(verdict.problems) or "each ran once, none was lost"
        print(f"{language}: {verdict.tasks} tasks, {verdict.cuts} cuts: {what}", flush=True)
    print(f"{len(commands) - failed} passed, {failed} failed", flush=True)
    return 0 if commands and not failed else 1


def main(arguments: Sequence[str]) -> int:
    """Runs the campaign and returns the exit code."""
    parser = argparse.ArgumentParser(prog="./justw campaign cuts", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="for each language")
    parser.add_argument("--rate", type=int, default=500, help="tasks per second")
    parser.add_argument("--every", type=float, default=2.0, help="seconds between cuts")
    parser.add_argument("--lang", action="append", help="only this language; may come twice")
    said = parser.parse_args(arguments)
    languages = [each for each in read_languages() if not said.lang or each.name in said.lang]
    if not languages:
        print(f"no such language: {said.lang}", file=sys.stderr)
        return 2
    return asyncio.run(_run(languages, Options(said.minutes, said.rate, said.every)))
