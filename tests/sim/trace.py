"""How a broken promise is shown: the seed, the promise, and the last steps, ready to paste.

The steps are Python: events and instants as they were given to the engine, with what it made of
them as comments. They go into a golden trace, or a test, as they are.
"""

from __future__ import annotations

import re

from cronoq_server.engine.effects import Dispatch
from tests.sim.play import Outcome
from tests.sim.world import Taken

_ENUM = re.compile(r"<(\w+\.\w+): [^>]*>")
_UNSET = re.compile(r", \w+=(None|\(\)|''|b'')(?=[,)])")

SHOWN = 3
"""Violations of one seed that are shown in full."""

TEXT_MAX = 1500
"""Longest text of one line."""


def report(outcome: Outcome, shards: int = 0) -> str:
    """Everything one needs to look into a seed; `shards`: how many it was played with."""
    lines = [f"seed {outcome.seed}: {len(outcome.violations)} violations"]
    for violation in outcome.violations[:SHOWN]:
        lines.append(f"  broken: {violation.promise}")
        lines += [f"    {line}" for line in violation.text[-4 * TEXT_MAX :].splitlines()]
    among = f" --shards {shards}" if shards else ""
    lines.append(f"  again with: ./justw sim --seed {outcome.seed} --seeds 1{among}")
    lines.append("  the last steps before it:")
    lines.append("STEPS = [")
    for taken in outcome.tail:
        lines += _step(taken)
    lines.append("]")
    return "\n".join(lines)


def _step(taken: Taken) -> list[str]:
    lines = [f"    # epoch {taken.epoch}, step {taken.step.number}"]
    now = f"Now(wall={taken.now.wall}, mono={taken.now.mono})"
    events = [f"        {_python(event)}," for event in taken.events]
    lines += [f"    ({now}, [", *events, "    ]),"] if events else [f"    ({now}, []),"]
    lines += [f"    #   writes {_python(mutation)}" for mutation in taken.step.mutations]
    for effect in taken.step.effects:
        if type(effect) is Dispatch:
            leases = [(lease.lease, lease.task_id, lease.attempt) for lease in effect.leases]
            lines.append(f"    #   says Dispatch({effect.session}, {leases})")
        else:
            lines.append(f"    #   says {_python(effect)}")
    return lines


def _python(value: object) -> str:
    """The value as an expression, without what is not given."""
    return _UNSET.sub("", _ENUM.sub(r"\1", repr(value)))[:TEXT_MAX]
