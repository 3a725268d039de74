"""Secure aggregation gives the sum: whoever drops out, on either graph, in every ring; and what crosses is as said."""

import hashlib
from dataclasses import fields, replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fkgsec.protocols.core.errors import DisconnectedGraph, SettingError, TooFewParties
from fkgsec.protocols.core.fixed_point import FixedPoint
from fkgsec.protocols.core.prg import Ring
from fkgsec.protocols.secagg import Stage, Vector, bindings, encode, safe_threshold
from fkgsec.protocols.secagg.graph import components, regular_graph
from fkgsec.protocols.secagg.messages import (
    Advertisement,
    MaskedUpload,
    RevealedShares,
)
from tests.protocols.sessions import aggregate

PINNED = (14192, "e371c49e368e793c8efdbc5e5bc0773c1cdca80346ac1f986444d7a63969b30b")


def check_sum(cohort, result) -> None:
    for vector in cohort.setting.vectors:
        assert result.vectors[vector.name].tolist() == cohort.clear_sum(vector.name, result.survivors)


@settings(max_examples=25, deadline=None)
@given(data=st.data(), num_parties=st.integers(2, 12), seed=st.binary(min_size=1, max_size=4))
def test_the_sum_is_that_of_the_survivors(cohort, wire, data, num_parties: int, seed: bytes) -> None:
    """Real values in fixed point, any dropouts that leave a threshold, at any stage, on either graph."""
    neighbours = data.draw(st.sampled_from([None, 4]) if num_parties >= 8 else st.none(), label="neighbours")
    least = safe_threshold(num_parties)
    options = {} if neighbours is None else {"neighbours": neighbours, "threshold": 3}
    made = cohort(num_parties, length=5, seed=seed, **options)
    codec = FixedPoint.finest(num_parties)
    values = {
        party: np.random.default_rng([*seed, place]).normal(0, 5, 5) for place, party in enumerate(made.setting.parties)
    }
    made = replace(made, inputs={party: {"v0": codec.encode(one).values} for party, one in values.items()})
    most = num_parties - least if neighbours is None else 1  # one of four neighbours may go without any doubt
    gone = data.draw(st.lists(st.sampled_from(made.setting.parties), max_size=most, unique=True), label="gone")
    dropouts = {party: data.draw(st.sampled_from(Stage), label=party) for party in gone}
    result = made.run(deliver=wire(), dropouts=dropouts)
    expected = [party for party in made.setting.parties if dropouts.get(party, Stage.UNMASK) > Stage.MASK]
    assert list(result.survivors) == expected
    clear = np.sum([np.clip(values[party], -16, 16) for party in expected], axis=0)
    assert np.abs(codec.decode(result.vectors["v0"]) - clear).max() <= codec.bound * (1 + 1e-9)


@pytest.mark.parametrize("stage", Stage)
@pytest.mark.parametrize("neighbours", [None, 4])
def test_the_most_dropouts_that_a_threshold_allows(cohort, wire, stage: Stage, neighbours: int | None) -> None:
    made = cohort(9, neighbours=neighbours, threshold=None if neighbours is None else 3)
    gone = made.setting.parties[3:5] if neighbours is None else made.setting.parties[:1]
    result = made.run(deliver=wire(), dropouts=dict.fromkeys(gone, stage))
    assert (set(gone) <= set(result.survivors)) == (stage > Stage.MASK)
    check_sum(made, result)


@pytest.mark.parametrize("cipher", ["aes-256-ctr", "chacha20"])
def test_all_rings_at_once_with_both_ciphers(cohort, wire, cipher: str) -> None:
    made = cohort(4, rings=tuple(Ring), length=33, cipher=cipher)
    check_sum(made, made.run(deliver=wire()))


def test_vectors_may_differ_in_length_and_be_empty(cohort, wire) -> None:
    made = cohort(3)
    vectors = (Vector("rows", 7, Ring.UINT32), Vector("none", 0, Ring.UINT64), Vector("table", 2, Ring.MERSENNE61))
    inputs = {
        party: {v.name: np.full(v.length, v.ring.modulus - 1, dtype=v.ring.dtype) for v in vectors}
        for party in made.setting.parties
    }
    made = replace(made.but(vectors=vectors), inputs=inputs)
    result = made.run(deliver=wire())
    check_sum(made, result)
    assert result.vectors["rows"].tolist() == [2**32 - 3] * 7
    assert result.vectors["none"].shape == (0,)


def test_two_clients_need_each_other(cohort, wire) -> None:
    made = cohort(2)
    check_sum(made, made.run(deliver=wire()))
    for stage in Stage:
        with pytest.raises(TooFewParties):
            made.run(deliver=wire(), dropouts={"client1": stage})


@pytest.mark.parametrize("stage", Stage)
def test_one_dropout_too_many_opens_nothing(cohort, wire, stage: Stage) -> None:
    made = cohort(7)  # threshold 5
    recorded = wire()
    with pytest.raises(TooFewParties):
        made.run(deliver=recorded, dropouts=dict.fromkeys(made.setting.parties[:3], stage))
    if stage < Stage.UNMASK:
        assert not recorded.of_kind(RevealedShares)
    else:
        assert len(recorded.of_kind(RevealedShares)) == 4 < made.setting.threshold


def test_a_smallest_set_of_survivors_is_kept(cohort, wire) -> None:
    made = cohort(6, threshold=4, min_survivors=6)
    check_sum(made, made.run(deliver=wire(), dropouts={"client2": Stage.CONSISTENCY}))
    with pytest.raises(TooFewParties, match="5 parties uploaded; 6 are needed"):
        made.run(deliver=wire(), dropouts={"client2": Stage.MASK})


def test_sizes_do_not_depend_on_the_inputs(cohort, wire) -> None:
    made = cohort(4, rings=tuple(Ring))
    zeros = {party: {name: one * 0 for name, one in rows.items()} for party, rows in made.inputs.items()}
    one, other = wire(), wire()
    made.run(deliver=one)
    replace(made, inputs=zeros).run(deliver=other)
    assert one.num_bytes == other.num_bytes
    assert one.of_kind(MaskedUpload) != other.of_kind(MaskedUpload)


def test_keys_commitments_and_uploads_are_fresh_in_every_round(cohort, wire) -> None:
    """One source of randomness through two rounds, as a federation would pass it."""
    first, second = cohort(3, round=1), cohort(3, round=2)
    sources = {party: first.source(party) for party in first.setting.parties}
    seen = []
    for made in (first, second):
        recorded = wire()
        aggregate(made.setting, made.inputs, made.identities, randomness=sources, deliver=recorded)
        seen.append(recorded)
    keys = [(one.mask_key, one.share_key, one.commitment) for one in seen[0].of_kind(Advertisement)]
    fresh = [(one.mask_key, one.share_key, one.commitment) for one in seen[1].of_kind(Advertisement)]
    assert not {part for one in keys for part in one} & {part for one in fresh for part in one}
    assert all(
        one.vectors["v0"] != other.vectors["v0"]
        for one, other in zip(seen[0].of_kind(MaskedUpload), seen[1].of_kind(MaskedUpload), strict=True)
    )


def test_each_seed_depends_on_everything_that_it_should(cohort, steps) -> None:
    """Each on its own: in an upload one good seed would hide a bad one."""
    made = cohort(3)
    sent = steps(made).perform(Stage.ADVERTISE)
    one, other, third = (sent[party] for party in made.setting.parties)
    secret, again = bytes(32), bytes([1]) + bytes(31)
    settings_ = [made.setting, *(cohort(3, **change).setting for change in ({"round": 2}, {"session": b"t"}))]
    own = [bindings.self_mask_seed(each, "client0", secret, "v0") for each in settings_]
    own += [
        bindings.self_mask_seed(made.setting, "client1", secret, "v0"),
        bindings.self_mask_seed(made.setting, "client0", again, "v0"),
        bindings.self_mask_seed(made.setting, "client0", secret, "v1"),
    ]
    pair = [bindings.pair_mask_seed(each, one, other, secret, "v0") for each in settings_]
    assert bindings.pair_mask_seed(made.setting, other, one, secret, "v0") == pair[0]
    pair += [
        bindings.pair_mask_seed(made.setting, one, third, secret, "v0"),
        bindings.pair_mask_seed(made.setting, one, other, again, "v0"),
        bindings.pair_mask_seed(made.setting, one, other, secret, "v1"),
        bindings.pair_mask_seed(made.setting, one, replace_key(other), secret, "v0"),
    ]
    commitments = [bindings.self_mask_commitment(each, "client0", secret) for each in settings_]
    commitments += [
        bindings.self_mask_commitment(made.setting, "client1", secret),
        bindings.self_mask_commitment(made.setting, "client0", again),
    ]
    everything = own + pair + commitments
    assert len(set(everything)) == len(everything) == 6 + 7 + 5


def replace_key(advertisement: Advertisement) -> Advertisement:
    return msgspec.structs.replace(advertisement, mask_key=bytes(32))


def test_the_digest_of_a_setting_covers_every_field(cohort) -> None:
    made = cohort(6, threshold=4, min_survivors=5)
    pinned = dict(made.setting.identities)
    swapped = {**pinned, "client0": pinned["client1"], "client1": pinned["client0"]}
    changed = [
        {"session": b"other"},
        {"round": 2},
        {"parties": made.setting.parties[::-1]},
        {"threshold": 5},
        {"vectors": (Vector("v1", 6, Ring.UINT32),)},
        {"vectors": (Vector("v0", 7, Ring.UINT32),)},
        {"vectors": (Vector("v0", 6, Ring.UINT64),)},
        {"identities": swapped},
        {"neighbours": 5},
        {"cipher": "chacha20"},
        {"min_survivors": 6},
    ]
    assert {name for one in changed for name in one} == {one.name for one in fields(made.setting)}
    digests = {made.setting.digest, *(made.but(**one).setting.digest for one in changed)}
    assert len(digests) == 1 + len(changed)


def test_the_bytes_of_a_session_are_pinned(cohort, wire) -> None:
    """A known answer for the whole protocol: whoever changes it changes the version in `Setting.digest` too."""
    made, recorded = cohort(4, rings=tuple(Ring)), wire()
    inputs = {
        party: {vector.name: np.arange(6, dtype=vector.ring.dtype) for vector in made.setting.vectors}
        for party in made.setting.parties
    }
    replace(made, inputs=inputs).run(deliver=recorded, dropouts={"client2": Stage.MASK})
    whole = hashlib.sha256(b"".join(encode(message) for _, _, message in recorded.log)).hexdigest()
    assert (recorded.num_bytes, whole) == PINNED


# Settings and graphs.


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"parties": ("client0",)}, "parties: 1"),
        ({"parties": ("client0", "client0", "client1", "client2")}, "parties"),
        ({"parties": ("client0", "client1", "client2", "server")}, "parties"),
        ({"threshold": 2}, r"threshold: 2.*3..4"),
        ({"threshold": 5}, r"threshold: 5.*3..4"),
        ({"threshold": 0}, "threshold: 0"),
        ({"identities": {}}, "identities"),
        ({"vectors": ()}, "vectors"),
        ({"vectors": (Vector("a", 1, Ring.UINT32), Vector("a", 2, Ring.UINT32))}, "vectors"),
        ({"vectors": (Vector("a", -1, Ring.UINT32),)}, "vectors"),
        ({"round": -1}, "round: -1"),
        ({"cipher": "rot13"}, "cipher: 'rot13'"),
        ({"min_survivors": 2}, r"min_survivors: 2.*3..4"),
        ({"min_survivors": 5}, "min_survivors: 5"),
        ({"neighbours": 0}, "neighbours 0"),
        ({"neighbours": 4}, "neighbours 4"),
        ({"neighbours": 2, "threshold": 3}, r"threshold: 3.*2..2"),
        ({"neighbours": 3, "threshold": 2}, r"threshold: 2.*3..3"),
    ],
)
def test_settings_that_cannot_work_are_refused(cohort, changes: dict, named: str) -> None:
    made = cohort(4)
    with pytest.raises(SettingError, match=named):
        made.but(**changes)


def test_identities_are_checked(cohort) -> None:
    made = cohort(4)
    pinned = dict(made.setting.identities)
    with pytest.raises(SettingError, match="32 bytes"):
        made.but(identities={**pinned, "client0": b"short"})
    with pytest.raises(SettingError, match="the same"):
        made.but(identities={**pinned, "client0": pinned["client1"]})


def test_an_odd_degree_needs_an_even_number_of_parties(cohort) -> None:
    with pytest.raises(SettingError, match="odd"):
        cohort(7, neighbours=3, threshold=3)
    with pytest.raises(DisconnectedGraph, match="fall into pairs"):
        cohort(6, neighbours=1, threshold=2)


@given(st.integers(2, 40), st.data())
def test_harary_graphs_are_regular_symmetric_and_connected(num_parties: int, data: st.DataObject) -> None:
    degree = data.draw(st.integers(2, num_parties - 1) if num_parties > 2 else st.just(1))
    if degree * num_parties % 2:
        degree -= 1
    parties = tuple(f"p{number}" for number in range(num_parties))
    graph = regular_graph(parties, degree, b"session", 0)
    assert all(len(graph[party]) == degree and party not in graph[party] for party in parties)
    assert all(party in graph[peer] for party in parties for peer in graph[party])
    assert components(graph, parties) == [set(parties)]


def test_the_graph_is_drawn_anew_in_every_round_and_session() -> None:
    parties = tuple(f"p{number}" for number in range(20))
    drawn = [regular_graph(parties, 4, session, round) for session, round in ((b"s", 1), (b"s", 2), (b"t", 1))]
    assert drawn[0] != drawn[1] != drawn[2] != drawn[0]


@pytest.mark.parametrize("seed", range(2))
def test_harary_survives_fewer_losses_than_its_degree(seed: int) -> None:
    """A k-regular Harary graph is k-connected: no k - 1 losses take it apart, and some k losses do."""
    parties = tuple(f"p{number}" for number in range(14))
    graph = regular_graph(parties, 4, bytes([seed]), 0)
    rng = np.random.default_rng(seed)
    for _ in range(50):
        left = set(parties) - set(rng.choice(parties, 3, replace=False).tolist())
        assert len(components(graph, left)) == 1
    cut = graph["p0"]
    assert sorted(len(group) for group in components(graph, set(parties) - cut))[0] == 1


def test_the_safe_threshold_keeps_both_kinds_of_share_apart() -> None:
    """Two sets of honest holders and the colluders in both cannot both reach it: 2 t > N + C for C below N / 3."""
    for num_parties in range(2, 60):
        colluders = (num_parties - 1) // 3
        assert num_parties + colluders < 2 * safe_threshold(num_parties) <= 2 * num_parties
