"""Decides how the whole is held under load and faults for long, and what has to stay as it was.

`./justw campaign soak [--minutes N] [--seed S] [--rate R] [--every S] [--save NAME]` has three
servers over one PostgreSQL, a worker of each language's SDK and callers that submit at a steady
rate and wait for each end. Every so often a fault of chance strikes. Memory and open files of
servers and workers have to stay flat, no task may be stuck, and the p99 has to be what it was soon
after each fault.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import msgspec
from cronoq_conformance.languages import ROOT, build, read_languages
from cronoq_conformance.participant import Participant
from cronoq_conformance.run import environment

import cronoq
from cronoq_server._proto import admin_pb2_grpc, task_pb2
from tests.bench.environment import RESULTS, describe, save
from tests.bench.picture import Axes, Line, draw
from tests.campaigns._soak_measure import (
    WINDOW_S,
    Growth,
    Sample,
    Took,
    began_within,
    growth,
    look,
    p99,
    recovered_s,
)
from tests.e2e.audit import judge
from tests.e2e.faults import (
    Scene,
    end_commit_sessions,
    end_lock_session,
    kill_database,
    pause_database,
    pause_leader,
    restart_database,
)
from tests.e2e.place import SHORT, PostgresPlace, Waits, postgres_place
from tests.e2e.replicas import Balancer, Group, ReplicaProcess
from tests.stores.pg import running_cluster

SERVERS = 3
KEPT = 0
"""This server is never ended: its memory is that of the whole run."""
CALLERS_PER_S = 0.5
"""A caller for every two tasks a second."""
SLOTS = 16
DEADLINE_S = 120.0
LOOK_S = 5.0
RECOVERED_S = 10.0
REST_S = RECOVERED_S + WINDOW_S
KEEPS = "retention_s = 60\nkeep_finished_s = 120\nprune_interval_s = 10\n"
FURTHER = "\n[limits]\nkey_retention_s = 60\n"


class Struck(msgspec.Struct, frozen=True):
    """One fault: which, when it began and was over (seconds since the begin).

    The machine's load average as it began says whether others had the time that a recovery needs.
    """

    fault: str
    at_s: float
    over_s: float
    load_average: float


class Load:
    """Callers at a steady rate, each of which waits for its task's end.

    Attributes:
        tasks: Those that have ended.
    """

    def __init__(self, address: str, rate: float, kinds: Sequence[str], began: float) -> None:
        self.tasks: list[Took] = []
        self._client = cronoq.Client(address, deadline=DEADLINE_S)
        self._kinds = kinds
        self._began = began
        self._count = max(4, int(rate * CALLERS_PER_S))
        self._pause_s = self._count / rate
        self._number = 0
        self._finishing = False
        self._more = asyncio.Condition()
        self._calling: list[asyncio.Task[None]] = []

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Load]:
        """Calls while the context is open."""
        self._calling = [
            asyncio.create_task(self._call(self._pause_s * number / self._count))
            for number in range(self._count)
        ]
        try:
            yield self
        finally:
            for calling in self._calling:
                calling.cancel()
            await asyncio.gather(*self._calling, return_exceptions=True)
            await self._client.close()

    async def _call(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        while not self._finishing:
            began = time.monotonic()
            self._number += 1
            number = self._number
            kind = self._kinds[number % len(self._kinds)]
            handle = await self._client.submit(kind, number, key=f"soak-{number}")
            result = await handle.wait()
            assert result.status is cronoq.TaskStatus.SUCCEEDED, result
            took_s = time.monotonic() - began
            self.tasks.append(Took(round(began - self._began, 2), round(took_s, 4)))
            async with self._more:
                self._more.notify_all()
            await asyncio.sleep(max(0.0, self._pause_s - took_s))

    async def goes_on(self, count: int) -> None:
        """Returns when so many more tasks have ended."""
        wanted = len(self.tasks) + count
        async with asyncio.timeout(DEADLINE_S), self._more:
            await self._more.wait_for(
                lambda: len(self.tasks) >= wanted or any(c.done() for c in self._calling)
            )
        self.look_for_errors()

    def look_for_errors(self) -> None:
        """Raises what ended a caller, if anything did."""
        for calling in self._calling:
            if calling.done():
                calling.result()

    async def finish(self) -> None:
        """Returns when every task has ended."""
        self._finishing = True
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(*self._calling)


async def strike(name: str, scene: Scene, balancer: Balancer) -> str:
    """Strikes with a fault; returns what it was, for one server is never ended."""
    leader = await scene.group.leader()
    if name in ENDINGS and leader is scene.group.servers[KEPT]:
        name = "lock-session-ended"
    if name == "connections-cut":
        balancer.cut()
    elif name in ENDINGS:
        # This one, whoever leads by now: two may believe that they do.
        await leader.end(ENDINGS[name])
        await scene.group.another(leader)
        await leader.start()
    else:
        await FAULTS[name](scene)
    return name


ENDINGS = {"leader-killed": signal.SIGKILL, "leader-stopped": signal.SIGTERM}

FAULTS = {
    "leader-paused": pause_leader,
    "lock-session-ended": end_lock_session,
    "commit-sessions-ended": end_commit_sessions,
    "database-restarted": restart_database,
    "database-killed": kill_database,
    "database-paused": pause_database,
}
NAMES = (*ENDINGS, *FAULTS, "connections-cut")


class Run:
    """One run, and all that was seen of it."""

    def __init__(
        self, options: argparse.Namespace, commands: Mapping[str, tuple[str, ...]]
    ) -> None:
        self._options = options
        self._commands = commands
        self._chance = random.Random(options.seed)
        self._began = time.monotonic()
        self._ended_s = options.minutes * 60
        self._stack = AsyncExitStack()
        self._workers: dict[str, Participant] = {}
        self.samples: dict[str, list[Sample]] = {}
        self.struck: list[Struck] = []
        self.tasks: list[Took] = []

    def _at(self) -> float:
        return time.monotonic() - self._began

    async def play(self, place: PostgresPlace, folder: Path) -> int:
        """Plays it; returns how many leaderships there were.

        Raises:
            AssertionError: A promise was broken.
        """
        async with self._stack:
            scene, balancer, load = await self._begin(place, folder)
            looking = asyncio.create_task(self._look(scene.group))
            try:
                await load.goes_on(1)
                await self._strike_again_and_again(scene, balancer, load)
                await load.finish()
                await self._nothing_is_left(scene.group)
                terms = judge(await place.audit.rows())
            except (AssertionError, TimeoutError) as error:
                for server in scene.group.servers:
                    error.add_note(server.last_words())
                for name, worker in self._workers.items():
                    error.add_note("\n".join([f"{name}:", *worker.log[-20:]]))
                raise
            finally:
                looking.cancel()
                await asyncio.gather(looking, return_exceptions=True)
            self.tasks = sorted(load.tasks, key=lambda task: task.at_s)
        return terms

    async def _begin(self, place: PostgresPlace, folder: Path) -> tuple[Scene, Balancer, Load]:
        servers = []
        for number in range(SERVERS):
            server = ReplicaProcess(folder, f"server-{number}", place.store + KEEPS, FURTHER)
            self._stack.push_async_callback(server.kill)
            await server.start()
            servers.append(server)
        balancer = Balancer([server.port for server in servers])
        await self._stack.enter_async_context(balancer.open())
        await place.audit.begin()
        for name, command in self._commands.items():
            self._workers[name] = worker = Participant(command, ROOT, environment())
            self._stack.push_async_callback(worker.close)
            await worker.start()
            options = {"endpoint": balancer.address, "slots": SLOTS, "name": name}
            handlers = {name: {"act": "complete", "quiet": True}}
            await worker.send("start_worker", {"options": options, "handlers": handlers})
            await worker.fact("connected", {})
        self._began = time.monotonic()
        load = Load(balancer.address, self._options.rate, list(self._workers), self._began)
        await self._stack.enter_async_context(load.open())
        waits = SHORT if self._options.short else Waits()
        return Scene(place, Group(servers), load, waits), balancer, load

    async def _strike_again_and_again(self, scene: Scene, balancer: Balancer, load: Load) -> None:
        until_s = self._options.minutes * 60
        next_s, rested_s = self._options.every, 0.0
        rest_s = 0 if self._options.short else REST_S
        while next_s < until_s - rest_s:
            await asyncio.sleep(max(0.0, next_s - self._at()))
            load.look_for_errors()
            name = self._chance.choice(NAMES)
            struck_s, busy = self._at(), round(os.getloadavg()[0], 1)
            async with asyncio.timeout(DEADLINE_S):
                name = await strike(name, scene, balancer)
            over_s = self._at()
            self.struck.append(Struck(name, round(struck_s, 1), round(over_s, 1), busy))
            # A machine that is slow to undo a fault needs time before the next one, to recover.
            rested_s = over_s + rest_s
            next_s = max(next_s + self._options.every, rested_s)
        # So it does after the last one.
        await asyncio.sleep(max(0.0, max(until_s, rested_s) - self._at()))
        self._ended_s = self._at()

    async def _look(self, group: Group) -> None:
        """Looks at all processes, again and again."""
        while True:
            pids = {name: worker.pid for name, worker in self._workers.items()}
            pids |= {f"server{n}": server.pid for n, server in enumerate(group.servers)}
            for name, pid in pids.items():
                if (sample := look(pid, self._at())) is not None:
                    self.samples.setdefault(name, []).append(sample)
            await asyncio.sleep(1.0 if self._options.short else LOOK_S)

    async def _nothing_is_left(self, group: Group) -> None:
        """The server knows of no task that has not ended, and all workers are there."""
        live = None
        async with asyncio.timeout(DEADLINE_S):
            while live is None:
                live = await _live_tasks(await group.leader())
        assert live == 0, f"{live} tasks are stuck"
        for name, worker in self._workers.items():
            assert not worker.unread("gave_up", {}), f"the worker in {name} has given up"

    def growths(self) -> dict[str, Growth]:
        """What the memory of those did that were there all the time."""
        kept = (f"server{KEPT}", *self._workers)
        return {name: growth(self.samples[name]) for name in kept}

    def recoveries(self) -> list[dict[str, Any]]:
        """Each fault, and how soon after it tasks took as long as before."""
        ends = [*(each.at_s for each in self.struck[1:]), self._ended_s]
        return [
            msgspec.to_builtins(each)
            | {
                "next_s": round(until_s - each.over_s, 1),
                "recovered_s": recovered_s(self.tasks, each.at_s, each.over_s, until_s),
            }
            for each, until_s in zip(self.struck, ends, strict=True)
        ]


async def _live_tasks(leader: ReplicaProcess) -> int | None:
    """How many tasks have not ended; None if it leads no more."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{leader.port}") as channel:
        stub: Any = admin_pb2_grpc.AdminStub(channel)
        try:
            snapshot = await stub.Snapshot(task_pb2.Empty())
        except grpc.aio.AioRpcError:
            return None
    return int(snapshot.live_tasks)


def judged(growths: dict[str, Growth], recoveries: list[dict[str, Any]]) -> list[str]:
    """What did not stay as it was."""
    problems = []
    for name, seen in growths.items():
        if not seen.is_flat:
            problems.append(f"{name} has grown by {seen.grown_mib} MiB: {seen}")
        if not seen.keeps_files:
            problems.append(f"{name} has {seen.files_after} files, was {seen.files_before}")
    for each in recoveries:
        after = each["recovered_s"]
        if after is None:
            told = f"not recovered within {each['next_s']} s"
        elif after > RECOVERED_S:
            told = f"recovered after {after} s"
        else:
            continue
        problems.append(
            f"{each['fault']} at {each['at_s']} s: {told}, load average {each['load_average']}"
        )
    return problems


def per_minute(tasks: list[Took], minutes: float) -> list[dict[str, Any]]:
    """How many tasks began in each minute, and their p99 in seconds."""
    found = []
    for minute in range(int(minutes)):
        span = (minute * 60, minute * 60 + 60)
        count = len(began_within(tasks, *span))
        found.append({"minute": minute, "tasks": count, "p99_s": p99(tasks, *span)})
    return found


def sparse(samples: list[Sample]) -> list[Sample]:
    """At most 120 of them, evenly spread."""
    return samples[:: max(1, len(samples) // 120)]


def picture(run: Run, minutes: float, name: str) -> None:
    """Draws memory, files and p99 over time."""
    memory = [
        Line(name, [s.at_s / 60 for s in sparse(seen)], [s.mib for s in sparse(seen)])
        for name, seen in run.samples.items()
    ]
    files = [
        Line(name, [s.at_s / 60 for s in sparse(seen)], [float(s.files) for s in sparse(seen)])
        for name, seen in run.samples.items()
    ]
    minutely = [each for each in per_minute(run.tasks, minutes) if each["p99_s"] is not None]
    slow = Line("p99", [each["minute"] for each in minutely], [each["p99_s"] for each in minutely])
    parts = [
        Axes("minutes", "resident memory, MiB", False, memory),
        Axes("minutes", "open files", False, files),
        Axes("minutes", "p99 from submit to end, s (faults included)", False, [slow]),
    ]
    draw("Load and faults for long", parts, RESULTS / f"{name}.png")


def read(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="./justw campaign soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1, help="decides the faults")
    parser.add_argument("--rate", type=float, default=100.0, help="tasks per second")
    parser.add_argument("--every", type=float, default=20.0, help="seconds between faults")
    parser.add_argument("--lang", action="append", help="only this language; may come twice")
    parser.add_argument(
        "--short", action="store_true", help="impatient servers, and no judgement of time or memory"
    )
    parser.add_argument("--save", metavar="NAME", help="keep figures and picture under this name")
    return parser.parse_args(arguments)


async def play(options: argparse.Namespace) -> tuple[Run, int]:
    """Has a database and plays."""
    wanted = options.lang
    languages = [each for each in read_languages() if not wanted or each.name in wanted]
    run = Run(options, await build(languages))
    with tempfile.TemporaryDirectory(prefix="cronoq-soak-") as name:
        folder = Path(name)
        with running_cluster(fsync=True) as cluster:
            waits = SHORT if options.short else Waits()
            async with postgres_place(cluster, "soak", waits, lossy=False) as place:
                terms = await run.play(place, folder)
    return run, terms


def main(arguments: Sequence[str]) -> int:
    """Runs the campaign; 1 if a promise was broken or something did not stay as it was."""
    options = read(arguments)
    head = describe("soak")
    run, terms = asyncio.run(play(options))
    recoveries = run.recoveries()
    growths = {} if options.short else run.growths()
    problems = [] if options.short else judged(growths, recoveries)
    told = {
        "minutes": options.minutes,
        "seed": options.seed,
        "rate": options.rate,
        "tasks": len(run.tasks),
        "longest_s": max(task.took_s for task in run.tasks),
        "terms": terms,
        "faults": dict(Counter(each["fault"] for each in recoveries)),
        "growth": msgspec.to_builtins(growths),
        "problems": problems,
    }
    print(json.dumps(head | told, indent=2), flush=True)
    if options.save:
        series = {name: msgspec.to_builtins(sparse(seen)) for name, seen in run.samples.items()}
        minutely = per_minute(run.tasks, options.minutes)
        save(
            head | told | {"struck": recoveries, "per_minute": minutely, "samples": series},
            options.save,
        )
        picture(run, options.minutes, options.save)
    print(f"{'BROKEN' if problems else 'ok'}: {len(run.tasks)} tasks, {len(recoveries)} faults")
    return 1 if problems else 0
