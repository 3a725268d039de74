"""Certificates of the server and keys of SuperNodes.

    authority = Authority.new("hospitals")
    certificate, key = authority.server_certificate(["federation.example.org", "10.0.0.5"])      # PEM
    private, public = node_key("berlin")                                                        # OpenSSH

The authority signs only servers' certificates. A SuperNode has a public key, which the server's operator registers.
"""

from __future__ import annotations

import datetime
import ipaddress
import re
from collections.abc import Sequence
from typing import NamedTuple, Self

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fkgsec.errors import DataError, SpecError
from fkgsec.text import printable

AUTHORITY_DAYS, SERVER_DAYS = 3650, 397
_CURVE = ec.SECP384R1()
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")
# Clocks differ between machines.
_SLACK = datetime.timedelta(minutes=5)


class Authority(NamedTuple):
    """A consortium's certificate authority."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def new(cls, name: str) -> Self:
        """Make a new authority.

        Args:
            name: of the consortium.
        """
        key = ec.generate_private_key(_CURVE)
        subject = _name(f"{name} authority")
        builder = _builder(subject, subject, key.public_key(), AUTHORITY_DAYS, key.public_key())
        # Path length 0: the authority signs servers, not further authorities.
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
        return cls(key, builder.sign(key, hashes.SHA384()))

    @classmethod
    def read(cls, key: bytes, certificate: bytes) -> Self:
        """Read an authority.

        Args:
            key, certificate: PEM.

        Raises:
            DataError: invalid bytes, or a key and a certificate that do not belong together.
        """
        try:
            private_key = serialization.load_pem_private_key(key, None)
            parsed = x509.load_pem_x509_certificate(certificate)
            certified = parsed.public_key()
        except (ValueError, TypeError, UnsupportedAlgorithm, NotImplementedError) as error:
            reason = printable(str(error), 200)
            raise DataError(f"the authority's key or certificate cannot be read ({reason})") from error
        if not isinstance(private_key, ec.EllipticCurvePrivateKey) or private_key.public_key() != certified:
            raise DataError("the authority's key and certificate do not belong together")
        return cls(private_key, parsed)

    def server_certificate(self, hosts: Sequence[str]) -> tuple[bytes, bytes]:
        """Issue a certificate for a server; returns certificate and private key, PEM.

        Args:
            hosts: names and addresses of the server; the first is its common name.
        """
        key, names = ec.generate_private_key(_CURVE), [_host(host) for host in hosts]
        builder = _builder(
            _name(hosts[0]), self.certificate.subject, key.public_key(), SERVER_DAYS, self.key.public_key()
        )
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        # The certificate identifies a server in TLS, and nothing else.
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage("digital_signature"), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        return _certificate(builder.sign(self.key, hashes.SHA384())), _private(key)

    def encoded(self) -> tuple[bytes, bytes]:
        """Return certificate and private key, PEM."""
        return _certificate(self.certificate), _private(self.key)


def node_key(name: str) -> tuple[bytes, bytes]:
    """Draw a SuperNode's key on P-384; returns the private and public half in OpenSSH's formats, as Flower requires.

    Args:
        name: comment of the public key.
    """
    key = ec.generate_private_key(_CURVE)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return private, public + f" {name}\n".encode()


def public_pem(line: bytes) -> str:
    """Convert a public key from OpenSSH's format to PEM, which Flower uses to identify a SuperNode.

    Args:
        line: public key in OpenSSH's format.

    Raises:
        DataError: no such key, or one on another curve.
    """
    try:
        key = serialization.load_ssh_public_key(line)
    except (ValueError, UnsupportedAlgorithm, NotImplementedError) as error:
        raise DataError(f"no public key in OpenSSH's format ({printable(str(error), 200)})") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != _CURVE.name:
        raise DataError("the public key is not one on P-384")
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo).decode()


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    days: int,
    signer: ec.EllipticCurvePublicKey,
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SLACK)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), critical=False)
    )


def _usage(*allowed: str) -> x509.KeyUsage:
    names = (
        "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
        "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
    )  # fmt: skip
    return x509.KeyUsage(**{name: name in allowed for name in names})


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _host(host: str) -> x509.GeneralName:
    """Parse an address or a host's name. Raises `SpecError`."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass  # not an address: checked as a host's name below
    try:
        name = host.encode("idna").decode()
    except UnicodeError:
        name = ""
    if not _HOST.fullmatch(name):
        raise SpecError(f"host: {host!r} is no name or address of a host")
    return x509.DNSName(name)


def _certificate(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
