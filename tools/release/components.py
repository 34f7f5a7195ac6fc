"""Decides what is installed because of our packages: names and versions from the lock files.

Development tools are left out: nobody who installs a package gets them. Licences come from where
each ecosystem keeps them: the metadata of what is installed in this environment for Python, the
lock file for npm, the registry's metadata for crates, the licence files in the module cache for Go.
Of Python's dependencies those count that this platform and Python version need.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.quickstart import ROOT
from tools.release.licences import expression_of, expression_of_text

LICENCE_FILES = ("LICENSE", "LICENSE.md", "LICENSE.txt", "LICENCE", "COPYING")


@dataclass(frozen=True, slots=True, order=True)
class Component:
    """One dependency; ``licence`` is an SPDX expression or ``unknown``."""

    name: str
    version: str
    purl: str
    licence: str


def _output(*command: str, cwd: Path) -> str:
    return subprocess.run(command, cwd=cwd, check=True, stdout=subprocess.PIPE, text=True).stdout


# --- Python ---------------------------------------------------------------------------------------


def locked_python() -> dict[str, str]:
    """Return the versions in the lock file by name."""
    text = (ROOT / "requirements/dev.txt").read_text(encoding="utf-8")
    pairs = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", text, re.MULTILINE)
    return {canonicalize_name(name): version for name, version in pairs}


def python(package: str, extras: Iterable[str] = ()) -> list[Component]:
    """Return what an installed package of ours needs, directly or not."""
    locked = locked_python()
    seen: set[str] = set()
    wanted = [(package, frozenset(extras))]
    found = []
    while wanted:
        name, chosen = wanted.pop()
        distribution = importlib.metadata.distribution(name)
        if name not in seen and name != package:
            found.append(_python_component(distribution, locked[name]))
        seen.add(name)
        for text in distribution.requires or ():
            need = Requirement(text)
            here = [{"extra": extra} for extra in chosen] or [{"extra": ""}]
            if need.marker is None or any(need.marker.evaluate(one) for one in here):
                following = canonicalize_name(need.name)
                if following not in seen or need.extras:
                    wanted.append((following, frozenset(need.extras)))
    return sorted(set(found))


def _python_component(distribution: importlib.metadata.Distribution, version: str) -> Component:
    metadata = distribution.metadata
    name = canonicalize_name(metadata["Name"])
    if distribution.version != version:
        raise ValueError(f"{name} is {distribution.version} here and {version} in the lock file")
    marked = "License :: OSI Approved :: "
    classifiers = [
        value.removeprefix(marked)
        for value in metadata.get_all("Classifier", [])
        if value.startswith(marked)
    ]
    stated = [
        *metadata.get_all("License-Expression", []),
        *metadata.get_all("License", []),
        *classifiers,
    ]
    return Component(name, version, f"pkg:pypi/{name}@{version}", expression_of(*stated))


# --- npm ------------------------------------------------------------------------------------------


def npm(lock: Path) -> list[Component]:
    """Return what an npm package of ours needs, from its lock file."""
    packages = json.loads(lock.read_text(encoding="utf-8"))["packages"]
    found = set()
    for path, entry in packages.items():
        if not path or entry.get("dev") or entry.get("devOptional"):
            continue
        name, version = path.rpartition("node_modules/")[2], entry["version"]
        purl = f"pkg:npm/{quote(name, safe='/')}@{version}"
        found.add(Component(name, version, purl, expression_of(entry.get("license", ""))))
    return sorted(found)


# --- Rust -----------------------------------------------------------------------------------------


def rust(crate: Path) -> list[Component]:
    """Return what a crate of ours needs on any platform, with all features."""
    command = ("cargo", "metadata", "--locked", "--all-features", "--format-version", "1")
    told = json.loads(_output(*command, cwd=crate))
    packages = {one["id"]: one for one in told["packages"]}
    nodes = {one["id"]: one for one in told["resolve"]["nodes"]}
    root = told["resolve"]["root"]
    wanted, seen = [root], {root}
    while wanted:
        for dep in nodes[wanted.pop()]["deps"]:
            is_used = any(kind["kind"] != "dev" for kind in dep["dep_kinds"])
            if is_used and dep["pkg"] not in seen:
                seen.add(dep["pkg"])
                wanted.append(dep["pkg"])
    return sorted(
        Component(
            one["name"],
            one["version"],
            f"pkg:cargo/{one['name']}@{one['version']}",
            expression_of(one["license"] or ""),
        )
        for one in (packages[each] for each in seen - {root})
    )


# --- Go -------------------------------------------------------------------------------------------


def go(module: Path) -> list[Component]:
    """Return the modules that a module of ours is built with; their sums are in its go.sum."""
    shape = "{{with .Module}}{{.Path}}\t{{.Version}}\t{{.Dir}}{{end}}"
    lines = set(_output("go", "list", "-deps", "-f", shape, "./...", cwd=module).splitlines())
    sums = (module / "go.sum").read_text(encoding="utf-8")
    found = []
    for line in filter(None, lines):
        name, version, place = line.split("\t")
        if name.startswith("github.com/cronoq/"):
            continue
        if f"{name} {version} " not in sums:
            raise ValueError(f"{name} {version} is not in {module.name}/go.sum")
        licence = expression_of_text(_licence_text(Path(place)))
        found.append(Component(name, version, f"pkg:golang/{name}@{version}", licence))
    return sorted(found)


def _licence_text(place: Path) -> str:
    for name in LICENCE_FILES:
        if (place / name).is_file():
            return (place / name).read_text(encoding="utf-8", errors="replace")
    return ""


def everything() -> dict[str, list[Component]]:
    """Return the components of each package of ours."""
    return {
        "server": python("cronoq-server"),
        "sdk-python": python("cronoq", ("cli", "otel", "pydantic")),
        "sdk-go": go(ROOT / "sdk-go"),
        "sdk-go-otel": go(ROOT / "sdk-go/cronoqotel"),
        "sdk-typescript": npm(ROOT / "sdk-typescript/package-lock.json"),
        "sdk-rust": rust(ROOT / "sdk-rust"),
    }
