"""Tables of unlearning: raw, re-trained and unlearned models from one base run, their records, and who counts them."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from fkgsec.attacks.membership.statistics import triple_scores
from fkgsec.errors import DataError, RunError, SpecError
from fkgsec.experiments.cli.progress import unobserved
from fkgsec.experiments.papers.estimates import Costs, Entry, Timed, Timings, entries_of
from fkgsec.experiments.papers.forgetting import FORGOTTEN_FILE, Forgotten, forget_sets, make_forgotten, read_forgotten
from fkgsec.experiments.papers.judging.admission import admit
from fkgsec.experiments.papers.judging.scoreboard import make_scoreboard
from fkgsec.experiments.papers.queue import wanted_runs
from fkgsec.experiments.papers.results import Results, read_records, run_key
from fkgsec.experiments.papers.runner import Outcome, run_experiment
from fkgsec.experiments.papers.spec import Experiment, find_experiment, read_experiment
from fkgsec.experiments.runs.run import load_run
from fkgsec.experiments.runs.spec import Spec
from fkgsec.unlearning.forget_sets import retaining

TABLE = """
title: A table
paper: Nobody 2024, Nothing
table: Table 2
paper_settings: {size: 300, dim: 4, batch_size: 64, num_negatives: 4, rounds: 2, patience: 0, eval_every: 1, clients: 2}
forget: 0.05
unlearning:
  paper_settings: {epochs: 2, learning_rate: 0.1}
  our_settings: {decay_epochs: {value: 1, why: quick}}
columns:
  - {name: local forget, level: local, triples: forget}
  - {name: global test, level: global, triples: test}
rows:
  - name: raw
    forgetting: {role: raw}
    paper_settings: {algorithm: fedlu}
    figures: {local forget: {hits@1: 0.4}, global test: {hits@1: 0.2}}
  - name: re-trained
    forgetting: {role: retrained}
    exceptions:
      local forget: {paper_settings: {algorithm: single}}
      global test: {paper_settings: {algorithm: collective}}
    figures: {local forget: {hits@1: 0.3}, global test: {hits@1: 0.2}}
  - name: unlearned
    forgetting: {role: unlearned}
    paper_settings: {algorithm: fedlu}
    figures: {local forget: {hits@1: 0.1}}
  - name: harder
    forgetting: {role: unlearned, our_settings: {epochs: {value: 4, why: tried}}}
    paper_settings: {algorithm: fedlu}
    figures: {}
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("table") / "tiny.yaml"
    path.write_text(TABLE)
    return path


@pytest.fixture(scope="module")
def table(path: Path) -> Experiment:
    return read_experiment(path)


@pytest.fixture(scope="module")
def made(path: Path) -> tuple[Path, Outcome]:
    out = path.parent / "made"
    return out, run_experiment(path, out=out, observe=unobserved)


def forgotten(out: Path) -> dict[str, Forgotten]:
    """By folder."""
    found = {place.parent.name: read_forgotten(place) for place in sorted(out.rglob(FORGOTTEN_FILE))}
    return {name: one for name, one in found.items() if one}


def test_every_cell_is_made_from_one_base_run(made: tuple[Path, Outcome], table: Experiment) -> None:
    out, outcome = made
    assert not outcome.failures
    assert [cell.status for cell in outcome.table.cells] == ["done"] * 8
    assert len(list((out / "bases").iterdir())) == 1
    records = forgotten(out)
    # A cell's columns share what is made; re-trained local and global are two runs.
    assert sorted(one.asked.role for one in records.values()) == [
        "raw", "retrained", "retrained", "unlearned", "unlearned",
    ]  # fmt: skip
    assert {one.run.spec.algorithm for one in records.values() if one.asked.role == "retrained"} == {
        "single", "collective",
    }  # fmt: skip
    assert len({one.forget_hash for one in records.values()}) == 1


def test_figures_are_means_over_clients_of_plain_ranks(made: tuple[Path, Outcome]) -> None:
    out, outcome = made
    one = next(one for one in forgotten(out).values() if one.asked.role == "raw")
    (base,) = (out / "bases").iterdir()
    spec, result = load_run(base)
    assert run_key(spec, attack=False) == run_key(one.spec, attack=False)
    asked = forget_sets(spec, result.graph, 0.05)
    by_client = []
    for place, client in enumerate(result.graph.clients):
        model, tables = result.predictor("private", place)
        known, hits = {tuple(row) for row in client.triples.tolist()}, list[float]()
        for head, relation, tail in asked[client.name].tolist():
            for side in ("tail", "head"):
                of = [
                    (head, relation, entity) if side == "tail" else (entity, relation, tail)
                    for entity in range(client.num_entities)
                ]
                own = tail if side == "tail" else head
                scores = triple_scores(model, tables.entities, tables.relations, np.array(of))
                others = [entity for entity in range(client.num_entities) if of[entity] not in known]
                better = (scores[others] > scores[own]).sum() + (scores[others] == scores[own]).sum() / 2
                hits.append(float(better < 1))
        by_client.append(np.mean(hits))
    figure = next(cell for cell in outcome.table.cells if cell.name == "raw local forget").figures[0]
    assert figure.ours
    assert figure.ours.value == pytest.approx(np.mean(by_client))


def test_raw_and_unlearned_models_differ_by_what_was_asked(made: tuple[Path, Outcome]) -> None:
    by_epochs = {one.asked.options.epochs: one for one in forgotten(made[0]).values() if one.asked.options}
    raw = next(one for one in forgotten(made[0]).values() if one.asked.role == "raw")
    few, more, none = (one.measure("mrr", "local", "forget") for one in (by_epochs[2], by_epochs[4], raw))
    assert not isinstance(few, str)
    assert not isinstance(more, str)
    assert not isinstance(none, str)
    assert few != none != more
    assert isinstance(raw.measure("mrr", "single", "forget"), str)


def test_a_second_start_makes_nothing_and_a_changed_or_foreign_record_is_refused(
    made: tuple[Path, Outcome], path: Path, tmp_path: Path
) -> None:
    out, outcome = made
    began = {place: place.stat().st_mtime_ns for place in out.rglob(FORGOTTEN_FILE)}
    assert run_experiment(path, out=out, observe=unobserved).table == outcome.table
    assert {place: place.stat().st_mtime_ns for place in out.rglob(FORGOTTEN_FILE)} == began
    one = next(one for one in forgotten(out).values() if one.asked.role == "raw")
    place = next(place for place in began if read_forgotten(place) == one)
    with pytest.raises(RunError, match="belongs to another cell"):
        make_forgotten(one.spec, msgspec.structs.replace(one.asked, forget=0.1), place.parent, base=out)
    changed = tmp_path / FORGOTTEN_FILE
    changed.write_bytes(place.read_bytes().replace(b'"seconds": 0.0', b'"seconds": 9.0'))
    with pytest.raises(RunError, match="has changed since it was written"):
        read_forgotten(changed)


def test_the_scoreboard_counts_them_and_their_base_run_counts_for_no_cell(
    made: tuple[Path, Outcome], table: Experiment
) -> None:
    records, unreadable = read_records([made[0]])
    clean = [
        msgspec.structs.replace(one, environment=msgspec.structs.replace(one.environment, dirty=False))
        for one in records
    ]
    clean = [
        msgspec.structs.replace(
            one, run=msgspec.structs.replace(one.run, environment=msgspec.structs.replace(one.environment, dirty=False))
        )
        if isinstance(one, Forgotten)
        else one
        for one in clean
    ]
    assert not unreadable
    assert len(clean) == 6
    assert not admit(clean).left_out
    [board] = make_scoreboard([table], clean)
    assert board.count("not run") == 0
    assert [cell.printed for cell in board.cells] == [True] * 5 + [False] * 3
    base_only = [one for one in clean if not isinstance(one, Forgotten)]
    assert make_scoreboard([table], base_only)[0].count("not run") == 5


def test_forget_sets_are_shares_of_each_client_or_published(table: Experiment, tmp_path: Path) -> None:
    spec = Spec(size=300, clients=2)
    graph = spec.load_graph()
    chosen = forget_sets(spec, graph, 0.05)
    for client in graph.clients:
        unique = np.unique(client.train, axis=0)
        assert len(chosen[client.name]) == max(1, round(0.05 * len(unique)))
    assert retaining(graph, chosen).hash != graph.hash
    assert all(
        np.array_equal(forget_sets(spec.replace(seed=9), graph, 0.05)[name], one) for name, one in chosen.items()
    )
    with pytest.raises(DataError):
        forget_sets(spec, graph, "published")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("    forgetting: {role: raw}\n", "", r"rows, raw: forgetting: missing in a table of unlearning"),
        ("level: local, ", "", r"columns, local forget: level and triples: missing"),
        ("forget: 0.05", "forget: 1.5", r"forget: a share between 0 and 1, or published; got 1.5"),
        ("epochs: 2,", "epochs: 0,", r"unlearned local forget: forgetting: epochs must be at least 1"),
        ("epochs: 2,", "epoch: 2,", r"forgetting: Object contains unknown field `epoch`"),
    ],
)
def test_a_table_that_is_wrong_is_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    (tmp_path / "table.yaml").write_text(TABLE.replace(old, new))
    with pytest.raises(SpecError, match=said):
        read_experiment(tmp_path / "table.yaml")


def test_fedlus_tables_share_the_runs_of_its_table_1() -> None:
    runs = {
        run_key(spec, attack=False)
        for cell in read_experiment(find_experiment("zhu2023_fedlu_table1")).cells
        for spec in cell.candidates
    }
    for number, printed in ((2, 36), (3, 36), (5, 36), (6, 36)):
        table = read_experiment(find_experiment(f"zhu2023_fedlu_table{number}"))
        assert sum(bool(cell.figures) for cell in table.cells) == printed
        for cell in table.cells:
            assert cell.asked
            shared = [run_key(spec, attack=False) in runs for spec in cell.candidates]
            # Re-training has margins, batches and validations of its own, as in the code.
            assert all(shared) or cell.asked.role == "retrained", cell.name
            assert len(shared) == (1 if cell.asked.role == "retrained" else 3)
        options = {cell.asked.options for cell in table.cells if cell.row == "TransE unlearned" and cell.asked}
        assert [(one.epochs, one.decay_epochs, one.mu_soft) for one in options if one] == [(10, 10, 0.1)]


@pytest.mark.slow
def test_jobs_beside_each_other_make_the_same(path: Path, made: tuple[Path, Outcome], tmp_path: Path) -> None:
    outcome = run_experiment(path, out=tmp_path / "out", observe=unobserved, jobs=2)
    assert not outcome.failures
    assert len(list((tmp_path / "out" / "bases").iterdir())) == 1
    here, there = forgotten(made[0]), forgotten(tmp_path / "out")
    assert {name: one.quality for name, one in here.items()} == {name: one.quality for name, one in there.items()}


def plan_in(folder: Path, table: Experiment) -> list[Entry]:
    timings = Timings(folder.parent / "cache", lambda spec, graph: Timed(1.0, 0.0, 300, 60, ""))
    costs = Costs([], timings=timings)
    return entries_of(wanted_runs([table], Results(), folder, num_seeds=1), costs)


def test_the_plan_counts_the_base_run_until_it_is_there(tmp_path: Path, table: Experiment) -> None:
    plan = plan_in(tmp_path / "all", table)
    assert len(plan) == 5
    raw = next(one for one in plan if "tiny: raw local forget" in one.job.cells)
    assert raw.job.cells == ("tiny: raw local forget", "tiny: raw global test")
    assert raw.estimate.rounds == 2 + 1
    assert "1 more to unlearn and measure" in raw.estimate.says
    others = [one.estimate.rounds for one in plan if one.job.base == raw.job.base and one is not raw]
    assert others
    assert all("its run is there" in one.estimate.says for one in plan if one.job.base and one is not raw)
    base = next(one.job.base for one in plan if one.job.base)
    base.mkdir(parents=True)
    (base / "record.json").write_text("{}")
    again = next(one for one in plan_in(tmp_path / "all", table) if one.job.folder == raw.job.folder)
    assert again.estimate.rounds == 1
