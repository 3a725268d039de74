"""Robust aggregation: rules against hand-computed values and a naive loop, in a run with a client that boosts its changes."""

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor

from fkgsec import KgeOptions, generate_consortium, run_federation
from fkgsec.defenses import make_transport
from fkgsec.defenses.robust import RobustOptions
from fkgsec.errors import SpecError
from fkgsec.exchange import Upload
from fkgsec.federation.adversary import Adversary
from fkgsec.federation.messages import Rows
from fkgsec.kge.result import KgeResult


def screened(options: RobustOptions, uploads: Mapping[str, Upload], previous: Tensor) -> Mapping[str, Tensor]:
    return {party: one.rows for party, one in options.screen(1, "entities", uploads, previous).uploads.items()}


def uploads_of(*rows: list[tuple[int, list[float]]]) -> dict[str, Upload]:
    return {
        f"client/{place}": Upload(torch.tensor([row for row, _ in own]), torch.tensor([value for _, value in own]))
        for place, own in enumerate(rows)
    }


class TestRules:
    def test_clip_cuts_a_change_to_the_median_of_the_clients_usual_ones(self) -> None:
        previous = torch.zeros(2, 2)
        uploads = uploads_of([(0, [3.0, 4.0]), (1, [0.0, 5.0])], [(0, [0.6, 0.8])], [(1, [30.0, 40.0])])
        # Usual norms are 5, 1 and 50: the bound is 5.
        one, two, three = screened(RobustOptions(rule="clip", c=1), uploads, previous).values()
        assert torch.equal(one, torch.tensor([[3.0, 4.0], [0.0, 5.0]]))
        assert torch.equal(two, torch.tensor([[0.6, 0.8]]))
        assert torch.allclose(three, torch.tensor([[3.0, 4.0]]))
        assert RobustOptions(rule="clip", c=1).screen(1, "entities", uploads, previous).cut["client/2"] == 1
        assert torch.allclose(
            screened(RobustOptions(rule="clip"), uploads, previous)["client/2"], torch.tensor([[4.5, 6.0]])
        )

    def test_rows_that_did_not_change_do_not_lower_the_bound(self) -> None:
        """Two of the first client's three rows stay: its usual norm is 4, not 0. The others are usually at 3 and 9."""
        still = [0.0, 0.0]
        uploads = uploads_of([(0, still), (1, still), (2, [4.0, 0.0])], [(0, [3.0, 0.0])], [(1, [0.0, 9.0])])
        _, second, third = screened(RobustOptions(rule="clip", c=1), uploads, torch.zeros(3, 2)).values()
        assert second.tolist() == [[3.0, 0.0]]
        assert torch.allclose(third, torch.tensor([[0.0, 4.0]]))

    def test_one_of_two_clients_cannot_raise_the_bound(self) -> None:
        uploads = uploads_of([(0, [1.0, 0.0])], [(0, [1000.0, 0.0])])
        _, other = screened(RobustOptions(rule="clip"), uploads, torch.zeros(1, 2)).values()
        assert torch.allclose(other, torch.tensor([[1.5, 0.0]]))

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            (RobustOptions(rule="median"), [[2.0], [1.5], [7.0], [9.0]]),
            (RobustOptions(rule="trim", f=1), [[3.0], [1.5], [7.0], [9.0]]),
            (RobustOptions(rule="trim", f=2), [[2.0], [1.5], [7.0], [9.0]]),
        ],
    )
    def test_ranks_over_five_two_one_and_no_holders(self, options: RobustOptions, expected: list[list[float]]) -> None:
        uploads = uploads_of(
            [(0, [1.0]), (1, [1.0])],
            [(0, [2.0]), (1, [2.0])],
            [(0, [6.0]), (2, [7.0])],
            [(0, [100.0])],
            [(0, [-100.0])],
        )
        previous = torch.tensor([[0.0], [0.0], [0.0], [9.0]])
        rows = screened(options, uploads, previous)
        got = torch.full((4, 1), 9.0)
        for party, one in uploads.items():
            got[one.places] = rows[party]
        assert torch.allclose(got, torch.tensor(expected))

    @pytest.mark.parametrize("rule", ["median", "trim"])
    def test_against_a_naive_loop_in_several_chunks(self, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("fkgsec.defenses.robust.CHUNK", 100)
        rng = np.random.default_rng(0)
        held = [np.sort(rng.choice(30, size=rng.integers(5, 25), replace=False)) for _ in range(7)]
        uploads = {
            f"client/{place}": Upload(torch.from_numpy(ids), torch.from_numpy(rng.normal(size=(len(ids), 3))).float())
            for place, ids in enumerate(held)
        }
        previous = torch.from_numpy(rng.normal(size=(30, 3))).float()
        options = RobustOptions(rule="trim", f=2) if rule == "trim" else RobustOptions(rule="median")
        rows = screened(options, uploads, previous)
        for row in range(30):
            values = np.array([one.rows[one.places == row][0].numpy() for one in uploads.values() if row in one.places])
            if not len(values):
                continue
            ordered, count = np.sort(values, axis=0), len(values)
            whole = count >= 5 and rule == "trim"
            expected = ordered[2 : count - 2].mean(axis=0) if whole else np.median(values, axis=0)
            for party, one in uploads.items():
                if row in one.places:
                    np.testing.assert_allclose(rows[party][one.places == row][0], expected, atol=1e-6)


class Booster(Adversary):
    """Uploads a hundred times its change."""

    def upload(self, round: int, table: str, received: Tensor, trained: Tensor) -> Tensor:
        return received + 100 * (trained - received)


class OfAFewRows(Booster):
    """Boosts ten rows alone, so that its usual change stays what it is."""

    def upload(self, round: int, table: str, received: Tensor, trained: Tensor) -> Tensor:
        return torch.cat([super().upload(round, table, received, trained)[:10], trained[10:]])


class Unguarded(OfAFewRows):
    """And does not clip them itself."""

    guarded = False


class Stays(Adversary):
    """Uploads what it received."""

    def upload(self, round: int, table: str, received: Tensor, trained: Tensor) -> Tensor:
        return received


class NoNumber(Adversary):
    """Uploads a value that is no number."""

    def upload(self, round: int, table: str, received: Tensor, trained: Tensor) -> Tensor:
        trained[0, 0] = torch.nan
        return trained


def trained(defense: str, adversary: Adversary | None = None, **changes: object) -> KgeResult:
    graph = generate_consortium(clients=5, size=1_000, seed=0)
    options = {
        "dim": 16,
        "rounds": 4,
        "local_epochs": 1,
        "eval_every": 10,
        "device": "cpu",
        "defense": defense,
    } | changes
    return run_federation(graph, KgeOptions(**options), make_transport=make_transport, adversary=adversary)


def off(result: KgeResult, honest: KgeResult) -> float:
    """The largest distance of a row of one run to that of the other."""
    pairs = zip(result.tables, honest.tables, strict=True)
    return max(float((one.entities - other.entities).norm(dim=1).max()) for one, other in pairs)


class TestRuns:
    def test_a_client_that_boosts_its_changes_moves_the_tables_no_further_than_others(self) -> None:
        booster = Booster("hospital-2")
        plain = off(trained("", booster), trained(""))
        bounded = trained("robust:rule=clip", booster)
        assert off(bounded, trained("robust:rule=clip")) < plain / 10
        assert sum(entry.num_clipped for entry in bounded.rounds) > 0
        assert any("bounds what a malicious client does" in line for line in bounded.protection.lines())
        held = {f"client/{one.name}": one.num_trained_entities for one in bounded.graph.clients}
        for entry in bounded.rounds[1:]:
            assert {party: rows for party, (_, rows) in entry.cut_rows.items()} == held
            assert sum(cut for cut, _ in entry.cut_rows.values()) * 16 == entry.num_clipped
        cut = {
            party: sum(entry.cut_rows[party][0] for entry in bounded.rounds[1:]) / (4 * held[party]) for party in held
        }
        assert cut["client/hospital-2"] > max(share for party, share in cut.items() if party != "client/hospital-2")

    def test_a_client_that_does_not_clip_itself_is_not_bounded_under_sums(self) -> None:
        """Nobody sees its upload: the statement says that the clip cannot be enforced."""
        clipping = "secagg,robust:rule=clip,by=clients"
        honest = trained(clipping)
        one, other = (off(trained(clipping, kind("hospital-2")), honest) for kind in (OfAFewRows, Unguarded))
        assert other > 5 * one
        assert any("which nobody can enforce" in line for line in honest.protection.lines())
        assert not any(entry.cut_rows for entry in honest.rounds)

    @pytest.mark.parametrize("defense", ["dp:clip=1,epsilon=1,unit=row", "secagg,dp:clip=1,epsilon=1,unit=row"])
    def test_a_malicious_client_adds_no_noise(self, defense: str) -> None:
        """What it puts in is what it received, to the rounding of the encoding; an honest client's differs by its noise."""
        apart = {}
        for guarded in (True, False):
            stays = Stays("hospital-2")
            stays.guarded = guarded
            result = trained(defense, stays, rounds=1)
            start = result.started["entities"]["client/hospital-2"]
            if "secagg" in defense:
                names = result.row_names["entities"]
                client = next(one for one in result.graph.clients if one.name == "hospital-2")
                places = [names.index(result.graph.entities[number]) for number in client.entity_ids]
                own = result.inputs["entities"]["client/hospital-2"][places[: client.num_trained_entities]]
            else:
                sent = (one for one in result.transcript.messages(1) if isinstance(one, Rows))
                own = next(one.unpack() for one in sent if one.sender == "client/hospital-2")
            apart[guarded] = float((own - start[: len(own)]).abs().max())
        assert apart[False] < 1e-4
        assert apart[True] > 0.1

    @pytest.mark.parametrize("defense", ["", "robust:rule=clip", "robust:rule=median", "robust:rule=clip,by=clients"])
    def test_an_upload_that_is_no_number_is_left_out_and_named(self, defense: str) -> None:
        result = trained(defense, NoNumber("hospital-2"), rounds=2)
        assert all(list(entry.excluded) == ["client/hospital-2"] for entry in result.rounds[1:])
        assert all(one.entities.isfinite().all() for one in result.trained)


@pytest.mark.parametrize(
    ("defense", "algorithm", "message"),
    [
        ("secagg,robust:rule=median", "fede", "the server learns sums alone"),
        ("secagg,robust:rule=clip", "fede", "by=clients lets clients clip"),
        ("robust:rule=clip", "feds", "feds does not upload whole rows"),
        ("robust:rule=median,by=clients", "fede", "by=clients applies to rule=clip"),
        ("robust:rule=median,c=2", "fede", "c applies to rule=clip"),
        ("robust:rule=trim,f=0", "fede", "f must be at least 1"),
        ("robust:rule=trim,f=99999999999999999999", "fede", "f must be at least 1 and at most 1,000,000"),
        ("robust:rule=mean", "fede", "rule: .*allowed: clip, median, trim"),
        ("robust", "fede", "rule"),
    ],
)
def test_what_does_not_fit_is_refused(defense: str, algorithm: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        trained(defense, algorithm=algorithm)
