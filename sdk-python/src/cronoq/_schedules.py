"""Decides when a schedule that a program declares is put, and when it is left as it is.

To put a schedule again begins it anew: it would forget what it had still to catch up with, and that
an operator paused it. So it is put only if it is not there, or says something else; then a pause
stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ._convert import fill_spec, read_spec
from ._payload import Codec
from ._proto import task_pb2
from .client import Client
from .errors import ScheduleUnknownError
from .spec import CatchUp, Fold, Gap, Overlap, Priority, ScheduleSpec, TaskSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Cron:
    """When a task function runs by itself: the option `schedule` of `App.task`.

    Attributes:
        cron: Five fields, or six with leading seconds, or `@hourly` and the like.
        tz: IANA time zone.
        args: Positional arguments of each call.
        kwargs: Keyword arguments of each call.
        name: Unique within a shard; the task function's kind when empty.
        overlap: What happens while the occurrence before is alive.
        gap: Local times that do not exist.
        fold: Local times that come twice.
        catch_up: Occurrences that were missed.
    """

    cron: str
    tz: str = "UTC"
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    overlap: Overlap = Overlap.SKIP
    gap: Gap = Gap.RUN_AFTER
    fold: Fold = Fold.FIRST
    catch_up: CatchUp = CatchUp.LATEST

    def spec(self, template: TaskSpec) -> ScheduleSpec:
        """Returns the whole schedule, with nothing left to defaults."""
        if template.priority is None:
            template = msgspec.structs.replace(template, priority=Priority.NORMAL)
        return ScheduleSpec(
            name=self.name or template.kind,
            cron=self.cron,
            template=template,
            tz=self.tz,
            overlap=self.overlap,
            gap=self.gap,
            fold=self.fold,
            catch_up=self.catch_up,
        )


async def put_if_new(client: Client, spec: ScheduleSpec) -> bool:
    """Puts a schedule unless it is there as it should be.

    Returns:
        Whether it was put.

    Raises:
        CronoqError: As `Client.put_schedule`.
    """
    try:
        there = (await client.schedule(spec.name)).spec
    except ScheduleUnknownError:
        await client.put_schedule(spec)
        return True
    if _says_the_same(spec, there, client.options.codec):
        return False
    await client.put_schedule(msgspec.structs.replace(spec, paused=there.paused))
    return True


def _says_the_same(wanted: ScheduleSpec, there: ScheduleSpec, codec: Codec) -> bool:
    for name in ("cron", "tz", "overlap", "gap", "fold", "catch_up"):
        if getattr(wanted, name) != getattr(there, name):
            return False
    message = task_pb2.TaskSpec()
    fill_spec(message, wanted.template, codec)
    template = read_spec(message)
    # What the caller leaves open here, the server or the caller's credential decides.
    for name in ("pool", "on_miss", "tenant"):
        if not getattr(template, name):
            known = getattr(there.template, name)
            template = msgspec.structs.replace(template, **{name: known})
    return template == there.template
