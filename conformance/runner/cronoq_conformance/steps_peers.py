"""Decides what the steps about several parties do: old workers, and tasks that cross languages."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import Mapping
from typing import Any

import grpc

from cronoq_server._proto import tasks_pb2, tasks_pb2_grpc, workers_pb2, workers_pb2_grpc

from .judge import mismatch, shown
from .participant import Participant
from .stage import Failure, Stage, Step
from .steps_participant import WORKER_OPTIONS, check, options
from .wire import fill, plain

Fields = Mapping[str, Any]


class OldWorker:
    """A worker of protocol version 3: knows single messages only, and keeps what it was told."""

    def __init__(self) -> None:
        self.heard: list[dict[str, Any]] = []
        self.is_registered = asyncio.Event()

    async def run(self, endpoint: str, register: Mapping[str, Any]) -> None:
        """Works until it is cancelled: each lease is answered with its own payload."""
        async with grpc.aio.insecure_channel(endpoint) as channel:
            call = workers_pb2_grpc.WorkersStub(channel).Work()
            first = {"register": {"protocol_version": 3, "slots": 2, **register}}
            await call.write(fill(workers_pb2.WorkerMessage(), first))
            async for message in call:
                said = plain(message)
                self.heard.append(said)
                if "registered" in said:
                    self.is_registered.set()
                if "lease" in said:
                    await call.write(fill(workers_pb2.WorkerMessage(), self._answer(said)))

    @staticmethod
    def _answer(said: Mapping[str, Any]) -> dict[str, Any]:
        lease = said["lease"]
        if lease.get("kind") == "fails":
            return {"fail": {"lease": lease["lease"], "message": "no", "permanent": True}}
        told = {"output": lease.get("payload", b""), "content_type": lease.get("content_type", "")}
        return {"complete": {"lease": lease["lease"], **told}}


async def old_worker(stage: Stage, name: Any, fields: Fields) -> None:
    """Connects an old worker to the real server."""
    assert stage.cluster is not None
    worker = OldWorker()
    stage.saved[name] = worker
    work = worker.run(stage.cluster.endpoint, fields.get("register", {}))
    stage.tasks.append(asyncio.ensure_future(work))
    await worker.is_registered.wait()


async def old_worker_heard(stage: Stage, name: Any, fields: Fields) -> None:
    """Compares what an old worker was told."""
    heard = stage.saved[name].heard
    for pattern in fields.get("never", ()):
        bad = [message for message in heard if not mismatch(pattern, message)]
        if bad:
            raise Failure(f"the old worker heard {shown(bad[0])}")
    if "first" in fields:
        check(fields["first"], heard[0])
    if "leases" in fields:
        check(fields["leases"], sum("lease" in message for message in heard))


# --- submit in X, run in Y, read in Z -------------------------------------------------------------


class Crossing:
    """Tasks of one submitter that all languages run and all languages read."""

    def __init__(self, stage: Stage) -> None:
        assert stage.cluster is not None
        self._stage = stage
        self._endpoint = stage.cluster.endpoint
        self.by_language: dict[str, Participant] = {}

    async def start(self) -> None:
        """Starts a worker with a pool of its own and a client in every language."""
        for language in self._stage.setting.commands:
            participant = await self._stage.participant(f"it-{language}", language)
            self.by_language[language] = participant
            said = {"endpoint": self._endpoint, "pool": f"run-{language}", "slots": 4}
            said["labels"] = {"zone": "eu"}
            command = {
                "options": options(self._stage, WORKER_OPTIONS, said, {}),
                "default_handler": {"act": "echo"},
            }
            await self.ask(participant, "start_worker", command)
            await self.ask(participant, "start_client", {"options": {"endpoint": self._endpoint}})

    async def ask(self, participant: Participant, name: str, fields: Fields) -> dict[str, Any]:
        """Gives a command and returns what it is answered with."""
        answer = await participant.send(name, fields)
        if answer["fact"] != "done":
            raise Failure(f"{name} {shown(fields)}: {shown(answer)}")
        return answer

    async def play(self, case: Mapping[str, Any]) -> None:
        """Plays one task through all languages."""
        submitter = self.by_language[self._stage.language]
        async with grpc.aio.insecure_channel(self._endpoint) as channel:
            stub = tasks_pb2_grpc.TasksStub(channel)
            for runner, worker in self.by_language.items():
                pool = f"run-{runner}"
                task = {**case["task"], "pool": pool}
                answer = await self.ask(submitter, "submit", {"task": task})
                await self._ran(worker, answer["task_id"], case)
                sent = fill(tasks_pb2.SubmitRequest(), {"task": {**case["sent"], "pool": pool}})
                reference = await stub.Submit(sent)
                await self._stored_alike(stub, int(answer["task_id"]), reference.id, case["name"])
                await self._read(answer["task_id"], case)

    async def _ran(self, worker: Participant, task_id: str, case: Mapping[str, Any]) -> None:
        fact = await worker.fact("attempt_started", {"task_id": task_id})
        for name in ("tags", "trace_context", "key"):
            if mismatch(case["task"].get(name) or "", fact.get(name) or ""):
                raise Failure(f"{case['name']}: {name}: {shown(fact)}")

    async def _stored_alike(self, stub: Any, ours: int, reference: int, name: str) -> None:
        """Compares the stored spec, byte for byte, with the one that this runner submitted."""
        specs = []
        for task_id in (ours, reference):
            request = tasks_pb2.GetRequest()
            request.task.id = task_id
            spec = (await stub.Describe(request)).spec
            specs.append((spec.SerializeToString(deterministic=True), plain(spec)))
        if specs[0][0] != specs[1][0]:
            raise Failure(f"{name}: stored {shown(specs[0][1])}, wanted {shown(specs[1][1])}")

    async def _read(self, task_id: str, case: Mapping[str, Any]) -> None:
        """Reads output and spec in every language; all have to say the same."""
        specs = {}
        for language, participant in self.by_language.items():
            target = {"target": {"id": task_id}}
            result = await self.ask(participant, "result", {**target, "timeout": 15})
            problem = mismatch(case["output"], result)
            if problem:
                raise Failure(f"{case['name']}: read in {language}: {problem}")
            detail = await self.ask(participant, "detail", target)
            specs[language] = json.dumps(_tidy(detail["spec"]), sort_keys=True)
        if len(set(specs.values())) > 1:
            raise Failure(f"{case['name']}: specs are read differently: {specs}")


def _tidy(value: Any) -> Any:
    """Returns a value without what is empty, and with whole numbers as such."""
    if isinstance(value, Mapping):
        fields = {name: _tidy(each) for name, each in value.items()}
        return {name: each for name, each in fields.items() if each not in (None, "", [], {})}
    if isinstance(value, list):
        return [_tidy(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


async def crossing(stage: Stage, cases: Any, _: Fields) -> None:
    """Submits in the language that is played, runs in each, reads in each."""
    play = Crossing(stage)
    await play.start()
    for case in cases:
        await play.play(case)


async def watch_is_on(stage: Stage, kind: Any, fields: Fields) -> None:
    """Submits tasks that end at once until one of them is told: then the watch has begun."""
    participant = await stage.participant(fields.get("by", "it"))
    for number in itertools.count(1):
        key = f"probe-{number}"
        await participant.send("submit", {"task": {"kind": kind, "key": key}})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                await participant.fact("event", {"key": key})
                return


STEPS: dict[str, Step] = {
    "old_worker": old_worker,
    "old_worker_heard": old_worker_heard,
    "crossing": crossing,
    "watch_is_on": watch_is_on,
}
