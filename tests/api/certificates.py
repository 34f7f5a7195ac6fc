"""Certificates that tests make for themselves: a CA, and what it signed, in a folder."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import grpc
from cryptography.hazmat.primitives import serialization

from cronoq_server import dev_certs


class Place:
    """A folder with a CA of its own.

    Attributes:
        folder: Where the files are.
        ca: The CA's certificate.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.authority = dev_certs.Authority()
        self.ca = folder / "ca.pem"
        pem = self.authority.certificate.public_bytes(serialization.Encoding.PEM)
        self.ca.write_bytes(pem)

    def issue(
        self,
        name: str,
        names: Sequence[str],
        *,
        for_server: bool = False,
        valid_for: timedelta = timedelta(days=1),
    ) -> None:
        """Writes `name.pem` and `name-key.pem`, in place of those that were there."""
        for part in ("", "-key"):
            (self.folder / f"{name}{part}.pem").unlink(missing_ok=True)
        issued = self.authority.issue(names, for_server=for_server, valid_for=valid_for)
        dev_certs.write(self.folder, name, *issued)

    def tls(self, *, client_ca: bool) -> str:
        """The section of the configuration."""
        text = (
            f"[server.tls]\ncert = '{self.folder}/server.pem'\n"
            f"key = '{self.folder}/server-key.pem'\n"
        )
        return text + (f"client_ca = '{self.ca}'\n" if client_ca else "")

    def credentials(
        self, name: str | None = None, ca: Path | None = None
    ) -> grpc.ChannelCredentials:
        """What a client connects with: trust in a CA, and a certificate of its own."""
        roots = (ca or self.ca).read_bytes()
        if name is None:
            return grpc.ssl_channel_credentials(roots)
        key = (self.folder / f"{name}-key.pem").read_bytes()
        return grpc.ssl_channel_credentials(roots, key, (self.folder / f"{name}.pem").read_bytes())
