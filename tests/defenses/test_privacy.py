"""Clipping, the amount of noise, and what is claimed for it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fkgsec.data.graph import FederatedGraph
from fkgsec.defenses.options import DpOptions, Unit, parse_defense
from fkgsec.defenses.privacy import RingNoise, clip_changes, local_noise, released, ring_noise, ring_of
from fkgsec.defenses.transport import make_transport
from fkgsec.errors import SpecError
from fkgsec.exchange import Holding
from fkgsec.federation.loop import run_federation
from fkgsec.federation.messages import Channel
from fkgsec.kge.options import KgeOptions
from fkgsec.protocols.core.fixed_point import FixedPoint
from fkgsec.protocols.core.prg import Randomness, Ring, seeded
from fkgsec.protocols.noise.accounting import epsilon_of, scale_for
from fkgsec.protocols.noise.guarantee import Releases
from fkgsec.protocols.noise.sampling import sampling_delta
from fkgsec.unlearning.unlearning import Method, UnlearnOptions, unlearn

replace = msgspec.structs.replace
MANY = 40_000
SERVERS = ["who brought a name", "single uploads", "rows with few holders", "values under noise"]


def gaussian_epsilon(multiplier: float, *, rounds: int, delta: float, accountant: str = "rdp") -> float:
    return epsilon_of([Releases("gaussian", multiplier, rounds)], delta=delta, accountant=accountant)


def dp(**settings: object) -> DpOptions:
    return DpOptions(**({"clip": 0.1} | ({} if "noise_multiplier" in settings else {"epsilon": 2.0}) | settings))


def in_ring(
    text: str, *, secagg: str = "secagg", num_clients: int = 3, fewest_survivors: int = 3, releases: int = 1
) -> tuple[RingNoise, FixedPoint]:
    """Ring noise for rows of 8."""
    return ring_noise(
        parse_defense(f"{secagg},dp:{text}"),
        releases=releases,
        dimension=8,
        num_clients=num_clients,
        fewest_survivors=fewest_survivors,
    )


def client(number: int) -> Randomness:
    return seeded(f"noise of client {number}".encode())


# Clipping.

values = st.floats(-1e6, 1e6, width=32)
shapes = st.tuples(st.integers(1, 6), st.integers(1, 5))


@pytest.mark.parametrize("unit", ["client", "row"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_change_is_cut_to_the_norm_and_keeps_its_direction(unit: Unit, data: st.DataObject) -> None:
    shape = data.draw(shapes)
    rows, received = (data.draw(arrays(np.float32, shape, elements=values)) for _ in range(2))
    clip = data.draw(st.floats(1e-3, 1e3))
    clipped = clip_changes(rows, received, dp(clip=clip, unit=unit))
    assert clipped.dtype == np.float64
    assert clipped.shape == rows.shape
    change = clipped - received.astype(np.float64)
    asked = rows.astype(np.float64) - received.astype(np.float64)
    rounding = 1e-15 * (float(np.abs(received).max()) + clip) * rows.size
    parts = range(len(rows)) if unit == "row" else [slice(None)]
    for part in parts:
        got, wanted = np.linalg.norm(change[part]), np.linalg.norm(asked[part])
        assert got <= clip * (1 + 1e-12) + rounding
        assert got == pytest.approx(min(wanted, clip), rel=1e-9, abs=rounding)
        assert np.allclose(change[part] * wanted, asked[part] * got, rtol=1e-9, atol=rounding * max(wanted, 1))


@pytest.mark.parametrize("unit", ["client", "row"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
def test_no_value_gets_past_the_clip(bad: float, unit: Unit) -> None:
    """A guarantee that holds for finite rows alone would be none: who trained to NaN would be seen."""
    received = np.ones((3, 2), dtype=np.float32)
    rows = received.copy()
    rows[1] = [bad, 2.0]
    clipped = clip_changes(rows, received, dp(clip=0.5, unit=unit))
    assert np.isfinite(clipped).all()
    assert np.linalg.norm(clipped - received) <= 0.5 * (1 + 1e-12)
    assert (clipped[[0, 2]] == received[[0, 2]]).all()


# Local noise.


@pytest.mark.parametrize(
    ("epsilon", "releases", "accountant"), [(0.3, 1, "rdp"), (2.0, 10, "rdp"), (20.0, 4, "rdp"), (20.0, 4, "prv")]
)
def test_local_noise_spends_what_it_was_given_and_no_more(epsilon: float, releases: int, accountant: str) -> None:
    noise = local_noise(dp(epsilon=epsilon, accountant=accountant, unit="row"), releases=releases)
    assert 0.99 * epsilon <= noise.guarantee.epsilon <= epsilon
    recomputed = gaussian_epsilon(noise.sigma / 0.2, rounds=releases, delta=1e-5, accountant=accountant)
    assert recomputed == pytest.approx(noise.guarantee.epsilon, rel=1e-9)
    guarantee = noise.guarantee
    assert (guarantee.delta, guarantee.unit, guarantee.rounds) == (1e-5, "row", releases)
    assert (guarantee.smallest_cohort, guarantee.accountant) == (None, accountant)
    assert "one row" in guarantee.neighbouring


def test_local_noise_of_a_given_multiplier_is_of_twice_the_clip() -> None:
    noise = local_noise(dp(clip=0.25, noise_multiplier=3.0, delta=1e-6), releases=7)
    assert noise.sigma == 3.0 * 2 * 0.25
    assert noise.guarantee.epsilon == gaussian_epsilon(3.0, rounds=7, delta=1e-6)
    assert (noise.guarantee.unit, noise.guarantee.delta) == ("client", 1e-6)


def test_moments_of_local_noise() -> None:
    noise = local_noise(dp(noise_multiplier=1.5), releases=1)
    rows = np.full((MANY // 4, 4), 2.5)
    added = (noise.add(rows, client(0)) - rows).ravel() / noise.sigma
    assert added.shape == (MANY,)
    assert abs(added.mean()) < 5 / math.sqrt(MANY)
    assert abs(added.var() - 1) < 5 * math.sqrt(2 / MANY)
    assert abs((added**4).mean() - 3) < 5 * math.sqrt(96 / MANY)
    assert abs(np.corrcoef(added[::2], added[1::2])[0, 1]) < 5 / math.sqrt(MANY / 2)
    assert not np.array_equal(noise.add(rows, client(0)), noise.add(rows, client(1)))


# Noise in the ring.

COHORTS = [(2, 2, 0), (10, 7, 4)]  # clients, fewest survivors, colluders


@pytest.mark.parametrize("noise", ["discrete", "skellam"])
@pytest.mark.parametrize(("clients", "fewest", "colluders"), COHORTS)
def test_the_smallest_honest_cohort_has_the_noise_that_the_claim_needs(
    noise: str, clients: int, fewest: int, colluders: int
) -> None:
    """Together its clients add as much as a Gaussian of the same claim; in units where the sensitivity is 1."""
    drawn, encoding = in_ring(
        f"clip=0.1,epsilon=2,unit=row,noise={noise},colluders={colluders}",
        num_clients=clients,
        fewest_survivors=fewest,
        releases=4,
    )
    cohort = fewest - colluders
    total = np.sum([drawn.draw(MANY, client(number)) for number in range(cohort)], axis=0)
    assert total.dtype == np.int64
    assert abs(total.var() / (cohort * drawn.sigma**2) - 1) < 5 * math.sqrt(2 / MANY)
    assert abs(total.mean()) < 5 * math.sqrt(cohort) * drawn.sigma / math.sqrt(MANY)
    sensitivity = 0.2 * 2**encoding.fraction_bits + math.sqrt(8)
    multiplier = math.sqrt(cohort) * drawn.sigma / sensitivity
    gaussian = scale_for(2.0, Releases("gaussian", 1.0, 4), delta=1e-5)
    assert 0.999 * gaussian <= multiplier <= 1.02 * gaussian
    guarantee = drawn.guarantee
    assert 0.99 * 2.0 <= guarantee.epsilon <= 2.0
    assert (guarantee.smallest_cohort, guarantee.unit, guarantee.rounds) == (cohort, "row", 4)
    assert guarantee.accountant == {"discrete": "KLS21", "skellam": "AKL21"}[noise]
    assert noise.removeprefix("discrete").capitalize() in guarantee.mechanism


@pytest.mark.parametrize(("colluders", "num_honest"), [(0, 8), (1, 1), (2, 1)])
def test_among_neighbors_colluders_leave_one_client_to_its_own_noise(colluders: int, num_honest: int) -> None:
    """They can cut the graph of masks, so that the sum of one client is opened."""
    text = f"clip=0.1,noise_multiplier=1.5,colluders={colluders}"
    drawn, encoding = in_ring(text, secagg="secagg:neighbours=4", num_clients=10, fewest_survivors=8)
    sensitivity = 0.2 * 2**encoding.fraction_bits + math.sqrt(8)
    assert math.sqrt(num_honest) * drawn.sigma == pytest.approx(1.5 * sensitivity, rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), unit=st.sampled_from(["client", "row"]), scale=st.floats(0.001, 10))
def test_no_two_clipped_uploads_are_further_apart_in_the_ring_than_the_claim_assumes(
    seed: int, unit: Unit, scale: float
) -> None:
    """Whatever the two uploads are; and two that pull in opposite directions are nearly as far."""
    options = parse_defense(f"secagg,dp:clip=0.001,noise_multiplier=1,unit={unit},colluders=0")
    rng = np.random.default_rng(seed)
    shape = (5, 4)
    dimension = shape[1] if unit == "row" else shape[0] * shape[1]
    noise, encoding = ring_noise(options, releases=1, dimension=dimension, num_clients=4, fewest_survivors=4)
    sensitivity = math.sqrt(4) * noise.sigma  # the multiplier is 1
    received = rng.normal(size=shape).astype(np.float32)
    change = scale * rng.normal(size=shape).astype(np.float32)
    assert options.dp is not None

    def furthest(one: np.ndarray, other: np.ndarray) -> float:
        encoded = [
            encoding.ring.to_integers(encoding.encode(clip_changes(rows, received, options.dp)).values).astype(
                np.float64
            )
            for rows in (one, other)
        ]
        apart = encoded[0] - encoded[1]
        return float(np.linalg.norm(apart, axis=1).max() if unit == "row" else np.linalg.norm(apart))

    assert furthest(received + change, received + scale * rng.normal(size=shape)) <= sensitivity
    opposite = furthest(received + change, received - change)
    assert opposite <= sensitivity
    if scale > 1:
        assert opposite >= 0.98 * sensitivity


@pytest.mark.parametrize(("bits", "noise"), [(32, "discrete"), (64, "discrete"), (32, "skellam")])
@pytest.mark.parametrize("clients", [2, 20])
def test_values_and_noise_have_room_in_the_ring(bits: int, noise: str, clients: int) -> None:
    """All clients at the clip, and twelve standard deviations of the noise of all: the sum keeps its sign."""
    settings = f"clip=50,epsilon=0.5,noise={noise}"
    drawn, encoding = in_ring(settings, secagg=f"secagg:bits={bits}", num_clients=clients, fewest_survivors=2)
    assert encoding.ring is {32: Ring.UINT32, 64: Ring.UINT64}[bits] is ring_of(parse_defense(f"secagg:bits={bits}"))
    largest = clients * round(16 * 2**encoding.fraction_bits) + 12 * math.sqrt(clients) * drawn.sigma
    assert largest < 2 ** (bits - 1)
    for sign in (1, -1):
        elements = encoding.encode(np.full(1, sign * 16.0)).values
        tail = encoding.ring.from_integers(np.array([sign * round(12 * drawn.sigma / math.sqrt(clients))]))
        total = encoding.ring.zeros(1)
        for _ in range(clients):
            total = encoding.ring.add(encoding.ring.add(total, elements), tail)
        expected = sign * (clients * 16 + 12 * math.sqrt(clients) * drawn.sigma / 2**encoding.fraction_bits)
        assert encoding.decode(total)[0] == pytest.approx(expected, rel=1e-6)


def test_the_finest_encoding_that_fits_is_taken() -> None:
    """Little noise costs no precision. Much noise costs bits, and one more bit would not have fitted."""
    _, quiet = in_ring("clip=0.001,epsilon=20")
    assert quiet.fraction_bits == FixedPoint.finest(3).fraction_bits == 25
    drawn, loud = in_ring("clip=2000,epsilon=0.05")
    assert loud.fraction_bits < 25
    assert 2 * (3 * 16 * 2**loud.fraction_bits + 12 * math.sqrt(3) * drawn.sigma) * 2 > 2**32


@pytest.mark.parametrize(("fewest", "colluders"), [(2, 2), (3, 5)])
def test_nobody_is_left_when_all_may_collude(fewest: int, colluders: int) -> None:
    with pytest.raises(SpecError, match=f"^defense: dp: with {colluders} colluders among at least {fewest} survivors"):
        in_ring(f"clip=0.1,epsilon=1,colluders={colluders}", num_clients=10, fewest_survivors=fewest)


def test_noise_that_does_not_fit_32_bits_says_so_and_fits_64() -> None:
    settings = "clip=1e6,epsilon=0.01"
    with pytest.raises(SpecError, match=r"the noise does not fit a ring of 32 bits .*"):
        in_ring(settings)
    drawn, encoding = in_ring(settings, secagg="secagg:bits=64")
    assert drawn.guarantee.epsilon <= 0.01
    sample = drawn.draw(MANY, client(0))
    assert abs(sample.var() / drawn.sigma**2 - 1) < 5 * math.sqrt(2 / MANY)
    assert np.array_equal(encoding.ring.to_integers(encoding.ring.from_integers(sample)), sample)


# What a run states.


def statement(num_clients: int, options: KgeOptions) -> Sequence[str]:
    """Of a run, whose table has one row."""
    parties = [f"client/{number}" for number in range(num_clients)]
    transport = make_transport(Channel(), options, parties, ["entities"], "a run")
    transport.align("entities", {party: Holding(["x"], 1) for party in parties})
    transport.initialise("entities", torch.zeros(1, 8))
    return transport.protection().lines()


def test_a_run_states_the_guarantee_of_all_its_rounds(options: KgeOptions) -> None:
    lines = statement(3, replace(options, defense="dp:clip=0.1,epsilon=3,unit=row"))
    assert lines[-1] == f"dp, entities: {local_noise(dp(epsilon=3.0, unit='row'), releases=2).guarantee.describe()}"
    assert "figures, counts and the digest of the data in the record are of the clear data" in lines[0]
    lines = statement(5, replace(options, defense="psu,secagg,suppress:t=2,dp:clip=0.1,epsilon=3"))
    starts = [
        "psu: ",
        "secagg: ",
        "active server: ",
        "suppress: ",
        "dp covers",
        "protocol randomness",
        *SERVERS,
        "dp, entities: ",
    ]
    assert [line[: len(start)] for line, start in zip(lines, starts, strict=True)] == starts
    assert "with up to 2 colluders, clients that it runs included (threshold 4 of 5)" in lines[7]
    assert "fewer than 2 holders" in lines[3]
    assert lines[-1].startswith("dp, entities: (3, 1e-05)-DP per client")
    assert "2 releases, 3 or more clients, accountant KLS21" in lines[-1]  # 4 survive at least, 1 may collude


def test_fewer_participants_are_a_smaller_cohort(options: KgeOptions) -> None:
    options = replace(options, participation=0.6)
    *_, line = statement(5, replace(options, defense="secagg,dp:clip=0.1,epsilon=3"))
    assert "2 or more clients" in line  # 3 take part, all must survive, 1 may collude
    *_, assumed, _, line = statement(5, replace(options, defense="secagg:threshold=2,dp:clip=0.1,epsilon=3"))
    assert "single uploads: withstand a server that follows the protocol with up to 0 colluders" in assumed
    assert "1 or more clients" in line
    with pytest.raises(SpecError, match="with 3 colluders among at least 3 survivors"):
        statement(5, replace(options, defense="secagg,dp:clip=0.1,epsilon=3,colluders=3"))


def test_a_guarantee_that_promises_little_says_so(options: KgeOptions) -> None:
    lines = statement(3, replace(options, defense="secagg,dp:clip=0.1,epsilon=50,colluders=0"))
    assert "dp: an epsilon above 20 promises next to nothing" in lines
    assert "dp: with colluders=0 the guarantee does not hold where a client colludes with the server" in lines
    honest = statement(3, replace(options, defense="secagg,dp:clip=0.1,epsilon=3"))
    assert not [line for line in honest if line.startswith("dp: ")]


@pytest.mark.parametrize(
    ("method", "releases", "epsilon"), [("finetune", 4, 9.50), ("retrain", 6, 12.17), ("delete", 3, 8.0)]
)
def test_an_unlearned_run_states_the_epsilon_of_all_that_its_clients_released(
    method: Method,
    releases: int,
    epsilon: float,
    graph: Callable[[int], FederatedGraph],
    options: KgeOptions,
) -> None:
    """The run's three rounds and the unlearning's: what a reader of either record is told is what crossed until then."""
    options = replace(options, rounds=3, defense="dp:clip=0.1,epsilon=8")
    raw = run_federation(graph(3), options, make_transport=make_transport)
    forget = {raw.graph.clients[0].name: raw.graph.clients[0].train[:5]}
    made = unlearn(raw, forget, UnlearnOptions(method=method, decay_epochs=1), make_transport=make_transport)
    guarantee = made.protection.guarantees["entities"]
    assert guarantee.epsilon == pytest.approx(epsilon, abs=0.01)
    assert f"{releases} releases" in guarantee.describe()
    assert made.protection.lines()[-1] == f"dp, entities: {guarantee.describe()}"
    others = "each other unlearning or re-training of that run"
    assert any(others in line for line in made.protection.lines()) == (method != "delete")
    once_more = dataclasses.replace(raw, protection=made.protection)
    again = unlearn(once_more, forget, UnlearnOptions(method="finetune", decay_epochs=1), make_transport=make_transport)
    assert f"{releases + 1} releases" in again.protection.guarantees["entities"].describe()


def test_the_releases_of_every_table_of_a_client_compose(options: KgeOptions) -> None:
    """Entities and relations are both a client's; a row is in one table only."""
    for unit, covered in (("client", ["entities and relations"]), ("row", ["entities", "relations"])):
        noise = local_noise(dp(noise_multiplier=2.0, unit=unit), releases=6).guarantee
        found = released({"entities": noise, "relations": noise}, releases=3)
        assert list(found) == covered
        rounds = 6 if unit == "client" else 3
        assert all(
            one.epsilon == pytest.approx(gaussian_epsilon(2.0, rounds=rounds, delta=1e-5)) for one in found.values()
        )


@pytest.mark.parametrize("releases", [3, 12])
def test_a_claim_counts_the_samples_of_the_releases_that_it_covers(releases: int) -> None:
    """Six releases of rows of 8 by three clients draw 144 integers, each of which adds to delta."""
    noise = in_ring("clip=0.1,epsilon=2", releases=6)[0].guarantee
    claim = released({"entities": noise}, releases=releases)["entities"]
    assert [part.num_samples for part in claim.releases] == [releases * 3 * 8]
    assert claim.sampling_delta == sampling_delta(claim.epsilon, releases * 3 * 8)
