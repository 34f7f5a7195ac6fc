"""Decides that all packages say the same version, and where each says it."""

from __future__ import annotations

import json
import re
import tomllib

import yaml

from tools.quickstart import ROOT


def _found(path: str, pattern: str) -> str:
    """Return the only match in a file of the repository."""
    found = re.findall(pattern, (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
    if len(found) != 1:
        raise ValueError(f"{path}: {len(found)} places look like a version")
    return str(found[0])


def versions() -> dict[str, str]:
    """Return the version at each place that states one."""
    npm = json.loads((ROOT / "sdk-typescript/package.json").read_text("utf-8"))
    npm_lock = json.loads((ROOT / "sdk-typescript/package-lock.json").read_text("utf-8"))
    crate = tomllib.loads((ROOT / "sdk-rust/Cargo.toml").read_text("utf-8"))
    crate_lock = tomllib.loads((ROOT / "sdk-rust/Cargo.lock").read_text("utf-8"))
    chart = yaml.safe_load((ROOT / "server/deploy/helm/cronoq/Chart.yaml").read_text("utf-8"))
    (locked,) = [one["version"] for one in crate_lock["package"] if one["name"] == "cronoq"]
    python = '^__version__ = "(.+)"$'
    return {
        "server": _found("server/src/cronoq_server/__init__.py", python),
        "sdk-python": _found("sdk-python/src/cronoq/_version.py", python),
        "sdk-go": _found("sdk-go/doc.go", '^const Version = "(.+)"$'),
        "sdk-go/cronoqotel": _found("sdk-go/cronoqotel/go.mod", r"cronoq/sdk-go v(\S+)$"),
        "sdk-typescript": npm["version"],
        "sdk-typescript, lock": npm_lock["packages"][""]["version"],
        "sdk-typescript, source": _found(
            "sdk-typescript/src/version.ts", '^export const VERSION = "(.+)";$'
        ),
        "sdk-rust": crate["package"]["version"],
        "sdk-rust, lock": locked,
        "chart": chart["version"],
        "chart, server": chart["appVersion"],
    }


def version() -> str:
    """Return the version of everything.

    Raises:
        ValueError: The places do not agree; names them.
    """
    stated = versions()
    if len(set(stated.values())) != 1:
        lines = "\n".join(f"  {place}: {value}" for place, value in stated.items())
        raise ValueError(f"the versions are not in step:\n{lines}")
    return stated["server"]
