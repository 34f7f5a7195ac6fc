"""Decides what an endpoint text means and whether it may be used at all.

A configured endpoint is `host:port`, `http://…` or `https://…`; a redirect is a URL, nothing else.
Knows no sockets and resolves no names: whether a host is loopback is judged by how it is written.
Read by hand: libraries for URLs mend what they find and fold letters that are not ASCII (a Kelvin
sign is a `k` to them), and each in its own way, where all SDKs must agree on a refusal.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

DEFAULT_PORT = 7070
_SCHEME_PORTS = {"http": 80, "https": 443}


class EndpointError(ValueError):
    """The endpoint cannot be used."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server listens, and whether the way there is encrypted."""

    scheme: str
    host: str
    port: int

    @property
    def is_encrypted(self) -> bool:
        """True when the connection uses TLS."""
        return self.scheme == "https"

    @property
    def is_loopback(self) -> bool:
        """True when the host names this machine in a way that no resolver can change."""
        if self.host == "localhost":
            return True
        try:
            address = ipaddress.ip_address(self.host)
        except ValueError:
            return False
        # Python's releases differ in what they say of an IPv4 address within an IPv6 one.
        return int(address) == 1 if address.version == 6 else address.is_loopback

    @property
    def target(self) -> str:
        """The form that a dialer takes: `host:port`, IPv6 in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.target}"


def parse_configured(text: str, *, tls: bool) -> Endpoint:
    """Reads an endpoint that a user configured.

    Args:
        text: `host`, `host:port`, `http://host[:port]` or `https://host[:port]`. Without a scheme
            it is `https` if `tls` is set, and the port defaults to 7070; with one, to 7070 too.
        tls: Whether TLS settings were given.

    Raises:
        EndpointError: The text is none of these.
    """
    if "://" not in text:
        text = f"{'https' if tls else 'http'}://{text}"
    endpoint = _parse(text, {"http": DEFAULT_PORT, "https": DEFAULT_PORT})
    if tls and not endpoint.is_encrypted:
        raise EndpointError(f"endpoint {text!r} is http, but TLS settings were given")
    return endpoint


def parse_redirect(text: str) -> Endpoint:
    """Reads an endpoint that a server named (RR-13).

    Raises:
        EndpointError: It is no http(s) URL of host and port, or has more to it than those.
    """
    return _parse(text, _SCHEME_PORTS)


def _parse(text: str, ports: dict[str, int]) -> Endpoint:
    if not text or not text.isascii() or any(not "!" <= letter <= "~" for letter in text):
        raise EndpointError(f"endpoint {text!r} is not a URL")
    scheme, separator, rest = text.partition("://")
    scheme = scheme.lower()
    if not separator or scheme not in _SCHEME_PORTS:
        raise EndpointError(f"endpoint {text!r} is neither http nor https")
    if "@" in rest:
        raise EndpointError("endpoint carries user information")
    place = _AUTHORITY.fullmatch(rest.lower())
    host = None if place is None else _host(place)
    port = None if place is None else _port(place["port"] or "", ports[scheme])
    if host is None or port is None:
        raise EndpointError(f"endpoint {text!r} is not of the form scheme://host:port")
    return Endpoint(scheme, host, port)


_AUTHORITY = re.compile(
    r"(?:\[(?P<v6>[0-9a-f:.]+)\]|(?P<name>[a-z0-9_-]+(?:\.[a-z0-9_-]+)*\.*))(?::(?P<port>[0-9]*))?/?"
)
"""All that may stand behind the scheme, in lower case; no repair of anything else."""


def _host(place: re.Match[str]) -> str | None:
    address: str | None = place["v6"]
    if address is None:
        return place["name"]
    try:
        ipaddress.IPv6Address(address)
    except ValueError:
        return None
    return address


def _port(digits: str, default: int) -> int | None:
    if not digits:
        return default
    significant = digits.lstrip("0")
    return int(significant) if 0 < len(significant) <= 5 and int(significant) < 65_536 else None
