"""Laws of every registered algorithm: settings, planted and shuffled data, resumed runs, secure sums, input that is refused."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor

from fkgsec.data.consortium import generate_consortium
from fkgsec.data.graph import ClientGraph, FederatedGraph
from fkgsec.defenses import KINDS, make_transport
from fkgsec.errors import FkgsecError, SpecError, TrainingError
from fkgsec.exchange import AGGREGATIONS, CODECS
from fkgsec.experiments.runs.spec import make_spec
from fkgsec.federation.loop import CHECKPOINT, Observer, run_federation
from fkgsec.federation.messages import SERVER, Rows
from fkgsec.federation.options import RunOptions, flat, nested, replace, run_identity
from fkgsec.federation.recipes import RECIPES, all_settings
from fkgsec.federation.result import RunResult
from fkgsec.federation.settings import SettingField, fields_of
from fkgsec.gnn.options import GnnOptions
from fkgsec.graphs.generate import generate_motifs
from fkgsec.graphs.split import by_chance
from fkgsec.kge.models import ENCODERS
from fkgsec.kge.options import NUM_NEGATIVES, KgeOptions
from fkgsec.kge.result import KgeResult
from tests.contracts.test_defenses import ALONE

ROUNDS = 5
OPTIONS: dict[str, RunOptions[Any]] = {
    "kge": KgeOptions(
        dim=8, batch_size=32, num_negatives=7, local_epochs=1, learning_rate=0.05, eval_every=2, patience=0, seed=5,
        device="cpu",
    ),
    "graph": GnnOptions(width=8, batch_size=16, eval_every=2, seed=6, device="cpu"),
}  # fmt: skip
CUT = {"epsilon1": 100.0, "epsilon2": 0.0, "first_cut": 0}
SMALL: dict[str, dict[str, Any]] = {
    "fede-svd": {"rank": 1, "columns": 2},
    "fede-svd+": {"rank": 1, "columns": 2},
    "cefgl": {"exchange": 1.0},
    "gcfl": CUT,
    "gcfl+": {**CUT, "seq_length": 1},
    "gcfl+dws": {**CUT, "seq_length": 1, "standardize": True},
}
"""Settings by which an algorithm fits rows of eight numbers, or does within five rounds what it does late or seldom."""
TOGETHER = {"columns": {"rank": 4}, "drop_alpha": {"drop_beta": 2.0}, "drop_beta": {"drop_alpha": 2.0}}
"""What must be set beside a setting."""
every_algorithm = pytest.mark.parametrize("algorithm", RECIPES)
federated = pytest.mark.parametrize("algorithm", [name for name, recipe in RECIPES.items() if recipe.shared])


def options_of(algorithm: str, **changes: Any) -> RunOptions[Any]:
    return replace(
        OPTIONS[RECIPES[algorithm].task], algorithm=algorithm, **{"rounds": ROUNDS} | SMALL.get(algorithm, {}) | changes
    )


@pytest.fixture(scope="module")
def graphs(uneven: FederatedGraph) -> dict[str, Any]:
    """By task, data of three clients of different size; the last one's graphs are all for training."""
    motifs = by_chance(generate_motifs(1, clients=1, size=90)[0], clients=3, seed=0)
    few = dataclasses.replace(
        motifs.clients[2], graphs=motifs.clients[2].graphs.subset(range(3)),
        train=np.arange(3), valid=np.arange(0), test=np.arange(0),
    )  # fmt: skip
    return {"kge": uneven, "graph": dataclasses.replace(motifs, clients=(*motifs.clients[:2], few))}


# Settings.


def other_value(field: SettingField) -> Any:
    """An allowed value that is not the default."""
    if field.kind is bool:
        return not field.default
    if field.choices:
        return next(word for word in field.choices if word != field.default)
    for value in (field.default / 2, field.default + 1, field.default - 1):
        inside = (field.low is None or value > field.low) and (field.high is None or value <= field.high)
        if inside and field.kind(value) == value:
            return field.kind(value)
    raise AssertionError(f"no other value of {field.name}")


def forbidden_values(field: SettingField) -> list[Any]:
    if field.kind is bool:
        return [2]
    if field.choices:
        return ["no such word"]
    below = [] if field.low is None else [field.low if field.above else field.low - 1]
    return [float("nan"), float("inf"), *below, *([] if field.high is None else [field.high + 1])]


@every_algorithm
def test_settings_survive_documents_tell_runs_apart_and_are_checked(algorithm: str, graphs: dict[str, Any]) -> None:
    task = RECIPES[algorithm].task
    plain = type(OPTIONS[task])(algorithm=algorithm)
    for field in fields_of(RECIPES[algorithm].settings):
        assert getattr(plain.settings, field.name) == field.default
        for value in forbidden_values(field):
            with pytest.raises(SpecError, match=field.name):
                replace(plain, **{field.name: value})
        with_others = TOGETHER.get(field.name, {})
        options = replace(plain, **with_others, **{field.name: (value := other_value(field))})
        assert getattr(options.settings, field.name) == value
        assert options.settings.given() == {**with_others, field.name: value}
        document = msgspec.json.decode(msgspec.json.encode(options))
        assert msgspec.convert(nested(flat(document)), type(options)) == options
        assert run_identity(graphs[task], options) != run_identity(graphs[task], plain)
        spec = make_spec(None, {"algorithm": algorithm, field.name: value} | with_others)
        assert getattr(spec.settings, field.name) == value
    for name in all_settings(task).keys() - {f.name for f in fields_of(RECIPES[algorithm].settings)}:
        with pytest.raises(SpecError, match=f"^{name} does not apply to {algorithm.replace('+', '[+]')},"):
            replace(plain, **{name: 1})


# Resumed runs.


KILLED_AFTER = 3
"""A round without a validation: the best round's state is that of an earlier one."""


class KeepOne(Observer):
    """Puts one round's checkpoint aside, as a kill after this round would leave it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def round_started(self, round: int, num_steps: int) -> None:
        if round == KILLED_AFTER + 1:
            (kept := self.folder.parent / "killed").mkdir()
            shutil.copy(self.folder / CHECKPOINT, kept)


class Trained(Observer):
    """Notes the rounds that were trained."""

    def __init__(self) -> None:
        self.rounds: list[int] = []

    def round_started(self, round: int, num_steps: int) -> None:
        self.rounds.append(round)


def assert_same(one: RunResult, other: RunResult) -> None:
    """All of two results but the clock."""
    ours, theirs = one.tensors(), other.tensors()
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert np.array_equal(tensor, theirs[name], equal_nan=tensor.is_floating_point()), name
    assert [replace_clock(entry) for entry in one.rounds] == [replace_clock(entry) for entry in other.rounds]
    assert one.best_round == other.best_round
    assert one.protection.lines() == other.protection.lines()
    for part in ("entries", "frames", "notes"):
        assert getattr(one.transcript, part) == getattr(other.transcript, part)


def replace_clock(entry: Any) -> Any:
    return msgspec.structs.replace(entry, seconds=0.0)


WITH_STATE: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in RECIPES),
    *(("fede", {"model": name, "num_negatives": NUM_NEGATIVES}) for name in ENCODERS),
    ("fede", {"model": "complex", "best_round": "client"}),
    ("pfedeg", {"affinity": "embedding", "start": "own"}),
    ("fedlu", {"variant": "published", "private_start": "server", "evaluate": "before", "negative_sides": "each"}),
    ("feds", {"sparse_rounds": 2, "participation": 1.0}),
    ("feds", {"sparse_rounds": 2, "defense": "secagg,suppress:t=2"}),
    *(("fede", {"defense": ALONE.get(kind, kind)}) for kind in KINDS),
    ("fede", {"defense": "psu,secagg:dropout=0.1,suppress:t=2,dp:clip=0.5,epsilon=5", "participation": 1.0}),
    ("fedr", {"defense": "secagg:bits=64,cipher=chacha20"}),
    ("fede-svd", {"defense": "psu,secagg,suppress:t=2"}),
    ("fedavg", {"select": "last"}),
    ("cefgl", {"exchange": 0.5, "rounding": "stochastic", "scale": "l2", "bits": 8, "correction": "printed"}),
    ("cefgl", {"start": "own", "upload": "both", "singular_threshold": 0.9, "drop_alpha": 1.0, "drop_beta": 1.0}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("algorithm", "changes"), WITH_STATE, ids=[f"{n} {' '.join(map(str, c.values()))}".strip() for n, c in WITH_STATE]
)
def test_a_stopped_run_goes_on_to_the_same_bits(
    algorithm: str, changes: dict[str, Any], graphs: dict[str, Any], tmp_path: Path
) -> None:
    """A run that writes a checkpoint after each round, a run from one of these, and the file of the last.

    FedE and FedAvg give the same without a folder, too.
    """
    shared, graph = RECIPES[algorithm].shared, graphs[RECIPES[algorithm].task]
    changes = {"participation": 0.67 if shared else 1.0} | changes
    options = options_of(algorithm, **changes, **({"protocol_seed": 0} if "defense" in changes else {}))
    (kept := tmp_path / "kept").mkdir()
    whole = run_federation(graph, options, kept, KeepOne(kept), checkpoint_every_s=0, make_transport=make_transport)
    if shared and "dropout" not in options.defense and algorithm != "cefgl":
        assert [entry.num_survivors for entry in whole.rounds] == [
            0,
            *ROUNDS * [3 if options.participation == 1 else 2],
        ]
    if algorithm in ("fede", "fedavg") and changes.keys() == {"participation"}:
        assert_same(run_federation(graph, options, make_transport=make_transport), whole)
    resumed = run_federation(graph, options, tmp_path / "killed", trained := Trained(), make_transport=make_transport)
    assert_same(resumed, whole)
    assert trained.rounds == list(range(KILLED_AFTER + 1, ROUNDS + 1))
    finished = run_federation(graph, options, kept, trained := Trained(), make_transport=make_transport)
    assert trained.rounds == []
    assert_same(finished, whole)
    whole.save(tmp_path / "result")
    assert_same(type(whole).load(tmp_path / "result", graph, options), whole)


# Secure sums.


@federated
def test_a_secure_sum_is_the_sum_in_clear_or_is_refused_beforehand(algorithm: str, graphs: dict[str, Any]) -> None:
    """Codecs that choose rows send all of them here, since sums are ranked by other counts; nothing is quantized, since random
    rounding makes a whole step of a fixed-point error."""
    recipe, graph = RECIPES[algorithm], graphs[RECIPES[algorithm].task]
    codec, aggregation = CODECS[recipe.codec], AGGREGATIONS[recipe.aggregation]
    own = {"sparsity": 1.0} if codec.chooses_rows else {"bits": 32} if recipe.codec == "quantised" else {}
    clear = options_of(algorithm, rounds=1, eval_every=1, **own)
    if aggregation.needs != "sum" or aggregation.answers == "personal rows" or aggregation.keeps_uploads:
        with pytest.raises(SpecError, match=re.escape(algorithm)):
            run_federation(graph, replace(clear, defense="secagg"), make_transport=make_transport)
        return
    plain = run_federation(graph, clear)
    for defense in ("secagg",) if codec.chooses_rows else ("secagg", "psu,secagg"):
        secure = run_federation(graph, replace(clear, defense=defense, protocol_seed=0), make_transport=make_transport)
        (opened,) = secure.transcript.opened(1)
        assert 0 < opened.error < 1e-3
        assert not [one for one in secure.transcript.messages(1) if isinstance(one, Rows) and one.receiver == SERVER]
        assert [entry.loss for entry in secure.rounds] == [entry.loss for entry in plain.rounds]
        ours, theirs = models_of(secure), models_of(plain)
        assert ours.keys() == theirs.keys()
        for name, tensor in ours.items():
            torch.testing.assert_close(tensor, theirs[name], atol=2 * opened.error, rtol=1e-5, msg=f"{defense}: {name}")


def models_of(result: RunResult) -> dict[str, Tensor]:
    """Every number of every client's models, by name."""
    return {name: one for name, one in result.tensors().items() if re.match(r"(tables|trained|private|models)\.", name)}


# What is learned, and what is refused.


def scores_of(result: Any) -> float:
    """How well all clients' test items are told: reciprocal ranks, or the share of graphs that are classified."""
    if isinstance(result, KgeResult):
        return float((1 / np.concatenate(result.test_ranks)).mean())
    return float(np.concatenate([one.correct for one in result.test]).mean())


def relabelled(graph: Any) -> Any:
    """The data with what is to be learned drawn anew: tails of training triples, classes of training graphs."""
    rng = np.random.default_rng(0)

    def shuffled(client: Any) -> Any:
        if isinstance(client, ClientGraph):
            heads, relations, tails = client.train.T
            return dataclasses.replace(client, train=np.stack([heads, relations, rng.permutation(tails)], axis=1))
        classes = client.graphs.classes.copy()
        classes[client.train] = rng.permutation(classes[client.train])
        return dataclasses.replace(client, graphs=dataclasses.replace(client.graphs, classes=classes))

    return dataclasses.replace(graph, clients=tuple(shuffled(client) for client in graph.clients))


LEARNING: dict[str, dict[str, Any]] = {
    "kge": {"dim": 32, "local_epochs": 2, "learning_rate": 0.02, "rounds": 12, "eval_every": 12},
    "graph": {
        "width": 16, "dropout": 0.0, "learning_rate": 0.01, "batch_size": 32, "rounds": 12, "eval_every": 12,
        "select": "last",
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def learnable() -> dict[str, Any]:
    return {
        "kge": generate_consortium(clients=3, size=600, seed=5),
        "graph": by_chance(generate_motifs(1, clients=1, size=300)[0], clients=2, seed=0),
    }


@pytest.fixture(scope="module")
def guessed(learnable: dict[str, Any]) -> dict[str, float]:
    """By task, what the plain algorithm scores if there is nothing to learn."""
    return {
        RECIPES[name].task: scores_of(
            run_federation(relabelled(learnable[RECIPES[name].task]), options_of(name, **LEARNING[RECIPES[name].task]))
        )
        for name in ("fede", "fedavg")
    }


@every_algorithm
def test_what_is_there_is_learned(algorithm: str, learnable: dict[str, Any], guessed: dict[str, float]) -> None:
    """Better than by a model of shuffled data."""
    task = RECIPES[algorithm].task
    learned = run_federation(learnable[task], options_of(algorithm, **LEARNING[task]))
    assert learned.rounds[-1].loss < learned.rounds[1].loss
    assert scores_of(learned) > guessed[task]


@every_algorithm
def test_numbers_that_run_away_end_the_run(algorithm: str, graphs: dict[str, Any]) -> None:
    options = options_of(algorithm, learning_rate=3e38)
    with pytest.raises(TrainingError, match=r"client .* in round 1|round 1, client "):
        run_federation(graphs[RECIPES[algorithm].task], options)


@every_algorithm
def test_a_round_whose_uploads_are_all_left_out_ends_nothing(algorithm: str, graphs: dict[str, Any]) -> None:
    """Training leaves values beyond the largest that an upload may have."""
    with contextlib.suppress(TrainingError):
        result = run_federation(graphs[RECIPES[algorithm].task], options_of(algorithm, learning_rate=1e15))
        assert {entry.num_survivors for entry in result.rounds[1:]} == {0}


@every_algorithm
def test_data_of_nobody_are_refused(algorithm: str, graphs: dict[str, Any]) -> None:
    graph = graphs[RECIPES[algorithm].task]
    with pytest.raises(FkgsecError):
        run_federation(dataclasses.replace(graph, clients=()), options_of(algorithm))
