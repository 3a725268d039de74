"""Published vectors of X25519, Ed25519 and ChaCha20-Poly1305 through our functions, and the same vectors tampered."""

import cryptography_vectors
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from fkgsec.protocols.core.errors import BadCiphertext, BadSignature, LowOrderPoint, ProtocolError, WrongLength
from fkgsec.protocols.core.keys import agree, generate, public_key, seal, sign, unseal, verify
from fkgsec.protocols.core.prg import seeded

P = 2**255 - 19
LOW_ORDER = [  # every u coordinate of small order that fits 32 bytes with the top bit clear, RFC 7748 and Cremers 2019
    0,
    1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
    P - 1,
    P,
    P + 1,
]


def flip(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def test_x25519_gives_rfc_7748(nist_vectors) -> None:
    vectors = nist_vectors("asymmetric/X25519/rfc7748.txt")
    assert len(vectors) >= 3
    for vector in vectors:
        scalar, point, output = (bytes.fromhex(vector[name]) for name in ("input_scalar", "input_u", "output_u"))
        assert agree(scalar, point, peer="peer") == output
        assert agree(flip(scalar, 5), point, peer="peer") != output


def test_a_thousand_x25519_iterations_give_rfc_7748() -> None:
    scalar = point = (9).to_bytes(32, "little")
    for _ in range(1000):
        scalar, point = agree(scalar, point, peer="peer"), scalar
    assert scalar.hex() == "684cf59ba83309552800ef566f2f4d3c1c3887c49360e3875f2eb94d99532c51"


@pytest.mark.parametrize("point", LOW_ORDER)
def test_low_order_points_are_refused_by_name(point: int) -> None:
    with pytest.raises(LowOrderPoint, match="public key of client3 has small order"):
        agree(seeded(b"key")(32), point.to_bytes(32, "little"), peer="client3")


def test_keys_of_another_length_are_refused() -> None:
    pair = generate(seeded(b"key"))
    for private, public in ((pair.private[:31], pair.public), (pair.private, pair.public + b"\0")):
        with pytest.raises(WrongLength, match="client3"):
            agree(private, public, peer="client3")
    with pytest.raises(WrongLength):
        public_key(pair.private[:31])


@given(st.binary(min_size=1, max_size=8), st.binary(min_size=1, max_size=8))
def test_two_parties_agree(one: bytes, other: bytes) -> None:
    ours, theirs = generate(seeded(b"1" + one)), generate(seeded(b"2" + other))
    assert agree(ours.private, theirs.public, peer="b") == agree(theirs.private, ours.public, peer="a")
    assert ours.private.hex() not in repr(ours)


def test_ed25519_gives_the_vectors_of_its_authors() -> None:
    with cryptography_vectors.open_vector_file("asymmetric/Ed25519/sign.input", "r") as file:
        lines = [line.strip().split(":") for line in file][::16]
    assert len(lines) >= 60
    for secret, public, message, signed, _ in lines:
        identity = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(secret)[:32])
        pinned, text, signature = bytes.fromhex(public), bytes.fromhex(message), bytes.fromhex(signed)[:64]
        assert sign(identity, text) == signature
        verify(pinned, signature, text, signer="author")
        for changed in (
            (pinned, flip(signature, 0), text),
            (pinned, flip(signature, 63), text),
            (pinned, signature[:63], text),
            (pinned, signature, text + b"\0"),
            (flip(pinned, 7), signature, text),
            (pinned[:31], signature, text),
        ):
            with pytest.raises(BadSignature, match="author"):
                verify(*changed, signer="author")


def read_bytes(value: str) -> bytes:
    return value[1:-1].encode() if value.startswith('"') else bytes.fromhex(value)


def poly1305_vectors(nist_vectors) -> list[dict]:
    """OpenSSL's (RFC 7539 A.5 and tampered ones) and BoringSSL's (RFC 7539 2.8.1 and all paddings), 12-byte nonces."""
    records = nist_vectors("ciphers/ChaCha20Poly1305/openssl.txt")
    short = {"nonce": "iv", "in": "plaintext", "ad": "aad", "ct": "ciphertext"}
    for record in nist_vectors("ciphers/ChaCha20Poly1305/boringssl.txt"):
        records.append({short.get(name, name): value for name, value in record.items()})
    names = ("key", "iv", "aad", "tag", "plaintext", "ciphertext")
    parsed = [
        {"valid": "result" not in record, **{name: read_bytes(record.get(name, "")) for name in names}}
        for record in records
    ]
    return [vector for vector in parsed if len(vector["iv"]) == 12 and len(vector["tag"]) == 16]


def test_sealing_gives_rfc_8439(nist_vectors) -> None:
    vectors = poly1305_vectors(nist_vectors)
    good = [vector for vector in vectors if vector["valid"]]
    assert len(good) > 60
    assert len(good) < len(vectors)
    for vector in vectors:
        key, nonce, associated = vector["key"], vector["iv"], vector["aad"]
        published = nonce + vector["ciphertext"] + vector["tag"]
        sealed = seal(key, vector["plaintext"], associated=associated, randomness=lambda _, nonce=nonce: nonce)
        if vector["valid"]:
            assert sealed == published
            assert unseal(key, published, associated=associated, source="client3") == vector["plaintext"]
            with pytest.raises(BadCiphertext, match="client3"):
                unseal(key, published, associated=associated + b"x", source="client3")
        else:
            assert sealed != published
            with pytest.raises(BadCiphertext, match="client3"):
                unseal(key, published, associated=associated, source="client3")


def test_every_byte_of_a_sealed_message_is_authenticated() -> None:
    key = seeded(b"key")(32)
    sealed = seal(key, b"shares", associated=b"a to b", randomness=seeded(b"nonce"))
    assert unseal(key, sealed, associated=b"a to b", source="a") == b"shares"
    for place in range(len(sealed)):
        with pytest.raises(BadCiphertext, match="a fails authentication"):
            unseal(key, flip(sealed, place), associated=b"a to b", source="a")
    for cut in (0, 12, 27, len(sealed) - 1):
        with pytest.raises(BadCiphertext):
            unseal(key, sealed[:cut], associated=b"a to b", source="a")
    with pytest.raises(BadCiphertext):
        unseal(flip(key, 0), sealed, associated=b"a to b", source="a")


def test_no_error_leaks_a_private_key() -> None:
    pair = generate(seeded(b"key"))
    with pytest.raises(ProtocolError) as caught:
        agree(pair.private, bytes(32), peer="x")
    assert pair.private.hex() not in str(caught.value)
