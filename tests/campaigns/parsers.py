"""Throws damaged input at everything that parses, guided by the branches that it reaches.

`./justw campaign parsers [--minutes N] [--only NAME] [--seed S] [--plain]` takes one target after
the other: those of the server and the Python SDK with atheris where that is installed (else, or
with `--plain`, with damage at random), those of Go with its own fuzzer, those of TypeScript and
Rust with properties over as many cases as the time allows. What breaks is written to `fuzz-found/`,
and the exit code is 1. A finding is mended, and its input goes into the corpus that CI replays.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.campaigns import _endpoint_vectors as endpoint_vectors
from tests.campaigns._parser_cases import CORPUS, LONGEST, damaged, read_corpus, write_corpus
from tests.campaigns._parser_targets import TARGETS

ROOT: Final = Path(__file__).resolve().parents[2]
FOUND: Final = ROOT / "fuzz-found"
SLOW_S: Final = 10
"""Seconds for one input after which it counts as endless."""

KEPT_BYTES: Final = 600
"""Longer inputs do not go into the corpus."""


def fuzz_guided(name: str, seconds: int, seed: int) -> bool:
    """Lets atheris look for branches, from the corpus and what earlier runs left."""
    inputs = _inputs(name)
    ends = [f"-max_total_time={seconds}", f"-seed={seed}", "-print_final_stats=1", "-verbosity=0"]
    found = f"-artifact_prefix={FOUND}/{name}-"
    return _guided(name, [*COMMON, *ends, found, str(inputs)]) == 0


def _inputs(name: str) -> Path:
    """The folder of a target's inputs, with those of the corpus in it."""
    folder = FOUND / name
    folder.mkdir(parents=True, exist_ok=True)
    for number, content in enumerate(read_corpus(CORPUS / f"{name}.jsonl")):
        (folder / f"{number:05}").write_bytes(content)
    return folder


def keep(name: str) -> None:
    """Makes the corpus those few small inputs that reach all that any of them reached."""
    with tempfile.TemporaryDirectory(prefix=f"cronoq-{name}-") as folder:
        _guided(name, [*COMMON, "-merge=1", folder, str(_inputs(name))], quiet=True)
        contents = [path.read_bytes() for path in sorted(Path(folder).iterdir())]
    small = [one for one in contents if len(one) <= KEPT_BYTES]
    print(f"{name}: {len(contents)} inputs reach all that was reached, {len(small)} of them small")
    if small:
        write_corpus(CORPUS / f"{name}.jsonl", [*small, *read_corpus(CORPUS / f"{name}.jsonl")])


COMMON: Final = (f"-timeout={SLOW_S}", "-rss_limit_mb=3000", f"-max_len={LONGEST}")


def _guided(name: str, options: list[str], *, quiet: bool = False) -> int:
    command = [sys.executable, "-m", "tests.campaigns._parser_guided", name, *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=quiet, check=False)
    return done.returncode


def fuzz_plain(name: str, seconds: int, seed: int) -> bool:
    """Damages kept inputs at random until the time is up; returns whether all was well."""
    ends_at = time.monotonic() + seconds
    inputs = read_corpus(CORPUS / f"{name}.jsonl") or [b""]
    for cases, content in enumerate(damaged(inputs, seed)):
        if time.monotonic() > ends_at:
            print(f"{name}: {cases} cases, nothing found")
            return True
        try:
            TARGETS[name](content)
        except Exception:  # noqa: BLE001  whatever it is, it is what is looked for
            FOUND.mkdir(exist_ok=True)
            place = FOUND / f"{name}-{cases}"
            place.write_bytes(content)
            traceback.print_exc()
            print(f"{name}: FAULT after {cases} cases, see {place}")
            return False
    return True


def _go(fuzz: str, *tests: str) -> tuple[str, tuple[str, ...]]:
    run = "|".join((fuzz, *tests))
    ends = ("-fuzztime", "{seconds}s", "-timeout", "0")
    return "sdk-go", ("go", "test", "-run", f"^({run})$", "-fuzz", f"^{fuzz}$", *ends, ".")


def _typescript(*files: str) -> tuple[str, tuple[str, ...]]:
    return "sdk-typescript", ("node", "scripts/test.mjs", *files)


def _rust(*tests: str) -> tuple[str, tuple[str, ...]]:
    shown = ("--nocapture", *tests)
    return "sdk-rust", ("cargo", "test", "--quiet", "--locked", "--lib", "--", *shown)


OTHERS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "go-endpoints": _go("FuzzEndpoint", "TestEndpoint_ReadsAsAllSDKsDo"),
    "go-errors": _go("FuzzError", "TestError_IsReadAsAllSDKsDo"),
    "go-payloads": _go("FuzzPayload", "TestPayload_IsReadAsAllSDKsDo"),
    "go-times": _go("FuzzTime"),
    "typescript-endpoints": _typescript("fuzz-endpoints", "endpoint"),
    "typescript-errors": _typescript("fuzz-errors"),
    "typescript-payloads": _typescript("fuzz-payloads"),
    "rust-endpoints": _rust("fuzz_tests::endpoints", "endpoint::tests"),
    "rust-errors": _rust("fuzz_tests::errors", "fuzz_tests::shared_errors"),
    "rust-payloads": _rust("fuzz_tests::payloads", "fuzz_tests::shared_payloads"),
    "rust-times": _rust("fuzz_tests::times"),
}
"""Targets of other languages: the folder and the command, in which `{seconds}` is the time."""

ENDPOINTS: Final = 5000
"""Endpoints that Python makes anew for each run of another language's, beside what that makes."""


def fuzz_other(name: str, seconds: int, seed: int) -> bool:
    """Runs the fuzzer of another language; returns whether all was well."""
    folder, command = OTHERS[name]
    spoken = [part.replace("{seconds}", str(seconds)) for part in command]
    environment = {**os.environ, "CRONOQ_FUZZ_S": str(seconds), "CRONOQ_FUZZ_SEED": str(seed)}
    if "CRONOQ_CACHE" in os.environ:
        environment["CARGO_TARGET_DIR"] = str(Path(os.environ["CRONOQ_CACHE"]) / "rust-target")
    if name.endswith("-endpoints"):
        FOUND.mkdir(exist_ok=True)
        shared = FOUND / f"endpoints-{seed}.json"
        endpoint_vectors.write(shared, endpoint_vectors.texts(ENDPOINTS, seed))
        environment["CRONOQ_ENDPOINT_VECTORS"] = str(shared)
    return subprocess.run(spoken, cwd=ROOT / folder, env=environment, check=False).returncode == 0


def main(arguments: Sequence[str]) -> int:
    """Runs the campaign and returns 1 if it found anything."""
    parser = argparse.ArgumentParser(prog="parsers", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="for each target")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=[*TARGETS, *OTHERS], action="append")
    parser.add_argument("--plain", action="store_true", help="without a look at branches")
    parser.add_argument("--keep", action="store_true", help="put what runs left into the corpus")
    given = parser.parse_args(arguments)
    if given.keep:
        for name in given.only or TARGETS:
            keep(name)
        return 0
    is_guided = not given.plain and importlib.util.find_spec("atheris") is not None
    print(
        f"{given.minutes:g} minutes for each target, {'with' if is_guided else 'without'} atheris"
    )
    bad = []
    for name in given.only or [*TARGETS, *OTHERS]:
        begun = time.monotonic()
        fuzz = fuzz_other if name in OTHERS else fuzz_guided if is_guided else fuzz_plain
        is_well = fuzz(name, max(1, round(given.minutes * 60)), given.seed)
        print(
            f"{name}: {'ok' if is_well else 'FAULT'} ({time.monotonic() - begun:.0f} s)", flush=True
        )
        bad += [] if is_well else [name]
    print(f"{len(bad)} targets with faults{': ' if bad else ''}{', '.join(bad)}")
    return int(bool(bad))
