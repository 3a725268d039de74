"""Which rows FedS sends: planted patterns, random ones, what is kept of every round, and sums."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from fkgsec.attacks.options import THREAT_MODELS
from fkgsec.attacks.registry import build_view
from fkgsec.attacks.uploads.pairs import candidate_pairs
from fkgsec.attacks.uploads.patterns import together
from fkgsec.federation.messages import SERVER, SparseRows, client_party, encode

SERVER_ALONE = "server"


def pattern(number: int, name: str, sent: np.ndarray) -> SparseRows:
    """What stays of an upload: which rows it is of."""
    chosen = torch.from_numpy(sent)
    return SparseRows.pack(number, client_party(name), SERVER, "entities", chosen, torch.empty(int(sent.sum()), 0))


def with_sent(result, sent: dict[str, np.ndarray]):
    """The run with these patterns `[rounds, n]` in place of what clients sent in sparse rounds."""
    transcript = result.transcript
    frames = {number: list(kept) for number, kept in transcript.frames.items()}
    sparse = sorted({one.round for one in transcript.entries if one.kind == "sparse-rows" and one.direction == "up"})
    for place, number in enumerate(sparse):
        frames[number] = [encode(pattern(number, name, rows[place])) for name, rows in sent.items()]
    return dataclasses.replace(result, transcript=dataclasses.replace(transcript, frames=frames))


def rounds_of(result) -> int:
    entries = result.transcript.entries
    return len({one.round for one in entries if one.kind == "sparse-rows" and one.direction == "up"})


def test_of_every_sparse_round_it_is_kept_which_rows_were_sent(federate) -> None:
    result = federate(algorithm="feds", rounds=8)
    view = build_view(result, THREAT_MODELS[SERVER_ALONE], colluder="hospital-1", leak=1.0, seed=0)
    assert rounds_of(result) == 7  # of 8 the fifth is synchronised
    for client, victim in zip(result.graph.clients[1:], view.victims, strict=True):
        assert victim.sent.shape == (7, client.num_trained_entities)
        assert 0 < victim.sent.sum(axis=1).min() <= victim.sent.sum(axis=1).max() < client.num_trained_entities
    other = build_view(federate(), THREAT_MODELS[SERVER_ALONE], colluder="hospital-1", leak=1.0, seed=0)
    assert {victim.sent is None for victim in other.victims} == {True}


@pytest.mark.planted("patterns", "rows sent as often as their degree says: rank correlation above .9", {"degree": 70})
def test_planted_patterns_are_read(federate, attacked) -> None:
    """Rows of many triples are sent more often, and linked rows in the same rounds."""
    result = federate(algorithm="feds", rounds=8)
    sent = by_degree(result)
    found = attacked(with_sent(result, sent), "patterns")
    assert found[SERVER_ALONE, "hospital-2", "degree"].estimate.value > 0.9
    for client in result.graph.clients:  # each triple has a round of its own kind
        rows = np.zeros((7, client.num_trained_entities), dtype=bool)
        for number, (head, _, tail) in enumerate(client.train[:40]):
            rows[number % 7, [head, tail]] = True
        sent[client.name] = rows
    found = attacked(with_sent(result, sent), "patterns")
    assert found[SERVER_ALONE, "hospital-2", "linked"].estimate.low > 0.5


@pytest.mark.null("patterns", "random rows, 16 figures: at least 14 intervals include the baseline")
def test_random_patterns_tell_nothing(federate, attacked) -> None:
    result, covered = federate(algorithm="feds", rounds=8), []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        sent = {one.name: rng.random((7, one.num_trained_entities)) < 0.4 for one in result.graph.clients}
        for one in attacked(with_sent(result, sent), "patterns").values():
            covered.append(one.estimate.low <= one.baseline.value <= one.estimate.high)
    assert sum(covered) >= 14  # of 16


def test_frequencies_are_taken_out_by_hand() -> None:
    sent = np.array([[1, 1, 0], [1, 1, 0], [1, 0, 1], [1, 0, 0]], dtype=bool)
    pairs = candidate_pairs(3, np.random.default_rng(0))
    assert together(sent, pairs).tolist() == [0.0, 0.0, -0.5]  # 2 - 4 * 2 / 4, 1 - 4 * 1 / 4, 0 - 2 * 1 / 4


def by_degree(result) -> dict[str, np.ndarray]:
    """Rows sent the more often, the more triples they have."""
    rng, sent, number = np.random.default_rng(0), {}, rounds_of(result)
    for client in result.graph.clients:
        count = client.num_trained_entities
        degree = np.bincount(client.train[:, [0, 2]].ravel(), minlength=count)[:count]
        often = np.ceil(number * (np.argsort(np.argsort(degree)) + 1) / count).astype(int)
        sent[client.name] = np.stack([rng.permutation(number) < some for some in often], axis=1)
    return sent


def test_what_hides_values_alone_does_not_stop_it(federate, attacked) -> None:
    """Without a single value, whatever a defense makes of these, uploads tell what they told."""
    result = federate(algorithm="feds", rounds=8)
    view = build_view(result, THREAT_MODELS[SERVER_ALONE], colluder="hospital-1", leak=1.0, seed=0)
    clear, bits = attacked(result, "patterns"), with_sent(result, {one.name: one.sent for one in view.victims})
    hidden = attacked(bits, "patterns")
    assert hidden.keys() == clear.keys()
    assert all(not one.reason and one.estimate == clear[key].estimate for key, one in hidden.items())
    planted = attacked(with_sent(result, by_degree(result)), "patterns")
    assert all(planted[SERVER_ALONE, victim, "degree"].estimate.value > 0.9 for victim in ("hospital-2", "hospital-3"))


def test_where_all_rows_are_sent_in_every_round_nothing_is_told(federate, attacked) -> None:
    result = federate(algorithm="feds", rounds=8)
    whole = {one.name: np.ones((7, one.num_trained_entities), dtype=bool) for one in result.graph.clients}
    for (_, _, metric), one in attacked(with_sent(result, whole), "patterns").items():
        assert not one.reason
        assert one.estimate.value == one.baseline.value == {"degree": 0.0, "linked": 0.5}[metric]


def test_sums_hide_them_and_dense_uploads_have_none(federate, attacked) -> None:
    reason = "no upload of it said which of its rows it has"
    for result in (federate("secagg", algorithm="feds", rounds=8), federate()):
        assert {one.reason for one in attacked(result, "patterns").values()} == {reason}
