"""Decides nothing: runs a worker and a client of the Python SDK as commands say, and tells facts.

Knows no scenario. The protocol is in conformance/PROTOCOL.md. The loop lives on a thread of its
own, since the SDK's helper for signals needs the main one.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import queue
import sys
import threading
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from behaviours import Behaviours
from client_calls import ClientCalls
from values import JsonObject, to_options, told_error

import cronoq


class Unknown(Exception):
    """A command that this participant does not know."""


class Participant:
    """One process under test: at most one worker and one client."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._behaviours = Behaviours(self.emit)
        self._clients = ClientCalls(self.emit)
        self._worker: cronoq.Worker | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.main_jobs: queue.SimpleQueue[cronoq.Worker] = queue.SimpleQueue()

    def emit(self, fact: str, **fields: Any) -> None:
        """Writes one fact."""
        line = json.dumps({"fact": fact, **fields}) + "\n"
        with self._lock:
            sys.stdout.write(line)
            sys.stdout.flush()

    def read_commands(self) -> None:
        """Runs the loop and takes commands until stdin ends."""
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True).start()
        self.emit("hello", language="python", sdk=cronoq.__version__)
        for line in sys.stdin:
            loop.call_soon_threadsafe(self._begin, json.loads(line))
        os._exit(0)

    def _begin(self, command: JsonObject) -> None:
        task = asyncio.ensure_future(self._answer(command))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, command: JsonObject) -> None:
        number, name = command.pop("id"), command.pop("do")
        try:
            self.emit("done", id=number, **(await self._do(name, command) or {}))
        except (cronoq.CronoqError, ValueError, TypeError) as error:
            self.emit("failed", id=number, **told_error(error))
        except Unknown:
            self.emit("failed", id=number, type="protocol", family="protocol", message=name)

    async def _do(self, name: str, fields: JsonObject) -> JsonObject | None:
        match name:
            case "start_worker":
                await self._start_worker(fields)
            case "stop_worker":
                assert self._worker is not None
                await self._worker.stop(drain_timeout=fields.get("drain_timeout"))
            case "is_ready":
                return {"ready": self._worker is not None and self._worker.is_ready}
            case "finish_attempt":
                self._behaviours.gates.open(int(fields["task_id"]), fields["behaviour"])
            case "exit":
                os._exit(0)
            case _ if name in self._clients.commands:
                return await self._clients.commands[name](fields)
            case _:
                raise Unknown
        return None

    async def _start_worker(self, fields: JsonObject) -> None:
        worker = cronoq.Worker(
            **to_options(fields.get("options", {})),
            on_connect=lambda endpoint: self.emit("connected", endpoint=endpoint),
            on_disconnect=lambda endpoint, reason: self.emit(
                "disconnected", endpoint=endpoint, reason=reason
            ),
            on_redirect=lambda endpoint, refused: self.emit(
                "redirected", endpoint=endpoint, refused=refused
            ),
            on_abort=lambda attempt, reason: self.emit(
                "told_to_stop", task_id=str(attempt.task_id), attempt=attempt.number, reason=reason
            ),
        )
        for kind, behaviour in fields.get("handlers", {}).items():
            worker.handler(kind)(self._behaviours.handler(behaviour))
        if "default_handler" in fields:
            worker.default_handler(self._behaviours.handler(fields["default_handler"]))
        self._worker = worker
        if fields.get("until_signal"):
            self.main_jobs.put(worker)
            return
        running = asyncio.ensure_future(self._run(worker))
        self._tasks.add(running)
        await asyncio.sleep(0)  # Its first step starts the worker.

    async def _run(self, worker: cronoq.Worker) -> None:
        try:
            await worker.run()
        except cronoq.GaveUpError as error:
            self._gave_up(error)

    def _gave_up(self, error: cronoq.GaveUpError) -> None:
        self.emit("gave_up", code=error.details.get("code", ""), message=error.message)

    def serve_main_thread(self) -> None:
        """Runs a worker that is to end by a signal; never returns without one."""
        worker = self.main_jobs.get()
        try:
            worker.run_forever()
        except cronoq.GaveUpError as error:
            self._gave_up(error)
        self.emit("stopped")
        os._exit(0)


def main() -> None:
    """Runs the participant."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    participant = Participant()
    threading.Thread(target=participant.read_commands, daemon=True).start()
    participant.serve_main_thread()


if __name__ == "__main__":
    main()
