"""Whether stored values that could be decoded are ones that an engine may be led from.

A damaged row may still be well-formed: a status that there is not, a wait of minus a year, a policy
with the number 77. The engine relies on what admission has checked, so such rows are told apart
here, and are set aside like those that can't be decoded. Bounds are those of admission or wider:
what was ever admitted is sound, in whatever timebase the store keeps its instants.
"""

from __future__ import annotations

from math import isfinite

from cronoq_server.engine.model import (
    YEAR,
    EdgeCondition,
    MissPolicy,
    Overlap,
    PastAttempt,
    Priority,
    Progress,
    RetryPolicy,
    ScheduleSpec,
    TaskSpec,
)
from cronoq_server.engine.mutations import ResourceResized, StoredSchedule

INSTANT_MAX = (1 << 63) - 1 - 2 * YEAR
"""Bound on instants, both ways: the latest that admission accepts, with room for sums."""

ID_BOUND = 1 << 64
COUNT_BOUND = 1 << 53
POLICIES = {"gap": 2, "fold": 3, "catch_up": 3}
"""How many values the policies of schedules have, of which stores know no more."""


def is_instant(instant: int | None) -> bool:
    """Whether this may be a wall instant, or none."""
    return instant is None or -INSTANT_MAX <= instant <= INSTANT_MAX


def is_sound_spec(spec: TaskSpec) -> bool:
    """Whether a task may be led by this."""
    return (
        1 <= spec.priority <= len(Priority)
        and 1 <= spec.on_miss <= len(MissPolicy)
        and bool(spec.pool)
        and _are_durations(spec)
        and is_instant(spec.deadline_at)
        and is_instant(spec.start_at)
        and is_instant(spec.not_before)
        and (spec.retry is None or _is_policy(spec.retry))
        and all(0 < amount < 1 << 32 for _, amount in spec.resources)
        and all(
            edge.condition in _CONDITIONS
            and (isinstance(edge.target, str) or 0 < edge.target < ID_BOUND)
            for edge in spec.dependencies
        )
    )


_CONDITIONS = frozenset(EdgeCondition)


def _are_durations(spec: TaskSpec) -> bool:
    return all(
        length is None or 0 <= length <= YEAR
        for length in (
            *(spec.deadline_in, spec.start_in, spec.tolerance, spec.duration_hint),
            *(spec.timeout, spec.delay, spec.expires_in),
        )
    )


def _is_policy(retry: RetryPolicy) -> bool:
    return (
        0 <= retry.max_attempts < 1 << 32
        and 0 <= retry.initial_backoff <= YEAR
        and 0 <= retry.max_backoff <= YEAR
        and isfinite(retry.multiplier)
        and retry.multiplier >= 0
    )


def is_sound_past(history: tuple[PastAttempt, ...], progress: Progress | None) -> bool:
    """Whether this may be what a task has behind it."""
    if progress is not None and progress.fraction is not None and not isfinite(progress.fraction):
        return False
    return all(
        0 <= past.number < COUNT_BOUND and is_instant(past.started_at) and is_instant(past.ended_at)
        for past in history
    )


def is_sound_schedule(stored: StoredSchedule) -> bool:
    """Whether a schedule may be led by this."""
    spec: ScheduleSpec = stored.spec
    return (
        bool(spec.name)
        and 1 <= spec.overlap <= len(Overlap)
        and all(1 <= getattr(spec, name) <= most for name, most in POLICIES.items())
        and is_sound_spec(spec.template)
        and is_instant(stored.put_at)
        and is_instant(stored.processed_at)
        and is_instant(stored.next_at)
        and 0 <= stored.last_task < ID_BOUND
        and 0 <= stored.first_task < ID_BOUND
        and 0 <= stored.skipped < COUNT_BOUND
    )


def is_sound_size(resized: ResourceResized) -> bool:
    """Whether a resource may have this size."""
    return bool(resized.name) and all(
        0 <= number < ID_BOUND for number in (resized.permits, resized.rate, resized.burst)
    )
