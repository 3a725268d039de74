"""The attack on sums of trained federations: what two, three and ten clients leave to it, and what it may use."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import msgspec
import numpy as np
import pandas as pd
import pytest
import torch

from fkgsec import ClientGraph, FederatedGraph, KgeOptions, generate_consortium
from fkgsec.attacks.options import THREAT_MODELS, KgeAttackOptions
from fkgsec.attacks.reconstruction.evaluation import NO_NAME
from fkgsec.attacks.registry import build_view
from fkgsec.attacks.residual import SOURCES, Claims, SecureTable, attribute_holders
from fkgsec.attacks.view import ALL, View
from fkgsec.defenses.transport import make_transport
from fkgsec.errors import ThreatModelError
from fkgsec.federation.loop import run_federation
from fkgsec.federation.messages import Opened, Transcript, client_party
from fkgsec.federation.recipes import Table
from fkgsec.kge.models import ClientTables
from fkgsec.kge.result import KgeResult
from tests.attacks.pairs import Pair, reconstruct

COLLUDER = "hospital-1"
PROTECTED = "psu,secagg"
DROPPING = "psu,secagg:threshold=2,dropout=0.3"
SUPPRESSING = "psu,secagg,suppress:t=2"


@functools.cache
def federate(
    clients: int, defense: str = PROTECTED, *, algorithm: str = "fede", rounds: int = 2, seed: int = 0
) -> KgeResult:
    graph = generate_consortium(clients=clients, size=1500, seed=1)
    return train(graph, defense, algorithm, rounds=rounds, seed=seed)


def train(graph: FederatedGraph, defense: str, algorithm: str, *, rounds: int = 2, seed: int = 0) -> KgeResult:
    options = KgeOptions(
        algorithm=algorithm, dim=8, gamma=4, rounds=rounds, local_epochs=1, eval_every=rounds, patience=0,
        batch_size=256, num_negatives=4, learning_rate=0.05, device="cpu", defense=defense, seed=seed,
    )  # fmt: skip
    return run_federation(graph, options, make_transport=make_transport)


def view_of(result: KgeResult, threat: str = "collusion", leak: float = 1.0) -> View:
    return build_view(result, THREAT_MODELS[threat], colluder=COLLUDER, leak=leak, seed=0)


def attack(result: KgeResult, threat: str = "collusion", leak: float = 1.0) -> tuple[dict[str, Pair], pd.DataFrame]:
    options = KgeAttackOptions(threat=(threat,), leak=(leak,), inference="cosine", unlinked_heads=0)
    rows, items = reconstruct(result, options)
    return {row.victim: row for row in rows if row.variant == "cosine"}, items


def held_by_name(result: KgeResult, table: Table = "entities") -> dict[str, set[str]]:
    """The names that each client trains, by the client's name."""
    graph = result.graph
    if table == "entities":
        return {c.name: {graph.entities[i] for i in c.entity_ids[: c.num_trained_entities]} for c in graph.clients}
    return {c.name: {graph.relations[i] for i in c.relation_ids[: c.num_trained_relations]} for c in graph.clients}


def true_holders(result: KgeResult, table: Table = "entities") -> np.ndarray:
    """Bool `[clients, rows]` in the order of the shared table."""
    return np.array(
        [[name in held for name in result.row_names[table]] for held in held_by_name(result, table).values()]
    )


def shared_entities(result: KgeResult, victim: str) -> set[str]:
    held = held_by_name(result)
    return held[COLLUDER] & held[victim]


def own_rows(result: KgeResult, client: str, names: np.ndarray) -> np.ndarray:
    """The client's trained rows of the named entities, as it put them into the sum."""
    place = [graph.name for graph in result.graph.clients].index(client)
    graph = result.graph.clients[place]
    row_of = {result.graph.entities[number]: row for row, number in enumerate(graph.entity_ids)}
    return result.trained[place].entities[[row_of[name] for name in names]].numpy()


def tolerance(table: SecureTable) -> float:
    """What fixed point and one rounding to float32 of values below 8 can change."""
    return table.opened[0].error + 8 * float(np.finfo(np.float32).eps)


def entity_claims(view: View) -> dict[str, Claims]:
    return {victim.name: victim.claims["entities"] for victim in view.victims if "entities" in victim.claims}


def same_claims(first: View, second: View) -> bool:
    return all(
        np.array_equal(np.asarray(one), np.asarray(other))
        for own, others in zip(entity_claims(first).values(), entity_claims(second).values(), strict=True)
        for one, other in zip(own, others, strict=True)
    )


def assert_nothing_certain_is_wrong(result: KgeResult, view: View) -> int:
    """Also the number of certain statements about victims, held or not."""
    table, truth = view.secure["entities"], true_holders(result)
    held, sources, _ = attribute_holders(table, np.random.default_rng(0))
    certain = (sources != 0) & (sources != SOURCES.index("guess"))
    assert (held[certain] == truth[certain]).all()
    for victim, claims in entity_claims(view).items():
        sure = claims.sources != SOURCES.index("guess")
        names = np.array(result.row_names["entities"], dtype=object)[claims.rows[sure]]
        assert set(names) <= held_by_name(result)[victim]
    return int(certain[1:].sum())


def with_notes(result: KgeResult, change: Callable[[Opened], Opened]) -> KgeResult:
    """The same run, where the server opened something else."""
    transcript = Transcript(result.transcript.entries, result.transcript.frames)
    for number in result.transcript.notes:
        for opened in result.transcript.opened(number):
            transcript.note(change(opened))
    return replace(result, transcript=transcript)


class TestTwoClients:
    def test_the_residual_is_the_victims_upload(self) -> None:
        result = federate(2)
        view = view_of(result)
        claims = entity_claims(view)["hospital-2"]
        names = np.array(result.row_names["entities"], dtype=object)[claims.rows]
        assert set(names) == held_by_name(result)["hospital-2"]  # its rows, and no others
        assert len(set(names)) == len(names)
        uploaded = own_rows(result, "hospital-2", names)
        assert np.abs(uploaded).max() < 8
        np.testing.assert_allclose(claims.embeddings, uploaded, rtol=0, atol=tolerance(view.secure["entities"]))
        assert tolerance(view.secure["entities"]) < 2e-6
        assert (claims.certainty == 1).all()

    def test_everything_that_the_colluder_knows_is_named(self) -> None:
        result = federate(2)
        rows, _ = attack(result)
        shared = shared_entities(result, "hospital-2")
        row = rows["hospital-2"]
        assert row.err.estimate.value == len(shared) / len(held_by_name(result)["hospital-2"])
        assert row.counts == {"alone": len(shared)}
        rows, _ = attack(result, "identifiers")
        assert rows["hospital-2"].err.estimate.value == 1

    @pytest.mark.parametrize("leak", [0.3, 0.5])
    def test_a_leak_names_its_share(self, leak: float) -> None:
        result = federate(2)
        known = set(view_of(result, leak=leak).colluder.entity_names)
        rows, _ = attack(result, leak=leak)
        held = held_by_name(result)["hospital-2"]
        assert rows["hospital-2"].err.estimate.value == len(known & held) / len(held)


class TestMoreClients:
    def test_two_of_two_is_certain_and_one_of_two_a_guess(self) -> None:
        result = federate(3)
        view, truth = view_of(result), true_holders(result)
        residual = truth[1:].sum(axis=0)
        names = np.array(result.row_names["entities"], dtype=object)
        claims = entity_claims(view)
        for own in claims.values():
            both = residual[own.rows] == 2
            assert set(own.rows[both]) == set(np.nonzero(residual == 2)[0])
            assert (own.certainty == np.where(both, 1, 0.5)).all()
            assert {SOURCES[source] for source in own.sources[both]} == {"all hold it"}
            assert {SOURCES[source] for source in own.sources[~both]} == {"guess"}
            means = np.mean([own_rows(result, name, names[own.rows[both]]) for name in claims], axis=0)
            np.testing.assert_allclose(own.embeddings[both], means, rtol=0, atol=tolerance(view.secure["entities"]))
        alone = [row for own in claims.values() for row in own.rows[residual[own.rows] == 1]]
        assert sorted(alone) == np.nonzero(residual == 1)[0].tolist()  # each row of one holder goes to one victim

    def test_a_row_of_one_victim_is_its_own_upload(self) -> None:
        result = federate(3)
        view, truth = view_of(result), true_holders(result)
        names = np.array(result.row_names["entities"], dtype=object)
        checked = 0
        for own in entity_claims(view).values():
            for place, victim in ((1, "hospital-2"), (2, "hospital-3")):
                only = truth[place, own.rows] & (truth[1:, own.rows].sum(axis=0) == 1)
                expected = own_rows(result, victim, names[own.rows[only]])
                np.testing.assert_allclose(
                    own.embeddings[only], expected, rtol=0, atol=tolerance(view.secure["entities"])
                )
                checked += int(only.sum())
        assert checked == (truth[1:].sum(axis=0) == 1).sum() > 50

    def test_more_clients_leak_less(self) -> None:
        err, advantage, certain = [], [], []
        for clients in (2, 3, 5, 10):
            rows, _ = attack(federate(clients))
            row = rows[ALL if clients > 2 else "hospital-2"]
            err.append(row.err.estimate.value)
            advantage.append(row.err.advantage)
            certain.append(1 - row.counts.get("guess", 0) / sum(row.counts.values()))
        assert max(err) == err[0] > 1.2 * min(err) == 1.2 * err[-1]
        assert advantage[0] == max(advantage)
        assert certain == sorted(certain, reverse=True)
        assert len(set(err)) == len(set(certain)) == 4
        assert certain[0] == 1
        assert certain[-1] < 0.25

    @pytest.mark.parametrize(
        ("threat", "leak", "clients", "defense"),
        [
            ("collusion", 0.5, 2, PROTECTED),
            ("identifiers", 1.0, 3, DROPPING),
            ("identifiers", 0.5, 3, "secagg"),
            ("collusion", 1.0, 5, PROTECTED),
        ],
    )
    def test_sources_sum_to_the_right_entities(self, threat: str, leak: float, clients: int, defense: str) -> None:
        rows, items = attack(federate(clients, defense, rounds=4), threat, leak)
        for victim, row in rows.items():
            right = items[(items["item"] == "entity") & ((items.victim == victim) | (victim == ALL))].right
            assert sum(row.counts.values()) == right.sum() == round(row.err.estimate.value * row.err.estimate.n) > 0
            assert row.err.estimate.n == len(right)

    @pytest.mark.parametrize("clients", [2, 3, 5, 10])
    @pytest.mark.parametrize("leak", [0.3, 1.0])
    def test_nothing_certain_is_wrong(self, clients: int, leak: float) -> None:
        result = federate(clients)
        assert assert_nothing_certain_is_wrong(result, view_of(result, leak=leak)) > 50


class TestRounds:
    """Rounds 1, 2 and 4 have all three clients, round 3 the colluder and one victim."""

    def test_two_rounds_tell_who_holds_what(self) -> None:
        result = federate(3, DROPPING, rounds=4)
        assert [entry.num_survivors for entry in result.rounds[1:]] == [3, 3, 2, 3]
        assert result.best_round == 4
        view = view_of(result)
        assert assert_nothing_certain_is_wrong(result, view) == 2 * len(result.row_names["entities"])
        for victim, claims in entity_claims(view).items():
            names = np.array(result.row_names["entities"], dtype=object)[claims.rows]
            assert set(names) == held_by_name(result)[victim]
            assert {SOURCES[source] for source in claims.sources} == {"all hold it", "rounds"}
            assert (claims.certainty == 1).all()
        rows, _ = attack(result)
        for victim, row in rows.items():
            if victim != ALL:
                assert row.err.estimate.value == len(shared_entities(result, victim)) / row.err.estimate.n
                assert row.counts["rounds"] > 10

    def test_the_difference_of_two_sums_is_the_missing_client(self) -> None:
        """Without a colluder's help: the server alone differences counts."""
        result = federate(3, DROPPING, rounds=4)
        table = view_of(result, "server").secure["entities"]
        newest, other = table.opened[0], next(opened for opened in table.opened if len(opened.survivors) == 2)
        (missing,) = set(newest.survivors) - set(other.survivors)
        place = table.parties.index(missing)
        truth = true_holders(result)[place]
        assert (newest.sums()[1] - other.sums()[1] == truth).all()
        held, sources, certainty = attribute_holders(table, np.random.default_rng(0))
        assert (held[place] == truth).all()
        assert (certainty[place] == 1).all()
        assert SOURCES.index("rounds") in sources[place]

    @pytest.mark.parametrize(("clients", "threshold"), [(3, 2), (4, 3), (5, 3)])
    def test_nothing_certain_is_wrong_and_most_are(self, clients: int, threshold: int) -> None:
        from_rounds = 0
        for seed in range(4):
            result = federate(clients, f"psu,secagg:threshold={threshold},dropout=0.3", rounds=4, seed=seed)
            for leak in (0.5, 1.0):
                view = view_of(result, leak=leak)
                if view.secure["entities"].opened:
                    assert assert_nothing_certain_is_wrong(result, view) > 50
                    from_rounds += sum(
                        int((claims.sources == SOURCES.index("rounds")).sum())
                        for claims in entity_claims(view).values()
                    )
        assert from_rounds > 50

    @pytest.mark.parametrize("leak", [0.5, 1.0])
    def test_without_dropouts_there_is_nothing_to_compare(self, leak: float) -> None:
        view = view_of(federate(3, PROTECTED, rounds=4), leak=leak)
        for claims in entity_claims(view).values():
            assert SOURCES.index("rounds") not in claims.sources
            assert SOURCES.index("guess") in claims.sources


class TestOnlyWhatItHas:
    @pytest.mark.parametrize("defense", [PROTECTED, DROPPING, SUPPRESSING, "secagg"])
    def test_the_colluders_other_rows_do_not_matter(self, defense: str) -> None:
        result = federate(3, defense, rounds=4)
        view = view_of(result, leak=0.5)
        leaked = view.secure["entities"].parts[0].leaked
        party = client_party(COLLUDER)
        for rows, same in ((np.setdiff1d(np.arange(len(result.row_names["entities"])), leaked), True), (leaked, False)):
            changed = result.inputs["entities"][party].clone()
            changed[rows] += 1
            inputs: dict[Table, dict[str, torch.Tensor]] = {"entities": {**result.inputs["entities"], party: changed}}
            assert same_claims(view, view_of(replace(result, inputs=inputs), leak=0.5)) == same

    @pytest.mark.parametrize("threat", ["collusion", "identifiers"])
    def test_nor_what_only_victims_have(self, threat: str) -> None:
        result = federate(3, DROPPING, rounds=4)
        colluder, *victims = result.trained
        party = client_party(COLLUDER)
        other = replace(
            result,
            inputs={"entities": {party: result.inputs["entities"][party]}},
            trained=[colluder, *(ClientTables(own.entities + 1, own.relations + 1) for own in victims)],
            tables=[result.tables[0], *(ClientTables(own.entities + 1, own.relations + 1) for own in victims)],
        )
        for leak in (0.5, 1.0):
            assert same_claims(view_of(result, threat, leak), view_of(other, threat, leak))

    def test_rows_that_were_not_leaked_are_not_subtracted(self) -> None:
        view = view_of(federate(3), leak=0.5)
        table = view.secure["entities"]
        total, holders = table.opened[0].sums()
        unseen = 0
        for claims in entity_claims(view).values():
            outside = ~np.isin(claims.rows, table.parts[0].leaked)
            rows = claims.rows[outside]
            np.testing.assert_allclose(
                claims.embeddings[outside], total[rows] / holders[rows, None], rtol=1e-6, atol=1e-9
            )
            assert [name is None for name in claims.names] == outside.tolist()
            unseen += int(outside.sum())
        assert unseen > 50

    def test_what_the_colluder_gives_away(self) -> None:
        result = federate(3)
        for leak in (0.3, 1.0):
            view = view_of(result, leak=leak)
            table = view.secure["entities"]
            known = {name for name in table.names if name is not None}
            assert known == set(view.colluder.entity_names)
            assert table.parts[0].leaked.tolist() == [row for row, name in enumerate(table.names) if name is not None]
            assert [result.row_names["entities"][row] for row in table.parts[0].leaked] == table.names[
                table.parts[0].leaked
            ].tolist()

    def test_a_server_alone_has_nothing_to_compare_with(self) -> None:
        result = federate(3)
        table = view_of(result, "server").secure["entities"]
        assert table.parts == ()
        assert all(name is None for name in table.names)
        rows, _ = attack(result, "server")
        for row in rows.values():
            assert "without a colluder" in row.reason
            assert (row.err.estimate.value, row.trr.estimate.value, row.counts, row.err.estimate.high) == (0, 0, {}, 1)

    def test_identifiers_name_every_row(self) -> None:
        result = federate(3)
        for leak in (0.3, 1.0):
            table = view_of(result, "identifiers", leak).secure["entities"]
            assert table.names.tolist() == result.row_names["entities"]
        assert set(result.row_names["entities"]) == set.union(*held_by_name(result).values())


class TestAlignment:
    @pytest.mark.parametrize("leak", [0.5, 1.0])
    def test_alignment_in_clear_tells_every_holding(self, leak: float) -> None:
        result = federate(3, "secagg")
        view = view_of(result, leak=leak)
        for victim, claims in entity_claims(view).items():
            names = np.array(result.row_names["entities"], dtype=object)[claims.rows]
            assert set(names) == held_by_name(result)[victim]
            assert {SOURCES[source] for source in claims.sources} == {"alignment"}
            assert (claims.certainty == 1).all()
        rows, _ = attack(result, leak=leak)
        for victim, row in rows.items():
            if victim != ALL:
                assert row.counts == {"alignment": len(set(view.colluder.entity_names) & held_by_name(result)[victim])}

    @pytest.mark.parametrize("leak", [0.5, 1.0])
    def test_a_private_set_union_does_not(self, leak: float) -> None:
        rows, _ = attack(federate(3), leak=leak)
        clear, _ = attack(federate(3, "secagg"), leak=leak)
        assert "alignment" not in rows[ALL].counts
        # The likeliest rows are the ones that the colluder can name; at half the leak none of them is missed, others are.
        assert (rows[ALL].err.estimate.value < clear[ALL].err.estimate.value) == (leak == 1)
        assert rows[ALL].err.advantage < 0.5 * clear[ALL].err.advantage
        assert view_of(federate(3), leak=leak).secure["entities"].holdings == {}


class TestShuffled:
    def test_permuted_holders_bring_it_down_to_its_baseline(self) -> None:
        """Counts moved to other rows that the colluder knows: as many claims, none of them better than a draw."""
        result = federate(3)
        leaked = view_of(result).secure["entities"].parts[0].leaked
        honest, _ = attack(result)
        assert honest[ALL].err.advantage > 0.1
        found, drawn, wrong, certain = [], [], 0, 0
        for seed in range(30):
            order = np.random.default_rng(seed).permutation(len(leaked))

            def permute(opened: Opened, order: np.ndarray = order) -> Opened:
                holders = opened.sums()[1].copy()
                holders[leaked] = holders[leaked[order]]
                return msgspec.structs.replace(opened, holders=holders.astype("<i8").tobytes())

            changed = with_notes(result, permute)
            rows, _ = attack(changed)
            found.append(rows[ALL].err.estimate.value)
            drawn.append(rows[ALL].err.baseline.value)
            for victim, claims in entity_claims(view_of(changed)).items():
                sure = np.isin(claims.rows, leaked) & (claims.certainty == 1)
                certain += int(sure.sum())
                wrong += len(set(claims.names[sure]) - held_by_name(result)[victim])
        assert np.mean(found) == pytest.approx(np.mean(drawn), abs=0.01)
        assert np.mean(drawn) == pytest.approx(honest[ALL].err.baseline.value, abs=0.01)
        assert wrong > 0.1 * certain > 100


class TestRelations:
    """FedR sums relations; entity rows are assumed to be known, and planted so that names can be told by cosine.

    The client at place p has no triple of every fourth relation, from the p-th on. So of three clients' relations a
    quarter is held by all, and as many by the two victims, by the colluder and one, by the colluder and the other.
    """

    @staticmethod
    @functools.cache
    def planted(clients: int) -> KgeResult:
        """Victims' rows of entities that the colluder holds too become the colluder's."""
        graph = generate_consortium(clients=clients, size=1500, seed=1)
        kept = tuple(
            ClientGraph.from_global(
                client.name,
                *(
                    triples[triples[:, 1] % 4 != place]
                    for triples in (client.to_global(part) for part in (client.train, client.valid, client.test))
                ),
            )
            for place, client in enumerate(graph.clients)
        )
        result = train(FederatedGraph("thinned", graph.entities, graph.relations, kept), PROTECTED, "fedr")
        trained = [ClientTables(own.entities.clone(), own.relations) for own in result.trained]
        known = {number: row for row, number in enumerate(kept[0].entity_ids)}
        for client, own in zip(kept[1:], trained[1:], strict=True):
            for row, number in enumerate(client.entity_ids):
                if number in known:
                    own.entities[row] = trained[0].entities[known[number]]
        return replace(result, trained=trained)

    @pytest.mark.parametrize("leak", [0.1, 0.5, 1.0])
    @pytest.mark.parametrize("clients", [2, 3])
    def test_trr_by_hand(self, clients: int, leak: float) -> None:
        result = self.planted(clients)
        view = view_of(result, "collusion+entities", leak)
        rows, _ = attack(result, "collusion+entities", leak)
        entities, relations = set(view.colluder.entity_names), set(view.colluder.relation_names)
        trained = held_by_name(result)[COLLUDER]
        for client, victim in zip(result.graph.clients[1:], view.victims, strict=True):
            claimed = {result.row_names["relations"][row] for row in victim.claims["relations"].rows}
            right, nameable = 0, 0
            for head, relation, tail in client.to_global(client.train):
                ends = {result.graph.entities[head], result.graph.entities[tail]}
                known = ends <= entities & trained and result.graph.relations[relation] in relations
                nameable += known
                right += known and result.graph.relations[relation] in claimed
            row = rows[client.name]
            assert row.trr.estimate.value == right / len(client.train)
            assert row.trr.estimate.n == len(client.train)
            assert (row.variant, row.reason) == ("cosine", None)
            if leak > 0.1:
                # Both of two clients' counts are 2: no doubt. With three clients some are guessed, and missed.
                assert right == nameable > 10 if clients == 2 else 0 < right < nameable

    def test_relations_are_named_by_place(self) -> None:
        result = self.planted(2)
        claims = view_of(result, "collusion+entities", 0.03).victims[0].claims["relations"]
        known = set(view_of(result, "collusion+entities", 0.03).colluder.relation_names)
        names = [result.row_names["relations"][row] for row in claims.rows]
        assert claims.names.tolist() == [name if name in known else None for name in names]
        assert 0 < sum(name is None for name in claims.names) < len(names)
        whole = view_of(result, "collusion+entities").victims[0].claims["relations"]
        held = held_by_name(result, "relations")
        assert {result.row_names["relations"][row] for row in whole.rows} == held["hospital-2"]
        assert {name for name in whole.names if name} == held["hospital-2"] & held[COLLUDER] < held["hospital-2"]
        assert (whole.certainty == 1).all()

    def test_the_place_names_a_relation_whatever_its_embedding_is(self) -> None:
        result = self.planted(2)

        def scramble(opened: Opened) -> Opened:
            total = np.random.default_rng(6).normal(size=opened.sums()[0].shape)
            return msgspec.structs.replace(opened, total=total.astype("<f8").tobytes())

        before, after = (attack(run, "collusion+entities")[0] for run in (result, with_notes(result, scramble)))
        assert before["hospital-2"].trr.estimate == after["hospital-2"].trr.estimate
        assert after["hospital-2"].trr.estimate.value > 0.1

    def test_with_three_clients_some_relations_are_guessed(self) -> None:
        result = self.planted(3)
        truth = true_holders(result, "relations")
        for victim in view_of(result, "collusion+entities").victims:
            claims = victim.claims["relations"]
            sure = claims.certainty == 1
            assert set(claims.rows[sure]) == set(np.nonzero(truth[1:].all(axis=0))[0]) != set()
            assert (claims.certainty[~sure] == 0.5).all()
            assert {SOURCES[source] for source in claims.sources} == {"all hold it", "guess"}

    def test_sums_of_relations_name_no_entity(self) -> None:
        rows, _ = attack(federate(2, algorithm="fedr"), "collusion")
        assert rows["hospital-2"].reason.startswith("only relation embeddings were transmitted")


class TestFigures:
    @pytest.mark.parametrize(("threat", "leak"), [("collusion", 0.5), ("collusion", 1.0), ("identifiers", 0.5)])
    def test_baselines_are_those_of_an_adversary_who_draws(self, threat: str, leak: float) -> None:
        result, draws = federate(3), 3000
        view = view_of(result, threat, leak)
        rows, _ = attack(result, threat, leak)
        rng = np.random.default_rng(8)
        known = np.array([name for name in view.secure["entities"].names if name is not None], dtype=object)
        place_of = {name: place for place, name in enumerate(known)}
        for client, victim in zip(result.graph.clients[1:], view.victims, strict=True):
            num_claims = sum(name is not None for name in victim.claims["entities"].names)
            chosen = rng.random((draws, len(known))).argsort(axis=1) < num_claims
            held = held_by_name(result)[client.name]
            right = chosen[:, [place for name, place in place_of.items() if name in held]].sum(axis=1) / len(held)
            row = rows[client.name]
            assert row.err.baseline.value == pytest.approx(right.mean(), abs=5 * right.std() / np.sqrt(draws))
            expected, majority = 0.0, view.colluder.majority_relation
            for head, relation, tail in client.to_global(client.train):
                ends = [result.graph.entities[head], result.graph.entities[tail]]
                if result.graph.relations[relation] == majority and all(name in place_of for name in ends):
                    expected += chosen[:, [place_of[name] for name in ends]].all(axis=1).mean() / len(client.train)
            assert row.trr.guesses["majority"].value == pytest.approx(expected, rel=0.03)
            assert (row.trr.guesses["majority"].value > 0) == (expected > 0)
        assert threat == "collusion" or expected > 0

    def test_published_counts_are_refused(self) -> None:
        with pytest.raises(ThreatModelError, match="metric published counts uploads in plaintext"):
            reconstruct(federate(2), KgeAttackOptions(threat=("collusion",), metric="published"))

    @pytest.mark.parametrize("threat", ["collusion", "identifiers"])
    @pytest.mark.parametrize("defense", [PROTECTED, SUPPRESSING])
    def test_items_say_the_same_and_rows_that_are_not_claimed_are_never_right(self, threat: str, defense: str) -> None:
        result = federate(3, defense)
        view = view_of(result, threat, 0.5)
        rows, items = attack(result, threat, 0.5)
        for victim, claims in entity_claims(view).items():
            own = items[items.victim == victim]
            entities, triples = own[own["item"] == "entity"], own[own["item"] == "triple"]
            assert set(entities["head"]) == held_by_name(result)[victim]
            named = {name for name in claims.names if name is not None}
            assert set(entities["head"][entities.right]) == named & held_by_name(result)[victim]
            unclaimed = entities[entities.guessed_head == NO_NAME]
            assert len(unclaimed) > 10
            assert not unclaimed.right.any()
            assert (entities.right == (entities.guessed_head == entities["head"])).all()
            guessed = triples[["guessed_head", "guessed_relation", "guessed_tail"]].to_numpy()
            assert (triples.right == (guessed == triples[["head", "relation", "tail"]].to_numpy()).all(axis=1)).all()
            row = rows[victim]
            assert (entities.right.mean(), triples.right.mean()) == (row.err.estimate.value, row.trr.estimate.value)

    def test_ranking_pairs_is_left_to_clear_uploads(self) -> None:
        rows, _ = reconstruct(federate(2), KgeAttackOptions(threat=("collusion",), unlinked_heads=5))
        assert not rows[0].unlinked


class TestSuppression:
    def test_counts_are_seen_and_rows_are_not(self) -> None:
        result = federate(3, SUPPRESSING)
        view, truth = view_of(result), true_holders(result)
        rows_note, counts_note, *_ = view.secure["entities"].opened
        counts = truth.sum(axis=0)
        assert (counts_note.total, counts_note.round) == (b"", rows_note.round)
        assert (counts_note.sums()[1] == counts).all()
        total, holders = rows_note.sums()
        assert (holders == np.where(counts >= 2, counts, 0)).all()
        assert (counts == 1).sum() > 10
        assert (total[counts < 2] == 0).all()
        assert (np.abs(total[counts >= 2]).sum(axis=1) > 0).all()
        claimed = np.unique(np.concatenate([claims.rows for claims in entity_claims(view).values()]))
        assert claimed.tolist() == np.nonzero((counts >= 2) & truth[1:].any(axis=0))[0].tolist()

    def test_two_clients_gain_nothing_from_it(self) -> None:
        """Rows that both hold are sent, and these are all that the colluder can name."""
        result = federate(2, SUPPRESSING)
        rows, _ = attack(result)
        assert rows["hospital-2"].err.estimate.value == attack(federate(2))[0]["hospital-2"].err.estimate.value
        named, _ = attack(result, "identifiers")
        assert named["hospital-2"].err.estimate.value == rows["hospital-2"].err.estimate.value < 1


class TestVoidRounds:
    def test_an_earlier_sum_is_attacked(self) -> None:
        """Only round 1 was opened; the fourth and best one was not."""
        result = federate(3, "psu,secagg:threshold=3,dropout=0.2", rounds=4, seed=15)
        assert [entry.num_survivors for entry in result.rounds[1:]] == [3, 0, 0, 0]
        assert result.best_round == 4
        view = view_of(result)
        assert [opened.round for opened in view.secure["entities"].opened] == [1]
        assert assert_nothing_certain_is_wrong(result, view) > 50
        rows, _ = attack(result)
        assert rows[ALL].reason is None
        assert set(rows[ALL].counts) == {"all hold it", "guess"}
        whole, _ = attack(federate(3, rounds=4))
        assert rows[ALL].err.estimate.value == pytest.approx(
            whole[ALL].err.estimate.value, abs=0.05
        )  # counts tell as much as ever

    def test_counts_alone_are_not_taken_for_rows(self) -> None:
        """Rounds 2 and 3 counted holders; only round 2 went on to sum rows."""
        result = federate(3, "psu,secagg:threshold=2,dropout=0.4,suppress:t=2", rounds=3, seed=28)
        assert [entry.num_survivors for entry in result.rounds[1:]] == [0, 3, 0]
        view = view_of(result)
        newest, *others = view.secure["entities"].opened
        assert (newest.round, bool(newest.total)) == (2, True)
        assert (others[0].round, bool(others[0].total)) == (3, False)
        for claims in entity_claims(view).values():
            assert len(claims.rows) > 50
            assert len(claims.embeddings) == len(claims.rows)

    def test_where_no_sum_was_opened_it_says_so(self) -> None:
        result = federate(3, "psu,secagg:threshold=3,dropout=0.97")
        assert [entry.num_survivors for entry in result.rounds] == [0, 0, 0]
        for threat in ("collusion", "identifiers"):
            rows, _ = attack(result, threat)
            for row in rows.values():
                assert row.reason == "no sum that this client is in was opened"
                assert (row.err.estimate.value, row.err.estimate.low, row.err.estimate.high) == (0, 0, 1)
                assert (row.err.baseline.value, row.counts) == (0, {})
            assert rows[ALL].num_attacked == 0

    def test_names_that_crossed_in_clear_are_known_all_the_same(self) -> None:
        rows, _ = attack(federate(3, "secagg:threshold=3,dropout=0.97"), "identifiers")
        for row in rows.values():
            assert row.reason == "no sum that this client is in was opened"
            assert row.err.baseline.value == 1


# What an adversary may not get wrong.


@pytest.mark.parametrize(("clients", "threshold", "seed"), [(3, 2, 5), (4, 3, 0), (5, 3, 0)])
def test_suppressed_rows_are_no_equation(clients: int, threshold: int, seed: int) -> None:
    defense = f"psu,secagg:threshold={threshold},dropout=0.3,suppress:t=2"
    result = federate(clients, defense, rounds=5, seed=seed)
    for leak in (0.5, 1.0):
        assert_nothing_certain_is_wrong(result, view_of(result, leak=leak))


def test_a_victim_in_no_sum_has_a_reason() -> None:
    options = msgspec.structs.replace(federate(3).options, participation=0.7, rounds=1, eval_every=1)
    result = run_federation(generate_consortium(clients=3, size=1500, seed=1), options, make_transport=make_transport)
    rows, _ = attack(result)
    inside = {
        victim: client_party(victim) in view_of(result).secure["entities"].opened[0].survivors
        for victim in ("hospital-2", "hospital-3")
    }
    assert set(inside.values()) == {True, False}
    for victim, present in inside.items():
        assert (rows[victim].reason is None) == present
