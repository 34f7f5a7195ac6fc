"""Decides what handlers of the Python participant do: behaviours of the participant protocol."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import threading
import time
from collections.abc import Callable
from typing import Any

from values import JsonObject, sized, to_value, told

from cronoq import Attempt, Cancel, Permanent, Reject, Retryable

Emit = Callable[..., None]
Ending = concurrent.futures.Future[JsonObject]


class Gates:
    """Where handlers wait until they are told how to end, by task."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[int, collections.deque[Ending]] = {}
        self._early: dict[int, collections.deque[JsonObject]] = {}

    def wait(self, task_id: int) -> Ending:
        """Returns the future of the next ending that is told for this task."""
        ending: Ending = concurrent.futures.Future()
        with self._lock:
            early = self._early.get(task_id)
            if early:
                ending.set_result(early.popleft())
            else:
                self._waiting.setdefault(task_id, collections.deque()).append(ending)
        return ending

    def open(self, task_id: int, behaviour: JsonObject) -> None:
        """Tells the oldest attempt of a task that waits how to go on, or the next that will."""
        with self._lock:
            waiting = self._waiting.get(task_id, collections.deque())
            while waiting:
                ending = waiting.popleft()
                if not ending.done():
                    ending.set_result(behaviour)
                    return
            self._early.setdefault(task_id, collections.deque()).append(behaviour)


class Behaviours:
    """Makes handlers that do what a behaviour says."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self.gates = Gates()

    def handler(self, behaviour: JsonObject) -> Callable[..., Any]:
        """Returns a handler: a function for a thread if the behaviour needs one, else async."""

        async def run_quietly(payload: Any, attempt: Attempt) -> Any:
            return await self._act(behaviour, payload, attempt)

        async def run(payload: Any, attempt: Attempt) -> Any:
            self._began(attempt)
            try:
                return await self._act(behaviour, payload, attempt)
            finally:
                self._ended(attempt)

        def run_in_thread(payload: Any, attempt: Attempt) -> Any:
            self._began(attempt)
            try:
                return self._act_blocking(behaviour, payload, attempt)
            finally:
                self._ended(attempt)

        if behaviour.get("quiet"):
            return run_quietly
        return run_in_thread if needs_thread(behaviour) else run

    async def _act(self, behaviour: JsonObject, payload: Any, attempt: Attempt) -> Any:
        match behaviour["act"]:
            case "block":
                ending = await asyncio.wrap_future(self.gates.wait(attempt.task_id))
                return await self._act(ending, payload, attempt)
            case "parent_outputs":
                return [await attempt.output(parent) for parent in attempt.parents]
            case _:
                following = follow(behaviour, attempt)
                if following is not None:
                    return await self._act(following, payload, attempt)
                return end(behaviour, payload)

    def _act_blocking(self, behaviour: JsonObject, payload: Any, attempt: Attempt) -> Any:
        match behaviour["act"]:
            case "block":
                # A thread cannot be stopped from outside: this one looks at nothing else.
                ending = self.gates.wait(attempt.task_id).result()
                return self._act_blocking(ending, payload, attempt)
            case "parent_outputs":
                return [attempt.output_blocking(parent) for parent in attempt.parents]
            case _:
                following = follow(behaviour, attempt)
                if following is not None:
                    return self._act_blocking(following, payload, attempt)
                return end(behaviour, payload)

    def _began(self, attempt: Attempt) -> None:
        self._emit(
            "attempt_started",
            task_id=str(attempt.task_id),
            attempt=attempt.number,
            kind=attempt.kind,
            key=attempt.key,
            pool=attempt.pool,
            priority=told(attempt.priority),
            **sized("payload", attempt.payload),
            content_type=attempt.content_type,
            tags=dict(attempt.tags),
            deadline=told(attempt.deadline),
            timeout=attempt.timeout_s,
            trace_context=dict(attempt.trace_context),
            parents=[str(parent) for parent in attempt.parents],
            last_progress=told(attempt.last_progress),
        )

    def _ended(self, attempt: Attempt) -> None:
        self._emit("attempt_ended", task_id=str(attempt.task_id), attempt=attempt.number)


def needs_thread(behaviour: JsonObject) -> bool:
    """Tells whether a behaviour computes or cannot be stopped, which blocks whatever runs it."""
    parts = [*behaviour.get("attempts", ()), *filter(None, [behaviour.get("then")])]
    here = behaviour["act"] == "busy" and not behaviour.get("on_loop", False)
    here = here or (behaviour["act"] == "block" and behaviour.get("ignore_stop", False))
    return bool(here) or any(needs_thread(part) for part in parts)


def follow(behaviour: JsonObject, attempt: Attempt) -> JsonObject | None:
    """Does a behaviour that another one follows, and returns that one."""
    match behaviour["act"]:
        case "by_attempt":
            choices: list[JsonObject] = behaviour["attempts"]
            return choices[min(attempt.number, len(choices)) - 1]
        case "busy":
            until = time.monotonic() + behaviour["seconds"]
            while time.monotonic() < until:
                pass
        case "progress":
            for step in behaviour["steps"]:
                attempt.progress(to_value(step, "data", b""), fraction=step.get("fraction"))
        case _:
            return None
    then: JsonObject = behaviour.get("then", {"act": "complete"})
    return then


def end(behaviour: JsonObject, payload: Any) -> Any:
    """Ends an attempt as a behaviour says."""
    message = behaviour.get("message", "")
    match behaviour["act"]:
        case "complete":
            return to_value(behaviour, "output", None)
        case "echo":
            return payload
        case "fail":
            raise Retryable(message, retry_after=behaviour.get("retry_after"))
        case "permanent":
            raise Permanent(message)
        case "cancel":
            raise Cancel(message)
        case "reject":
            raise Reject(message)
        case "throw":
            raise ZeroDivisionError(message)
        case "unencodable":
            return {"lock": threading.Lock()}
        case act:
            raise LookupError(f"no such behaviour: {act}")
