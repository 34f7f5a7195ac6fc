"""Decides which Helm looks at the chart, and where it is built and kept.

It is pinned, comes through the Go module proxy, and lives in the user's cache, never in the
checkout. Run as a program it passes its arguments on: ``python -m tools.helm lint PATH``.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

VERSION = "v3.20.2"
PACKAGE = f"helm.sh/helm/v3/cmd/helm@{VERSION}"
BUILD_TIMEOUT_S = 1200


class HelmMissing(Exception):
    """There is no Helm, and none can be built; says why."""


def cache() -> Path:
    """Return the directory that this version is kept in."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "cronoq" / "helm" / VERSION


def helm() -> Path:
    """Return the program, built if it is not there yet, which takes some minutes.

    Raises:
        HelmMissing: Go is not installed, or the build failed.
    """
    program = cache() / "helm"
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            build(program.parent)
    return program


def build(place: Path) -> None:
    """Build the program into a directory; it appears there whole or not at all."""
    go = shutil.which("go")
    if go is None:
        raise HelmMissing("the chart is checked by Helm, which is built by Go: install Go")
    print(f"building {PACKAGE}", file=sys.stderr)
    environment = {**os.environ, "GOBIN": str(place), "CGO_ENABLED": "0", "GOFLAGS": ""}
    try:
        done = subprocess.run(
            [go, "install", "-ldflags=-s -w", PACKAGE],
            cwd=place,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=BUILD_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise HelmMissing(f"{PACKAGE} was not built within {BUILD_TIMEOUT_S} s") from error
    if done.returncode != 0:
        raise HelmMissing(f"{PACKAGE} cannot be built:\n{done.stderr}")


def run(arguments: Sequence[str], *, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run Helm away from the settings of whoever is logged in.

    Raises:
        HelmMissing: There is none.
        subprocess.CalledProcessError: It failed, and ``check`` is set; its error has the output.
    """
    program = helm()
    home = str(cache() / "home")
    environment = {**os.environ, "HELM_CACHE_HOME": home, "HELM_CONFIG_HOME": home}
    environment |= {"HELM_DATA_HOME": home, "KUBECONFIG": os.devnull}
    return subprocess.run(
        [str(program), *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=check,
    )


def main() -> int:
    """Pass the arguments on; return Helm's exit code."""
    try:
        done = run(sys.argv[1:], check=False)
    except HelmMissing as error:
        print(error, file=sys.stderr)
        return 1
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
