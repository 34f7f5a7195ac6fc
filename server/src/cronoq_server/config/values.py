"""What the configuration is made of besides plain values: addresses and mistakes."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import NamedTuple


class Problem(NamedTuple):
    """One mistake.

    Attributes:
        path: Which value it is of, such as `pools[1].max`.
        message: What is wrong with it.
        place: Where it stands: file and line, or an environment variable; empty = nowhere.
    """

    path: str
    message: str
    place: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


class ConfigError(Exception):
    """The configuration has mistakes.

    Attributes:
        source: The file, or a word for where the values came from.
        problems: All mistakes, in the order of the file.
    """

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        told = "\n".join(f"{one.place or source}: {one}" for one in problems)
        # Names of variables may be bytes that are no text; the message is one all the same.
        super().__init__(told.encode(errors="backslashreplace").decode())
        self.source = source
        self.problems = tuple(problems)


class Address(NamedTuple):
    """Where to listen; port 0 lets the system choose."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 5 and int(text) <= 65_535


def parse_address(value: object) -> Address:
    """Reads `host:port`, with an IPv6 host in brackets.

    Raises:
        ValueError: It is not of that form.
    """
    if not isinstance(value, str):
        raise ValueError("must be a text of the form host:port")
    host, colon, port = value.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{value!r} is ambiguous: put an IPv6 host in brackets, [::1]:7070")
    if not colon or not host or not _is_port(port):
        raise ValueError(f"{value!r} is not of the form host:port with a port from 0 to 65535")
    return Address(host, int(port))
