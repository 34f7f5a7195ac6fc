"""Pure arithmetic of decisions: backoff, budgets, expected durations.

Everything saturates: any attempt number and any multiplier gives a duration within its bound.
Chance comes in through `Chance`, in whole numbers, so that the same seed gives the same run.
"""

from __future__ import annotations

from typing import Protocol

from cronoq_server.engine.model import DEFAULT_RETRY, SECOND, Duration, RetryPolicy

RETRY_AFTER_MAX: Duration = 24 * 3600 * SECOND
"""Longest wait a worker may ask for before the next attempt."""

_MEAN_WEIGHT = 8
"""A new duration counts an eighth in the learned mean."""


class Chance(Protocol):
    """The only source of chance."""

    def below(self, bound: int) -> int:
        """A whole number from 0 to `bound` - 1, uniformly."""


def effective_retry(task: RetryPolicy | None, pool: RetryPolicy) -> RetryPolicy:
    """Fills a policy's zeros from the pool's, then from the default."""
    if task is None:
        task = pool
    return RetryPolicy(
        max_attempts=task.max_attempts or pool.max_attempts or DEFAULT_RETRY.max_attempts,
        initial_backoff=(
            task.initial_backoff or pool.initial_backoff or DEFAULT_RETRY.initial_backoff
        ),
        multiplier=task.multiplier or pool.multiplier or DEFAULT_RETRY.multiplier,
        max_backoff=task.max_backoff or pool.max_backoff or DEFAULT_RETRY.max_backoff,
        jitter=task.jitter,
    )


def backoff(policy: RetryPolicy, attempt: int, chance: Chance) -> Duration:
    """How long to wait after `attempt` (from 1) has failed.

    With jitter the wait is uniform from zero to the exponential value, both included.
    """
    bound = policy.max_backoff
    wait = float(policy.initial_backoff)
    if policy.multiplier != 1.0 and attempt > 1:
        try:
            wait *= policy.multiplier ** (attempt - 1)
        except OverflowError:
            wait = float(bound)
    length = bound if wait >= bound else int(wait)
    return chance.below(length + 1) if policy.jitter else length


def remaining(instant: int, now: int, longest: Duration) -> Duration:
    """Time left until a stored wall instant: at least 0, at most the duration it came from."""
    return max(0, min(instant - now, longest))


def learned_mean(mean: Duration | None, sample: Duration) -> Duration:
    """A moving mean of run times, in whole nanoseconds."""
    if mean is None:
        return sample
    return mean + (sample - mean) // _MEAN_WEIGHT
