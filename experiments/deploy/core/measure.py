"""What a party measures of the models that it keeps, and what the server makes of all figures: ranks stay where they are.

    mine = measured(outcome, 5, graph, agreement)                    # at the party: sums, sums of squares, counts
    reached([mine, theirs, ...], ["north", "south"], seed=0)         # at the server: figures with intervals

The mean reciprocal rank over all clients needs sums and counts; so do Hits@k with their Wilson intervals. Its interval takes the
sums of squares (the normal approximation, the clients being strata). Sums of resamples would tell more: of ten triples, single
items are what two of a thousand such sums differ by, again and again. Sums cross with `DECIMALS` places, since the 50 bits of an
exact one can be those of one set of ranks alone. Few items hide nothing: a party tells nothing of fewer triples than were agreed
on, nor of two groups that one such follows from. In the laboratory the items themselves cross, so that the figures are those of
one process, bit for bit.
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
from fkgsec.kge.models import HITS, ClientTables
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
    """A party's figures on some of its test triples.

    Attributes:
        count: how many. total: the sum of their reciprocal ranks, the sides averaged.
        hits: by k, the sum of their shares of sides that rank up to k.
        squares: the sum of their squares; 0 in the laboratory.
        items: in the laboratory alone, each one's reciprocal rank, float64 little-endian.
    """

    count: int
    total: float
    hits: dict[int, float]
    squares: float = 0.0
    items: bytes = b""


class Measured(msgspec.Struct, frozen=True):
    """What a party says of its models: by group of triples (`GROUPS`; "shared", of the shared model of a client that has two),
    and its own figures with intervals."""

    round: int
    groups: dict[str, Group]
    own: dict[str, Estimate]


def measured(outcome: Mapping[str, Any], round: int, graph: FederatedGraph, agreement: Agreement) -> Measured:
    """Figures of a party's kept models.

    Args:
        outcome: what `KgeTask.outcome` says of them. graph: the party's.
    """
    (ranks,), leaked = outcome["test_ranks"], leaked_test_mask(graph, 0)
    if not agreement.tells(len(ranks)):
        return Measured(round, {}, {})
    groups, parts = {"all": ranks}, {"leaked": ranks[leaked], "clean": ranks[~leaked]}
    if all(agreement.tells(len(own)) for own in parts.values()):  # with all, each follows from the other
        groups |= parts
    if shared := outcome.get("shared_test_ranks"):
        groups["shared"] = shared[0]
    told = {name: _group(own, agreement) for name, own in groups.items()}
    return Measured(round, told, _combined([told["all"]], agreement.options.seed))


def rounded(total: float, agreement: Agreement) -> float:
    """A sum over a party's triples as it crosses: with `DECIMALS` places, in the laboratory all of it."""
    return total if agreement.randomness == "laboratory" else round(total, DECIMALS)


def _group(ranks: np.ndarray, agreement: Agreement) -> Group:
    items = (1 / ranks).mean(axis=1) if len(ranks) else np.zeros(0)
    hits = {k: float((ranks <= k).mean(axis=1).sum()) if len(ranks) else 0.0 for k in HITS}
    total = rounded(float(items.sum()), agreement)
    if agreement.randomness == "laboratory":
        return Group(len(items), total, hits, items=items.astype("<f8").tobytes())
    return Group(len(items), total, hits, squares=rounded(float(np.square(items).sum()), agreement))


def reached(parts: Mapping[str, Measured], seed: int) -> Reached:
    """The figures over all clients, by client's name in the order of the parties."""
    by_group = {name: [one.groups[name] for one in parts.values() if name in one.groups] for name in GROUPS}
    return Reached(
        _combined(by_group["all"], seed),
        {name: one.own for name, one in parts.items()},
        {name: _combined(by_group[name], seed) for name in ("leaked", "clean")},
        _combined(by_group["shared"], seed) if by_group["shared"] else {},
    )


def _combined(groups: Sequence[Group], seed: int) -> Figures:
    count = sum(group.count for group in groups)
    figures = {"mrr": _mean(groups, count, seed)}
    for k in HITS:
        figures[f"hits@{k}"] = estimate.proportion(sum(group.hits[k] for group in groups), count)
    return figures


def _mean(groups: Sequence[Group], count: int, seed: int) -> Estimate:
    filled = [group for group in groups if group.count]
    if all(group.items for group in filled):
        items = [np.frombuffer(group.items, dtype="<f8") for group in filled]
        return estimate.mean(np.concatenate([np.zeros(0), *items]), generator(seed, "bootstrap"))
    value = sum(group.total for group in filled) / count
    deviations = sum(max(0.0, group.squares - group.total**2 / group.count) for group in filled)
    half = estimate.critical_value() * deviations**0.5 / count
    return Estimate(value, max(0.0, value - half), min(1.0, value + half), count, "normal")


def check_measured(said: Measured, agreement: Agreement, *, round: int, num_test: int, two_models: bool) -> None:
    """Raises `RunError` for figures that contradict themselves, or are not of this round or as many triples."""
    laboratory = agreement.randomness == "laboratory"
    if said.round != round:
        raise RunError(f"figures of round {said.round}; those of round {round} were asked for")
    if not agreement.tells(num_test):
        raise RunError(f"it has {num_test} test triples, fewer than the {agreement.fewest_triples} that were agreed on")
    groups, figures = said.groups, {"mrr", *(f"hits@{k}" for k in HITS)}
    if set(said.own) != figures or not all(
        0 <= number <= 1 for one in said.own.values() for number in (one.low, one.value, one.high)
    ):
        raise RunError(
            f"figures of its own: {', '.join(said.own) or 'none'}; {', '.join(sorted(figures))} in 0..1 are due"
        )
    if not all(one.low <= one.value <= one.high and one.n == num_test for one in said.own.values()):
        raise RunError(f"figures of its own: no shares of {num_test} test triples inside their intervals")
    due = GROUPS if two_models else GROUPS[:3]
    if set(groups) != set(due) and (laboratory or set(groups) != set(due) - set(PARTS)):
        raise RunError(f"figures of {', '.join(groups) or 'nothing'}; {', '.join(due)} are due")
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
    """The party's model of the kept round, with the names of its rows: `embeddings.safetensors`. Raises `RunError`."""
    path, client = folder / EMBEDDINGS, graph.clients[0]
    tensors: dict[str, Tensor] = {}
    for kind in ("tables", "trained", "private"):
        for one in outcome.get(kind, ()):
            tensors |= _named(kind, one)
    names = {
        "entities": [graph.entities[number] for number in client.entity_ids],
        "relations": [graph.relations[number] for number in client.relation_ids],
    }
    part = path.with_name(path.name + ".part")
    try:
        save_tensors(part, tensors, {kind: json.dumps(one) for kind, one in names.items()})
        part.replace(path)
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error})") from error


def _named(kind: str, tables: ClientTables) -> dict[str, Tensor]:
    return {
        f"{kind}.entities": tables.entities.contiguous().clone(),
        f"{kind}.relations": tables.relations.contiguous().clone(),
    }
