"""Published keystream and HKDF vectors through our functions; rings and masks against Python's integers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fkgsec.protocols.core.errors import OutOfRing, RandomnessError, SettingError, WrongLength, WrongType
from fkgsec.protocols.core.masking import BLOCK_BYTES, add_into, mask_vector
from fkgsec.protocols.core.prg import Ring, derive, digest, draw, frame, hkdf_sha256, keystream, seeded

SEEDS = [derive(b"seed", "test", number) for number in range(31)]


def stream_of(seed: bytes, cipher: str, num_bytes: int, start: bytes = bytes(16)) -> bytes:
    return keystream(seed, cipher, start).update(bytes(num_bytes))


def xor(a: bytes, b: bytes) -> bytes:
    return bytes(x ^ y for x, y in zip(a, b, strict=True))


def test_aes_256_ctr_gives_rfc_3686(nist_vectors) -> None:
    vectors = nist_vectors("ciphers/AES/CTR/aes-256-ctr.txt")
    assert len(vectors) >= 3
    for vector in vectors:
        key, start = bytes.fromhex(vector["key"]), bytes.fromhex(vector["iv"])
        plaintext, ciphertext = bytes.fromhex(vector["plaintext"]), bytes.fromhex(vector["ciphertext"])
        stream = stream_of(key, "aes-256-ctr", len(plaintext), start)
        assert xor(plaintext, stream) == ciphertext
        tampered = bytes([key[0] ^ 1]) + key[1:]
        assert xor(plaintext, stream_of(tampered, "aes-256-ctr", len(plaintext), start)) != ciphertext


def test_the_first_block_is_the_cipher_of_zero(nist_vectors) -> None:
    vectors = [v for v in nist_vectors("ciphers/AES/ECB/ECBKeySbox256.rsp") if set(v["plaintext"]) == {"0"}]
    assert vectors
    for vector in vectors:
        assert stream_of(bytes.fromhex(vector["key"]), "aes-256-ctr", 16) == bytes.fromhex(vector["ciphertext"])


def test_chacha20_gives_rfc_8439(nist_vectors) -> None:
    vectors = nist_vectors("ciphers/ChaCha20/rfc7539.txt")
    assert len(vectors) >= 3
    for vector in vectors:
        start = int(vector["initial_block_counter"]).to_bytes(4, "little") + bytes.fromhex(vector["nonce"])
        plaintext, ciphertext = bytes.fromhex(vector["plaintext"]), bytes.fromhex(vector["ciphertext"])
        key = bytes.fromhex(vector["key"])
        assert xor(plaintext, stream_of(key, "chacha20", len(plaintext), start)) == ciphertext
        later = bytes([start[0] + 1]) + start[1:]
        assert xor(plaintext, stream_of(key, "chacha20", len(plaintext), later)) != ciphertext


def test_hkdf_gives_rfc_5869(nist_vectors) -> None:
    vectors = nist_vectors("KDF/rfc-5869-HKDF-SHA256.txt")
    assert len(vectors) == 3
    for vector in vectors:
        secret, salt, info = (bytes.fromhex(vector[name]) for name in ("ikm", "salt", "info"))
        okm = bytes.fromhex(vector["okm"])
        assert hkdf_sha256(secret, salt=salt, info=info, length=len(okm)) == okm
        assert hkdf_sha256(secret, salt=salt, info=info + b"x", length=len(okm)) != okm


def test_derive_is_hkdf_behind_the_version_and_the_purpose() -> None:
    info = frame(b"fkgsec/protocols/v1", "purpose", b"session", 3, "client")
    assert derive(b"secret", "purpose", b"session", 3, "client") == hkdf_sha256(
        b"secret", salt=None, info=info, length=32
    )
    keys = [
        derive(b"secret", "purpose", b"session", 3, "client"),
        derive(b"secret", "other", b"session", 3, "client"),
        derive(b"secret", "purpose", b"session", 4, "client"),
        derive(b"secret", "purpose", b"session", 3, "server"),
        derive(b"secret", "purpose", b"session3", "client"),
        derive(b"other", "purpose", b"session", 3, "client"),
        digest("purpose", b"session", 3, "client"),
    ]
    assert len(set(keys)) == len(keys)


parts = st.lists(st.one_of(st.binary(max_size=4), st.text(max_size=4), st.integers(-300, 300)), max_size=4)


@given(parts, parts)
def test_frames_are_injective(one: list, other: list) -> None:
    same = [type(part) for part in one] == [type(part) for part in other] and one == other
    assert (frame(*one) == frame(*other)) == same


@given(st.lists(st.integers(0, 70), max_size=8))
def test_a_seeded_source_does_not_depend_on_the_cuts(cuts: list[int]) -> None:
    pieces, whole = seeded(b"seed"), seeded(b"seed")
    assert b"".join(pieces(cut) for cut in cuts) == whole(sum(cuts))
    assert seeded(b"seed")(16) != seeded(b"sees")(16)


def test_misuse_has_its_own_errors() -> None:
    with pytest.raises(RandomnessError, match="returned 31 bytes"):
        draw(lambda num_bytes: bytes(num_bytes - 1), 32)
    with pytest.raises(WrongLength, match="31 bytes"):
        keystream(bytes(31), "aes-256-ctr")
    with pytest.raises(SettingError, match="rot13"):
        keystream(bytes(32), "rot13")


@pytest.mark.parametrize("ring", Ring)
@given(data=st.data())
def test_rings_agree_with_python(ring: Ring, data: st.DataObject) -> None:
    edge = st.sampled_from([0, 1, ring.modulus // 2, ring.modulus - 1])
    elements = st.lists(st.one_of(edge, st.integers(0, ring.modulus - 1)), min_size=3, max_size=3)
    a, b = data.draw(elements), data.draw(elements)
    one, other = np.array(a, dtype=ring.dtype), np.array(b, dtype=ring.dtype)
    assert ring.add(one, other).tolist() == [(x + y) % ring.modulus for x, y in zip(a, b, strict=True)]
    assert ring.subtract(one, other).tolist() == [(x - y) % ring.modulus for x, y in zip(a, b, strict=True)]
    total = one.copy()
    add_into(total, other, ring)
    assert total.tolist() == ring.add(one, other).tolist()


@pytest.mark.parametrize("ring", Ring)
def test_signed_integers_survive_a_ring_up_to_its_half(ring: Ring) -> None:
    largest = (ring.modulus - 1) // 2
    integers = np.array([0, 1, -1, largest, -largest], dtype=np.int64)
    elements = ring.from_integers(integers)
    assert elements.tolist() == [int(x) % ring.modulus for x in integers]
    assert ring.to_integers(elements).tolist() == integers.tolist()
    ring.check(elements, 5, "elements")
    if ring is not Ring.UINT64:
        with pytest.raises(OutOfRing):
            ring.from_integers(np.array([largest + 1]))
    with pytest.raises(OutOfRing):
        ring.from_integers(np.array([-largest - 1]))
    with pytest.raises(WrongType, match="int32"):
        ring.from_integers(np.zeros(1, dtype=np.int32))


def test_a_vector_that_does_not_fit_the_ring_is_refused() -> None:
    with pytest.raises(WrongType, match=r"x: float32 \(2,\)"):
        Ring.UINT32.check(np.zeros(2, dtype=np.float32), 2, "x")
    with pytest.raises(WrongType, match="list"):
        Ring.UINT32.check([1, 2], 2, "x")
    with pytest.raises(WrongType):
        Ring.UINT32.check(np.zeros((2, 1), dtype=np.uint32), 2, "x")
    with pytest.raises(WrongLength, match="x: 3 values"):
        Ring.UINT64.check(np.zeros(3, dtype=np.uint64), 2, "x")
    with pytest.raises(OutOfRing, match="2305843009213693951"):
        Ring.MERSENNE61.check(np.array([2**61 - 1], dtype=np.uint64), 1, "x")


def reference_mask(seed: bytes, ring: Ring, cipher: str, length: int) -> list[int]:
    """A mask as the module's text defines it, in Python's integers."""
    width = ring.dtype.itemsize
    stream = stream_of(seed, cipher, length * width)
    words = [int.from_bytes(stream[place : place + width], "little") for place in range(0, len(stream), width)]
    return [(word & (2**61 - 1)) % ring.modulus for word in words] if ring is Ring.MERSENNE61 else words


@pytest.mark.parametrize("cipher", ["aes-256-ctr", "chacha20"])
@pytest.mark.parametrize("ring", Ring)
@pytest.mark.parametrize(("num_plus", "num_minus"), [(0, 0), (1, 0), (0, 1), (16, 15)])
def test_masks_agree_with_python(ring: Ring, cipher: str, num_plus: int, num_minus: int) -> None:
    length = 1003
    values = np.random.default_rng(0).integers(0, ring.modulus, length, dtype=ring.dtype)
    values[:2] = ring.modulus - 1
    plus, minus = SEEDS[:num_plus], SEEDS[num_plus : num_plus + num_minus]
    expected = values.tolist()
    for seed in plus:
        expected = [x + m for x, m in zip(expected, reference_mask(seed, ring, cipher, length), strict=True)]
    for seed in minus:
        expected = [x - m for x, m in zip(expected, reference_mask(seed, ring, cipher, length), strict=True)]
    before = values.copy()
    assert mask_vector(values, plus, minus, ring, cipher).tolist() == [x % ring.modulus for x in expected]
    assert (values == before).all()


@pytest.mark.parametrize("ring", Ring)
def test_masks_continue_across_blocks_and_come_off_again(ring: Ring) -> None:
    length = 2 * BLOCK_BYTES // ring.dtype.itemsize + 5
    values = np.random.default_rng(1).integers(0, ring.modulus, length, dtype=ring.dtype)
    masked = mask_vector(values, SEEDS[:2], SEEDS[2:3], ring)
    whole = np.frombuffer(stream_of(SEEDS[0], "aes-256-ctr", length * ring.dtype.itemsize), dtype=ring.dtype)
    if ring is not Ring.MERSENNE61:
        assert (mask_vector(ring.zeros(length), SEEDS[:1], [], ring) == whole).all()
    assert (masked != values).mean() > 0.999
    assert (mask_vector(masked, SEEDS[2:3], SEEDS[:2], ring) == values).all()
    again = mask_vector(masked, SEEDS[2:3], SEEDS[:2], ring, in_place=True)
    assert again is masked
    assert (masked == values).all()


def test_masking_refuses_what_it_cannot_mask() -> None:
    with pytest.raises(WrongType, match="uint64"):
        mask_vector(np.zeros(3, dtype=np.uint64), [], [], Ring.UINT32)
    with pytest.raises(WrongType, match="contiguous"):
        mask_vector(np.zeros(6, dtype=np.uint32)[::2], SEEDS[:1], [], Ring.UINT32, in_place=True)
    with pytest.raises(WrongLength):
        mask_vector(Ring.UINT32.zeros(3), [b"short"], [], Ring.UINT32)


@settings(max_examples=20)
@given(st.integers(0, 40), st.integers(0, 40))
def test_any_number_of_masks_stays_below_p(num_plus: int, num_minus: int) -> None:
    ring = Ring.MERSENNE61
    values = np.full(64, ring.modulus - 1, dtype=ring.dtype)
    seeds = [derive(b"many", "test", number) for number in range(num_plus + num_minus)]
    masked = mask_vector(values, seeds[:num_plus], seeds[num_plus:], ring)
    ring.check(masked, 64, "masked")
    assert (mask_vector(masked, seeds[num_plus:], seeds[:num_plus], ring) == values).all()
