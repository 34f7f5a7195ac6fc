"""Specs with every field that a caller can give."""

from __future__ import annotations

import msgspec

from cronoq_server.engine.model import SECOND, Dependency, EdgeCondition, RetryPolicy, TaskSpec
from cronoq_server.testing.builders import EPOCH_START

FULL_SPEC = TaskSpec(
    pool="default",
    kind="resize",
    payload=bytes(range(256)),
    content_type="application/json",
    priority=2,
    key="order-17",
    deadline_in=60 * SECOND,
    start_in=5 * SECOND,
    tolerance=2 * SECOND,
    on_miss=2,
    duration_hint=3 * SECOND,
    timeout=30 * SECOND,
    retry=RetryPolicy(7, SECOND, 1.5, 9 * SECOND, False),
    dependencies=(Dependency(11), Dependency("a", EdgeCondition.ON_COMPLETE)),
    resources=(("gpu", 1), ("tokens", 40)),
    tags=(("team", "blue"), ("zone", "")),
    labels=(("os", "linux"),),
    tenant="acme",
    trace_context=(("traceparent", "00-1-2-01"),),
    delay=4 * SECOND,
    expires_in=90 * SECOND,
)
"""Every field set that can be set together, with relative times."""


ABSOLUTE_SPEC = TaskSpec(
    pool="default",
    kind="default",
    deadline_at=EPOCH_START + 5,
    start_at=EPOCH_START + 3,
    not_before=EPOCH_START + 1,
)
"""The absolute forms of the same."""


FULL_TEMPLATE = msgspec.structs.replace(FULL_SPEC, dependencies=())
"""What a schedule's template can say."""
