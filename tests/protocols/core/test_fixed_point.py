"""Fixed point: the error bound is met and sharp, nothing wraps, nothing is clipped in silence."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fkgsec.protocols.core.errors import NotFinite, OutOfRing, SettingError, WrongType
from fkgsec.protocols.core.fixed_point import FixedPoint
from fkgsec.protocols.core.prg import Ring


def ring_sum(codec: FixedPoint, encoded: list[np.ndarray]) -> np.ndarray:
    total = encoded[0]
    for one in encoded[1:]:
        total = codec.ring.add(total, one)
    return total


def test_the_finest_for_twenty_clients_has_22_bits() -> None:
    codec = FixedPoint.finest(20)
    assert (codec.clip, codec.fraction_bits) == (16.0, 22)
    assert codec.bound == 20 * 2.0**-23
    with pytest.raises(OutOfRing, match="20 clients"):
        FixedPoint(16.0, 23, 20)


@pytest.mark.parametrize("ring", Ring)
@pytest.mark.parametrize("num_clients", [1, 2, 3, 20, 50, 1000])
def test_the_finest_fits_and_one_bit_more_does_not(ring: Ring, num_clients: int) -> None:
    codec = FixedPoint.finest(num_clients, clip=3.7, ring=ring)
    assert num_clients * 3.7 * 2**codec.fraction_bits < ring.modulus / 2
    with pytest.raises((OutOfRing, SettingError)):
        FixedPoint(3.7, codec.fraction_bits + 1, num_clients, ring)


@pytest.mark.parametrize("ring", Ring)
@given(
    num_clients=st.integers(1, 12),
    clip=st.floats(0.01, 1000),
    rows=st.lists(st.floats(-1500, 1500), min_size=1, max_size=5),
    seed=st.integers(0, 99),
)
def test_the_sum_is_within_the_bound(ring: Ring, num_clients: int, clip: float, rows: list[float], seed: int) -> None:
    codec = FixedPoint.finest(num_clients, clip=clip, ring=ring)
    rng = np.random.default_rng(seed)
    values = [rng.permutation(rows) * rng.uniform(-1, 1) for _ in range(num_clients)]
    encoded = [codec.encode(one) for one in values]
    clipped = [np.clip(one, -clip, clip) for one in values]
    assert [one.num_clipped for one in encoded] == [int((np.abs(one) > clip).sum()) for one in values]
    decoded = codec.decode(ring_sum(codec, [one.values for one in encoded]))
    for column, got in enumerate(decoded):
        exact = math.fsum(one[column] for one in clipped)
        assert abs(got - exact) <= codec.bound * (1 + 1e-9) + abs(exact) * 2**-53


def test_the_bound_is_sharp() -> None:
    codec = FixedPoint(4.0, 3, 3)
    value = np.array([0.5 / 2**3 - 1e-12])  # just below half a step, three times
    decoded = codec.decode(ring_sum(codec, [codec.encode(value).values] * 3))
    assert abs(decoded[0] - 3 * value[0]) == pytest.approx(codec.bound, rel=1e-9)


@pytest.mark.parametrize("ring", Ring)
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_nothing_wraps_at_the_edge(ring: Ring, sign: float) -> None:
    codec = FixedPoint.finest(20, ring=ring)
    encoded = codec.encode(np.full((2, 3), sign * 1e30, dtype=np.float32))
    assert encoded.num_clipped == 6
    assert encoded.values.shape == (2, 3)
    assert codec.decode(ring_sum(codec, [encoded.values] * 20)) == pytest.approx(sign * 320.0, abs=codec.bound)


@pytest.mark.parametrize("ring", Ring)
def test_long_arrays_are_encoded_like_short_ones(ring: Ring) -> None:
    """Longer than the blocks, of two dimensions, and not contiguous."""
    codec = FixedPoint.finest(20, ring=ring)
    values = np.random.default_rng(3).normal(0, 12, (3, 100_001)).astype(np.float32)[:, ::2]
    encoded = codec.encode(values)
    assert encoded.num_clipped == (np.abs(values) > 16).sum() > 1000
    assert encoded.values.shape == values.shape
    by_hand = np.rint(np.clip(values.astype(np.float64), -16, 16) * 2.0**codec.fraction_bits)
    assert (codec.decode(encoded.values) == by_hand / 2.0**codec.fraction_bits).all()


def test_ties_go_to_the_even_neighbour() -> None:
    codec = FixedPoint(8.0, 1, 1)
    values = np.array([0.25, 0.75, 1.25, -0.25, -0.75])
    assert codec.decode(codec.encode(values).values).tolist() == [0.0, 1.0, 1.0, 0.0, -1.0]


def test_the_clip_itself_is_not_counted() -> None:
    codec = FixedPoint(2.0, 4, 2)
    assert codec.encode(np.array([2.0, -2.0, 0.0])).num_clipped == 0
    assert codec.encode(np.array([np.nextafter(2.0, 3.0), -2.0, 0.0])).num_clipped == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(bad: float) -> None:
    with pytest.raises(NotFinite, match="1 are NaN"):
        FixedPoint(1.0, 4, 2).encode(np.array([0.0, bad]))


def test_wrong_dtypes_are_refused() -> None:
    codec = FixedPoint(1.0, 4, 2)
    for dtype in (np.int64, np.float16, np.complex128):
        with pytest.raises(WrongType, match=np.dtype(dtype).name):
            codec.encode(np.zeros(2, dtype=dtype))
    with pytest.raises(WrongType, match="uint64"):
        codec.decode(np.zeros(2, dtype=np.uint64))


def test_headroom_takes_its_bits_from_the_fraction() -> None:
    plain, roomy = FixedPoint.finest(20), FixedPoint.finest(20, headroom=400.0)
    assert roomy.fraction_bits < plain.fraction_bits
    step = 2**roomy.fraction_bits
    largest = 20 * 16 * step + 400 * step
    assert largest < 2**31 <= 2 * largest
    noisy = roomy.ring.from_integers(np.array([largest, -largest]))
    assert roomy.decode(noisy).tolist() == [720.0, -720.0]
    with pytest.raises(OutOfRing, match="headroom"):
        FixedPoint(16.0, plain.fraction_bits, 20, headroom=400.0)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"clip": 0.0}, "clip"),
        ({"clip": math.nan}, "clip"),
        ({"clip": math.inf}, "clip"),
        ({"fraction_bits": -1}, "fraction_bits"),
        ({"fraction_bits": 53}, "fraction_bits"),
        ({"num_clients": 0}, "num_clients"),
        ({"headroom": -1.0}, "headroom"),
        ({"headroom": math.inf}, "headroom"),
    ],
)
def test_settings_out_of_range_are_refused(changes: dict, name: str) -> None:
    with pytest.raises(SettingError, match=name):
        FixedPoint(**{"clip": 1.0, "fraction_bits": 4, "num_clients": 2, **changes})


def test_a_clip_too_large_for_the_ring_is_refused() -> None:
    with pytest.raises(OutOfRing, match="reaches 2147483647"):
        FixedPoint.finest(3, clip=2.0**30)
