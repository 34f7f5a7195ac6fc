"""Decides which certificates TLS scenarios use: made anew for each run, valid for this machine."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = datetime.timedelta(days=1)
NAMES: tuple[x509.GeneralName, ...] = (
    x509.DNSName("localhost"),
    x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
    x509.IPAddress(ipaddress.ip_address("::1")),
)


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate with its key, as files."""

    cert: Path
    key: Path


class Authority:
    """A certificate authority of its own.

    Attributes:
        ca: Its certificate, as a file.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._name = name
        self._key = ec.generate_private_key(ec.SECP256R1())
        subject = _named(f"conformance {name}")
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        self._cert = (
            _builder(subject, subject, self._key.public_key())
            .add_extension(constraints, critical=True)
            .add_extension(_ca_usage(), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.ca = directory / f"{name}-ca.pem"
        self.ca.write_bytes(self._cert.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str) -> Identity:
        """Makes a certificate for servers and clients on this machine."""
        key = ec.generate_private_key(ec.SECP256R1())
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        cert = (
            _builder(_named(name), self._cert.subject, key.public_key())
            .add_extension(x509.SubjectAlternativeName(NAMES), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        identity = Identity(
            self._directory / f"{self._name}-{name}.pem",
            self._directory / f"{self._name}-{name}.key",
        )
        identity.cert.write_bytes(cert.public_bytes(serialization.Encoding.PEM))
        identity.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return identity


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - DAY)
        .not_valid_after(now + DAY)
    )


def _ca_usage() -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )


@dataclass(frozen=True, slots=True)
class Certificates:
    """All that a run needs: one authority that participants trust, and one that they do not."""

    trusted: Authority
    foreign: Authority
    server: Identity
    client: Identity
    foreign_server: Identity
    foreign_client: Identity


def make_certificates(directory: Path) -> Certificates:
    """Makes the certificates of a run in a directory."""
    trusted, foreign = Authority(directory, "trusted"), Authority(directory, "foreign")
    return Certificates(
        trusted,
        foreign,
        trusted.issue("server"),
        trusted.issue("client"),
        foreign.issue("server"),
        foreign.issue("client"),
    )
