"""Every recipe, killed after every round and gone on: the same result, bit for bit, as a run that nobody stopped."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from torch import Tensor

from defenses.transport import make_transport
from fkgsec.data.graph import FederatedGraph
from fkgsec.federation.loop import CHECKPOINT, Observer, run_federation
from fkgsec.federation.options import replace
from fkgsec.federation.recipes import RECIPES, algorithms_of
from fkgsec.kge.models import ClientTables
from fkgsec.kge.options import KgeOptions
from fkgsec.kge.result import KgeResult

ROUNDS = 5


class KeepEach(Observer):
    """Puts every round's checkpoint aside, as a kill after this round would leave it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def round_started(self, round: int, num_steps: int) -> None:
        if round > 1:
            kept = self._folder.parent / f"killed after {round - 1}"
            kept.mkdir()
            shutil.copy(self._folder / CHECKPOINT, kept)


class Trained(Observer):
    """Notes the rounds that were trained."""

    def __init__(self) -> None:
        self.rounds: list[int] = []

    def round_started(self, round: int, num_steps: int) -> None:
        self.rounds.append(round)


def everything(result: KgeResult) -> dict[str, object]:
    """All of a result but the clock, as plain values."""
    transcript = result.transcript
    return {
        "rounds": [replace(entry, seconds=0.0) for entry in result.rounds],
        "best round": result.best_round,
        "ranks": [ranks.tolist() for ranks in (*result.test_ranks, *result.shared_test_ranks)],
        "tables": plain(result.tables),
        "trained": plain(result.trained),
        "private": plain(result.private),
        "entries": transcript.entries,
        "frames": transcript.frames,
        "notes": transcript.notes,
        "inputs": plain(result.inputs),
        "observed": plain(result.observed),
        "names": result.row_names,
        "protection": result.protection.lines(),
    }


def plain(value: object) -> object:
    """Tensors as lists, wherever they stand."""
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, ClientTables):
        return plain(vars(value))
    if isinstance(value, Mapping):
        return {key: plain(part) for key, part in value.items()}
    assert isinstance(value, Sequence)
    return [plain(part) for part in value]


def assert_it_goes_on(graph: FederatedGraph, options: KgeOptions, folder: Path) -> KgeResult:
    """A run without a folder, one with a checkpoint after each round, and one from each of these: all the same."""
    options = replace(options, rounds=ROUNDS, eval_every=2)
    result = run_federation(graph, options, make_transport=make_transport)
    whole = everything(result)
    kept = folder / "kept"
    kept.mkdir()
    saved = run_federation(graph, options, kept, KeepEach(kept), checkpoint_every_s=0, make_transport=make_transport)
    assert everything(saved) == whole
    for number in range(1, ROUNDS):
        trained = Trained()
        killed = folder / f"killed after {number}"
        resumed = run_federation(graph, options, killed, trained, make_transport=make_transport)
        assert trained.rounds == list(range(number + 1, ROUNDS + 1))
        for name, part in everything(resumed).items():
            assert part == whole[name], f"{name} after a kill after round {number}"
    finished = run_federation(graph, options, kept, trained := Trained(), make_transport=make_transport)
    assert everything(finished) == whole
    assert trained.rounds == []
    return result


@pytest.fixture
def learning(options: KgeOptions) -> KgeOptions:
    """Steps large enough that validation goes up and down, so that the best round is not always the last."""
    return replace(options, learning_rate=0.05, local_epochs=1)


SMALL: dict[str, dict[str, int]] = {"fede-svd": {"rank": 1, "columns": 2}, "fede-svd+": {"rank": 1, "columns": 2}}
"""What a recipe needs where rows have eight numbers."""


# Where nothing is exchanged all clients train in every round.
EACH = [
    (name, share)
    for name, recipe in algorithms_of("kge").items()
    for share in ((1.0, 0.67) if recipe.shared else (1.0,))
]


@pytest.mark.parametrize(("algorithm", "participation"), EACH)
def test_every_recipe(
    algorithm: str, participation: float, uneven: FederatedGraph, learning: KgeOptions, tmp_path: Path
) -> None:
    options = replace(learning, algorithm=algorithm, participation=participation, **SMALL.get(algorithm, {}))
    result = assert_it_goes_on(uneven, options, tmp_path)
    if RECIPES[algorithm].shared:
        present = [entry.num_survivors for entry in result.rounds]
        assert present == [0, *ROUNDS * [3 if participation == 1 else 2]]


SETTINGS = [
    ("pfedeg", {"affinity": "embedding"}),
    ("pfedeg", {"start": "own"}),
    ("fedlu", {"variant": "published"}),
    ("fedlu", {"private_start": "server", "evaluate": "before", "negative_sides": "each"}),
    ("feds", {"sparse_rounds": 0}),
    ("feds", {"sparse_rounds": 1}),
    ("feds", {"sparse_rounds": 2}),
]


@pytest.mark.parametrize("participation", [1.0, 0.67])
@pytest.mark.parametrize(("algorithm", "settings"), SETTINGS)
def test_every_setting_that_has_a_state(
    algorithm: str,
    settings: dict[str, object],
    participation: float,
    uneven: FederatedGraph,
    learning: KgeOptions,
    tmp_path: Path,
) -> None:
    """Of FedS: kills before, in and after synchronised rounds, which are none, rounds 2 and 4, and round 3."""
    options = replace(learning, algorithm=algorithm, participation=participation, **settings)
    result = assert_it_goes_on(uneven, options, tmp_path)
    if algorithm == "feds":
        sent = {line.round: line.kind for line in result.transcript.entries if line.direction == "up" and line.round}
        synchronised = [number for number, kind in sent.items() if kind == "rows"]
        assert synchronised == {0: [], 1: [2, 4], 2: [3]}[int(options.settings.sparse_rounds)]


PROTECTED = [
    ("feds", "secagg", {"sparse_rounds": 1}),
    ("feds", "secagg", {"sparse_rounds": 2}),
    ("feds", "secagg,suppress:t=2", {"sparse_rounds": 2}),
    ("feds", "secagg:dropout=0.3,threshold=2", {"sparse_rounds": 2}),
    ("fede", "dp:clip=0.5,epsilon=5,unit=row", {}),
    ("fedlu", "dp:clip=0.5,epsilon=5", {}),
    ("fedlu", "psu,secagg", {}),
    ("fede-kd", "secagg,suppress:t=2", {}),
]


@pytest.mark.parametrize("participation", [1.0, 0.67])
@pytest.mark.parametrize(("algorithm", "defense", "settings"), PROTECTED)
def test_under_a_defense(
    algorithm: str,
    defense: str,
    settings: dict[str, object],
    participation: float,
    uneven: FederatedGraph,
    learning: KgeOptions,
    tmp_path: Path,
) -> None:
    learning = replace(learning, defense=defense, protocol_seed=0)  # two runs are compared bit for bit
    options = replace(learning, algorithm=algorithm, participation=participation, **settings)
    assert_it_goes_on(uneven, options, tmp_path)
