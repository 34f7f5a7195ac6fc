"""Decides what an endpoint text means and whether it may be used at all.

A configured endpoint is `host:port`, `http://…` or `https://…`; a redirect is a URL, nothing else.
Knows no sockets and resolves no names: whether a host is loopback is judged by how it is written.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

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
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

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
    if not text or any(c.isspace() or not c.isprintable() for c in text):
        raise EndpointError(f"endpoint {text!r} is not a URL")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise EndpointError(f"endpoint {text!r} is not a URL: {error}") from error
    if parts.scheme not in _SCHEME_PORTS:
        raise EndpointError(f"endpoint {text!r} is neither http nor https")
    if parts.username is not None or parts.password is not None:
        raise EndpointError("endpoint carries user information")
    if port == 0 or not parts.hostname or _has_more(parts) or not _is_host(parts.hostname):
        raise EndpointError(f"endpoint {text!r} is not of the form scheme://host:port")
    return Endpoint(parts.scheme, parts.hostname, port or ports[parts.scheme])


def _has_more(parts: SplitResult) -> bool:
    return parts.path not in ("", "/") or bool(parts.query) or bool(parts.fragment)


def _is_host(host: str) -> bool:
    if ":" in host:
        try:
            return ipaddress.ip_address(host).version == 6
        except ValueError:
            return False
    return all(label and set(label) <= _HOST_CHARACTERS for label in host.rstrip(".").split("."))


_HOST_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_")
