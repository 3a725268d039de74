"""Certificates and keys: a TLS client accepts the server's under its names alone, and Flower's formats are what they must be."""

import socket
import ssl
import threading
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from fkgsec.errors import DataError, SpecError
from fkgsec.experiments.deploy.certificates import Authority, node_key, public_pem

HOSTS = ["federation.example.org", "127.0.0.1"]


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.new("hospitals")


def handshake(authority: Authority, certificate: bytes, key: bytes, host: str, folder: Path) -> str:
    """Connect over TLS, trusting the authority alone; the protocol's version."""
    for name, content in (("ca", authority.encoded()[0]), ("crt", certificate), ("key", key)):
        (folder / name).write_bytes(content)
    server, client = (
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH),
        ssl.create_default_context(cafile=folder / "ca"),
    )
    server.load_cert_chain(folder / "crt", folder / "key")
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    here, there = socket.socketpair()

    def answer() -> None:
        try:
            server.wrap_socket(there, server_side=True).close()
        except (ssl.SSLError, OSError):
            there.close()

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        with client.wrap_socket(here, server_hostname=host) as stream:
            return str(stream.version())
    finally:
        here.close()
        thread.join()


@pytest.mark.parametrize("host", HOSTS)
def test_a_client_that_trusts_the_authority_accepts_the_server_under_its_names(
    host: str, authority: Authority, tmp_path: Path
) -> None:
    assert handshake(authority, *authority.server_certificate(HOSTS), host, tmp_path) == "TLSv1.3"


def test_it_refuses_the_server_under_another_name_and_that_of_another_authority(
    authority: Authority, tmp_path: Path
) -> None:
    certificate, key = authority.server_certificate(HOSTS)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(authority, certificate, key, "elsewhere.example.org", tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError, match=r"signature|issuer"):
        handshake(Authority.new("hospitals"), certificate, key, HOSTS[0], tmp_path)


def test_an_authority_is_read_back_and_only_with_its_own_key(authority: Authority) -> None:
    certificate, key = authority.encoded()
    assert Authority.read(key, certificate).certificate == authority.certificate
    with pytest.raises(DataError, match="do not belong together"):
        Authority.read(Authority.new("hospitals").encoded()[1], certificate)
    with pytest.raises(DataError, match="cannot be read"):
        Authority.read(b"no key", certificate)


def test_a_certificate_is_for_hosts_alone(authority: Authority) -> None:
    for host in ("a host", "x" * 70 + ".org", "", "https://example.org"):
        with pytest.raises(SpecError, match="is no name or address of a host"):
            authority.server_certificate([host])


def test_node_keys_are_openssh_keys_on_p_384() -> None:
    private, public = node_key("berlin")
    found = serialization.load_ssh_private_key(private, None)
    assert isinstance(found, ec.EllipticCurvePrivateKey)
    assert found.curve.name == "secp384r1"
    assert public.startswith(b"ecdsa-sha2-nistp384 ")
    assert public.endswith(b" berlin\n")
    pem = serialization.load_pem_public_key(public_pem(public).encode())
    assert pem == found.public_key()


def test_keys_of_other_kinds_are_refused() -> None:
    other = ed25519.Ed25519PrivateKey.generate().public_key()
    line = other.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    with pytest.raises(DataError, match="not one on P-384"):
        public_pem(line)
    with pytest.raises(DataError, match="no public key"):
        public_pem(b"ecdsa-sha2-nistp384 AAAA")
