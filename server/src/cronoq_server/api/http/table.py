"""Which routes there are for tasks, and all together: method, path, server, and what is said."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from starlette.responses import Response

from cronoq_server.api.admin_service import AdminService
from cronoq_server.api.http import requests, responses
from cronoq_server.api.http.admin_table import operator_routes
from cronoq_server.api.http.routes import ID, NOW, Answers, Call, Handler, Route, answered
from cronoq_server.api.http.streams import EVENTS, LINES, StreamRoutes
from cronoq_server.api.http.task_routes import By, TaskRoutes
from cronoq_server.api.service import Service
from cronoq_server.api.specs import SpecReader

WATCH: Final = "/v1/watch"
TASKS: Final = "Tasks"

RESULT: Final = {
    "id": ID,
    "status": "succeeded",
    "output_available": True,
    "content_type": "application/json",
    "output": "hello world",
}
TASK: Final = {
    "id": ID,
    "status": "ready",
    "pool": "default",
    "kind": "greet",
    "priority": "normal",
    "attempt": 0,
    "max_attempts": 3,
    "created_unix_ns": NOW,
    "waiting_for": ["a worker with a free slot"],
}
NEW_TASK: Final = {"kind": "greet", "payload": "world", "key": "greet-42"}


def all_routes(service: Service, admins: AdminService, reader: SpecReader) -> list[Route]:
    """Every route of tasks and operators."""
    tasks, streams = TaskRoutes(service, reader), StreamRoutes(service, reader)
    return [
        *_submitting(tasks),
        *_single(tasks),
        *_many(tasks, streams),
        *operator_routes(admins, reader),
    ]


def _submitting(tasks: TaskRoutes) -> list[Route]:
    admitted = {"id": ID, "duplicate": False}
    submitted = Answers(
        shape=responses.Submitted, text="The task is admitted and durable.", example=admitted
    )
    return [
        Route(
            method="POST",
            path="/v1/tasks",
            serve=tasks.submit,
            summary="Submit a task",
            group=TASKS,
            query=requests.SubmitQuery,
            body=requests.NewTask,
            example=NEW_TASK,
            headers={
                "Idempotency-Key": "The task's key, if the body names none.",
                "traceparent": "W3C trace context, if the body has none.",
            },
            answers={
                201: submitted,
                200: Answers(
                    shape=responses.Submitted,
                    text="A task with that key is there already; nothing was changed.",
                    example=admitted | {"duplicate": True},
                ),
            },
            refusals=(404, 409),
            mirrors=("Submit",),
            submits=True,
        ),
        Route(
            method="POST",
            path="/v1/batches",
            serve=tasks.submit_batch,
            summary="Submit many tasks, all or none, or each on its own",
            group=TASKS,
            query=requests.BatchQuery,
            body=requests.NewBatch,
            example={"tasks": [NEW_TASK, {"kind": "greet", "deps": [{"key": "greet-42"}]}]},
            answers={
                200: Answers(
                    shape=responses.SubmittedBatch,
                    text="What became of each, in order. In an atomic batch none has an error.",
                    example={"tasks": [admitted]},
                )
            },
            refusals=(404, 409),
            mirrors=("SubmitBatch", "SubmitMany"),
            submits=True,
        ),
    ]


Make = Callable[[By], Callable[[Call], Awaitable[Response]]]


def _single(tasks: TaskRoutes) -> list[Route]:
    """What can be done to one task, by id and by key."""
    kinds: list[tuple[str, str, Make, str, dict[int, Answers], tuple[int, ...], str]] = [
        ("GET", "", tasks.get, "Show {}", answered(responses.Task, TASK), (), "Get"),
        ("GET", "detail", tasks.detail, "Show everything known of {}", _DETAIL, (), "Describe"),
        (
            "GET",
            "output",
            tasks.output,
            "Fetch, as it is, the output of {}",
            _OUTPUT,
            (409,),
            "Wait",
        ),
        ("POST", "cancel", tasks.cancel, "Cancel {}", _CANCELLED, (), "Cancel"),
        ("POST", "retry", tasks.retry, "Put back, after its end, {}", _RETRIED, (409,), "Retry"),
        ("DELETE", "", tasks.delete, "Forget, after its end, {}", _DELETED, (409,), "Delete"),
    ]
    routes = []
    for by, where, query, named, suffix in (
        (tasks.by_id, "/v1/tasks/{id}", requests.NoQuery, "a task", ""),
        (tasks.by_key, "/v1/task-by-key", requests.KeyQuery, "a task", " by its key"),
    ):
        for method, verb, make, summary, answers, refusals, mirror in kinds:
            routes.append(
                Route(
                    method=method,
                    path=f"{where}/{verb}" if verb else where,
                    serve=make(by),
                    summary=summary.format(named) + suffix,
                    group=TASKS,
                    query=query,
                    answers=answers,
                    refusals=(404, *refusals),
                    mirrors=(mirror,),
                )
            )
    return [*routes, *_waits(tasks)]


_DETAIL: Final = answered(
    responses.TaskDetail,
    {
        "task": TASK,
        "spec": {
            "kind": "greet",
            "pool": "default",
            "payload": "world",
            "content_type": "application/json",
            "priority": "normal",
            "on_miss": "run_late",
        },
        "attempts": [],
        "parents": [],
        "children": [],
    },
)
_OUTPUT: Final = {
    200: Answers(text="The bytes, with the media type that the worker gave.", media="*/*"),
    204: Answers(text="It ended without an output, or the output is no longer kept."),
}
_CANCELLED: Final = answered(
    responses.Cancelled, {"cancelled": True}, "Whether it is cancelled now."
)
_RETRIED: Final = answered(
    responses.Retried, {"retried": True}, "Whether it was put back; not if it had succeeded."
)
_DELETED: Final = answered(responses.Deleted, {"deleted": True}, "It is forgotten.")


def _waits(tasks: TaskRoutes) -> list[Route]:
    answers = answered(responses.Result, RESULT, "It has ended.")
    pairs: list[tuple[str, Handler, type, str]] = [
        ("/v1/tasks/{id}/wait", tasks.wait_by_id, requests.WaitQuery, ""),
        ("/v1/task-by-key/wait", tasks.wait_by_key, requests.KeyWaitQuery, " by its key"),
    ]
    return [
        Route(
            method="GET",
            path=path,
            serve=serve,
            summary=f"Wait for the end of a task{suffix}",
            group=TASKS,
            query=query,
            answers=answers,
            refusals=(404, 504),
            mirrors=("Wait",),
        )
        for path, serve, query, suffix in pairs
    ]


def _many(tasks: TaskRoutes, streams: StreamRoutes) -> list[Route]:
    return [
        Route(
            method="GET",
            path="/v1/tasks",
            serve=tasks.list_tasks,
            summary="List tasks, page by page",
            group=TASKS,
            query=requests.ListQuery,
            answers={
                200: Answers(
                    shape=responses.TaskPage,
                    text="One page. The header `Link` names the next one, if there is one.",
                    example={"tasks": [TASK], "next_after": None, "unavailable_shards": []},
                )
            },
            mirrors=("ListTasks",),
        ),
        Route(
            method="POST",
            path="/v1/bulk",
            serve=tasks.bulk,
            summary="Cancel or redrive one page of tasks",
            group=TASKS,
            body=requests.BulkOrder,
            example={"action": "retry", "filter": {"statuses": ["dead_lettered"]}, "limit": 100},
            answers=answered(
                responses.Bulked,
                {"matched": 1, "changed": 1, "next_after": None, "unavailable_shards": []},
                "What was found and changed.",
            ),
            mirrors=("Bulk",),
        ),
        Route(
            method="POST",
            path="/v1/waits",
            serve=streams.wait_many,
            summary="Wait for many tasks, and hear of each end as it comes",
            group=TASKS,
            body=requests.WaitOrder,
            example={"ids": [ID], "timeout_s": 30},
            answers={
                200: Answers(
                    shape=responses.WaitLine,
                    text="One JSON object per line; the last one when all is told.",
                    media=LINES,
                    example={"result": RESULT},
                )
            },
            mirrors=("WaitMany",),
        ),
        Route(
            method="GET",
            path=WATCH,
            serve=streams.watch,
            summary="Watch statuses change, as server-sent events",
            group=TASKS,
            query=requests.WatchQuery,
            headers={"Last-Event-ID": "The id of the last event that was read: resume behind it."},
            answers={
                200: Answers(
                    shape=responses.Event,
                    text="Events `status` with a task's status, `bookmark` with a cursor alone, "
                    "and `error` with a refusal, which is the last. Each has a cursor as its id.",
                    media=EVENTS,
                    example={
                        "id": ID,
                        "pool": "default",
                        "status": "succeeded",
                        "attempt": 1,
                        "at_unix_ns": NOW,
                    },
                )
            },
            refusals=(404,),
            mirrors=("Watch", "WatchBatches"),
        ),
    ]
