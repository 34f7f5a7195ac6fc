"""Decides which languages there are and how their participants are built and started."""

from __future__ import annotations

import asyncio
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
CONFORMANCE = ROOT / "conformance"


class BuildError(Exception):
    """A participant cannot be built."""


@dataclass(frozen=True, slots=True)
class Language:
    """One language's participant."""

    name: str
    run: tuple[str, ...]
    builds: tuple[tuple[str, ...], ...] = ()


def cache_directory() -> Path:
    """Returns where built participants are kept between runs."""
    base = os.environ.get("CRONOQ_CACHE") or str(Path.home() / ".cache" / "cronoq")
    path = Path(base) / "conformance"
    path.mkdir(parents=True, exist_ok=True)
    return path


def read_languages(path: Path = CONFORMANCE / "participants" / "languages.toml") -> list[Language]:
    """Reads what languages there are, in the order of the file."""
    cache = str(cache_directory())

    def filled(command: Sequence[str]) -> tuple[str, ...]:
        return tuple(part.replace("{cache}", cache) for part in command)

    found = []
    for name, said in tomllib.loads(path.read_text(encoding="utf-8")).items():
        build = said.get("build", [])
        builds = [build] if build and isinstance(build[0], str) else build
        found.append(Language(name, filled(said["run"]), tuple(filled(each) for each in builds)))
    return found


async def build(languages: Sequence[Language]) -> Mapping[str, tuple[str, ...]]:
    """Builds participants and returns how each is started.

    Raises:
        BuildError: One cannot be built; has its output.
    """
    for language in languages:
        for command in language.builds:
            process = await asyncio.create_subprocess_exec(
                *command,
                cwd=ROOT,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            output, _ = await process.communicate()
            if process.returncode != 0:
                text = output.decode(errors="replace")
                raise BuildError(f"{language.name}: {' '.join(command)}\n{text}")
    return {language.name: language.run for language in languages}
