"""`python -m cronoq_server` is `cronoq-server`."""

from __future__ import annotations

import sys

from cronoq_server.cli import main

if __name__ == "__main__":
    sys.exit(main())
