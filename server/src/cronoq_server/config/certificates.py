"""What is wrong with files of certificates and keys: found before anybody is told to use them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from cronoq_server.config.sections import PeerTlsConfig, ServerConfig, TlsConfig
from cronoq_server.config.values import Problem

if TYPE_CHECKING:
    from cryptography.x509 import Certificate


def tls_problems(server: ServerConfig) -> list[Problem]:
    """Certificates without keys, files that can't be read, and what does not fit together."""
    problems = []
    for path, tls in (("server.tls", server.tls), ("server.peer_tls", server.peer_tls)):
        for name, other in (("cert", "key"), ("key", "cert")):
            if getattr(tls, name) is None and getattr(tls, other) is not None:
                problems.append(Problem(f"{path}.{name}", f"must be given with {other}"))
        problems += _file_problems(path, tls)
    if server.tls.client_ca is not None and server.tls.cert is None and server.tls.key is None:
        problems.append(Problem("server.tls.cert", "must be given with client_ca"))
    return problems


def _file_problems(path: str, tls: TlsConfig | PeerTlsConfig) -> list[Problem]:
    ca_key = "client_ca" if isinstance(tls, TlsConfig) else "ca"
    problems = []
    found: dict[str, list[Certificate]] = {}
    for name in ("cert", ca_key):
        file = getattr(tls, name)
        if file is not None:
            try:
                found[name] = _certificates(file)
            except ValueError as error:
                problems.append(Problem(f"{path}.{name}", str(error)))
    if tls.key is not None:
        try:
            public = _public_key(tls.key)
        except ValueError as error:
            problems.append(Problem(f"{path}.key", str(error)))
        else:
            if "cert" in found and public != _public_bytes(found["cert"][0]):
                message = f"{tls.key} is not the key of the certificate in {tls.cert}"
                problems.append(Problem(f"{path}.key", message))
    return problems


def _read(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise ValueError(f"{file} can't be read: {error.strerror}") from error


def _certificates(file: str) -> list[Certificate]:
    """The certificates in a file, none of them out of date.

    Raises:
        ValueError: There are none, or one that nobody would take.
    """
    from cryptography import x509

    try:
        found = x509.load_pem_x509_certificates(_read(file))
    except ValueError as error:
        if str(error).startswith(file):
            raise
        raise ValueError(f"{file} holds no certificate in PEM") from error
    now = datetime.now(UTC)
    for certificate in found:
        if certificate.not_valid_after_utc < now:
            when = certificate.not_valid_after_utc.isoformat(" ", "seconds")
            raise ValueError(f"{file} holds a certificate that expired at {when}")
    return found


def _public_key(file: str) -> bytes:
    """What belongs to the private key in a file. Nothing of the key may be told.

    Raises:
        ValueError: There is none that can be used.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    content = _read(file)
    try:
        key = serialization.load_pem_private_key(content, password=None)
    except TypeError:
        raise ValueError(f"{file} holds a key that needs a password") from None
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError(f"{file} holds no private key in PEM") from None
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(serialization.Encoding.DER, form)


def _public_bytes(certificate: Certificate) -> bytes:
    from cryptography.hazmat.primitives import serialization

    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return certificate.public_key().public_bytes(serialization.Encoding.DER, form)
