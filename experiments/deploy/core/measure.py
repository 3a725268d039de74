"""A party's measurements of its models, and the server's figures over all parties: ranks stay with the parties.

    mine = measure_models(outcome, 5, graph, agreement)              # at the party: sums, sums of squares, counts
    combine({"north": mine, "south": theirs}, seed=0)                # at the server: figures with intervals

Sums and counts give the mean reciprocal rank over all clients, and Hits@k with Wilson intervals. Sums of squares give the mean's
interval (normal approximation, clients as strata); sums of resamples would reveal single items. Sums are rounded to `DECIMALS`
places, since an exact sum can identify a set of ranks. A party reveals nothing of fewer triples than agreed on, nor two groups
whose difference is that small. In the laboratory the items themselves are sent, so figures equal those of one process exactly.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from torch import Tensor

from fkgsec import estimate
from fkgsec.data.graph import FederatedGraph
from fkgsec.data.split_leaks import leaked_test_mask
from fkgsec.errors import RunError
from fkgsec.estimate import Estimate
from fkgsec.experiments.deploy.agreement import Agreement
from fkgsec.experiments.tasks.task import Figures, Reached
from fkgsec.federation.checkpoint import save_tensors
from fkgsec.kge.models import HITS
from fkgsec.randomness import generator

DECIMALS = 3
EMBEDDINGS = "embeddings.safetensors"
GROUPS = ("all", "leaked", "clean", "shared")
PARTS = ("leaked", "clean")


class Best(NamedTuple):
    """The models of a round: those exchanged before its broadcast, and all of them after it."""

    round: int
    trained: Mapping[str, Tensor]
    final: Mapping[str, Tensor]


class Group(msgspec.Struct, frozen=True, omit_defaults=True):
    """A party's figures on a group of test triples.

    Attributes:
        total: sum of reciprocal ranks, averaged over sides. squares: sum of their squares; 0 in the laboratory.
        hits: by k, the sum of the shares of sides that rank up to k.
        items: in the laboratory, the reciprocal rank of each triple, float64 little-endian.
    """

    count: int
    total: float
    hits: dict[int, float]
    squares: float = 0.0
    items: bytes = b""


class Measured(msgspec.Struct, frozen=True):
    """A party's measurements of its models: sums by group (`GROUPS`; "shared": a second, shared model), and its figures."""

    round: int
    groups: dict[str, Group]
    figures: dict[str, Estimate]


def measure_models(outcome: Mapping[str, Any], round: int, graph: FederatedGraph, agreement: Agreement) -> Measured:
    """Measure a party's models of the best round.

    Args:
        outcome: from `KgeTask.outcome`. round: the best round.
        graph: the party's data. agreement: says which groups are large enough.
    """
    (ranks,), leaked = outcome["test_ranks"], leaked_test_mask(graph, 0)
    # Too few test triples: reveal nothing.
    if not agreement.reveals(len(ranks)):
        return Measured(round, {}, {})
    groups, parts = {"all": ranks}, {"leaked": ranks[leaked], "clean": ranks[~leaked]}
    # Reveal both parts or none: all minus one part reveals the other.
    if all(agreement.reveals(len(part)) for part in parts.values()):
        groups |= parts
    if shared := outcome.get("shared_test_ranks"):
        groups["shared"] = shared[0]
    sums = {name: _group(part, agreement) for name, part in groups.items()}
    return Measured(round, sums, _combined([sums["all"]], agreement.options.seed))


def rounded(total: float, agreement: Agreement) -> float:
    """Round a sum over a party's triples to `DECIMALS` places, except in the laboratory.

    Args:
        total: of reciprocal ranks.
    """
    # An exact sum of reciprocal ranks can be decomposed into single ranks.
    return total if agreement.randomness == "laboratory" else round(total, DECIMALS)


def _group(ranks: np.ndarray, agreement: Agreement) -> Group:
    items = (1 / ranks).mean(axis=1) if len(ranks) else np.zeros(0)
    hits = {k: float((ranks <= k).mean(axis=1).sum()) if len(ranks) else 0.0 for k in HITS}
    total = rounded(float(items.sum()), agreement)
    if agreement.randomness == "laboratory":
        return Group(len(items), total, hits, items=items.astype("<f8").tobytes())
    return Group(len(items), total, hits, squares=rounded(float(np.square(items).sum()), agreement))


def combine(parts: Mapping[str, Measured], seed: int) -> Reached:
    """Compute the figures over all clients.

    Args:
        parts: measurements by name, in the order of the parties. seed: of the bootstrap.
    """
    by_group = {name: [part.groups[name] for part in parts.values() if name in part.groups] for name in GROUPS}
    return Reached(
        _combined(by_group["all"], seed),
        {name: part.figures for name, part in parts.items()},
        {name: _combined(by_group[name], seed) for name in ("leaked", "clean")},
        _combined(by_group["shared"], seed) if by_group["shared"] else {},
    )


def _combined(groups: Sequence[Group], seed: int) -> Figures:
    count = sum(group.count for group in groups)
    hits = {f"hits@{k}": estimate.proportion(sum(group.hits[k] for group in groups), count) for k in HITS}
    return {"mrr": _mean(groups, count, seed), **hits}


def _mean(groups: Sequence[Group], count: int, seed: int) -> Estimate:
    filled = [group for group in groups if group.count]
    if all(group.items for group in filled):
        items = [np.frombuffer(group.items, dtype="<f8") for group in filled]
        return estimate.mean(np.concatenate([np.zeros(0), *items]), generator(seed, "bootstrap"))
    # Without single ranks there is no bootstrap: use a normal interval from the sums of values and of squares, stratified by
    # client.
    value = sum(group.total for group in filled) / count
    deviations = sum(max(0.0, group.squares - group.total**2 / group.count) for group in filled)
    half = estimate.critical_value() * deviations**0.5 / count
    return Estimate(value, max(0.0, value - half), min(1.0, value + half), count, "normal")


def check_measured(measured: Measured, agreement: Agreement, *, round: int, num_test: int, two_models: bool) -> None:
    """Check a party's measurements, at the server.

    Args:
        round: the best round. num_test: test triples that the party stated at the start.
        two_models: the task has private and shared models.

    Raises:
        RunError: contradictions, or another round or number of triples.
    """
    laboratory = agreement.randomness == "laboratory"
    if measured.round != round:
        raise RunError(f"figures of round {measured.round}; those of round {round} were asked for")
    if not agreement.reveals(num_test):
        raise RunError(f"it has {num_test} test triples, fewer than the {agreement.fewest_triples} that were agreed on")
    groups, figures = measured.groups, {"mrr", *(f"hits@{k}" for k in HITS)}
    ends = [(figure.low, figure.value, figure.high) for figure in measured.figures.values()]
    if set(measured.figures) != figures or not all(0 <= number <= 1 for numbers in ends for number in numbers):
        names = ", ".join(measured.figures) or "none"
        raise RunError(f"its figures: {names}; {', '.join(sorted(figures))} in 0..1 are due")
    inside = all(low <= value <= high for low, value, high in ends)
    if not inside or any(figure.n != num_test for figure in measured.figures.values()):
        raise RunError(f"its figures: no shares of {num_test} test triples inside their intervals")
    # A party that hides small groups sends neither part of the split.
    due = GROUPS if two_models else GROUPS[:3]
    if set(groups) != set(due) and (laboratory or set(groups) != set(due) - set(PARTS)):
        raise RunError(f"figures of {', '.join(groups) or 'nothing'}; {', '.join(due)} are due")
    # A party that changes its number of triples could shift the weight of its figures.
    if any(groups[name].count != num_test for name in groups if name not in PARTS) or (
        PARTS[0] in groups and sum(groups[name].count for name in PARTS) != num_test
    ):
        raise RunError(f"figures of {groups['all'].count} test triples, where it said that it has {num_test}")
    for name, group in groups.items():
        items = np.frombuffer(group.items[: len(group.items) // 8 * 8], dtype="<f8")
        numbers = np.array([group.total, group.squares, *group.hits.values(), *items])
        if (
            set(group.hits) != set(HITS)
            or (laboratory and group.squares)
            or len(group.items) != 8 * group.count * laboratory
            or not ((numbers >= 0) & (numbers <= group.count)).all()
        ):
            raise RunError(f"figures of {name}: no sums of {group.count} reciprocal ranks and shares")


def write_embeddings(folder: Path, outcome: Mapping[str, Any], graph: FederatedGraph) -> None:
    """Write the party's model of the best round, with the names of its rows, to `embeddings.safetensors`.

    Args:
        outcome: from `KgeTask.outcome`. graph: the party's data.

    Raises:
        RunError: it cannot be written.
    """
    path, client = folder / EMBEDDINGS, graph.clients[0]
    tensors: dict[str, Tensor] = {}
    for kind in ("tables", "trained", "private"):
        for tables in outcome.get(kind, ()):
            for table in ("entities", "relations"):
                tensors[f"{kind}.{table}"] = getattr(tables, table).contiguous().clone()
    names = {
        "entities": json.dumps([graph.entities[number] for number in client.entity_ids]),
        "relations": json.dumps([graph.relations[number] for number in client.relation_ids]),
    }
    part = path.with_name(path.name + ".part")
    try:
        save_tensors(part, tensors, names)
        part.replace(path)
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error})") from error
