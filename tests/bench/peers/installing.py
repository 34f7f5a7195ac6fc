"""Puts peers where the bench can run them: each language in a folder of its own in the cache.

Nothing of it gets into the environment of the project. What is there already is used again as long
as the files that name the versions are the same.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.bench.peers.talking import PeerFailed

HERE = Path(__file__).parent
ADAPTERS = HERE / "adapters"
CACHE = Path(os.environ.get("CRONOQ_CACHE", Path.home() / ".cache" / "cronoq")) / "peers"
PYTHON = CACHE / "python" / "bin" / "python"
NODE = CACHE / "node"
RIVER = CACHE / "go" / "river"
CRATE = "0.2.1"
CRATE_SERVER = CACHE / "crate" / "bin" / "cronoq-server"
CRATE_TARGET = CACHE / "rust-target"
CRATE_WORKER = CRATE_TARGET / "release" / "crate-worker"
TIMEOUT_S = 1800
LAST_LINES = 5


def _run(command: Sequence[object], folder: Path, **env: object) -> None:
    """Runs a step of an installation; what went wrong is what its last lines say."""
    words = [str(word) for word in command]
    if shutil.which(words[0]) is None:
        raise PeerFailed(f"{words[0]} is not installed")
    run = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, **{name: str(value) for name, value in env.items()}},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if run.returncode:
        said = (run.stdout + run.stderr).strip().splitlines()[-LAST_LINES:]
        raise PeerFailed(f"`{' '.join(words[:3])} …` failed: {' '.join(said)}")


def _once(folder: Path, inputs: Sequence[Path], install: Callable[[], None]) -> None:
    """Installs, unless the same inputs have been installed there before."""
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in inputs)).hexdigest()
    stamp = folder / ".stamp"
    if stamp.exists() and stamp.read_text() == digest:
        return
    folder.mkdir(parents=True, exist_ok=True)
    install()
    stamp.write_text(digest)


@functools.cache
def python() -> None:
    """The peers in Python, in an environment of their own."""
    requirements = HERE / "requirements.txt"

    def install() -> None:
        _run([sys.executable, "-m", "venv", "--clear", PYTHON.parents[1]], HERE)
        _run([PYTHON, "-m", "pip", "install", "--quiet", "-r", requirements], HERE)

    _once(PYTHON.parents[1], [requirements], install)


@functools.cache
def node() -> None:
    """The peers in JavaScript; adapters go beside what they import."""
    sources = HERE / "node"

    def install() -> None:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(sources / name, NODE)
        _run(["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"], NODE)

    _once(NODE, [sources / "package-lock.json"], install)
    for path in sources.glob("*.mjs"):
        shutil.copy(path, NODE)


@functools.cache
def go() -> None:
    """The program that is River's client and worker."""
    sources = HERE / "river"

    def install() -> None:
        _run(["go", "build", "-o", RIVER, "."], sources, GOFLAGS="-mod=readonly")

    _once(RIVER.parent, sorted(sources.glob("*.*")), install)


@functools.cache
def crate() -> None:
    """The server of the published crate, as it comes, and a program around its worker."""
    sources = HERE / "crate"
    wanted = ["cronoq-server", "--version", CRATE, "--root", CRATE_SERVER.parents[1]]

    def install() -> None:
        target = {"CARGO_TARGET_DIR": CRATE_TARGET}
        _run(["cargo", "install", "--quiet", "--locked", "--force", *wanted], HERE, **target)
        _run(["cargo", "build", "--quiet", "--release", "--locked"], sources, **target)

    files = [sources / "Cargo.lock", sources / "src" / "main.rs"]
    _once(CRATE_SERVER.parents[1], files, install)


def nothing() -> None:
    """Ours is there already."""
