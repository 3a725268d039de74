"""Ed25519 signatures of records. Digests detect damage; a signature tells who is responsible for a record.

    draw_key(Path("key.pem"))                                        # and key.pem.pub, to publish
    sign_record(Path("runs/mine/record.json"), Path("key.pem"))      # writes runs/mine/record.json.sig
    check_signature(Path("runs/mine/record.json"), Path("key.pem.pub"))

A signature covers the record's own digest (`seal_of`), and with it every figure, the outcome on every test item, the
environment, and the digests of checkpoint, scores, pictures and data. It states that the owner of the key answers for
the record. It does not state that the figures are correct.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fkgsec.errors import RunError
from fkgsec.experiments.integrity.origin import digest_of, seal_of
from fkgsec.experiments.runs.record import read_record
from fkgsec.experiments.runs.writing import write_atomically
from fkgsec.protocols.core.errors import BadSignature
from fkgsec.protocols.core.keys import sign, verify

SCHEMA = "fkgsec/signature/1"
SUFFIX, PUBLIC_SUFFIX = ".sig", ".pub"


class Signature(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of a signature file.

    Attributes:
        schema: schema of the file.
        record: digest of the record (`seal_of`).
        items: digest of the outcomes of its test items, also of the shared models.
        signature: Ed25519 signature of the three, hexadecimal.
    """

    schema: str
    record: str
    items: str
    signature: str = ""

    @property
    def message(self) -> bytes:
        """The signed bytes, one line."""
        return f"{self.schema} {self.record} {self.items}\n".encode()


def draw_key(path: Path) -> Path:
    """Write a new private key to a file that only its owner may read, with the public half next to it.

    Args:
        path: file of the private key.

    Returns:
        The file of the public half.

    Raises:
        RunError: one of the files exists or cannot be written.
    """
    key, public = Ed25519PrivateKey.generate(), path.with_name(path.name + PUBLIC_SUFFIX)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    # Check first: a new private key without its published half would be useless.
    if public.exists():
        raise RunError(f"{public}: exists already; name another key")
    try:
        # Created with its final permissions, so that nobody can read the key in between.
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as handle:
            handle.write(private)
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error.strerror}); name another key") from error
    write_atomically(
        public,
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo),
    )
    return public


def signature_file(record: Path) -> Path:
    """Return the file of a record's signature."""
    return record.with_name(record.name + SUFFIX)


def sign_record(record: Path, key: Path) -> Path:
    """Sign a record.

    Args:
        record: file of the record.
        key: file of the private key.

    Returns:
        The file with the signature.

    Raises:
        RunError: the record cannot be read or contradicts its own digest, or the key is not an Ed25519 private key.
    """
    signed = _statement(record)
    try:
        private = serialization.load_pem_private_key(_read(key), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise RunError(f"{key}: not an unencrypted private key in PEM format; see --make-key") from error
    if not isinstance(private, Ed25519PrivateKey):
        raise RunError(f"{key}: not an Ed25519 private key; see --make-key")
    signed = msgspec.structs.replace(signed, signature=sign(private, signed.message).hex())
    target = signature_file(record)
    write_atomically(target, msgspec.json.format(msgspec.json.encode(signed), indent=2) + b"\n")
    return target


def check_signature(record: Path, public: Path) -> None:
    """Raise `RunError` unless the owner of a key signed the record in its present form.

    Args:
        record: file of the record.
        public: file of the public key.
    """
    path = signature_file(record)
    try:
        key = serialization.load_pem_public_key(_read(public))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise RunError(f"{public}: not a public key in PEM format") from error
    if not isinstance(key, Ed25519PublicKey):
        raise RunError(f"{public}: not an Ed25519 public key")
    try:
        signature = msgspec.json.decode(_read(path), type=Signature)
        # First the signature itself, then that it is about this record.
        verify(key.public_bytes_raw(), bytes.fromhex(signature.signature), signature.message, signer=str(public))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RunError(f"{path}: not a signature of schema {SCHEMA}") from error
    except BadSignature as error:
        raise RunError(f"{path}: not signed by the key {public}") from error
    if msgspec.structs.replace(signature, signature="") != _statement(record, sealed=False):
        raise RunError(f"{record}: was changed after it was signed")


def _statement(record: Path, *, sealed: bool = True) -> Signature:
    """Return the unsigned statement about a record; with `sealed`, reject a record that contradicts its own digest."""
    read = read_record(record)
    document = msgspec.json.decode(_read(record))
    seal = seal_of(document)
    if sealed and read.origin is not None and read.origin.record not in ("", seal):
        raise RunError(f"{record}: its content has changed since it was written; changed records are not signed")
    # A separate digest tells whether two signed records have the same outcomes, whatever else differs.
    items = msgspec.json.encode([document.get("items"), document.get("items_shared")], order="sorted")
    return Signature(SCHEMA, seal, digest_of(items))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror})") from error
