"""Decides which call of the Python client each command of the participant protocol makes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from values import (
    JsonObject,
    sized,
    to_filter,
    to_options,
    to_schedule,
    to_spec,
    to_target,
    told,
    told_error,
)

import cronoq

Command = Callable[[JsonObject], Awaitable[JsonObject | None]]


class ClientCalls:
    """The commands for clients, by name."""

    def __init__(self, emit: Callable[..., None]) -> None:
        self._emit = emit
        self._client: cronoq.Client | None = None
        self._watch: asyncio.Task[None] | None = None
        self.commands: dict[str, Command] = {
            name.removeprefix("_do_"): getattr(self, name)
            for name in dir(self)
            if name.startswith("_do_")
        }

    @property
    def client(self) -> cronoq.Client:
        """The client that was started."""
        assert self._client is not None, "no client was started"
        return self._client

    async def _do_start_client(self, fields: JsonObject) -> None:
        self._client = cronoq.Client(**to_options(fields.get("options", {})))

    async def _do_close_client(self, _: JsonObject) -> None:
        await self.client.close()

    async def _do_submit(self, fields: JsonObject) -> JsonObject:
        handle = await self.client.submit(to_spec(fields["task"]), **deadline(fields))
        return told_handle(handle)

    async def _do_submit_together(self, fields: JsonObject) -> JsonObject:
        tasks = fields.get("tasks") or list(copies(fields["task"], fields["count"]))
        calls = [self.client.submit(to_spec(task), **deadline(fields)) for task in tasks]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        return {"outcomes": [told_outcome(outcome) for outcome in outcomes]}

    async def _do_submit_many(self, fields: JsonObject) -> JsonObject:
        tasks = [to_spec(task) for task in fields["tasks"]]
        outcomes = await self.client.submit_many(tasks, **deadline(fields))
        return {"outcomes": [told_outcome(outcome) for outcome in outcomes]}

    async def _do_submit_batch(self, fields: JsonObject) -> JsonObject:
        tasks = [to_spec(task) for task in fields["tasks"]]
        outcomes = await self.client.submit_batch(tasks, **deadline(fields))
        return {"outcomes": [told_outcome(outcome) for outcome in outcomes]}

    async def _do_get(self, fields: JsonObject) -> JsonObject:
        found = await self.client.get(to_target(fields["target"]), **deadline(fields))
        return {"task": told(found)}

    async def _do_detail(self, fields: JsonObject) -> JsonObject:
        found = await self.client.detail(to_target(fields["target"]), **deadline(fields))
        children = [str(child) for child in found.children]
        return {**told(found), "children": children}

    async def _do_wait(self, fields: JsonObject) -> JsonObject:
        target = to_target(fields["target"])
        return {"result": told(await self.client.wait(target, timeout=fields.get("timeout")))}

    async def _do_wait_many(self, fields: JsonObject) -> JsonObject:
        targets = [int(target) for target in fields["targets"]]
        found = await self.client.wait_many(targets, timeout=fields.get("timeout"))
        return {"results": told(found)}

    async def _do_result(self, fields: JsonObject) -> JsonObject:
        target = to_target(fields["target"])
        value = await self.client.result(target, timeout=fields.get("timeout"))
        return sized("output", value) if isinstance(value, bytes) else {"output": value}

    async def _do_cancel(self, fields: JsonObject) -> JsonObject:
        target = to_target(fields["target"])
        return {"changed": await self.client.cancel(target, **deadline(fields))}

    async def _do_retry(self, fields: JsonObject) -> JsonObject:
        target = to_target(fields["target"])
        return {"changed": await self.client.retry(target, **deadline(fields))}

    async def _do_delete(self, fields: JsonObject) -> JsonObject:
        target = to_target(fields["target"])
        return {"changed": await self.client.delete(target, **deadline(fields))}

    async def _do_bulk(self, fields: JsonObject) -> JsonObject:
        outcome = await self.client.bulk(
            cronoq.BulkAction[fields["action"].upper()],
            to_filter(fields["filter"]),
            limit=fields.get("limit", 0),
            dry_run=fields.get("dry_run", False),
        )
        told_counts = {"matched": outcome.matched, "changed": outcome.changed}
        return {**told_counts, "next_after": str(outcome.next_after)}

    async def _do_list(self, fields: JsonObject) -> JsonObject:
        pages = self.client.list(
            to_filter(fields.get("filter", {})),
            page_size=fields.get("page_size", 0),
            newest_first=fields.get("newest_first", False),
        )
        tasks = [told(task) async for task in pages]
        return {"tasks": tasks, "unavailable_shards": sorted(pages.unavailable_shards)}

    async def _do_watch(self, fields: JsonObject) -> None:
        self._watch = asyncio.ensure_future(self._follow(fields))
        try:
            await self._watch
        except asyncio.CancelledError:
            return

    async def _follow(self, fields: JsonObject) -> None:
        events = self.client.watch(
            pools=fields.get("pools", ()),
            ids=[int(task) for task in fields.get("ids", ())],
            keys=fields.get("keys", ()),
            all_transitions=fields.get("all_transitions", False),
        )
        async for event in events:
            self._emit("event", **told(event))

    async def _do_stop_watch(self, _: JsonObject) -> None:
        if self._watch is not None:
            self._watch.cancel()

    async def _do_put_schedule(self, fields: JsonObject) -> None:
        await self.client.put_schedule(to_schedule(fields["schedule"]))

    async def _do_get_schedule(self, fields: JsonObject) -> JsonObject:
        return {"schedule": told((await self.client.schedule(fields["name"])).schedule)}

    async def _do_remove_schedule(self, fields: JsonObject) -> JsonObject:
        return {"changed": await self.client.remove_schedule(fields["name"])}


def deadline(fields: JsonObject) -> dict[str, Any]:
    """Returns the deadline of a call, if it has one of its own."""
    return {"call_deadline": fields["call_deadline"]} if "call_deadline" in fields else {}


def copies(task: JsonObject, count: int) -> list[JsonObject]:
    """Returns the same task so many times, each with a key of its own if it has one."""
    if "key" not in task:
        return [task] * count
    return [{**task, "key": f"{task['key']}-{number}"} for number in range(1, count + 1)]


def told_handle(handle: cronoq.TaskHandle) -> JsonObject:
    """Returns what a submission came to."""
    return {"task_id": str(handle.id), "duplicate": handle.duplicate}


def told_outcome(outcome: cronoq.TaskHandle | BaseException) -> JsonObject:
    """Returns what a submission came to, or why it was refused."""
    return told_handle(outcome) if isinstance(outcome, cronoq.TaskHandle) else told_error(outcome)
