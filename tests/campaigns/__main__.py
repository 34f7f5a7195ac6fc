"""Decides which long run is meant: `python -m tests.campaigns NAME [ARGUMENTS]`.

A campaign is a module of this package with `main(arguments) -> exit code`; nothing is registered.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys

from tests import campaigns


def names() -> list[str]:
    """The campaigns there are."""
    found = (module.name for module in pkgutil.iter_modules(campaigns.__path__))
    return sorted(name for name in found if not name.startswith(("_", "test_")))


def main(arguments: list[str]) -> int:
    """Runs the campaign that is named first with the arguments that follow it."""
    if not arguments or arguments[0] not in names():
        print(f"name one of: {', '.join(names())}", file=sys.stderr)
        return 2
    campaign = importlib.import_module(f"{campaigns.__name__}.{arguments[0]}")
    return int(campaign.main(arguments[1:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
