"""The sum of the tables depends on the union alone: counted exactly in a small field, and put to a trained classifier.

Every check has a variant that must fail it: multipliers that are always 1 (a counting table), never 0, or too short.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from fractions import Fraction

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.metrics import roc_auc_score

from fkgsec.protocols.core.prg import Randomness, Ring, derive, seeded
from fkgsec.protocols.psu import Announcement, Plan, contribute, join
from fkgsec.protocols.psu.table import CELL_WIDTH, Field, Parameters, encode, hash_items, items_of, peel, tabulate
from fkgsec.protocols.secagg import SERVER
from tests.protocols.sessions import aggregate

CLIENTS = ("ada", "bo", "cy")
UNION = ("/m/01", "/m/02", "born in", "", "Ω", "a relation whose name is longer than thirty-six bytes")
SALT = derive(b"salt", "hiding tests")
P = Ring.MERSENNE61.modulus


# Exactly, in the field of five elements.

FIVE = Field(5)
SMALL_PLACES = np.array([[0, 2, 4], [0, 3, 4]])  # two items that share cells: neither is pure everywhere
SMALL_LIMBS = np.array([[2, 0], [3, 4]], dtype=np.uint64)
SMALL_CHECKS = np.array([1, 3], dtype=np.uint64)


def possible_tables(held: tuple[int, ...], multipliers: Collection[int]) -> np.ndarray:
    """A client's table for every choice of its multipliers: `[choices, cells * width]`."""
    rows = list(held)
    return np.array(
        [
            tabulate(
                FIVE, SMALL_PLACES[rows], SMALL_LIMBS[rows], SMALL_CHECKS[rows], np.array(choice, dtype=np.uint64), 6
            ).ravel()
            for choice in itertools.product(multipliers, repeat=len(rows))
        ]
    )


def distribution(holders: tuple[tuple[int, ...], ...], multipliers: Collection[int]) -> dict[bytes, Fraction]:
    """The opened sum's distribution when client i holds item j for each i in `holders[j]`, over all multipliers."""
    sums = np.zeros((1, 6 * 4), dtype=np.uint64)
    for client in range(len(CLIENTS)):
        held = tuple(item for item, clients in enumerate(holders) if client in clients)
        tables = possible_tables(held, multipliers)
        sums = FIVE.add(sums[:, None, :], tables[None, :, :]).reshape(-1, sums.shape[1])
    rows, counts = np.unique(sums, axis=0, return_counts=True)
    return {row.tobytes(): Fraction(int(count), len(sums)) for row, count in zip(rows, counts, strict=True)}


def every_assignment() -> Iterator[tuple[tuple[int, ...], ...]]:
    """Each of the two items held by any nonempty set of the three clients: 49 ways to make the same union."""
    some = [held for size in (1, 2, 3) for held in itertools.combinations(range(len(CLIENTS)), size)]
    return itertools.product(some, repeat=2)


def test_every_ownership_of_the_same_union_gives_the_same_distribution() -> None:
    simulated = distribution(((0,), (0,)), range(5))
    assert len(simulated) == 25  # one table for each pair (R_1, R_2)
    assert set(simulated.values()) == {Fraction(1, 25)}
    for holders in every_assignment():
        assert distribution(holders, range(5)) == simulated, holders


@pytest.mark.parametrize("multipliers", [(1,), (1, 2, 3, 4), (0, 1, 2, 3)], ids=["counting", "never zero", "short"])
def test_other_multipliers_show_the_number_of_holders(multipliers: tuple[int, ...]) -> None:
    by_counts: dict[tuple[int, ...], dict[bytes, Fraction]] = {}
    for holders in every_assignment():
        by_counts.setdefault(tuple(len(clients) for clients in holders), distribution(holders, multipliers))
    for first, second in itertools.combinations(by_counts.values(), 2):
        assert first != second


def test_another_union_gives_another_distribution() -> None:
    assert distribution(((0,), (0, 1)), range(5)) != distribution(((0,), ()), range(5))


# By a classifier, in the field that is used.

PARAMETERS = Parameters(b"hiding", SALT, 600)
ITEMS = [item for identifier in UNION for item in items_of(identifier)]
USED_CELLS = np.unique(hash_items(PARAMETERS, ITEMS)[0])
IDENTITIES = {name: Ed25519PrivateKey.from_private_bytes(derive(b"identity", name)) for name in CLIENTS}


def always_one(num_bytes: int) -> bytes:
    """Multipliers of 1: the table then counts holders."""
    return (1).to_bytes(8, "little") * (num_bytes // 8)


def too_short(source: Randomness) -> Randomness:
    """Multipliers below 2^60 in place of 2^61 - 1."""
    return lambda num_bytes: (np.frombuffer(source(num_bytes), "<u8") & np.uint64(2**60 - 1)).tobytes()


def one_holder(rng: np.random.Generator) -> dict[str, list[str]]:
    """Each identifier of the union at one client."""
    sets: dict[str, list[str]] = {name: [] for name in CLIENTS}
    for identifier in UNION:
        sets[CLIENTS[rng.integers(len(CLIENTS))]].append(identifier)
    return sets


def any_holders(rng: np.random.Generator) -> dict[str, list[str]]:
    """Each identifier of the union at any nonempty set of clients."""
    sets: dict[str, list[str]] = {name: [] for name in CLIENTS}
    for identifier in UNION:
        choice = int(rng.integers(1, 2 ** len(CLIENTS)))
        for place, name in enumerate(CLIENTS):
            if choice >> place & 1:
                sets[name].append(identifier)
    return sets


def summed(sets: Mapping[str, Collection[str]], randomness: Randomness) -> np.ndarray:
    """What secure aggregation opens, computed in clear."""
    total = Ring.MERSENNE61.zeros(PARAMETERS.length)
    for identifiers in sets.values():
        total = Ring.MERSENNE61.add(total, encode(PARAMETERS, identifiers, randomness))
    return total


def opened(sets: Mapping[str, Collection[str]], randomness: Randomness, *, table_randomness: Randomness) -> np.ndarray:
    """What a real run opens: clients, messages and secure aggregation."""
    public = {name: key.public_key().public_bytes_raw() for name, key in IDENTITIES.items()}
    plan = Plan(PARAMETERS.session, CLIENTS, 3, public, cap=1)
    announcement = Announcement(plan.session, 0, SERVER, SALT, plan.num_cells(0))
    settings, tables = [], {}
    for name in CLIENTS:
        _, setting, made = contribute(join(plan, name, sets[name]), announcement, table_randomness)
        tables[name] = made()
        settings.append(setting)
    total = aggregate(settings[0], tables, IDENTITIES, randomness=dict.fromkeys(CLIENTS, randomness))
    return total.vectors["table"]


def simulate(identifiers: Collection[str], rng: np.random.Generator) -> np.ndarray:
    """A table from the union alone, in Python's integers: no code shared with `encode` but the hashes and the items."""
    table = [0] * PARAMETERS.length
    for item in (item for identifier in identifiers for item in items_of(identifier)):
        number = int.from_bytes(item, "little")
        limbs = [number >> 60 * place & (2**60 - 1) for place in range(5)]
        places, checks = hash_items(PARAMETERS, [item])
        multiplier = int(rng.integers(0, P))
        for place in places[0].tolist():
            for offset, factor in enumerate([1, *limbs, int(checks[0])]):
                at = place * CELL_WIDTH + offset
                table[at] = (table[at] + multiplier * factor) % P
    return np.array(table, dtype=np.uint64)


def auc_interval(first: list[np.ndarray], second: list[np.ndarray]) -> tuple[float, float]:
    """The 99.9 % interval (Hanley and McNeil 1982) of a trained classifier's AUC on tables it has not seen.

    Of each value in a cell that the union uses it sees the size and the low bits, both scaled to unit deviation: trees
    take values closer than 1e-7 for equal.
    """
    tables = np.array(first + second).reshape(-1, PARAMETERS.num_cells, CELL_WIDTH)
    unused = np.setdiff1d(np.arange(PARAMETERS.num_cells), USED_CELLS)
    assert not tables[:, unused].any()
    values = tables[:, USED_CELLS].reshape(len(tables), -1)
    features = np.hstack([values.astype(np.float64), (values & np.uint64(2**16 - 1)).astype(np.float64)])
    features = (features - features.mean(axis=0)) / np.maximum(features.std(axis=0), 1e-300)
    labels = np.repeat([0, 1], [len(first), len(second)])
    train = np.arange(len(labels)) % 2 == 0
    trees = ExtraTreesClassifier(n_estimators=200, random_state=0, n_jobs=1).fit(features[train], labels[train])
    auc = float(roc_auc_score(labels[~train], trees.predict_proba(features[~train])[:, 1]))
    n = int((~train).sum()) // 2
    larger, smaller = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    variance = (auc * (1 - auc) + (n - 1) * (larger + smaller - 2 * auc**2)) / n**2
    half = 3.29 * math.sqrt(variance)
    return auc - half, auc + half


def tables_of(
    owners: Callable[[np.random.Generator], dict[str, list[str]]],
    make: Callable[..., np.ndarray],
    count: int,
    seed: int,
) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [make(owners(rng)) for _ in range(count)]


def test_classifier_cannot_tell_ownerships_of_the_same_union_apart() -> None:
    source = seeded(b"ownership")
    one = tables_of(one_holder, lambda sets: summed(sets, source), 400, 1)
    many = tables_of(any_holders, lambda sets: summed(sets, source), 400, 2)
    assert all(peel(PARAMETERS, table) == sorted(UNION) for table in (one[0], many[0]))
    low, high = auc_interval(one, many)
    assert low <= 0.5 <= high
    assert high - low < 0.2  # narrow enough to say something


@pytest.mark.parametrize("broken", [always_one, too_short(seeded(b"short"))], ids=["counting", "short"])
def test_classifier_tells_ownerships_apart_with_broken_multipliers(broken: Randomness) -> None:
    one = tables_of(one_holder, lambda sets: summed(sets, broken), 150, 3)
    many = tables_of(any_holders, lambda sets: summed(sets, broken), 150, 4)
    low, _ = auc_interval(one, many)
    assert low > 0.8


def test_real_runs_look_like_tables_simulated_from_the_union() -> None:
    source, rng = seeded(b"real runs"), np.random.default_rng(5)
    real = tables_of(any_holders, lambda sets: opened(sets, source, table_randomness=source), 200, 6)
    simulated = [simulate(UNION, rng) for _ in range(200)]
    assert all(peel(PARAMETERS, table) == sorted(UNION) for table in (real[0], simulated[0]))
    low, high = auc_interval(real, simulated)
    assert low <= 0.5 <= high
    assert high - low < 0.3


def test_real_runs_with_counting_tables_do_not_look_simulated() -> None:
    source, rng = seeded(b"real runs"), np.random.default_rng(7)
    real = tables_of(any_holders, lambda sets: opened(sets, source, table_randomness=always_one), 60, 8)
    low, _ = auc_interval(real, [simulate(UNION, rng) for _ in range(60)])
    assert low > 0.8


def test_server_with_colluders_learns_the_union_of_the_others() -> None:
    """The leakage that is stated: what is left of the sum is a table of the honest clients' union."""
    source = seeded(b"collusion")
    sets = {"ada": ["both", "only ada"], "bo": ["all honest", "both"], "cy": ["all honest", "bo or cy", "bo, cy, ada?"]}
    total, own = summed(sets, source), encode(PARAMETERS, sets["ada"], seeded(b"ada"))
    with_own = Ring.MERSENNE61.add(summed({**sets, "ada": []}, source), own)
    rest = Ring.MERSENNE61.subtract(with_own, own)
    assert peel(PARAMETERS, rest) == sorted({*sets["bo"], *sets["cy"]})
    assert peel(PARAMETERS, total) == sorted({*sets["ada"], *sets["bo"], *sets["cy"]})
