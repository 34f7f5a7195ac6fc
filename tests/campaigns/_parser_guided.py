"""Decides how a target is fuzzed with a look at which branches its inputs reach, by atheris.

`python -m tests.campaigns._parser_guided TARGET [LIBFUZZER OPTIONS …]` is what the campaign starts
as a process: libFuzzer takes the process over and ends it itself. atheris is no dependency of the
project, since it has no wheel for every version of Python; the campaign says when it lacks it.
"""

from __future__ import annotations

import importlib
import sys


def main(arguments: list[str]) -> None:
    """Fuzzes the target that is named first; does not return."""
    atheris = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["cronoq", "cronoq_server", "tomllib", "croniter"]):
        targets = importlib.import_module("tests.campaigns._parser_targets")
    atheris.Setup([sys.argv[0], *arguments[1:]], targets.TARGETS[arguments[0]])
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
