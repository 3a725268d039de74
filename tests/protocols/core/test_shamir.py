"""Shamir: any threshold of shares, nothing from fewer, and no tampered one unnoticed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from fkgsec.protocols.core.errors import BadShare, ReconstructionMismatch, SettingError, TooFewParties, WrongLength
from fkgsec.protocols.core.prg import seeded
from fkgsec.protocols.core.shamir import PRIME, SHARE_BYTES, correct, reconstruct, split

SECRET = bytes(range(32))


def number(share: bytes) -> int:
    return int.from_bytes(share, "little")


def test_the_field_is_the_first_prime_above_2_256() -> None:
    assert PRIME == 2**256 + 297
    assert all(pow(base, PRIME - 1, PRIME) == 1 for base in (2, 3, 5, 7, 11, 13))
    assert all(pow(3, odd - 1, odd) != 1 for odd in range(2**256 + 1, PRIME, 2))  # 2^256+1 fools base 2


def test_shares_lie_on_the_line_that_the_randomness_draws() -> None:
    slope = 2**200 + 5
    shares = split(SECRET, threshold=2, holders=(1, 2, 9), randomness=lambda n: slope.to_bytes(n, "little"))
    assert {holder: number(one) for holder, one in shares.items()} == {
        holder: (number(SECRET) + slope * holder) % PRIME for holder in (1, 2, 9)
    }


@settings(max_examples=50)
@given(st.binary(min_size=32, max_size=32), st.integers(1, 12), st.data())
def test_any_threshold_of_shares_gives_the_secret(secret: bytes, threshold: int, data: st.DataObject) -> None:
    num_holders = data.draw(st.integers(threshold, 15))
    holders = data.draw(st.lists(st.integers(1, 10**6), min_size=num_holders, max_size=num_holders, unique=True))
    shares = split(secret, threshold=threshold, holders=holders, randomness=seeded(secret))
    chosen = data.draw(st.lists(st.sampled_from(holders), min_size=threshold, unique=True))
    assert reconstruct({holder: shares[holder] for holder in chosen}, threshold=threshold) == secret
    assert all(len(one) == SHARE_BYTES for one in shares.values())
    few = dict(list(shares.items())[: threshold - 1])
    with pytest.raises(TooFewParties, match=f"{threshold - 1} shares; the threshold is {threshold}"):
        reconstruct(few, threshold=threshold)


@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32, (1).to_bytes(32, "little")])
def test_secrets_at_the_edge_survive(secret: bytes) -> None:
    shares = split(secret, threshold=3, holders=range(1, 6), randomness=seeded(b"edge"))
    assert reconstruct(shares, threshold=3) == secret


def test_fewer_shares_fit_every_secret() -> None:
    """For two shares of a threshold of 3 and any other secret there is a third share that opens that one."""
    shares = split(SECRET, threshold=3, holders=(1, 2, 3), randomness=seeded(b"hide"))
    for other in (bytes(32), b"\x01" * 32, b"\xff" * 32):
        # The parabola through (0, other), (1, s1), (2, s2), at 3.
        third = (number(other) - 3 * number(shares[1]) + 3 * number(shares[2])) % PRIME
        forged = {1: shares[1], 2: shares[2], 3: third.to_bytes(SHARE_BYTES, "little")}
        assert reconstruct(forged, threshold=3) == other


def low_bytes_chi_square(randomness_of, num_splits: int) -> float:
    """Chi-square of the low byte of holder 2's share, 255 degrees of freedom."""
    low = [split(SECRET, threshold=3, holders=(1, 2, 3), randomness=randomness_of(n))[2][0] for n in range(num_splits)]
    counts = np.bincount(low, minlength=256)
    return float(((counts - num_splits / 256) ** 2 / (num_splits / 256)).sum())


def test_a_share_is_uniform_and_the_test_would_notice() -> None:
    limit = chi2.ppf(1 - 1e-6, 255)
    assert low_bytes_chi_square(lambda n: seeded(n.to_bytes(4, "little")), 5120) < limit
    small = lambda n: lambda num_bytes: bytes([n % 16]) + bytes(num_bytes - 1)  # noqa: E731 coefficients below 16
    assert low_bytes_chi_square(small, 5120) > limit


def test_coefficients_outside_the_field_are_drawn_again() -> None:
    drawn = [b"\xff" * 33, b"\x05" + bytes(32)]
    shares = split(SECRET, threshold=2, holders=(1, 2), randomness=lambda _: drawn.pop(0))
    assert not drawn
    assert number(shares[1]) == number(SECRET) + 5


@pytest.mark.parametrize("surplus", [0, 2])
def test_a_tampered_share_is_noticed(surplus: int) -> None:
    shares = split(SECRET, threshold=4, holders=range(1, 5 + surplus), randomness=seeded(b"tamper"))
    changed = dict(shares)
    changed[2] = ((number(shares[2]) + 1) % PRIME).to_bytes(SHARE_BYTES, "little")
    if surplus:
        with pytest.raises(ReconstructionMismatch, match="lie on no polynomial"):
            reconstruct(changed, threshold=4)
    else:  # exactly the threshold: only the owner's commitment can tell
        assert reconstruct(changed, threshold=4) != SECRET


def test_shares_that_meet_outside_32_bytes_are_refused() -> None:
    beyond = (2**256 + 1).to_bytes(SHARE_BYTES, "little")
    with pytest.raises(ReconstructionMismatch, match="no secret of 32 bytes"):
        reconstruct({1: beyond}, threshold=1)


@pytest.mark.parametrize("share", [b"", bytes(32), bytes(34), PRIME.to_bytes(33, "little"), b"\xff" * 33])
def test_what_is_no_share_is_refused(share: bytes) -> None:
    shares = split(SECRET, threshold=2, holders=(1, 2), randomness=seeded(b"bad"))
    with pytest.raises(BadShare, match="holder 2"):
        reconstruct({**shares, 2: share}, threshold=2)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(WrongLength, match="31 bytes"):
        split(SECRET[:31], threshold=1, holders=(1,), randomness=seeded(b""))
    for holders in ((0, 1), (1, 1), (-1, 2)):
        with pytest.raises(SettingError, match="distinct positive"):
            split(SECRET, threshold=1, holders=holders, randomness=seeded(b""))
    for threshold in (0, 3):
        with pytest.raises(SettingError, match=f"threshold {threshold}"):
            split(SECRET, threshold=threshold, holders=(1, 2), randomness=seeded(b""))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.integers(0, 8), st.data())
def test_wrong_shares_within_half_of_the_surplus_are_corrected(
    threshold: int, surplus: int, data: st.DataObject
) -> None:
    num_holders = threshold + surplus
    holders = data.draw(st.lists(st.integers(1, 99), min_size=num_holders, max_size=num_holders, unique=True))
    secret = data.draw(st.binary(min_size=32, max_size=32))
    shares = split(secret, threshold=threshold, holders=holders, randomness=seeded(secret))
    wrong = data.draw(st.lists(st.sampled_from(holders), max_size=surplus // 2, unique=True))
    for holder in wrong:
        shares[holder] = ((number(shares[holder]) + data.draw(st.integers(1, PRIME - 1))) % PRIME).to_bytes(
            33, "little"
        )
    assert correct(shares, threshold=threshold) == (secret, frozenset(wrong))
    if wrong:
        with pytest.raises(ReconstructionMismatch, match="lie on no polynomial"):
            reconstruct(shares, threshold=threshold)


def test_more_wrong_shares_than_half_of_the_surplus_are_refused() -> None:
    shares = split(SECRET, threshold=4, holders=range(1, 9), randomness=seeded(b"wrong"))
    for holder in (1, 4, 6):
        shares[holder] = ((number(shares[holder]) + holder) % PRIME).to_bytes(SHARE_BYTES, "little")
    with pytest.raises(ReconstructionMismatch, match="more than 2 of the 8 shares"):
        correct(shares, threshold=4)


def test_every_surplus_share_is_checked() -> None:
    """One wrong share in any place, by one in any bit, beyond or within the first of the threshold."""
    shares = split(SECRET, threshold=3, holders=range(1, 9), randomness=seeded(b"every"))
    for holder in shares:
        for bit in (0, 100, 255):
            changed = ((number(shares[holder]) + 2**bit) % PRIME).to_bytes(SHARE_BYTES, "little")
            with pytest.raises(ReconstructionMismatch, match="lie on no polynomial"):
                reconstruct({**shares, holder: changed}, threshold=3)
