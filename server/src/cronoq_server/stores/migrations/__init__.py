"""Which form of the tables this build knows, and the steps from any older form to it.

Rules a change must keep:

1. A published step is never edited; a new form is a new file, numbered one higher.
2. A step only adds: columns with defaults, tables, indexes. A leader of the version before works
   on while it is applied.
3. A form newer than this build's is refused, never guessed at.

How a step is run, and under which lock, is the store's business.
"""

from __future__ import annotations

from importlib import resources
from typing import NamedTuple

from cronoq_server.stores.base import Unusable


class Step(NamedTuple):
    """One step to a newer form."""

    version: int
    statements: str


def steps(dialect: str) -> list[Step]:
    """All steps of a dialect (`sqlite` or `postgres`), oldest first, without gaps."""
    found: list[Step] = []
    for file in resources.files(__package__).joinpath(dialect).iterdir():
        if file.name.endswith(".sql"):
            number = int(file.name.partition("_")[0])
            found.append(Step(number, file.read_text(encoding="utf-8")))
    found.sort()
    assert [step.version for step in found] == list(range(1, len(found) + 1)), dialect
    return found


def pending(dialect: str, version: int) -> list[Step]:
    """The steps that lead from this version (0 = no tables) to this build's.

    Raises:
        Unusable: The version is newer than any that this build knows.
    """
    known = steps(dialect)
    if version > len(known):
        raise Unusable(
            f"the tables have version {version}, this build knows versions up to {len(known)}: "
            "use a newer build"
        )
    return known[version:]
