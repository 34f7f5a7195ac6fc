"""The command `cronoq`: what people and scripts do with a queue from a terminal.

Exit codes:

    0   done
    1   the task that was waited for did not succeed, or something failed that is not below
    2   the command line, the configuration or a value is wrong
    3   there is no such task, schedule, pool or resource
    4   the credential is missing, unknown, or not enough
    5   the server can't be reached, or did not answer in time
    130 interrupted
"""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command line; what it needs beyond the SDK comes with the extra `cli`."""
    try:
        from .app import run
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich", "textual", "click"):
            raise
        print(f"cronoq: {error.name} is missing: pip install 'cronoq[cli]'", file=sys.stderr)
        sys.exit(2)
    sys.exit(run())
