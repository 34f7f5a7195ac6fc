"""Which routes there are for operators: method, path, server, and what is said."""

from __future__ import annotations

from typing import Final

from cronoq_server.api.admin_service import AdminService
from cronoq_server.api.http import requests, responses
from cronoq_server.api.http.admin_routes import AdminRoutes
from cronoq_server.api.http.routes import ID, NOW, Answers, Route, answered
from cronoq_server.api.specs import SpecReader

SCHEDULES: Final = "Recurring schedules"
CAPACITY: Final = "Pools, resources, workers"

DONE: Final = Answers(text="Done.")
SCHEDULE: Final = {
    "name": "nightly",
    "cron": "30 2 * * *",
    "tz": "Europe/Berlin",
    "pool": "default",
    "kind": "report",
    "overlap": "skip",
    "gap": "run_after",
    "fold": "first",
    "catch_up": "latest",
    "paused": False,
    "next_unix_ns": NOW,
}
NEW_SCHEDULE: Final = {
    "cron": "30 2 * * *",
    "tz": "Europe/Berlin",
    "template": {"kind": "report"},
}


def operator_routes(service: AdminService, reader: SpecReader) -> list[Route]:
    """Every route of operators."""
    admin = AdminRoutes(service, reader)
    return [*_schedules(admin), *_capacity(admin)]


def _schedules(admin: AdminRoutes) -> list[Route]:
    one, times = "/v1/schedules/{name}", {"at_unix_ns": [NOW]}
    return [
        Route(
            method="GET",
            path="/v1/schedules",
            serve=admin.list_schedules,
            summary="List the schedules",
            group=SCHEDULES,
            answers=answered(
                responses.Schedules,
                {"schedules": [SCHEDULE], "unavailable_shards": []},
                "All of them.",
            ),
            mirrors=("ListRecurring",),
        ),
        Route(
            method="GET",
            path=one,
            serve=admin.get_schedule,
            summary="Show a schedule",
            answers=answered(
                responses.ScheduleDetail,
                {
                    "schedule": SCHEDULE,
                    "template": {
                        "kind": "report",
                        "pool": "default",
                        "priority": "normal",
                        "on_miss": "run_late",
                    },
                    "skipped": 0,
                    "chain_broken": False,
                },
            ),
            mirrors=("GetRecurring",),
            group=SCHEDULES,
            query=requests.ScheduleQuery,
            refusals=(404, 409),
        ),
        Route(
            method="PUT",
            path=one,
            serve=admin.put_schedule,
            summary="Put a schedule, new or in place of the one with its name",
            group=SCHEDULES,
            body=requests.NewSchedule,
            example=NEW_SCHEDULE,
            answers={204: DONE},
            refusals=(404, 409),
            mirrors=("AddRecurring",),
        ),
        Route(
            method="DELETE",
            path=one,
            serve=admin.remove_schedule,
            summary="Remove a schedule; its tasks stay",
            answers=answered(responses.Removed, {"removed": True}, "Whether there was one."),
            mirrors=("RemoveRecurring",),
            group=SCHEDULES,
            query=requests.ScheduleQuery,
            refusals=(404, 409),
        ),
        Route(
            method="POST",
            path=f"{one}/pause",
            serve=admin.pause_schedule(paused=True),
            summary="Pause a schedule",
            answers={204: DONE},
            mirrors=("PauseRecurring",),
            group=SCHEDULES,
            query=requests.ScheduleQuery,
            refusals=(404, 409),
        ),
        Route(
            method="POST",
            path=f"{one}/resume",
            serve=admin.pause_schedule(paused=False),
            summary="Resume a schedule",
            answers={204: DONE},
            mirrors=("PauseRecurring",),
            group=SCHEDULES,
            query=requests.ScheduleQuery,
            refusals=(404, 409),
        ),
        Route(
            method="POST",
            path=f"{one}/trigger",
            serve=admin.trigger_schedule,
            summary="Make one occurrence now",
            answers={201: Answers(shape=responses.Triggered, example={"task_id": ID})},
            mirrors=("TriggerRecurring",),
            group=SCHEDULES,
            query=requests.ScheduleQuery,
            refusals=(404, 409),
        ),
        Route(
            method="POST",
            path=f"{one}/backfill",
            serve=admin.backfill_schedule,
            summary="Make the occurrences of a past range",
            body=requests.Backfill,
            example={"from_unix_ns": NOW, "to_unix_ns": NOW, "dry_run": True},
            answers=answered(
                responses.Backfilled,
                {"created": 0, "next_unix_ns": None},
                "How many were made, or would be.",
            ),
            mirrors=("BackfillRecurring",),
            group=SCHEDULES,
            query=requests.ScheduleQuery,
            refusals=(404, 409),
        ),
        Route(
            method="GET",
            path=f"{one}/next",
            serve=admin.next_occurrences,
            summary="Compute the next occurrences of a schedule",
            answers=answered(responses.Occurrences, times, "Their instants."),
            mirrors=("PreviewRecurring",),
            group=SCHEDULES,
            query=requests.NextQuery,
            refusals=(404, 409),
        ),
        Route(
            method="POST",
            path="/v1/schedules-preview",
            serve=admin.preview_schedule,
            summary="Compute the next occurrences of an expression",
            group=SCHEDULES,
            body=requests.SchedulePreview,
            example={"cron": "30 2 * * *", "tz": "Europe/Berlin", "count": 3},
            answers=answered(responses.Occurrences, times, "Their instants."),
            mirrors=("PreviewRecurring",),
        ),
    ]


def _capacity(admin: AdminRoutes) -> list[Route]:
    return [
        Route(
            method="GET",
            path="/v1/pools",
            serve=admin.list_pools,
            summary="List the pools with their figures",
            group=CAPACITY,
            answers=answered(responses.Pools, None, "All of them."),
            mirrors=("ListPools",),
        ),
        Route(
            method="POST",
            path="/v1/pools/{name}/pause",
            serve=admin.pause_pool(paused=True),
            summary="Stop a pool from starting attempts",
            group=CAPACITY,
            answers={204: DONE},
            refusals=(404,),
            mirrors=("PausePool",),
        ),
        Route(
            method="POST",
            path="/v1/pools/{name}/resume",
            serve=admin.pause_pool(paused=False),
            summary="Let a pool start attempts again",
            group=CAPACITY,
            answers={204: DONE},
            refusals=(404,),
            mirrors=("ResumePool",),
        ),
        Route(
            method="GET",
            path="/v1/resources",
            serve=admin.list_resources,
            summary="List the resources and how much of them is out",
            group=CAPACITY,
            answers=answered(responses.Resources, None, "All of them."),
            mirrors=("ListResources",),
        ),
        Route(
            method="PUT",
            path="/v1/resources/{name}",
            serve=admin.set_resource,
            summary="Resize a resource; holds until its configured size changes",
            group=CAPACITY,
            body=requests.ResourceSize,
            example={"permits": 4},
            answers=answered(responses.Resource, None, "As it is now."),
            refusals=(404,),
            mirrors=("SetResource",),
        ),
        Route(
            method="GET",
            path="/v1/workers",
            serve=admin.list_workers,
            summary="List the workers that are connected",
            group=CAPACITY,
            answers=answered(responses.Workers, None, "All of them."),
            mirrors=("ListWorkers",),
        ),
        Route(
            method="GET",
            path="/v1/snapshot",
            serve=admin.snapshot,
            summary="Show figures of everything",
            group=CAPACITY,
            answers=answered(responses.Snapshot, None, "At this moment."),
            mirrors=("Snapshot",),
        ),
    ]
