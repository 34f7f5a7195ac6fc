"""Decides whether the packages work for somebody who has only them.

Installs both, as wheels built from the checkout, into an environment of their own and away from
the checkout, asks the server for its version, starts it and runs the quickstart. Packaging
mistakes surface only there.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from tools.quickstart import EXPECTED_OUTPUT, ROOT, read_quickstart, run_program, serving

PACKAGES = ("server", "sdk-python")


def version_of(package: str) -> str:
    """Return the version that a package's source states."""
    (source,) = (ROOT / package / "src").glob("*/__init__.py")
    stated = re.search(r'^__version__ = "(.+)"$', source.read_text(encoding="utf-8"), re.MULTILINE)
    if stated is None:
        raise ValueError(f"{source} states no version")
    return stated.group(1)


def run(*command: str, cwd: Path) -> str:
    """Run a command that must succeed and return its standard output."""
    print("$", *command, flush=True)
    result = subprocess.run(command, cwd=cwd, check=True, stdout=subprocess.PIPE, text=True)
    return result.stdout


def main() -> int:
    """Install, start, run; return the exit code."""
    with tempfile.TemporaryDirectory(prefix="cronoq-release-") as name:
        place = Path(name)
        venv.create(place / "x", with_pip=True)
        binaries = place / "x" / "bin"
        packages = [str(ROOT / package) for package in PACKAGES]
        run(str(binaries / "pip"), "install", "--quiet", *packages, cwd=place)
        server = str(binaries / "cronoq-server")
        answer = run(server, "--version", cwd=place)
        if version_of("server") not in answer:
            print(f"expected version {version_of('server')}, got {answer!r}")
            return 1
        with serving([server], place) as address:
            output = run_program(read_quickstart(), str(binaries / "python"), address, place)
        if output != EXPECTED_OUTPUT:
            print(f"expected {EXPECTED_OUTPUT!r}, got {output!r}")
            return 1
    print("release-check: ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
