"""Published vectors of ristretto255 (RFC 9496) and OPRF(ristretto255, SHA-512) in base mode (RFC 9497), and tampered ones."""

from __future__ import annotations

import hashlib
import sys

import pytest

from protocols import oprf
from protocols.errors import RandomnessError, WrongLength
from protocols.prg import seeded

rbcl = pytest.importorskip("rbcl")

# RFC 9496 appendix A.1: 0 to 15 times the generator.
MULTIPLES = [
    "0000000000000000000000000000000000000000000000000000000000000000",
    "e2f2ae0a6abc4e71a884a961c500515f58e30b6aa582dd8db6a65945e08d2d76",
    "6a493210f7499cd17fecb510ae0cea23a110e8d5b901f8acadd3095c73a3b919",
    "94741f5d5d52755ece4f23f044ee27d5d1ea1e2bd196b462166b16152a9d0259",
    "da80862773358b466ffadfe0b3293ab3d9fd53c5ea6c955358f568322daf6a57",
    "e882b131016b52c1d3337080187cf768423efccbb517bb495ab812c4160ff44e",
    "f64746d3c92b13050ed8d80236a7f0007c3b3f962f5ba793d19a601ebb1df403",
    "44f53520926ec81fbd5a387845beb7df85a96a24ece18738bdcfa6a7822a176d",
    "903293d8f2287ebe10e2374dc1a53e0bc887e592699f02d077d5263cdd55601c",
    "02622ace8f7303a31cafc63f8fc48fdc16e1c8c8d234b2f0d6685282a9076031",
    "20706fd788b2720a1ed2a5dad4952b01f413bcf0e7564de8cdc816689e2db95f",
    "bce83f8ba5dd2fa572864c24ba1810f9522bc6004afe95877ac73241cafdab42",
    "e4549ee16b9aa03099ca208c67adafcafa4c3f3e4e5303de6026e3ca8ff84460",
    "aa52e000df2e16f55fb1032fc33bc42742dad6bd5a8fc0be0167436c5948501f",
    "46376b80f409b29dc2b5f6f0c52591990896e5716f41477cd30085ab7f10301e",
    "e0c418f7c8d9c4cdd7395b93ea124f3ad99021bb681dfc3302a9d99a2e53e64e",
]

# RFC 9496 appendix A.2: encodings that must be refused.
INVALID = [
    "00ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "f3ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "0100000000000000000000000000000000000000000000000000000000000000",
    "01ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "ed57ffd8c914fb201471d1c3d245ce3c746fcbe63a3679d51b6a516ebebe0e20",
    "c34c4e1826e5d403b78e246e88aa051c36ccf0aafebffe137d148a2bf9104562",
    "c940e5a4404157cfb1628b108db051a8d439e1a421394ec4ebccb9ec92a8ac78",
    "47cfc5497c53dc8e61c91d17fd626ffb1c49e2bca94eed052281b510b1117a24",
    "f1c6165d33367351b0da8f6e4511010c68174a03b6581212c71c0e1d026c3c72",
    "87260f7a2f12495118360f02c26a470f450dadf34a413d21042b43b9d93e1309",
    "26948d35ca62e643e26a83177332e6b6afeb9d08e4268b650f1f5bbd8d81d371",
    "4eac077a713c57b4f4397629a4145982c661f48044dd3f96427d40b147d9742f",
    "de6a7b00deadc788eb6b6c8d20c0ae96c2f2019078fa604fee5b87d6e989ad7b",
    "bcab477be20861e01e4a0e295284146a510150d9817763caf1a6f4b422d67042",
    "2a292df7e32cababbd9de088d1d1abec9fc0440f637ed2fba145094dc14bea08",
    "f4a9e534fc0d216c44b218fa0c42d99635a0127ee2e53c712f70609649fdff22",
    "8268436f8c4126196cf64b3c7ddbda90746a378625f9813dd9b8457077256731",
    "2810e5cbc2cc4d4eece54f61c6f69758e289aa7ab440b3cbeaa21995c2f4232b",
    "3eb858e78f5a7254d8c9731174a94f76755fd3941c0ac93735c07ba14579630e",
    "a45fdc55c76448c049a1ab33f17023edfb2be3581e9c7aade8a6125215e04220",
    "d483fe813c6ba647ebbfd3ec41adca1c6130c2beeee9d9bf065c8d151c5f396e",
    "8a2e1d30050198c65a54483123960ccc38aef6848e1ec8f5f780e8523769ba32",
    "32888462f8b486c68ad7dd9610be5192bbeaf3b443951ac1a8118419d9fa097b",
    "227142501b9d4355ccba290404bde41575b037693cef1f438c47f8fbf35d1165",
    "5c37cc491da847cfeb9281d407efc41e15144c876e0170b499a96a22ed31e01e",
    "445425117cb8c90edcbc7c1cc0e74f747f2c1efa5630a967c64f287792a48a4b",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
]

# RFC 9496 appendix A.3: elements of the SHA-512 of each line, and four inputs that are read modulo the field's prime.
FROM_LINES = {
    "Ristretto is traditionally a short shot of espresso coffee": (
        "3066f82a1a747d45120d1740f14358531a8f04bbffe6a819f86dfe50f44a0a46"
    ),
    "made with the normal amount of ground coffee but extracted with": (
        "f26e5b6f7d362d2d2a94c5d0e7602cb4773c95a2e5c31a64f133189fa76ed61b"
    ),
    "about half the amount of water in the same amount of time": (
        "006ccd2a9e6867e6a2c5cea83d3302cc9de128dd2a9a57dd8ee7b9d7ffe02826"
    ),
    "by using a finer grind.": "f8f0c87cf237953c5890aec3998169005dae3eca1fbb04548c635953c817f92a",
    "This produces a concentrated shot of coffee per volume.": (
        "ae81e7dedf20a497e10c304a765c1767a42d6e06029758d2d7e8ef7cc4c41179"
    ),
    "Just pulling a normal shot short will produce a weaker shot": (
        "e2705652ff9f5e44d3e841bf1c251cf7dddb77d140870d1ab2ed64f1a9ce8628"
    ),
    "and is not a Ristretto as some believe.": "80bd07262511cdde4863f8a7434cef696750681cb9510eea557088f76d9e5065",
}
SAME_ELEMENT = "304282791023b73128d277bdcb5c7746ef2eac08dde9f2983379cb8e5ef0517f"
SAME_INPUTS = [
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff"
    "1200000000000000000000000000000000000000000000000000000000000000",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"
    "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "0000000000000000000000000000000000000000000000000000000000000080"
    "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "0000000000000000000000000000000000000000000000000000000000000000"
    "1200000000000000000000000000000000000000000000000000000000000080",
]

# RFC 9497 appendix A.1.1.
SEED = bytes.fromhex("a3" * 32)
KEY_INFO = b"test key"
KEY = bytes.fromhex("5ebcea5ee37023ccb9fc2d2019f9d7737be85591ae8652ffa9ef0f4d37063b0e")
BLIND = bytes.fromhex("64d37aed22a27f5191de1c1d69fadb899d8862b58eb4220029e036ec4c1f6706")
OPRF_VECTORS = [
    (
        "00",
        "609a0ae68c15a3cf6903766461307e5c8bb2f95e7e6550e1ffa2dc99e412803c",
        "7ec6578ae5120958eb2db1745758ff379e77cb64fe77b0b2d8cc917ea0869c7e",
        "527759c3d9366f277d8c6020418d96bb393ba2afb20ff90df23fb7708264e2f3"
        "ab9135e3bd69955851de4b1f9fe8a0973396719b7912ba9ee8aa7d0b5e24bcf6",
    ),
    (
        "5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a",
        "da27ef466870f5f15296299850aa088629945a17d1f5b7f5ff043f76b3c06418",
        "b4cbf5a4f1eeda5a63ce7b77c7d23f461db3fcab0dd28e4e17cecb5c90d02c25",
        "f4a74c9c592497375e796aa837e907b1a045d34306a749db9f34221f7e750cb4"
        "f2a6413a6bf6fa5e19ba6348eb673934a722a7ede2e7621306d18951e7cf2c73",
    ),
]


def scalar(value: int) -> bytes:
    return value.to_bytes(32, "little")


# RFC 9496.


@pytest.mark.parametrize("number", range(1, 16))
def test_multiples_of_the_generator(number: int) -> None:
    expected = bytes.fromhex(MULTIPLES[number])
    generator = bytes.fromhex(MULTIPLES[1])
    assert oprf.multiply_generator(scalar(number)) == expected
    assert oprf.multiply(scalar(number), generator) == expected
    assert oprf.check_element(expected, "a multiple") == expected
    if number > 1:
        assert oprf.add(bytes.fromhex(MULTIPLES[number - 1]), generator) == expected
        assert oprf.subtract(expected, generator) == bytes.fromhex(MULTIPLES[number - 1])


@pytest.mark.parametrize("encoding", INVALID)
def test_invalid_encodings_are_refused(encoding: str) -> None:
    with pytest.raises(oprf.InvalidElement):
        oprf.check_element(bytes.fromhex(encoding), "an element")


@pytest.mark.parametrize("number", range(16))
def test_other_encodings_of_a_valid_element_are_refused(number: int) -> None:
    value = int.from_bytes(bytes.fromhex(MULTIPLES[number]), "little")
    prime = 2**255 - 19
    others = {value + 2**255, prime - value, 2 * prime - value, value ^ 1, value + prime}
    for other in others:
        if other < 2**256:
            with pytest.raises(oprf.InvalidElement):
                oprf.check_element(scalar(other), "an element")


@pytest.mark.parametrize(
    "encoding", [b"", bytes(31), bytes.fromhex(MULTIPLES[1])[:31], bytes.fromhex(MULTIPLES[1]) * 2]
)
def test_an_element_of_another_length_is_refused(encoding: bytes) -> None:
    with pytest.raises(oprf.InvalidElement):
        oprf.check_element(encoding, "an element")


def test_the_identity_is_refused_and_never_returned() -> None:
    generator = bytes.fromhex(MULTIPLES[1])
    with pytest.raises(oprf.InvalidElement):
        oprf.check_element(bytes.fromhex(MULTIPLES[0]), "an element")
    with pytest.raises(oprf.InvalidElement):
        oprf.subtract(generator, generator)
    with pytest.raises(oprf.InvalidElement):
        oprf.add(generator, oprf.multiply_generator(scalar(oprf.ORDER - 1)))


@pytest.mark.parametrize("value", [0, oprf.ORDER, oprf.ORDER + 1, 2**255 + 1, 2**256 - 1])
def test_scalars_out_of_range_are_refused(value: int) -> None:
    with pytest.raises(oprf.InvalidScalar):
        oprf.multiply(scalar(value), bytes.fromhex(MULTIPLES[1]))
    with pytest.raises(oprf.InvalidScalar):
        oprf.multiply_generator(scalar(value))


@pytest.mark.parametrize(("line", "expected"), FROM_LINES.items())
def test_element_from_uniform_bytes(line: str, expected: str) -> None:
    uniform = hashlib.sha512(line.encode()).digest()
    assert rbcl.crypto_core_ristretto255_from_hash(uniform).hex() == expected
    tampered = bytes([uniform[0] ^ 1]) + uniform[1:]
    assert rbcl.crypto_core_ristretto255_from_hash(tampered).hex() != expected


@pytest.mark.parametrize("uniform", SAME_INPUTS)
def test_element_from_uniform_bytes_beyond_the_prime(uniform: str) -> None:
    assert rbcl.crypto_core_ristretto255_from_hash(bytes.fromhex(uniform)).hex() == SAME_ELEMENT


# RFC 9497.


def test_derive_key_pair() -> None:
    assert oprf.derive_key(SEED, KEY_INFO) == KEY
    assert oprf.derive_key(SEED, b"test kez") != KEY
    assert oprf.derive_key(bytes(32), KEY_INFO) != KEY


@pytest.mark.parametrize(("data", "blinded", "evaluated", "output"), OPRF_VECTORS)
def test_oprf_vectors(monkeypatch: pytest.MonkeyPatch, data: str, blinded: str, evaluated: str, output: str) -> None:
    monkeypatch.setattr(oprf, "random_scalar", lambda randomness: BLIND)
    state = oprf.blind(bytes.fromhex(data), seeded(b"not used"))
    assert state.blind == BLIND
    assert state.element.hex() == blinded
    assert oprf.blind_evaluate(KEY, state.element).hex() == evaluated
    assert oprf.finalize(bytes.fromhex(data), BLIND, bytes.fromhex(evaluated)).hex() == output
    assert oprf.evaluate(KEY, bytes.fromhex(data)).hex() == output


@pytest.mark.parametrize(("data", "blinded", "evaluated", "output"), OPRF_VECTORS)
def test_tampered_oprf_vectors_fail(data: str, blinded: str, evaluated: str, output: str) -> None:
    content, element = bytes.fromhex(data), bytes.fromhex(evaluated)
    assert oprf.evaluate(KEY, content + b"\x00").hex() != output
    assert oprf.evaluate(oprf.derive_key(SEED, b"another"), content).hex() != output
    assert oprf.finalize(content, oprf.random_scalar(seeded(b"another")), element).hex() != output
    assert oprf.finalize(content, BLIND, bytes.fromhex(blinded)).hex() != output
    with pytest.raises(oprf.InvalidElement):
        oprf.finalize(content, BLIND, bytes([element[0] ^ 1]) + element[1:])
    with pytest.raises(oprf.InvalidElement):
        oprf.blind_evaluate(KEY, bytes.fromhex(blinded)[:-1] + b"\xff")


def test_blinding_hides_the_input_and_comes_off() -> None:
    randomness = seeded(b"blinds")
    first, second = oprf.blind(b"relation", randomness), oprf.blind(b"relation", randomness)
    assert first.element != second.element
    outputs = {
        oprf.finalize(b"relation", each.blind, oprf.blind_evaluate(KEY, each.element)) for each in (first, second)
    }
    assert outputs == {oprf.evaluate(KEY, b"relation")}
    assert first.blind.hex() not in repr(first)


def test_wrong_lengths_are_refused() -> None:
    with pytest.raises(WrongLength):
        oprf.derive_key(bytes(31), b"")
    with pytest.raises(WrongLength):
        oprf.derive_key(SEED, bytes(2**16))
    with pytest.raises(WrongLength):
        oprf.hash_to_group(bytes(2**16))
    with pytest.raises(RandomnessError):
        oprf.random_scalar(lambda num_bytes: bytes(num_bytes - 1))
    with pytest.raises(oprf.InvalidScalar):
        oprf.random_scalar(bytes)


def test_an_input_that_hashes_to_the_identity_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rbcl, "crypto_core_ristretto255_from_hash", lambda uniform: bytes(32))
    with pytest.raises(oprf.InvalidInput):
        oprf.hash_to_group(b"never found")


def test_a_seed_that_gives_no_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rbcl, "crypto_core_ristretto255_scalar_reduce", lambda uniform: bytes(32))
    with pytest.raises(oprf.InvalidInput):
        oprf.derive_key(SEED, KEY_INFO)


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    oprf._group.cache_clear()
    monkeypatch.setitem(sys.modules, "rbcl", None)
    with pytest.raises(oprf.MissingExtra, match=r"^ristretto255 needs rbcl: pip install fkgsec\[two-party\]$"):
        oprf.evaluate(KEY, b"relation")
    monkeypatch.undo()
    assert oprf.evaluate(KEY, b"\x00").hex() == OPRF_VECTORS[0][3]
