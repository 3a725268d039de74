"""Who holds what, against an enumeration of all that the counts allow; and what the claims say of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fkgsec.attacks.residual import (
    SOURCES,
    UNKNOWN,
    Part,
    SecureTable,
    attribute_holders,
    claim_rows,
    count_sources,
    follow_counts,
    solve_counts,
)
from fkgsec.federation.messages import Opened

GUESS = SOURCES.index("guess")


def make_table(
    holds: np.ndarray,
    members: np.ndarray,
    *,
    leaked: np.ndarray | None = None,
    colluder: int | None = 0,
    told: tuple[int, ...] = (),
    width: int = 3,
) -> tuple[SecureTable, np.ndarray]:
    """Parties that hold `[parties, n]`, summed once for each row of members `[sums, parties]`; also their inputs.

    Args:
        leaked: bool `[n]`; of these rows that the colluder holds the adversary knows its part; None: of all.
        told: parties whose holdings are known from the alignment.
    """
    parties = tuple(f"client/{place}" for place in range(len(holds)))
    inputs = np.random.default_rng(3).normal(size=(*holds.shape, width)) * holds[..., None]
    opened = tuple(
        Opened(
            len(members) - place,
            "entities",
            [party for party, inside in zip(parties, present, strict=True) if inside],
            inputs[present].sum(axis=0).astype("<f8").tobytes(),
            holds[present].sum(axis=0).astype("<i8").tobytes(),
            0.0,
        )
        for place, present in enumerate(members)
    )
    given_away = np.empty(0, dtype=np.int64)
    if colluder is not None:
        given_away = np.nonzero(holds[colluder] & (True if leaked is None else leaked))[0]
    table = SecureTable(
        parties=parties,
        victims=tuple(party for place, party in enumerate(parties) if place != (colluder or 0)),
        names=np.array([f"row {row}" for row in range(holds.shape[1])], dtype=object),
        opened=opened,
        parts=()
        if colluder is None
        else (Part(parties[colluder], given_away, torch.from_numpy(inputs[colluder][given_away])),),
        all_leaked=colluder is not None and leaked is None,
        holdings={parties[place]: np.nonzero(holds[place])[0] for place in told},
    )
    return table, inputs


def known_beforehand(table: SecureTable) -> np.ndarray:
    """What the adversary knows without any count, `[parties, n]`."""
    known = np.full((len(table.parties), len(table.names)), UNKNOWN)
    for party, leaked, _ in table.parts:
        place = table.parties.index(party)
        if table.all_leaked:
            known[place] = 0
        known[place, leaked] = 1
    for party, rows in table.holdings.items():
        known[table.parties.index(party)] = 0
        known[table.parties.index(party), rows] = 1
    return known


def enumerate_certain(known: np.ndarray, members: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """What is the same in every assignment of holders that fits what is known and all counts; the rest is `UNKNOWN`."""
    assignments = np.array(list(itertools.product((0, 1), repeat=len(known))))
    certain = np.full(known.shape, UNKNOWN)
    for row in range(known.shape[1]):
        fits = (assignments @ members.T == counts[:, row]).all(axis=1)
        fits &= ((known[:, row] == UNKNOWN) | (assignments == known[:, row])).all(axis=1)
        possible = assignments[fits]
        assert len(possible), "the truth itself must fit"
        same = possible.min(axis=0) == possible.max(axis=0)
        certain[same, row] = possible[0, same]
    return certain


def random_cases(number: int, num_sums: int, *, seed: int = 11) -> Iterator[tuple[SecureTable, np.ndarray, np.ndarray]]:
    """Tables of three to five parties with half of the colluder's rows leaked; two or more are in every sum."""
    rng = np.random.default_rng(seed)
    for _ in range(number):
        num_parties = int(rng.integers(3, 6))
        members = np.zeros((num_sums, num_parties), dtype=bool)
        for present in members:
            present[rng.permutation(num_parties)[: rng.integers(2, num_parties + 1)]] = True
        holds = rng.random((num_parties, 20)) < 0.5
        yield make_table(holds, members, leaked=rng.random(20) < 0.5)[0], holds, members


@st.composite
def cases(draw: st.DrawFn) -> tuple[SecureTable, np.ndarray, np.ndarray]:
    num_parties, num_sums, num_rows = draw(st.integers(2, 5)), draw(st.integers(1, 4)), 6

    def bits(*shape: int) -> np.ndarray:
        size = int(np.prod(shape))
        return np.array(draw(st.lists(st.booleans(), min_size=size, max_size=size))).reshape(shape)

    holds, members = bits(num_parties, num_rows), bits(num_sums, num_parties)
    members[~members.any(axis=1), draw(st.integers(0, num_parties - 1))] = True
    leaked = draw(st.sampled_from([None, bits(num_rows)]))
    colluder = draw(st.sampled_from([None, 0, num_parties - 1]))
    told = tuple(draw(st.sets(st.integers(0, num_parties - 1), max_size=2)))
    return make_table(holds, members, leaked=leaked, colluder=colluder, told=told)[0], holds, members


class TestAgainstEnumeration:
    @settings(max_examples=150, deadline=None)
    @given(cases(), st.integers(0, 3))
    def test_what_it_calls_certain_is_forced_and_right(self, case, seed: int) -> None:
        table, holds, members = case
        held, sources, certainty = attribute_holders(table, np.random.default_rng(seed))
        certain = (sources != GUESS) & (sources != 0)
        forced = enumerate_certain(known_beforehand(table), members, members.astype(int) @ holds)
        assert (forced[certain] == held[certain]).all()
        assert (held[certain] == holds[certain]).all()
        assert (certainty[certain] == 1).all()
        # Nothing is said of parties that are in no sum, unless the alignment or the colluder told.
        unseen = ~members.any(axis=0)
        assert (held[unseen] == known_beforehand(table)[unseen]).all()
        assert (held[~unseen] != UNKNOWN).all()

    def test_what_it_does_not_call_certain_is_often_wrong(self) -> None:
        """Else the test above could not tell a guess from a conclusion."""
        wrong, guesses = 0, 0
        for table, holds, _ in random_cases(100, 2):
            held, sources, _ = attribute_holders(table, np.random.default_rng(0))
            wrong += int((held != holds)[sources == GUESS].sum())
            guesses += int((sources == GUESS).sum())
        assert guesses > 2000
        assert 0.3 < wrong / guesses < 0.6

    @settings(max_examples=60, deadline=None)
    @given(cases())
    def test_one_sum_is_read_completely(self, case) -> None:
        table, holds, members = case
        members = members[:1]
        counts = members.astype(int) @ holds
        held = known_beforehand(table).astype(np.int8)
        forced = enumerate_certain(held, members, counts)
        follow_counts(held, members, counts)
        assert (held == forced).all()

    @pytest.mark.parametrize(("num_sums", "measured"), [(1, 0.0), (2, 0.0863), (3, 0.0822), (4, 0.0418)])
    def test_how_much_of_what_is_forced_is_missed(self, num_sums: int, measured: float) -> None:
        """Several sums can force more than single counts and linear combinations show: at most nine in a hundred."""
        missed, total = 0, 0
        for table, holds, members in random_cases(300, num_sums):
            _, sources, _ = attribute_holders(table, np.random.default_rng(0))
            known = known_beforehand(table)
            forced = enumerate_certain(known, members, members.astype(int) @ holds)
            open_before = (forced != UNKNOWN) & (known == UNKNOWN)
            missed += int((open_before & (sources == GUESS)).sum())
            total += int(open_before.sum())
        assert total > 1000
        assert missed / total <= measured + 0.005

    def test_sums_that_determine_everybody_leave_nothing_open(self) -> None:
        rng = np.random.default_rng(2)
        members = np.array([(1, 1, 1, 0), (1, 1, 0, 1), (1, 0, 1, 1), (0, 1, 1, 1)], dtype=bool)
        holds = rng.random((4, 50)) < 0.5
        table, _ = make_table(holds, members, leaked=np.zeros(50, dtype=bool))
        held, sources, certainty = attribute_holders(table, rng)
        assert (held == holds).all()
        assert (certainty == 1).all()
        assert set(np.unique(sources)) == {SOURCES.index("all hold it"), SOURCES.index("rounds")}

    def test_only_determined_parties_are_solved(self) -> None:
        """Of {0, 1, 2} and {0, 1} follows party 2; 0 and 1 stay as they are."""
        rng = np.random.default_rng(4)
        members = np.array([(1, 1, 1, 0), (1, 1, 0, 0)], dtype=bool)
        holds = rng.random((4, 30)) < 0.5
        held = np.full((4, 30), UNKNOWN, dtype=np.int8)
        solve_counts(held, members, members.astype(int) @ holds)
        assert (held[2] == holds[2]).all()
        assert (held[[0, 1, 3]] == UNKNOWN).all()


class TestDraws:
    @settings(max_examples=60, deadline=None)
    @given(cases(), st.integers(0, 3))
    def test_as_many_hold_equally_likely_rows_as_the_newest_sum_says(self, case, seed: int) -> None:
        """Of two open holders, or where every open row has the same count, nothing is likelier than anything else."""
        table, holds, members = case
        table = replace(table, opened=table.opened[:1])
        held, sources, certainty = attribute_holders(table, np.random.default_rng(seed))
        guessed = certainty[sources == GUESS]
        if len(np.unique(guessed)) <= 1:
            assert (held[members[0]].sum(axis=0) == holds[members[0]].sum(axis=0)).all()
        assert held[members[0]].sum() == holds[members[0]].sum()

    @settings(max_examples=60, deadline=None)
    @given(cases(), st.integers(0, 3))
    def test_certainty_is_the_share_of_open_holders_in_one_sum(self, case, seed: int) -> None:
        table, holds, members = case
        table = replace(table, opened=table.opened[:1])
        held, sources, certainty = attribute_holders(table, np.random.default_rng(seed))
        inside = members[0][:, None]
        for row in range(holds.shape[1]):
            guessed = sources[:, row] == GUESS
            if guessed.any():
                sure = held[(sources[:, row] != GUESS) & inside[:, 0], row].sum()
                left = holds[members[0], row].sum() - sure
                assert (certainty[guessed, row] == left / guessed.sum()).all()
                assert 0 < left < guessed.sum()

    def test_holders_are_drawn_uniformly(self) -> None:
        """Two of four victims hold each row: each of six pairs should come up as often."""
        num_rows = 6000
        holds = np.zeros((5, num_rows), dtype=bool)
        holds[[0, 2, 4]] = True
        table, _ = make_table(holds, np.ones((1, 5), dtype=bool), width=1)
        held, _, certainty = attribute_holders(table, np.random.default_rng(5))
        assert (held[0] == 1).all()
        assert (certainty[1:] == 0.5).all()

        def p_value(drawn: np.ndarray) -> float:
            codes = (drawn * np.array([[1], [2], [4], [8]])).sum(axis=0)
            counts = np.bincount(codes, minlength=16)[[3, 5, 6, 9, 10, 12]]
            assert counts.sum() == num_rows
            return float(stats.chisquare(counts).pvalue)

        assert p_value(held[1:]) > 0.01
        # Control: a draw that prefers the first victim a little is noticed.
        swapped = held[1:].copy()
        swap = (swapped[0] == 0) & (swapped[1] == 1) & (np.arange(num_rows) % 4 == 0)
        swapped[0, swap], swapped[1, swap] = 1, 0
        assert p_value(swapped) < 1e-6

    def test_the_likeliest_rows_are_claimed_as_often_as_a_draw_claims_any(self) -> None:
        """Of four victims three hold one half of the rows, one the other half: by draw 3/4 * 3/4 + 1/4 * 1/4 would be right."""
        rng = np.random.default_rng(6)
        holds = np.zeros((5, 4000), dtype=bool)
        for row, count in enumerate([3] * 2000 + [1] * 2000):
            holds[1 + rng.permutation(4)[:count], row] = True
        table, _ = make_table(holds, np.ones((1, 5), dtype=bool), width=1)
        held, _, certainty = attribute_holders(table, np.random.default_rng(7))
        assert held[1:].sum() == holds.sum()
        assert held[1:, :2000].mean() > 0.99
        assert np.unique(certainty[1:]).tolist() == [0.25, 0.75]
        right = (held & holds)[1:].sum() / held[1:].sum()
        assert right == pytest.approx(0.75, abs=0.02)
        assert right > (0.75**2 + 0.25**2) + 0.1

    def test_the_generator_decides(self) -> None:
        table, *_ = next(random_cases(1, 1))
        first, again, other = (attribute_holders(table, np.random.default_rng(seed))[0] for seed in (1, 1, 2))
        assert (first == again).all()
        assert (first != other).any()


class TestClaims:
    """Three clients, the first colludes. Rows: all hold it; both victims; a alone; b alone; colluder and a; nobody."""

    HOLDS = np.array([(1, 0, 0, 0, 1, 0), (1, 1, 1, 0, 1, 0), (1, 1, 0, 1, 0, 0)], dtype=bool)
    EVERYBODY = np.ones((1, 3), dtype=bool)

    def test_certain_rows_and_the_mean_of_their_holders(self) -> None:
        table, inputs = make_table(self.HOLDS, self.EVERYBODY)
        for claims in claim_rows(table, np.random.default_rng(0)).values():
            sure = claims.certainty == 1
            assert claims.rows[sure].tolist() == [0, 1]
            assert {SOURCES[source] for source in claims.sources[sure]} == {"all hold it"}
            np.testing.assert_allclose(claims.embeddings[sure], inputs[1:, :2].mean(axis=0), atol=1e-6)
            assert (claims.certainty[~sure] == 0.5).all()
            assert claims.names.tolist() == [f"row {row}" for row in claims.rows]

    def test_a_row_of_one_victim_is_exposed_whoever_it_is_taken_for(self) -> None:
        table, inputs = make_table(self.HOLDS, self.EVERYBODY)
        owners = {2: 1, 3: 2, 4: 1}
        for seed in range(8):
            claimed = []
            for claims in claim_rows(table, np.random.default_rng(seed)).values():
                for row, embedding in zip(claims.rows, claims.embeddings, strict=True):
                    if int(row) in owners:
                        claimed.append(int(row))
                        np.testing.assert_allclose(embedding, inputs[owners[int(row)], row], atol=1e-6)
            assert sorted(claimed) == [2, 3, 4]  # each by one victim

    def test_alignment_in_clear_says_whose_it_is(self) -> None:
        table, inputs = make_table(self.HOLDS, self.EVERYBODY, told=(0, 1, 2))
        claims = claim_rows(table, np.random.default_rng(0))
        for place in (1, 2):
            own = claims[f"client/{place}"]
            assert own.rows.tolist() == np.nonzero(self.HOLDS[place])[0].tolist()
            assert (own.certainty == 1).all()
            assert count_sources([own.sources]) == {"alignment": len(own.rows)}
            alone = [row for row in own.rows if self.HOLDS[1:, row].sum() == 1]
            np.testing.assert_allclose(own.embeddings[np.isin(own.rows, alone)], inputs[place, alone], atol=1e-6)

    def test_one_victim_in_the_sum_shows_everything(self) -> None:
        table, inputs = make_table(self.HOLDS, np.array([(1, 0, 1)], dtype=bool))
        claims = claim_rows(table, np.random.default_rng(0))
        assert "client/1" not in claims or len(claims["client/1"].rows) == 0  # it is in no sum
        own = claims["client/2"]
        assert own.rows.tolist() == [0, 1, 3]
        assert count_sources([own.sources]) == {"alone": 3}
        np.testing.assert_allclose(own.embeddings, inputs[2, own.rows], atol=1e-6)

    def test_a_row_that_the_colluder_did_not_send_is_the_mean_of_all_that_did(self) -> None:
        """It put zeros into the sum of row 1, whose count is both victims'."""
        table, inputs = make_table(self.HOLDS, self.EVERYBODY)
        leaked = np.array([0, 1, 4])
        assert not inputs[0, 1].any()
        table = replace(table, parts=(Part("client/0", leaked, torch.from_numpy(inputs[0, leaked])),))
        claimed = [
            claims.embeddings[claims.rows == 1] for claims in claim_rows(table, np.random.default_rng(0)).values()
        ]
        np.testing.assert_allclose(torch.cat(claimed), inputs[1:, 1].mean(axis=0)[None], atol=1e-6)

    def test_rows_that_were_not_leaked_keep_the_colluders_part(self) -> None:
        leaked = np.array([True, False, False, False, False, False])
        table, inputs = make_table(self.HOLDS, self.EVERYBODY, leaked=leaked)
        assert table.parts[0].leaked.tolist() == [0]
        claims = claim_rows(table, np.random.default_rng(0))
        rows = {int(row): e for own in claims.values() for row, e in zip(own.rows, own.embeddings, strict=True)}
        np.testing.assert_allclose(rows[0], inputs[1:, 0].mean(axis=0), atol=1e-6)
        np.testing.assert_allclose(rows[4], inputs[:2, 4].mean(axis=0), atol=1e-6)

    def test_a_colluder_outside_the_sum_has_no_part_in_it(self) -> None:
        table, inputs = make_table(self.HOLDS, np.array([(0, 1, 1)], dtype=bool))
        for claims in claim_rows(table, np.random.default_rng(0)).values():
            both = claims.rows[claims.certainty == 1]
            assert both.tolist() == [0, 1]
            np.testing.assert_allclose(claims.embeddings[:2], inputs[1:, :2].mean(axis=0), atol=1e-6)

    def test_another_round_tells_who_of_two_holds_a_row(self) -> None:
        members = np.array([(1, 1, 1), (1, 0, 1)], dtype=bool)
        table, _ = make_table(self.HOLDS, members)
        claims = claim_rows(table, np.random.default_rng(0))
        for place in (1, 2):
            assert claims[f"client/{place}"].rows.tolist() == np.nonzero(self.HOLDS[place])[0].tolist()
        assert count_sources([claims["client/1"].sources]) == {"all hold it": 2, "rounds": 2}
        assert count_sources([claims["client/2"].sources]) == {"all hold it": 2, "rounds": 1}

    def test_without_an_opened_sum_nothing_is_claimed(self) -> None:
        table, _ = make_table(self.HOLDS, self.EVERYBODY)
        assert claim_rows(replace(table, opened=()), np.random.default_rng(0)) == {}


def test_sources_are_counted_by_name() -> None:
    assert count_sources([]) == {}
    assert count_sources([np.array([5, 2]), np.array([2, 1])]) == {"alignment": 1, "alone": 2, "guess": 1}


def test_guesses_are_not_certain() -> None:
    for table, _, _ in random_cases(300, 3):
        _, sources, certainty = attribute_holders(table, np.random.default_rng(0))
        assert (certainty[sources == GUESS] < 1).all()
