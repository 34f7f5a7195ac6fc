"""Decides nothing: patches the Python SDK with one wrong behaviour, then runs the participant.

    python conformance/mutants/run.py MUTANT

Each mutant is a module here with `apply()`. Nothing of this is in the SDK.
"""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PARTICIPANT = HERE.parent / "participants" / "python" / "participant.py"


def main() -> None:
    """Patches, then becomes the participant."""
    sys.path.insert(0, str(HERE))
    importlib.import_module(sys.argv[1]).apply()
    runpy.run_path(str(PARTICIPANT), run_name="__main__")


if __name__ == "__main__":
    main()
