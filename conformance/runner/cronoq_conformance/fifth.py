"""Decides how a language without an SDK is held to some scenarios, from stubs made anew."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .languages import CONFORMANCE, ROOT, Language
from .report import Outcome
from .run import play_all
from .scenario import Scenario

FOLDER = CONFORMANCE / "new_language"


def generate(into: Path) -> None:
    """Generates plain stubs of the worker's service from the proto files.

    Raises:
        CalledProcessError: The generator failed.
    """
    proto = ROOT / "proto"
    files = [f"cronoq/v1/{name}.proto" for name in ("task", "workers")]
    options = [f"-I{proto}", f"-I{proto / 'third_party'}"]
    outputs = [f"--python_out={into}", f"--grpc_python_out={into}"]
    command = [sys.executable, "-m", "grpc_tools.protoc", *options, *outputs, *files]
    subprocess.run(command, cwd=proto, check=True)
    for package in ("cronoq", "cronoq/v1"):  # Found before the SDK of that name.
        (into / package / "__init__.py").touch()


def subset(scenarios: Sequence[Scenario]) -> list[Scenario]:
    """Returns the scenarios that a first worker has to pass.

    Raises:
        LookupError: The list names one that there is not.
    """
    by_name = {scenario.full_name: scenario for scenario in scenarios}
    lines = (FOLDER / "subset.txt").read_text(encoding="utf-8").splitlines()
    return [by_name[line] for line in lines if line and not line.startswith("#")]


def play(scenarios: Sequence[Scenario], jobs: int) -> list[Outcome]:
    """Plays the subset for the worker of `new_language`."""
    with tempfile.TemporaryDirectory(prefix="cronoq-stubs-") as folder:
        generate(Path(folder))
        language = Language("fifth", ("python", str(FOLDER / "participant.py"), folder))
        return asyncio.run(play_all(subset(scenarios), [language], [], jobs, lambda _: None))
