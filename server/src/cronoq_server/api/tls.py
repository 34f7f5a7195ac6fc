"""How both listeners show their certificate, and how it is exchanged while connections stay.

A connection keeps what it was made with; each new one gets what is current. Files are read when
they are told to be, all of them or none, so that a certificate never meets another one's key.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import NamedTuple

import grpc

from cronoq_server.config import TlsConfig


class Material(NamedTuple):
    """What the files held when they were read."""

    certificate: bytes
    key: bytes
    client_ca: bytes | None

    def __repr__(self) -> str:
        return "Material(…)"


class Certificates:
    """The server's certificate, and the CA of its clients, as of the last reading."""

    def __init__(self, config: TlsConfig) -> None:
        """Reads the files, which have been checked with the configuration.

        Raises:
            OSError: One of them is gone since.
        """
        self._asks_clients = config.client_ca is not None
        self._material = _read(config)
        self._context = self._ssl_context(config)
        self._base = self._ssl_context(config)
        self._base.sni_callback = self._hand_over
        self._version = 0

    @property
    def asks_clients(self) -> bool:
        """Whether every caller must show a certificate; that is fixed for the process's life."""
        return self._asks_clients

    def replace(self, config: TlsConfig) -> None:
        """Reads the files again; new connections are made with what is in them now.

        Raises:
            OSError: One can't be read; all stays as it was.
            ssl.SSLError: They don't fit together; all stays as it was.
        """
        context, material = self._ssl_context(config), _read(config)
        self._context, self._material = context, material
        self._version += 1

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """Credentials of a gRPC port, which ask for what is current at every handshake."""
        shown = self._version

        def current() -> grpc.ServerCertificateConfiguration | None:
            nonlocal shown
            if shown == self._version:
                return None
            shown = self._version
            return self._grpc_configuration()

        return grpc.dynamic_ssl_server_credentials(
            self._grpc_configuration(),
            current,  # type: ignore[arg-type]  # None = go on with what there is
            self._asks_clients,
        )

    def _grpc_configuration(self) -> grpc.ServerCertificateConfiguration:
        certificate, key, client_ca = self._material
        return grpc.ssl_server_certificate_configuration([(key, certificate)], client_ca)

    def http_context(self) -> ssl.SSLContext:
        """The context of an HTTP port, which hands each new connection to the current one."""
        return self._base

    def _hand_over(
        self, connection: ssl.SSLObject, _name: str | None, _base: ssl.SSLContext
    ) -> None:
        connection.context = self._context

    @staticmethod
    def _ssl_context(config: TlsConfig) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(config.cert, config.key)  # type: ignore[arg-type]
        if config.client_ca is not None:
            context.load_verify_locations(config.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def _read(config: TlsConfig) -> Material:
    assert config.cert is not None, "the configuration has been checked"
    assert config.key is not None
    client_ca = None if config.client_ca is None else Path(config.client_ca).read_bytes()
    return Material(Path(config.cert).read_bytes(), Path(config.key).read_bytes(), client_ca)
