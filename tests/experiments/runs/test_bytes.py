"""Bytes of a record against the papers' formulas."""

from __future__ import annotations

import numpy as np
import pytest

from fkgsec.algorithms.settings import transmitted_ratio
from fkgsec.experiments.runs.record import make_record
from fkgsec.experiments.runs.spec import Spec
from fkgsec.federation.loop import run_federation

HEADER = 160  # what names a message: parties, round, sizes


@pytest.mark.parametrize(("sparsity", "sparse_rounds"), [(0.4, 4), (0.5, 2)])
def test_a_cycle_of_feds_costs_less_than_eq_5_says(sparsity: float, sparse_rounds: int) -> None:
    """Eq. 5 counts a sign as a number of 32 bits; here it is a bit, and a priority 16."""
    rounds = sparse_rounds + 1
    spec = Spec(algorithm="feds", settings={"sparsity": sparsity, "sparse_rounds": sparse_rounds}, dim=32, rounds=rounds,
                eval_every=rounds, size=2000, num_negatives=8, local_epochs=1, device="cpu")  # fmt: skip
    graph = spec.load_graph()
    result = run_federation(graph, spec.federation_options())
    record = make_record(spec, result, [])

    holders = np.bincount(np.concatenate([client.entity_ids for client in graph.clients]))
    shared = [int((holders[client.entity_ids] > 1).sum()) for client in graph.clients]
    fede = 2 * 4 * spec.dim * rounds * sum(shared)
    by_formula = transmitted_ratio(sparsity, sparse_rounds, spec.dim) * fede
    # The same with signs of one bit (rounded up to bytes) and priorities of two bytes.
    chosen = [int(sparsity * count) for count in shared]
    sparse = sum(2 * 4 * spec.dim * k + 2 * -(-count // 8) + 2 * k for k, count in zip(chosen, shared, strict=True))
    exact = sparse_rounds * sparse + 2 * 4 * spec.dim * sum(shared)

    measured = sum(record.bytes.up_by_round[1:]) + sum(record.bytes.down_by_round[1:])
    assert measured < by_formula < fede
    # Less than that where other clients sent fewer rows than K, more for headers and signs of rows that are not shared.
    slack = rounds * 2 * len(shared) * (HEADER + max(len(client.entity_ids) for client in graph.clients) // 8)
    assert 0.9 * exact < measured < exact + slack
