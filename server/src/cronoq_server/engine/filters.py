"""Which tasks pass a filter, and the tag that names an occurrence's schedule."""

from __future__ import annotations

from cronoq_server.engine.model import TaskFilter, TaskSpec

SCHEDULE_TAG = "cronoq.schedule"
"""Tag that names the schedule of an occurrence."""


def passes(spec: TaskSpec, status: int, wanted: TaskFilter) -> bool:
    """Whether a task passes; an empty part of the filter allows all."""
    return (
        (not wanted.pools or spec.pool in wanted.pools)
        and (not wanted.statuses or status in wanted.statuses)
        and (not wanted.kinds or spec.kind in wanted.kinds)
        and (not wanted.keys or spec.key in wanted.keys)
        and (not wanted.tenants or spec.tenant in wanted.tenants)
        and (not wanted.tags or all(pair in spec.tags for pair in wanted.tags))
        and (not wanted.schedule or (SCHEDULE_TAG, wanted.schedule) in spec.tags)
    )
