"""Decides what a full check of the repository consists of, in which order, and how it is summed up.

Rules a change must keep:

* cheap parts come first; ``WIDTH`` parts run side by side, each in a process group of its own
* a part that passes says one line; one that fails shows all of its output
* the last line is ``N passed, N failed`` over all parts and nothing follows it
* a part that is cut off, runs no test, or skips one where CI asked for it counts as failed

It does not know what a part does: the commands are recipes of the justfile.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parent.parent
WIDTH = 2
CHECK_TIMEOUT_S = 1800  # the first run builds the generators of three languages
TESTS_TIMEOUT_S = 1500


@dataclass(frozen=True, slots=True)
class Part:
    """One thing to check: a recipe with its arguments, or a set of pytest paths."""

    name: str
    command: tuple[str, ...]
    counts_tests: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a part ended; ``skipped`` are tests that said they could not run."""

    passed: int
    failed: int
    skipped: int
    seconds: float
    output: str


def check(name: str, *command: str) -> Part:
    """Describe a part that counts once."""
    return Part(name, command)


def tests(name: str, *paths: str) -> Part:
    """Describe a part whose tests are counted one by one."""
    return Part(name, (sys.executable, "-m", "pytest", "-q", *paths), counts_tests=True)


def found(folder: str, with_: str = "", without: str | None = None) -> list[str]:
    """Return the test files of a folder whose names have one word in them and not the other."""
    return sorted(
        f"{folder}/{path.name}"
        for path in (ROOT / folder).glob("test_*.py")
        if with_ in path.name and (without is None or without not in path.name)
    )


# In CI order, cheap first.
PARTS = (
    check("fmt", "just", "fmt", "--check"),
    check("lint", "just", "lint"),
    check("types", "just", "types"),
    check("layers", "just", "layers"),
    check("generated code", "just", "gen-check"),
    check("proto lint", "just", "proto-lint"),
    check("proto breaking", "just", "proto-breaking"),
    tests("tidy", "tests/tidy"),
    tests("docs", "tests/docs"),
    tests(
        "server",
        "tests/test_config.py",
        "tests/test_embedded.py",
        "tests/test_reloading.py",
        "tests/test_telemetry.py",
    ),
    tests("engine", "tests/engine"),
    tests("stores", *found("tests/stores", without="postgres")),
    tests("stores postgres", *found("tests/stores", with_="postgres")),
    tests("runtime", "tests/runtime"),
    tests("ha", "tests/ha"),
    tests("sharding", "tests/sharding"),
    tests("api", "tests/api"),
    tests("parsers", "tests/parsers"),
    tests("sim", "tests/sim"),
    tests("sdk-python", "sdk-python/tests", "tests/cli"),
    check("sdk-go", "just", "sdk-go"),
    check("history", "just", "history"),
    check("sdk-typescript", "just", "sdk-typescript"),
    check("sdk-rust", "just", "sdk-rust"),
    tests("console", "tests/console"),
    Part("conformance", ("just", "conformance", "--quiet"), counts_tests=True),
    tests("new language", "tests/conformance"),
    tests("bench", "tests/bench"),
    tests("deploy", "tests/deploy"),
    tests("campaigns", "tests/campaigns"),
    tests("e2e", "tests/e2e"),
)


def count_tests(report: Path) -> tuple[int, int, int]:
    """Read a JUnit report and return the numbers of passed, failed and skipped tests."""
    if not report.exists():
        return 0, 0, 0
    passed = failed = skipped = 0
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        elif case.find("skipped") is not None:
            skipped += 1
        else:
            passed += 1
    return passed, failed, skipped


# The process groups that are under way: whoever ends the check ends them, too.
LIVE: set[int] = set()


def end_all(number: int, _frame: FrameType | None) -> None:
    """End every part and this process, as a signal asks."""
    for group in list(LIVE):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
    os._exit(128 + number)


def run_bounded(command: Sequence[str], timeout_s: float) -> tuple[int, str]:
    """Run a command and return its exit code and output; at the timeout its whole group ends."""
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        LIVE.add(process.pid)
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            return 1, f"{output}\ncut off after {timeout_s:.0f} s\n"
        finally:
            LIVE.discard(process.pid)
    return process.returncode, output


def run_part(part: Part, reports: Path) -> Outcome:
    """Run one part to its end and judge it."""
    begun = time.monotonic()
    if not part.counts_tests:
        code, output = run_bounded(part.command, CHECK_TIMEOUT_S)
        passed, failed, skipped = int(code == 0), int(code != 0), 0
    else:
        report = reports / f"{part.name}.xml"
        code, output = run_bounded((*part.command, f"--junitxml={report}"), TESTS_TIMEOUT_S)
        passed, failed, skipped = count_tests(report)
        if code != 0 and failed == 0:
            failed = 1  # it crashed, was cut off, or found nothing to run
        if skipped and os.environ.get("CI"):
            failed += skipped  # in CI everything that tests need is expected to be there
    return Outcome(passed, failed, skipped, time.monotonic() - begun, output)


def announce(part: Part, outcome: Outcome) -> None:
    """Print a part's line, after its output if it failed."""
    if outcome.failed:
        print(f"----- {part.name}: {' '.join(part.command)}")
        print(outcome.output.rstrip())
        print("-----")
    verdict = "FAILED" if outcome.failed else "ok"
    counts = f"{outcome.passed} passed, {outcome.failed} failed"
    skips = f", {outcome.skipped} SKIPPED" if outcome.skipped else ""
    print(f"{verdict:<6} {part.name:<22} {counts}{skips} ({outcome.seconds:.1f} s)", flush=True)


def select(names: Sequence[str]) -> list[Part]:
    """Return the parts with these names, all of them for none; an unknown name is an error."""
    unknown = sorted(set(names) - {part.name for part in PARTS})
    if unknown:
        known = ", ".join(part.name for part in PARTS)
        sys.exit(f"no such part: {', '.join(unknown)} (there are: {known})")
    return [part for part in PARTS if not names or part.name in names]


def main(names: Sequence[str]) -> int:
    """Run the named parts, or all, and return the exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end_all)
    parts = select(names)
    passed = failed = 0
    with tempfile.TemporaryDirectory() as reports, ThreadPoolExecutor(WIDTH) as pool:
        runs = [pool.submit(run_part, part, Path(reports)) for part in parts]
        for part, run in zip(parts, runs, strict=True):
            outcome = run.result()
            announce(part, outcome)
            passed += outcome.passed
            failed += outcome.failed
    print(f"{passed} passed, {failed} failed", flush=True)
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
