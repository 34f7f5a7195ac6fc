"""Certificates for trying TLS out: a CA of one's own, a server's certificate, a client's.

They are no certificates for production: the CA's key lies beside them.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CLIENT_NAME: Final = "client.cronoq.test"
VALID_FOR: Final = timedelta(days=365)
CLOCK_SLACK: Final = timedelta(minutes=5)


class Authority:
    """A CA that signs what it is asked to."""

    def __init__(self, valid_for: timedelta = VALID_FOR) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "cronoq development CA")])
        self.certificate = (
            _begun(name, name, self.key.public_key(), valid_for)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .sign(self.key, hashes.SHA256())
        )

    def issue(
        self, names: Sequence[str], *, for_server: bool, valid_for: timedelta = VALID_FOR
    ) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        """A certificate for some DNS names and IP addresses, with its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
        use = ExtendedKeyUsageOID.SERVER_AUTH if for_server else ExtendedKeyUsageOID.CLIENT_AUTH
        certificate = (
            _begun(subject, self.certificate.subject, key.public_key(), valid_for)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([use]), critical=False)
            .add_extension(
                x509.SubjectAlternativeName([_general_name(name) for name in names]),
                critical=False,
            )
            .sign(self.key, hashes.SHA256())
        )
        return certificate, key


def _begun(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    valid_for: timedelta,
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, now + valid_for) - CLOCK_SLACK)
        .not_valid_after(now + valid_for)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def write(folder: Path, name: str, certificate: x509.Certificate, key: object) -> None:
    """Writes `name.pem` and `name-key.pem`; the key is for its owner to read only.

    Raises:
        FileExistsError: One of them is there already.
    """
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    pem = serialization.Encoding.PEM
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    for file, content, mode in (
        (f"{name}-key.pem", private, 0o600),
        (f"{name}.pem", certificate.public_bytes(pem), 0o644),
    ):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with os.fdopen(os.open(folder / file, flags, mode), "wb") as opened:
            opened.write(content)


def make(folder: Path, server_names: Sequence[str], client_name: str = CLIENT_NAME) -> list[Path]:
    """Makes a CA, a server's and a client's certificate, and returns the files.

    Args:
        folder: Where; made if it is not there.
        server_names: Names of the server besides those of this machine.
        client_name: The DNS name in the client's certificate.

    Raises:
        OSError: They can't be written there, or one of them is there already.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [folder / f"{name}{part}.pem" for name in ("ca", "server", "client") for part in PARTS]
    for file in wanted:
        if file.exists():
            raise FileExistsError(f"{file} is there already")
    authority = Authority()
    own = ["localhost", "127.0.0.1", "::1", socket.gethostname()]
    names = list(dict.fromkeys([*server_names, *own]))
    write(folder, "ca", authority.certificate, authority.key)
    write(folder, "server", *authority.issue(names, for_server=True))
    write(folder, "client", *authority.issue([client_name], for_server=False))
    return wanted


PARTS: Final = ("", "-key")
