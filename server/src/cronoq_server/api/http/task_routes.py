"""What submitters may call over HTTP."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import urlencode

import msgspec
from starlette.responses import Response

from cronoq_server._proto import task_pb2
from cronoq_server.api import convert, texts
from cronoq_server.api.http import answers, names, reading, responses, writing
from cronoq_server.api.http.answers import Reply
from cronoq_server.api.http.requests import (
    BatchHead,
    BatchQuery,
    BulkOrder,
    KeyQuery,
    KeyWaitQuery,
    ListQuery,
    NewTask,
    NoQuery,
    SubmitQuery,
    WaitQuery,
)
from cronoq_server.api.http.routes import Call
from cronoq_server.api.passing import missing_shards
from cronoq_server.api.service import Service
from cronoq_server.api.specs import SpecReader
from cronoq_server.engine import (
    SECOND,
    BulkAction,
    ErrorReason,
    Refusal,
    SubmitMode,
    TaskRef,
)
from cronoq_server.runtime.refusals import Refused

INLINE: Final = frozenset(
    {"application/json", "text/plain", "image/png", "image/jpeg", "image/gif", "image/webp"}
)
"""Media types that a browser may show as they are; others are for saving."""

_MEDIA: Final = re.compile(r"[\w.+-]+/[\w.+-]+(?:\s*;\s*[\w-]+=[\w.+\"-]+)*", re.ASCII)
_TRACE_PARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_PAGE_MARGIN: Final = 4096

By = Callable[[Call], TaskRef]


class TaskRoutes:
    """Serves the routes of tasks."""

    def __init__(self, service: Service, reader: SpecReader) -> None:
        self._service = service
        self._reader = reader

    # Naming one

    def by_id(self, call: Call) -> TaskRef:
        """The task that the path names.

        Raises:
            Refused: It names none.
        """
        call.query(NoQuery)
        return self.path_id(call)

    def path_id(self, call: Call) -> int:
        """The id in the path.

        Raises:
            Refused: It is none.
        """
        given = call.path["id"]
        if not given.isascii() or not given.isdecimal() or len(given) > 20:
            raise texts.invalid("id", f"must be a whole number above 0, not {texts.shown(given)}")
        return names.identity(given, "id")

    def by_key(self, call: Call) -> TaskRef:
        """The task that the query names.

        Raises:
            Refused: It names none.
        """
        return self._reader.key(call.query(KeyQuery).key, "key")

    # Submitting

    async def submit(self, call: Call) -> Response:
        """Admits one task, and waits for its end if asked to."""
        query, task = call.query(SubmitQuery), call.body(NewTask)
        message = task_pb2.TaskSpec()
        reading.fill_task(message, task)
        _add_headers(message, call)
        spec = self._reader.read(message)
        most = self._service.limits.max_wait_s
        timeout = convert.read_wait(query.wait_timeout_s, "wait_timeout_s", most)
        parking = convert.read_wait(query.timeout_s, "timeout_s", most) / SECOND
        admitted = await self._service.submit(call.who, [spec], SubmitMode.ONE, parking)
        task_id, is_duplicate = admitted.ids[0], bool(admitted.duplicates)
        answer = responses.Submitted(id=str(task_id), duplicate=is_duplicate)
        if query.wait:
            answer.result = await self._result(call, task_id, timeout)
        location = (b"location", b"/v1/tasks/%d" % task_id)
        return answers.json(answer, 200 if is_duplicate else 201, [location])

    async def _result(self, call: Call, task_id: int, timeout: int) -> responses.Result | None:
        try:
            return writing.result(await self._service.wait(call.who, task_id, timeout))
        except Refused as refused:
            if refused.refusal.reason is not ErrorReason.WAIT_TIMEOUT:
                raise
        return None

    async def submit_batch(self, call: Call) -> Response:
        """Admits all or none, or each on its own."""
        query, batch = call.query(BatchQuery), call.body(BatchHead)
        self._reader.check_count(len(batch.tasks))
        tasks = reading.members(batch.tasks)
        parking = (
            convert.read_wait(query.timeout_s, "timeout_s", self._service.limits.max_wait_s)
            / SECOND
        )
        if not batch.atomic:
            return await self._submit_many(call, tasks)
        message = reading.batch_message(tasks)
        specs = self._reader.read_batch(message.tasks, message.ByteSize())
        admitted = await self._service.submit(call.who, specs, SubmitMode.BATCH, parking)
        return answers.json(writing.outcomes(admitted, {}))

    async def _submit_many(self, call: Call, tasks: list[NewTask]) -> Response:
        message = reading.batch_message(tasks)
        specs = self._reader.read_many(message.tasks, message.ByteSize())
        named = [
            reading.renamed(spec, index) if isinstance(spec, Refusal) else spec
            for index, spec in enumerate(specs)
        ]
        admitted, refused = await self._service.submit_many(call.who, named)
        return answers.json(writing.outcomes(admitted, refused))

    # Single tasks

    def cancel(self, by: By) -> Callable[[Call], Awaitable[Response]]:
        """Ends a task."""

        async def serve(call: Call) -> Response:
            done = await self._service.cancel(call.who, by(call))
            return answers.json(responses.Cancelled(cancelled=done))

        return serve

    def retry(self, by: By) -> Callable[[Call], Awaitable[Response]]:
        """Puts an ended task back."""

        async def serve(call: Call) -> Response:
            done = await self._service.retry(call.who, by(call))
            return answers.json(responses.Retried(retried=done))

        return serve

    def delete(self, by: By) -> Callable[[Call], Awaitable[Response]]:
        """Forgets an ended task."""

        async def serve(call: Call) -> Response:
            done = await self._service.delete(call.who, by(call))
            return answers.json(responses.Deleted(deleted=done))

        return serve

    def get(self, by: By) -> Callable[[Call], Awaitable[Response]]:
        """Shows a task."""

        async def serve(call: Call) -> Response:
            told = writing.task(await self._service.get(call.who, by(call)))
            told.unavailable_shards = missing_shards()
            return answers.json(told)

        return serve

    def detail(self, by: By) -> Callable[[Call], Awaitable[Response]]:
        """Shows everything known of a task."""

        async def serve(call: Call) -> Response:
            told = writing.detail(await self._service.describe(call.who, by(call)))
            told.unavailable_shards = missing_shards()
            return answers.json(told)

        return serve

    async def wait_by_id(self, call: Call) -> Response:
        """Waits for the task that the path names."""
        query = call.query(WaitQuery)
        return await self._wait(call, self.path_id(call), query.timeout_s)

    async def wait_by_key(self, call: Call) -> Response:
        """Waits for the task that the query names."""
        query = call.query(KeyWaitQuery)
        return await self._wait(call, self._reader.key(query.key, "key"), query.timeout_s)

    async def _wait(self, call: Call, target: TaskRef, wished: float | None) -> Response:
        timeout = convert.read_wait(wished, "timeout_s", self._service.limits.max_wait_s)
        told = writing.result(await self._service.wait(call.who, target, timeout))
        told.unavailable_shards = missing_shards()
        return answers.json(told)

    def output(self, by: By) -> Callable[[Call], Awaitable[Response]]:
        """The output of a task that has ended, byte for byte."""

        async def serve(call: Call) -> Response:
            target = by(call)
            try:
                ended = await self._service.wait(call.who, target, 0)
            except Refused as refused:
                if refused.refusal.reason is not ErrorReason.WAIT_TIMEOUT:
                    raise
                text = "the task has not ended yet"
                raise Refused(Refusal(ErrorReason.NOT_TERMINAL, text)) from refused
            status = names.STATUS_WORDS[ended.status].encode()
            if ended.output is None:
                return Reply(b"", 204, [(b"cronoq-status", status)])
            reply = raw(ended.output, ended.content_type)
            reply.add(b"cronoq-status", status)
            return reply

        return serve

    # Many tasks

    async def list_tasks(self, call: Call) -> Response:
        """One page of tasks."""
        query = call.query(ListQuery)
        message = reading.filter_message(reading.query_filter(query))
        page = await self._service.list_tasks(
            call.who,
            convert.read_filter(message, self._reader),
            after=names.whole(query.after, "after", texts.ID_MAX),
            limit=query.limit,
            newest_first=query.newest_first,
        )
        shown, following = self._fitting(page.tasks, page.next_after)
        reply = Reply(
            b'{"tasks":[%s],"next_after":%s,"unavailable_shards":%s}'
            % (
                b",".join(shown),
                b'"%d"' % following if following else b"null",
                msgspec.json.encode(missing_shards()),
            ),
            headers=[(b"content-type", answers.JSON)],
        )
        if following:
            again = [(name, value) for name, value in call.pairs() if name != "after"]
            target = f"{call.url}?{urlencode([*again, ('after', str(following))])}"
            reply.add(b"link", f'<{target}>; rel="next"'.encode())
        return reply

    def _fitting(self, views: tuple[object, ...], following: int) -> tuple[list[bytes], int]:
        """As many tasks of a page as an answer holds, and where the next page begins."""
        shown: list[bytes] = []
        size, last = _PAGE_MARGIN, 0
        for view in views:
            told = msgspec.json.encode(writing.task(view))  # type: ignore[arg-type]
            size += len(told) + 1
            if shown and size > self._service.limits.max_message_bytes:
                return shown, last
            shown.append(told)
            last = view.task_id  # type: ignore[attr-defined]
        return shown, following

    async def bulk(self, call: Call) -> Response:
        """Cancels or redrives one page of tasks."""
        call.query(NoQuery)
        order = call.body(BulkOrder)
        message = reading.filter_message(order.filter)
        try:
            wanted = convert.read_filter(message, self._reader)
        except Refused as refused:
            raise texts.within("filter", refused.refusal) from refused
        done = await self._service.bulk(
            call.who,
            wanted,
            BulkAction(names.ACTIONS[order.action]),
            after=names.whole(order.after, "after", texts.ID_MAX),
            limit=order.limit,
            dry_run=order.dry_run,
        )
        return answers.json(
            responses.Bulked(
                matched=done.matched,
                changed=done.changed,
                next_after=writing.digits(done.next_after),
                unavailable_shards=missing_shards(),
            )
        )


def _add_headers(message: task_pb2.TaskSpec, call: Call) -> None:
    """What the headers say of a task: its key, and the trace that it belongs to.

    Raises:
        Refused: The body says another key.
    """
    key = call.headers.get("idempotency-key")
    if key is not None:
        text = key.encode("latin-1").decode(errors="replace")
        if message.key and message.key != text:
            raise texts.conflict("key", "another key in the header Idempotency-Key")
        message.key = text
    trace = call.headers.get("traceparent", "")
    if not message.trace_context and _TRACE_PARENT.fullmatch(trace):
        message.trace_context["traceparent"] = trace
        state = call.headers.get("tracestate", "")
        if state and len(state) <= texts.TRACE_VALUE_MAX:
            message.trace_context["tracestate"] = state


def raw(content: bytes, content_type: str) -> Reply:
    """Stored bytes as they are, in a way that lets no browser take them for a page of ours."""
    media = content_type if _MEDIA.fullmatch(content_type) else "application/octet-stream"
    reply = Reply(content, headers=[(b"content-type", media.encode())])
    if media.partition(";")[0].strip().lower() not in INLINE:
        reply.add(b"content-disposition", b"attachment")
    reply.add(b"content-security-policy", b"default-src 'none'; sandbox")
    return reply
