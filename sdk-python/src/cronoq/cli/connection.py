"""Decides which server a command talks to, and how it shows who is asking.

The command line comes first, then the environment, then the profile, then the default. A profile is
a table of the configuration file, chosen by `--profile` or `CRONOQ_PROFILE`:

    [profiles.default]
    endpoint = "https://queue.example.com:7070"
    token_env = "QUEUE_TOKEN"
    ca = "ca.pem"
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cronoq.client import Client
from cronoq.options import TlsOptions

ENDPOINT = "127.0.0.1:7070"
KEYS = ("endpoint", "token", "token_env", "ca", "cert", "key")


class Misconfigured(Exception):
    """The configuration file, or a choice from it, is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Which server, and as whom.

    Attributes:
        endpoint: `host:port`, `http://…` or `https://…`.
        token: Bearer token; never shown.
        ca: Certificates to trust.
        cert: This side's certificate.
        key: Its key.
    """

    endpoint: str = ENDPOINT
    token: str | None = field(default=None, repr=False)
    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    def client(self, *, deadline: float) -> Client:
        """A client for it; the caller closes it.

        Raises:
            Misconfigured: The endpoint can't be read, or another choice is none that can be.
        """
        files = {"ca": self.ca, "cert": self.cert, "key": self.key}
        try:
            tls = TlsOptions(**files) if any(files.values()) else None
            return Client(self.endpoint, token=self.token, tls=tls, deadline=deadline)
        except ValueError as error:
            raise Misconfigured(str(error)) from error


def config_path(environment: Mapping[str, str]) -> Path:
    """Where the configuration file is, whether it exists or not."""
    if named := environment.get("CRONOQ_CONFIG"):
        return Path(named)
    home = environment.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "cronoq" / "config.toml"


def choose(
    given: Mapping[str, str | None],
    profile: str | None,
    environment: Mapping[str, str] = os.environ,
) -> Target:
    """Puts together what the command line, the environment and the profile say.

    Args:
        given: What the command line says, by the names of `Target`.
        profile: The profile that it names.
        environment: Variables: CRONOQ_ENDPOINT, CRONOQ_TOKEN, CRONOQ_CA, CRONOQ_CERT, CRONOQ_KEY,
            CRONOQ_PROFILE, CRONOQ_CONFIG.

    Raises:
        Misconfigured: The file can't be read, or has no such profile.
    """
    named = profile or environment.get("CRONOQ_PROFILE")
    kept = _profile(config_path(environment), named, environment)
    chosen: dict[str, str] = {}
    for name in ("endpoint", "token", "ca", "cert", "key"):
        value = given.get(name) or environment.get(f"CRONOQ_{name.upper()}") or kept.get(name)
        if value:
            chosen[name] = value
    return Target(**chosen)


def _profile(path: Path, name: str | None, environment: Mapping[str, str]) -> dict[str, str]:
    if not path.exists():
        if name is None:
            return {}
        raise Misconfigured(f"there is no {path}, so there is no profile {name!r}")
    try:
        document: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # of TOML, of UTF-8, of endless numbers
        raise Misconfigured(f"{path} can't be read: {error}") from error
    profiles = document.get("profiles", {})
    found = profiles.get(name or "default") if isinstance(profiles, dict) else None
    if found is None and name is not None:
        known = ", ".join(sorted(profiles)) or "none"
        raise Misconfigured(f"{path} has no profile {name!r}; there is {known}")
    return _checked(path, name or "default", found or {}, environment)


def _checked(
    path: Path, name: str, table: object, environment: Mapping[str, str]
) -> dict[str, str]:
    where = f"{path}: profiles.{name}"
    if not isinstance(table, dict):
        raise Misconfigured(f"{where} must be a table")
    for key, value in table.items():
        if key not in KEYS:
            raise Misconfigured(f"{where}.{key}: unknown key; there is {', '.join(KEYS)}")
        if not isinstance(value, str):
            raise Misconfigured(f"{where}.{key} must be a text")
    kept = dict(table)
    variable = kept.pop("token_env", None)
    if variable is not None:
        if "token" in kept:
            raise Misconfigured(f"{where}: token and token_env exclude each other")
        kept["token"] = environment.get(variable, "")
    for file in ("ca", "cert", "key"):
        if file in kept:
            kept[file] = str(path.parent / Path(kept[file]).expanduser())
    return kept
