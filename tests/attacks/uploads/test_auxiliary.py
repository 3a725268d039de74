"""A server that was told some of a victim's triples: planted geometry, shuffled rows, and what defenses change."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fkgsec import KgeModel
from fkgsec.attacks import KgeAttackOptions
from fkgsec.attacks.options import THREAT_MODELS
from fkgsec.attacks.registry import build_view
from fkgsec.attacks.uploads.auxiliary import FILLED_UP, UNSEEN, fit, fit_relations
from fkgsec.errors import SpecError

THREAT = "server+triples"


@pytest.mark.parametrize("name", ["transe", "rotate", "distmult", "complex"])
def test_relations_are_found_again_from_pairs_that_they_link(name: str) -> None:
    model, rng = KgeModel(name, 8), torch.Generator().manual_seed(0)
    width = model.entity_width
    heads = torch.randn(400, width, generator=rng)
    rows = torch.randn(3, model.relation_width, generator=rng) * (model.initial_range if name == "rotate" else 1)
    relations = np.arange(400) % 2  # none of the third
    tails = model.query(heads, rows[relations], "tail") + 0.01 * torch.randn(400, width, generator=rng)
    found, true = fit_relations(model, heads, tails, relations, 3), model.relation_vectors(rows)
    for number in range(2):
        assert torch.cosine_similarity(found[number], true[number], dim=0) > (0.999 if model.margin else 0.9)
        if name == "transe":
            torch.testing.assert_close(found[number], true[number], atol=0.02, rtol=0)
    pooled = fit_relations(model, heads, tails, np.zeros(400, dtype=np.int64), 1)[0]
    torch.testing.assert_close(found[2], pooled)


@pytest.mark.planted("server-aux", "48 pairs that a short relation links: AUC above .99", {"auc": 12})
def test_of_planted_pairs_it_tells_trained_ones(near_pairs, attacked) -> None:
    found = attacked(near_pairs(), "server-aux", auxiliary=0.2)
    one = found[THREAT, "victim", "auc_pairs"]
    assert one.estimate.value > 0.99
    assert (one.leak, one.colluder, one.attainable) == (None, None, 1.0)
    assert one.counts["trained"] == 48
    unseen = found[THREAT, "victim", "auc"]  # true triples that nobody trained on
    assert unseen.estimate.value > 0.99
    assert unseen.counts == {"trained": 6, "others": 6}


@pytest.mark.null("server-aux", "shuffled rows, 5 draws: mean AUC .35 to .65")
def test_at_shuffled_rows_it_is_chance(near_pairs, attacked) -> None:
    values = [
        attacked(near_pairs(shuffled=True, seed=seed), "server-aux", auxiliary=0.2)[THREAT, "victim", "auc_pairs"]
        for seed in range(5)
    ]
    assert 0.35 < np.mean([one.estimate.value for one in values]) < 0.65


@pytest.mark.parametrize("defense", ["", "robust:rule=clip"])
def test_uploads_tell_trained_triples_from_unseen_ones(federate, attacked, defense: str) -> None:
    found = attacked(federate(defense), "server-aux", auxiliary=0.2)
    for victim in ("hospital-2", "hospital-3"):
        pairs = found[THREAT, victim, "auc_pairs"]
        assert pairs.estimate.low > max(0.7, pairs.baseline.value)
        assert found[THREAT, victim, "auc"].baseline.value >= 0.5


def test_sums_do_not_stop_it(federate, attacked) -> None:
    found = attacked(federate("psu,secagg"), "server-aux", auxiliary=0.2)
    for victim in ("hospital-2", "hospital-3"):
        assert found[THREAT, victim, "auc_pairs"].estimate.low > 0.6


def test_noise_stops_it(federate, attacked) -> None:
    found = attacked(federate("dp:unit=row,clip=0.1,epsilon=8"), "server-aux", auxiliary=0.2)
    for victim in ("hospital-2", "hospital-3"):
        pairs = found[THREAT, victim, "auc_pairs"]
        assert pairs.by in pairs.guesses
        assert pairs.estimate.value == pairs.baseline.value


def test_guesses_from_the_names_that_it_was_told(federate) -> None:
    """The second of the baselines by hand: of a relation that was told and of names that were not, too."""
    view = build_view(federate(), THREAT_MODELS[THREAT], colluder="hospital-1", leak=1.0, seed=0)
    told = view.victims[0].auxiliary
    head, relation, tail = told[0]
    relations, distinct = told[:, 1] == relation, len(np.unique(told[:, [0, 2]]))

    def likelihood(end: int, name: str) -> float:
        anyhow = ((told[:, end] == name).sum() + UNSEEN) / (len(told) + UNSEEN * distinct)
        together = (relations & (told[:, end] == name)).sum()
        return (together + FILLED_UP * anyhow) / (relations.sum() + FILLED_UP)

    asked = np.array([[head, relation, tail], [head, relation, "nobody"], ["nobody", relation, tail]], dtype=object)
    expected = [np.log(likelihood(0, one[0]) * likelihood(2, one[2])) for one in asked]
    guesses = fit(view, None, np.random.default_rng(0))[view.victims[0].name].guesses
    assert list(guesses) == ["names", "any relation"]
    np.testing.assert_allclose(guesses["any relation"](asked), expected)
    assert (expected[0] > expected[1]) & (expected[0] > expected[2])


def test_what_was_told_is_a_share_of_the_victims_triples(federate) -> None:
    result = federate()
    view = build_view(result, THREAT_MODELS[THREAT], colluder="hospital-1", leak=1.0, seed=0, auxiliary=0.25)
    for client, victim in zip(result.graph.clients[1:], view.victims, strict=True):
        graph = result.graph
        own = {(graph.entities[h], graph.relations[r], graph.entities[t]) for h, r, t in client.to_global(client.train)}
        told = {tuple(triple) for triple in victim.auxiliary}
        assert told < own
        assert len(told) == len(victim.auxiliary) == int(0.25 * len(own))
    for threat in ("server", "identifiers", "client"):
        other = build_view(result, THREAT_MODELS[threat], colluder="hospital-1", leak=1.0, seed=0)
        assert {victim.auxiliary is None for victim in other.victims} == {True}


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, float("nan")])
def test_a_share_out_of_range_is_refused(share: float) -> None:
    with pytest.raises(SpecError, match="auxiliary must lie between 0 and 1, both excluded"):
        KgeAttackOptions(auxiliary=share)
