"""What is kept of every change that a person or a tool made to the queue's order of things.

One log line for each: who, what, to what, from where. Submits and cancels of single tasks are the
queue's daily work and leave none. A line holds names and numbers, never a payload or a credential.
"""

from __future__ import annotations

import logging
from contextvars import ContextVar
from typing import Any

from cronoq_server.api.auth import Operation, Principal

origin: ContextVar[str] = ContextVar("origin", default="")
"""Where the call that is being served came from: the transport says so."""

log = logging.getLogger(__name__)


def record(who: Principal, operation: Operation, **facts: Any) -> None:
    """Writes the line of a change that has been made."""
    told = " ".join(f"{name}={value!r}" for name, value in facts.items())
    log.info(
        "%s %s: %s",
        who.name,
        operation,
        told,
        extra={
            "action": "change_made",
            "who": who.name,
            "role": str(who.role),
            "operation": operation.name.lower(),
            "from": origin.get(),
            **{f"on_{name}": value for name, value in facts.items()},
        },
    )
