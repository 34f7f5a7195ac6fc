"""How many tasks a credential may submit per second: a bucket for each, filled by the clock.

A submit is let through while its caller's bucket holds anything, and may leave it in debt, so that
a batch larger than a second's worth passes and is paid for afterwards.
"""

from __future__ import annotations

import math
from collections import OrderedDict

from cronoq_server.engine import SECOND, ErrorReason, Instant, Refusal
from cronoq_server.runtime.refusals import Refused

CALLERS_KEPT = 10_000
"""Callers whose buckets are remembered; one that is forgotten begins with a full bucket."""


class SubmitRates:
    """The buckets of all callers.

    Attributes:
        per_second: Tasks per second and caller; 0 = as many as they like.
    """

    def __init__(self, per_second: float) -> None:
        self.per_second = per_second
        self._buckets: OrderedDict[str, tuple[float, Instant]] = OrderedDict()

    def take(self, caller: str, tasks: int, now: Instant) -> None:
        """Counts tasks that a caller submits.

        Args:
            caller: The name of its credential.
            tasks: How many.
            now: Mono instant.

        Raises:
            Refused: The caller has submitted too many; the details say when to come back.
        """
        rate = self.per_second
        if not rate:
            return
        most = max(rate, 1.0)
        left, since = self._buckets.pop(caller, (most, now))
        left = min(most, left + (now - since) / SECOND * rate)
        if left >= 1:
            left -= tasks
        else:
            self._buckets[caller] = (left, now)
            wait_s = math.ceil((1 - left) / rate * 1000) / 1000
            text = (
                f"this credential may submit {rate:g} tasks per second; come back in {wait_s:g} s"
            )
            details = (("limit", f"{rate:g}"), ("retry_after_s", f"{wait_s:g}"))
            raise Refused(Refusal(ErrorReason.RATE_LIMITED, text, details))
        self._buckets[caller] = (left, now)
        if len(self._buckets) > CALLERS_KEPT:
            self._buckets.popitem(last=False)
