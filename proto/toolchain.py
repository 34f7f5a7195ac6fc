"""Decides which generators run and where they live: pinned, outside the checkout, made on demand.

Each set of tools has a directory of its own under the user's cache, named after a digest of what
pins it, so that another pin is another directory and nothing is ever updated in place. A directory
appears under its final name only when it is complete.

Knows nothing of what the tools generate.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

PROTO = Path(__file__).resolve().parent

GO_PLUGINS = {
    "google.golang.org/protobuf/cmd/protoc-gen-go": "v1.36.10",
    "google.golang.org/grpc/cmd/protoc-gen-go-grpc": "v1.5.1",
}
RUST_PLUGINS = {"protoc-gen-prost": "0.5.0", "protoc-gen-tonic": "0.5.0"}

INSTALL_HINTS = {
    "cargo": "install a Rust toolchain with cargo (https://rustup.rs)",
    "git": "install git",
    "go": "install Go (https://go.dev/dl)",
    "npm": "install Node.js 20 or newer with npm (https://nodejs.org)",
}


class ToolError(Exception):
    """A tool is missing or has failed."""


def run(
    command: Sequence[str | Path],
    *,
    cwd: Path = PROTO,
    env: Mapping[str, str] | None = None,
    quiet: bool = False,
) -> None:
    """Runs a command to its end.

    Args:
        command: Program and arguments.
        cwd: Working directory.
        env: Variables on top of the present environment.
        quiet: Show the output only when the command fails.

    Raises:
        ToolError: It ended with another status than 0.
    """
    sink = subprocess.PIPE if quiet else None
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdout=sink,
        stderr=subprocess.STDOUT if quiet else None,
        text=True,
        check=False,
    )
    if done.returncode:
        shown = " ".join(str(part) for part in command)
        raise ToolError(f"failed ({done.returncode}): {shown}\n{done.stdout or ''}".rstrip())


def need(program: str) -> str:
    """Finds a program that a developer has to install.

    Raises:
        ToolError: It is not on the path; the message says how to get it.
    """
    found = shutil.which(program)
    if found is None:
        raise ToolError(f"{program} is not on the path: {INSTALL_HINTS[program]}")
    return found


def python() -> Path:
    """Makes or finds the interpreter whose packages generate the Python code."""
    pins = (PROTO / "requirements.txt").read_text()

    def install(root: Path) -> None:
        run([sys.executable, "-m", "venv", root], quiet=True)
        pip = [root / "bin" / "python", "-m", "pip", "install", "--quiet"]
        run([*pip, "--disable-pip-version-check", "-r", PROTO / "requirements.txt"], quiet=True)

    # A virtual environment holds its own path, so it is made where it stays.
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return _made("python", f"{pins}\n{version}", install, in_place=True) / "bin" / "python"


def node() -> Path:
    """Makes or finds the directory with the programs of the npm packages: buf and ts-proto."""
    names = ("package.json", "package-lock.json")
    pins = "\n".join((PROTO / name).read_text() for name in names)

    def install(root: Path) -> None:
        npm = need("npm")
        for name in names:
            shutil.copy(PROTO / name, root / name)
        run([npm, "ci", "--no-audit", "--no-fund", "--silent"], cwd=root, quiet=True)

    return _made("node", pins, install) / "node_modules" / ".bin"


def go() -> Path:
    """Makes or finds the directory with the protoc plugins for Go."""
    wanted = [f"{package}@{version}" for package, version in GO_PLUGINS.items()]

    def install(root: Path) -> None:
        program = need("go")
        for package in wanted:
            run([program, "install", package], cwd=root, env={"GOBIN": str(root)}, quiet=True)

    return _made("go", "\n".join(wanted), install)


def rust() -> Path:
    """Makes or finds the directory with the protoc plugins for Rust."""
    wanted = [f"{crate}@{version}" for crate, version in RUST_PLUGINS.items()]

    def install(root: Path) -> None:
        cargo = need("cargo")
        build = {"CARGO_TARGET_DIR": str(root / "target")}
        run([cargo, "install", "--locked", "--root", root, *wanted], env=build, quiet=True)
        shutil.rmtree(root / "target")

    return _made("rust", "\n".join(wanted), install) / "bin"


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "cronoq" / "generators"


def _made(
    name: str, pins: str, install: Callable[[Path], None], *, in_place: bool = False
) -> Path:
    """Returns the directory of a set of tools, making it when these pins have none yet."""
    root = _cache() / f"{name}-{hashlib.sha256(pins.encode()).hexdigest()[:16]}"
    complete = root / ".complete"
    if complete.exists():
        return root
    print(f"installing the {name} generators into {root}", file=sys.stderr)
    root.parent.mkdir(parents=True, exist_ok=True)
    if in_place:
        shutil.rmtree(root, ignore_errors=True)
        install(root)
        complete.touch()
        return root
    with tempfile.TemporaryDirectory(dir=root.parent, prefix=f".{name}-") as made:
        draft = Path(made) / "draft"
        draft.mkdir()
        install(draft)
        (draft / ".complete").touch()
        shutil.rmtree(root, ignore_errors=True)
        draft.rename(root)
    return root
