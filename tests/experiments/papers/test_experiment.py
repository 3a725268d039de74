"""`fkgsec experiment`: the papers' tables as files, run cell by cell, and the paper's figures beside ours."""

import functools
import json
import os
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from fkgsec.data.catalogue import DATA_VARIABLE, find_dataset
from fkgsec.data.graph import FederatedGraph
from fkgsec.errors import RunError, SpecError
from fkgsec.estimate import Estimate, exact
from fkgsec.experiments.cli.progress import unobserved
from fkgsec.experiments.papers.cli import experiment_app
from fkgsec.experiments.papers.queue import run_name, unfinished
from fkgsec.experiments.papers.results import Results, read_records, run_key
from fkgsec.experiments.papers.runner import run_experiment
from fkgsec.experiments.papers.spec import (
    Cell,
    Experiment,
    find_experiment,
    read_experiment,
    select_cells,
    shipped_experiments,
)
from fkgsec.experiments.papers.table import Figure, PaperTable, TableCell, table_lines, table_of
from fkgsec.experiments.reporting.summary import __file__ as summary_file
from fkgsec.experiments.runs.record import Record, read_record
from fkgsec.experiments.runs.run import check_run
from fkgsec.experiments.runs.spec import GraphSpec, Spec
from fkgsec.federation.checkpoint import RoundEntry
from fkgsec.federation.loop import Observer
from fkgsec.federation.options import replace
from fkgsec.federation.recipes import RECIPES
from fkgsec.federation.settings import fields_of
from fkgsec.graphs.collection import KNOWN, sets_of

SHIPPED = shipped_experiments()
TINY = """
title: Two federations of hospitals
paper: Nobody 2024, Nothing
table: Table 9
notes: [A note of the file.]
paper_settings: {size: 300, dim: 4, batch_size: 64, num_negatives: 4, rounds: 2, patience: 0}
our_settings:
  eval_every: {value: 1, why: the paper validates and does not say when}
columns:
  - {name: two, paper_settings: {clients: 2}}
  - {name: absent, missing: nobody has these data}
  - {name: three, paper_settings: {clients: 3}}
rows:
  - name: TransE FedE
    paper_settings: {model: transe, algorithm: fede}
    baseline: TransE FedE
    figures:
      two: {mrr: 0.5, p@cg: 1}
      absent: {mrr: 0.4, p@cg: 1}
      three: {mrr: 0.3, p@cg: 1}
  - name: TransE FedR
    paper_settings: {model: transe, algorithm: fedr}
    baseline: TransE FedE
    figures:
      two: {mrr: null, p@cg: 0.5}
      three: {mrr: 0.2, p@cg: 0.25}
"""


@functools.cache
def shipped(name: str) -> Experiment:
    return read_experiment(SHIPPED[name])


@functools.cache
def committed(name: str) -> Record:
    return read_record(Path(summary_file).resolve().parents[2] / "results" / f"{name}.json")


def write(folder: Path, text: str, name: str = "tiny") -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(text)
    return path


def invoke(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(experiment_app, [str(one) for one in arguments], catch_exceptions=False)
    return result.exit_code, result.stdout, result.stderr


def cell_of(table: PaperTable, name: str) -> TableCell:
    return next(cell for cell in table.cells if cell.name == name)


def figure_of(table: PaperTable, name: str, metric: str) -> Figure:
    return next(figure for figure in cell_of(table, name).figures if figure.metric == metric)


# The shipped files.

# What a run hangs on: a file must say each of these, so that another default of ours changes no experiment.
STATED = {
    "data", "algorithm", "model", "dim", "gamma", "init_epsilon", "batch_size", "num_negatives", "temperature", "learning_rate",
    "local_epochs", "rounds", "eval_every", "patience", "participation", "negative_sides", "eval_sides", "negative_scope",
    "rank_scope",
}  # fmt: skip
STATED_OF_GRAPHS = {
    "data", "algorithm", "model", "layers", "width", "dropout", "readout", "batch_size", "learning_rate", "weight_decay",
    "optimizer", "local_epochs", "rounds", "eval_every", "patience", "participation", "select",
}  # fmt: skip


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_file_is_valid_and_says_all_that_a_run_hangs_on(name: str) -> None:
    assert re.fullmatch(r"[a-z]+20\d\d_[a-z]+_(table|figure)\d+(_cpu|_small|_clean|_text)?", name)
    experiment = shipped(name)
    assert experiment.notes
    named = [run_name(cell, spec) for cell in experiment.cells for spec in cell.candidates]
    assert len(set(named)) == len(named)
    # A table compares its rows within one model and column.
    temperatures: dict[tuple[str, str], float] = {}
    for cell in experiment.cells:
        assert (cell.spec is None) == bool(cell.missing)
        assert cell.figures or "_figure" in name or " unlearned-" in cell.name, cell.name
        assert all(value is None or 0 <= value < 22_000 for value in cell.figures.values())
        if cell.spec is None:
            continue
        if isinstance(cell.spec, GraphSpec):
            assert not STATED_OF_GRAPHS - set(cell.stated), cell.name
            assert set(sets_of(cell.spec.data)) <= set(KNOWN), cell.name
        else:
            assert not STATED - set(cell.stated), cell.name
            find_dataset(cell.spec.data)
            used = cell.spec.sampling_temperature
            assert temperatures.setdefault((cell.spec.model, cell.column), used) == used, cell.name
        settings = {one.name for one in fields_of(RECIPES[cell.spec.algorithm].settings)}
        # Only FedLU's tables choose between the text and FedLU's code; all tables have the papers' clients alone.
        settings -= {"baseline"} if "fedlu" in name else {"baseline", "variant"}
        assert not settings - set(cell.stated), cell.name


# Read off the papers' pages, not off the files.
@pytest.mark.parametrize(
    ("name", "cell", "settings", "figures"),
    [
        ("zhang2024_feds_table2", "TransE FedEP R10", {"dim": 256, "gamma": 8, "learning_rate": 1e-4, "temperature": 1},
         {"mrr": 0.3517, "hits@10": 0.6104}),
        ("zhang2024_feds_table2", "RotatE Single R5", {"algorithm": "single", "eval_every": 10, "data": "FB15k-237-R5"},
         {"mrr": 0.3193, "hits@10": 0.5335}),
        ("zhang2024_feds_table2", "ComplEx FedS R5", {"sparsity": 0.7, "sparse_rounds": 4, "temperature": 0},
         {"mrr": 0.3029, "hits@10": 0.5189}),
        ("zhang2024_feds_table2", "ComplEx FedS R3", {"sparsity": 0.4}, {"mrr": 0.3170, "hits@10": 0.5252}),
        ("zhang2024_feds_table3", "RotatE FedS R3", {}, {"p@cg": 0.6616, "p@99": 0.8511, "p@98": 0.7334}),
        ("zhang2024_feds_table4", "TransE FedEPL R3", {"algorithm": "fedepl"}, {"mrr": 0.3501, "r@cg": 185}),
        ("zhang2024_feds_table1", "RotatE FedE-SVD+ R5", {"rank": 5, "columns": 8, "mu": 0.05}, {"p@98": 2.23}),
        ("zhang2024_feds_table1", "TransE FedE-KD R10", {"shared_dim_ratio": 0.75}, {"p@98": 1.75}),
        ("zhu2023_fedlu_table1", "ComplEx FedLU (local) C5", {"mu": 2, "variant": "published", "patience": 3},
         {"hits@1": 0.2405, "hits@3": 0.4174, "hits@10": 0.5811, "mrr": 0.3566}),
        ("zhu2023_fedlu_table1", "ComplEx FedLU (global) C3", {"algorithm": "fedlu"},
         {"hits@1": 0.2358, "hits@3": 0.4150, "hits@10": 0.5794, "mrr": 0.3537}),
        ("zhu2023_fedlu_table1", "RotatE FedProx C3", {"mu": 0.1, "local_epochs": 3},
         {"hits@1": 0.2607, "hits@3": 0.4501, "hits@10": 0.6171, "mrr": 0.3833}),
        ("zhu2023_fedlu_table4", "TransE Centralized R10", {"algorithm": "collective", "data": "FB15k-237-R10"},
         {"hits@1": 0.1948, "hits@3": 0.3843, "hits@10": 0.5686, "mrr": 0.3221}),
        ("zhang2024_pfedeg_table1", "RotatE PFedEG+ Fed10", {"affinity": "embedding", "mu": 0.003, "eval_sides": "tail"},
         {"mrr": 0.4473, "hits@1": 0.3157, "hits@5": 0.6091, "hits@10": 0.6995}),
        ("zhang2024_pfedeg_table2", "ComplEx PFedEG* Fed3", {"affinity": "shared", "mu": 0.0005, "dim": 128},
         {"mrr": 0.4050, "hits@1": 0.2994, "hits@5": 0.5298, "hits@10": 0.6129}),
        ("zhang2024_pfedeg_table3", "RotatE PFedEG+_Init Fed5", {"mu": 0, "start": "received"}, {"mrr": 0.4335}),
        ("zhang2024_pfedeg_table3", "ComplEx PFedEG+_Reg Fed3", {"start": "own"}, {"mrr": 0.3942}),
        ("zhang2022_fedr_table2", "DistMult FedR DDB14 C5", {"data": "DDB14-Fed5", "rounds": 300}, {"mrr": 0.4219}),
        ("zhang2022_fedr_table2", "RotatE Local WN18RR C20", {"clients": 20, "partition": "triples"}, {"mrr": 0.0155}),
        ("zhang2022_fedr_table1", "C3 LR 50%", {"data": "FB15k-237", "clients": 3, "leak": (0.3, 0.5, 1.0)},
         {"err": 0.4846, "trr": 0.1956}),
        ("zhang2022_fedr_table4", "C2 w/o WN18RR", {"algorithm": "fedr", "threat": ("collusion+entities",), "defense": ""},
         {"err": 0.0022, "trr": 0.000989}),
        ("zhang2022_fedr_table4", "C3 w DDB14", {"data": "DDB14-Fed3", "defense": "psu,secagg"}, {"err": 0, "trr": 0}),
        ("zhang2022_fedr_table5", "TransE Local WN18RR C10", {"clients": 10}, {"entities": 13112.2, "relations": 11}),
        ("zhang2022_fedr_figure3", "DistMult FedE DDB14 C5", {"algorithm": "fede"}, {"rounds@0.4": 45}),
        ("zhang2022_fedr_figure4", "RotatE FedR WN18RR C5", {"rounds": 300}, {}),
        ("zhang2024_feds_table5", "TransE FedS E4", {"local_epochs": 4, "data": "FB15k-237-R10"},
         {"mrr": 0.3535, "hits@10": 0.6114, "p@cg": 0.4190, "p@99": 0.5238, "p@98": 0.4802}),
        ("zhang2024_feds_table6", "TransE FedEP B128", {"batch_size": 128},
         {"mrr": 0.3538, "hits@10": 0.6156, "p@cg": 1, "p@99": 1, "p@98": 1}),
        ("zhang2024_feds_figure2", "RotatE FedS/syn R3", {"sparse_rounds": 0, "sparsity": 0.4}, {}),
        ("zhang2024_pfedeg_figure4", "RotatE PFedEG+ E5 B64", {"local_epochs": 5, "batch_size": 64}, {}),
        ("zhang2024_pfedeg_figure5", "RotatE PFedEG+ R10 F0.3", {"participation": 0.3, "data": "FB15k-237-R10"}, {}),
        ("liu2024_cefgl_table1", "GCN FedStar BIO_SN_CV", {"algorithm": "fedstar", "layers": 2}, {"accuracy": 0.7178}),
        ("liu2024_cefgl_table1", "SAGE CEFGL ALL", {"model": "sage", "exchange": 0.5, "bits": 4}, {"accuracy": 0.7569}),
        ("liu2024_cefgl_table1_cpu", "GIN FedPer CHEM", {"algorithm": "fedavg", "share": "encoder"}, {"accuracy": 0.7391}),
        ("liu2024_cefgl_table2", "GIN SpreadGNN DD", {"clients": 10, "partition": "random"}, {"accuracy": 0.6862}),
        ("liu2024_cefgl_table2", "GIN FedAvg NCI1", {"algorithm": "fedavg", "share": "encoder"}, {"accuracy": 0.6610}),
        ("liu2024_cefgl_table2", "GIN FedProx NCI1", {"share": "encoder"}, {"accuracy": 0.6418}),
        ("liu2024_cefgl_table2_cpu", "GCN FedPer NCI1", {"algorithm": "fedper", "data": "NCI1"}, {"accuracy": 0.6640}),
        ("liu2024_cefgl_table3", "singular 0.01 CHEM", {"singular_threshold": 0.01}, {"accuracy": 0.8521}),
        ("liu2024_cefgl_table4", "sparse 0.00005 CHEM", {"sparse_threshold": 0.00005}, {"accuracy": 0.8381}),
        ("liu2024_cefgl_table5", "shared part alone CHEM", {"components": "shared"}, {"accuracy": 0.6642}),
    ],
)  # fmt: skip
def test_cells_have_the_papers_settings_and_figures(
    name: str, cell: str, settings: dict[str, Any], figures: dict[str, float]
) -> None:
    found = next(one for one in shipped(name).cells if one.name == cell)
    assert found.spec
    assert {option: found.spec.document()[option] for option in settings} == settings
    assert found.figures == figures


def test_fedepl_has_the_dimensions_of_the_papers_appendix() -> None:
    cells = {cell.name: cell.spec for cell in shipped("zhang2024_feds_table4").cells}
    dims = {name: spec.kge_model().dim for name, spec in cells.items() if spec and spec.algorithm == "fedepl"}
    assert dims.pop("ComplEx FedEPL R5") == 196
    assert set(dims.values()) == {135}


def test_tables_of_the_same_runs_share_them() -> None:
    second, third, fourth = (shipped(f"zhang2024_feds_table{number}") for number in (2, 3, 4))
    ran = {cell.name: cell.spec for cell in second.cells}
    assert all(ran[cell.name] == cell.spec for cell in third.cells)
    assert all(ran[cell.name] == cell.spec for cell in fourth.cells if "FedS" in cell.name)


def test_fedlus_figures_are_drawn_from_runs_of_its_tables() -> None:
    runs = {
        number: {
            run_key(spec, attack=False) for cell in shipped(f"zhu2023_fedlu_{number}").cells for spec in cell.candidates
        }
        for number in ("figure3", "figure5", "figure6", "figure7", "table1", "table4")
    }
    assert all(runs[number] <= runs["table1"] | runs["table4"] for number in runs)


def test_two_rows_of_one_run_run_it_once() -> None:
    cells = shipped("zhu2023_fedlu_table1_cpu").cells
    left = unfinished(cells, [0, 1], Results())
    assert len(cells) == 9
    assert [spec.seed for _, spec in left] == [0] * 11 + [1] * 11
    fedlu = [spec for cell, spec in left[:11] if cell.row == "TransE FedLU (local)"]
    assert [spec.gamma for spec in fedlu] == [10, 20, 50]


@pytest.mark.parametrize("name", [name for name in SHIPPED if re.match(r"zhu2023_fedlu_table[14]", name)])
def test_fedlus_tables_are_run_as_its_code_does(name: str) -> None:
    """Where the paper is silent: what is judged when, what both models start from, heads and tails of every batch, and gamma."""
    cells = [cell for cell in shipped(name).cells if cell.spec]
    for cell in cells:
        algorithm, model = cell.candidates[0].algorithm, cell.candidates[0].model
        federated = algorithm not in ("single", "collective")
        assert {spec.negative_sides for spec in cell.candidates} == {"each"}
        assert {spec.document().get("evaluate") for spec in cell.candidates} == {"before" if federated else None}
        assert {spec.document().get("private_start") for spec in cell.candidates} == {
            "server" if algorithm == "fedlu" else None
        }
        swept = algorithm == "fedlu" or (federated and model == "complex")
        assert [spec.gamma for spec in cell.candidates] == ([10, 20, 50] if swept else [9]), cell.name
    assert {cell.spec.algorithm for cell in cells if cell.spec} == {
        "single", "collective", "fede", "fedprox", "fedec", "fedlu"
    }  # fmt: skip


def test_a_small_variant_is_another_table_with_settings_of_ours(tmp_path: Path) -> None:
    exception = "    exceptions: {two: {paper_settings: {dim: 3}}}\n    figures:\n      two: {mrr: 0.5"
    write(tmp_path, TINY.replace("    figures:\n      two: {mrr: 0.5", exception), "whole")
    text = "base: whole\ntitle: Small\nonly: two\nnotes: [Smaller.]\nour_settings: {dim: {value: 2, why: fast}}\n"
    small, whole = read_experiment(write(tmp_path, text, "small")), read_experiment(tmp_path / "whole.yaml")
    assert [cell.name for cell in small.cells] == ["TransE FedE two", "TransE FedR two"]
    assert small.notes == ("A note of the file.", "Smaller.")
    first = small.cells[0]
    assert first.spec
    assert (first.spec.dim, first.spec.rounds, first.stated["dim"], first.stated["rounds"]) == (2, 2, "fast", None)
    assert first.figures == whole.cells[0].figures
    assert whole.cells[0].stated["dim"] is None
    assert [cell.spec.dim for cell in whole.cells if cell.spec] == [3, 4, 4, 4]
    everywhere = ["all cells", "two", "three", "TransE FedE", "TransE FedE two", "TransE FedR"]
    assert list(dict.fromkeys(one.where for one in whole.settings)) == everywhere
    everywhere[2:3] = []
    assert list(dict.fromkeys(one.where for one in small.settings)) == [*everywhere, "all cells, above all"]


# Wrong files.


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("notes:", "nots:", "Object contains unknown field `nots`"),
        ("table: Table 9", "", "Object missing required field `table`"),
        ("algorithm: fedr", "algorithm: fedx", "TransE FedR two: algorithm must be one of single, "),
        ("rounds: 2", "rouns: 2", "no option 'rouns'; did you mean rounds?"),
        ("rounds: 2", "rounds: many", "TransE FedE two: rounds must be a whole number; got 'many'"),
        ("rounds: 2", "rounds: 0", "TransE FedE two: rounds must be at least 1; got 0"),
        ("rounds: 2", "eval_every: 2", "eval_every is both the paper's and ours"),
        ("rounds: 2", "seed: 2", "seed: use seeds, a list, at the top"),
        ("two: {mrr: 0.5", "two: {mrx: 0.5", "rows, TransE FedE.figures[...]: Invalid enum value 'mrx'"),
        ("two: {mrr: 0.5", "two: {mrr: high", "rows, TransE FedE.figures[...][...]: Expected `float | null`, got `str`"),
        ("      two: {mrr: 0.5", "      four: {mrr: 0.5", "TransE FedE: figures: no column 'four'; allowed: two, absent, three"),
        ("    baseline: TransE FedE\n    figures:\n      two: {mrr: 0.5", "    figures:\n      two: {mrr: 0.5",
         "rows, TransE FedE: baseline: p@cg need one"),
        ("baseline: TransE FedE", "baseline: FedE", "baseline: no row 'FedE'; allowed: TransE FedE, TransE FedR"),
        ("name: TransE FedR", "name: TransE FedE", "rows: 'TransE FedE' stands twice"),
        ("name: three", "name: two", "columns: 'two' stands twice"),
        ("{mrr: 0.5,", "{err: 0.5,", "err and trr need attack: true"),
        ("value: 1, ", "value: 1, wy: none, ", "our_settings[...]: Object contains unknown field `wy`"),
        ("{value: 1, why: the paper validates and does not say when}", "{value: 1}", "missing required field `why`"),
        ("title:", "seeds: [1, 1]\ntitle:", "seeds: different numbers from 0 on are needed; got [1, 1]"),
        ("title:", "seeds: []\ntitle:", "seeds: different numbers from 0 on are needed; got []"),
        ("columns:", "columns: [", "not YAML"),
        ("title:", "base: elsewhere\ntitle:", "unknown field"),
        ("baseline: TransE FedE", "choose: {option: gamma, values: [1], why: x}\n    baseline: TransE FedE",
         "rows, TransE FedE: choose: values: different ones, two or more, are needed; got [1]"),
        ("baseline: TransE FedE", "choose: {option: gamma, values: [2, 1, 2], why: x}\n    baseline: TransE FedE",
         "rows, TransE FedE: choose: values: different ones, two or more, are needed; got [2, 1, 2]"),
        ("baseline: TransE FedE", "choose: {option: gama, values: [1, 2], why: x}\n    baseline: TransE FedE",
         "TransE FedE two: no option 'gama'; did you mean gamma?"),
        ("baseline: TransE FedE", "choose: {option: gamma, values: [1, x], why: x}\n    baseline: TransE FedE",
         "TransE FedE two: gamma must be a number; got 'x'"),
        ("baseline: TransE FedE", "choose: {option: seed, values: [1, 2], why: x}\n    baseline: TransE FedE",
         "TransE FedE two: seed: use seeds, a list, at the top"),
        ("baseline: TransE FedE", "choose: {option: gamma, values: [1, 2]}\n    baseline: TransE FedE",
         "missing required field `why`"),
    ],
)  # fmt: skip
def test_wrong_files_are_one_line_with_file_and_field(old: str, new: str, says: str, tmp_path: Path) -> None:
    assert old in TINY
    path = write(tmp_path, TINY.replace(old, new, 1))
    with pytest.raises(SpecError) as caught:
        read_experiment(path)
    assert str(caught.value).startswith(f"{path}:")
    assert says in str(caught.value)


def test_names_that_are_nothing(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="did you mean zhang2024_feds_table2"):
        find_experiment("zhang2024_fed_table2")
    with pytest.raises(SpecError, match="`fkgsec experiment list` names the shipped ones") as caught:
        find_experiment("x")
    assert invoke("run", "x", "--out", tmp_path / "out") == (2, "", f"fkgsec: {caught.value}\n")
    assert not (tmp_path / "out").exists()


# Choosing cells.


@pytest.mark.parametrize(
    ("only", "number"),
    [
        ("", 27), ("TransE R3 FedS", 1), ("transe r3 feds", 1), ("TransE R3", 3), ("TransE R3, RotatE", 12), ("R1", 9),
        ("FedS,", 9), ("Fed", 18), ("plEx", 9), ("TransE RotatE, R10 Single", 3),
    ],
)  # fmt: skip
def test_only_takes_cells_by_the_words_of_their_names(only: str, number: int) -> None:
    assert len(select_cells(shipped("zhang2024_feds_table2").cells, only)) == number


def test_a_whole_word_means_that_word() -> None:
    cells = shipped("zhang2024_feds_table1").cells
    assert {cell.row for cell in select_cells(cells, "FedE")} == {"TransE FedE", "RotatE FedE"}
    assert {cell.row for cell in select_cells(cells, "TransE FedE-SVD")} == {"TransE FedE-SVD"}
    assert {cell.row for cell in select_cells(cells, "TransE SVD")} == {"TransE FedE-SVD", "TransE FedE-SVD+"}


def test_a_filter_that_leaves_nothing() -> None:
    with pytest.raises(SpecError, match="only: no cell has 'TransE DistMult'"):
        select_cells(shipped("zhang2024_feds_table2").cells, "TransE DistMult")


# Running.


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny grid, finished but for one cell, in the folder `out`."""
    folder = tmp_path_factory.mktemp("experiment")
    path = write(folder, TINY)
    outcome = run_experiment(path, out=folder / "out", observe=unobserved, only="FedE, FedR two")
    assert not outcome.failures
    return folder


def finished_runs(folder: Path) -> dict[str, int]:
    return {path.parent.name: path.stat().st_mtime_ns for path in folder.glob("*/checkpoint.safetensors")}


def test_every_cell_is_a_run_of_its_own_and_the_table_says_what_is_missing(ran: Path) -> None:
    out = ran / "out"
    assert set(finished_runs(out)) == {"TransE-FedE-two-seed0", "TransE-FedE-three-seed0", "TransE-FedR-two-seed0"}
    table = msgspec.json.decode((out / "table.json").read_bytes(), type=PaperTable)
    assert [(cell.name, cell.status, cell.seeds) for cell in table.cells] == [
        ("TransE FedE two", "done", [0]), ("TransE FedE absent", "not at hand", []), ("TransE FedE three", "done", [0]),
        ("TransE FedR two", "done", [0]), ("TransE FedR absent", "not at hand", []), ("TransE FedR three", "not run", []),
    ]  # fmt: skip
    record = read_record(out / "TransE-FedE-two-seed0" / "record.json")
    assert (record.spec.clients, record.spec.algorithm, record.figures) == (2, "fede", [])
    mrr = figure_of(table, "TransE FedE two", "mrr")
    assert mrr.ours == record.utility["mrr"]
    assert mrr.difference == pytest.approx(record.utility["mrr"].value - 0.5)
    assert figure_of(table, "TransE FedR two", "mrr").difference is None
    assert figure_of(table, "TransE FedR three", "mrr") == Figure("mrr", 0.2, None, None)
    assert figure_of(table, "TransE FedE absent", "mrr") == Figure("mrr", 0.4, None, None)
    relative = figure_of(table, "TransE FedR two", "p@cg")
    base = figure_of(table, "TransE FedE two", "p@cg").ours
    assert base
    assert relative.ours
    assert (base.value, base.method) == (1.0, "exact")
    # By hand: bytes both ways until the best round, over those of FedE.
    sent = {}
    for name in ("FedE", "FedR"):
        one = read_record(out / f"TransE-{name}-two-seed0" / "record.json")
        sent[name] = sum(entry.bytes_up + entry.bytes_down for entry in one.rounds if entry.round <= one.best_round)
    assert relative.ours.value == sent["FedR"] / sent["FedE"] < 1
    assert relative.difference == pytest.approx(sent["FedR"] / sent["FedE"] - 0.5)


def test_the_written_table_tells_whose_each_value_is(ran: Path) -> None:
    text = (ran / "out" / "table.md").read_text()
    assert (ran / "out" / "table.png").read_bytes().startswith(b"\x89PNG")
    assert "| TransE FedR three | 0.2000 | not run |  |  |" in text
    assert "| TransE FedE absent | 0.4000 | not at hand |  |  |" in text
    assert "* Not at hand: nobody has these data" in text
    assert "* A note of the file." in text
    assert "| all cells | dim | 4 | the paper's |  |" in text
    assert "| all cells | eval_every | 1 | ours | the paper validates and does not say when |" in text
    assert "| TransE FedR | algorithm | fedr | the paper's |  |" in text
    assert re.search(r"\| TransE FedE two \| 0\.5000 \| 0\.\d{4} \[0\.\d{4}, 0\.\d{4}\] \| -0\.\d{4} \| 0 \|", text)


def test_finished_cells_are_not_run_again_wherever_they_lie(ran: Path) -> None:
    before = finished_runs(ran / "out")
    status, out, err = invoke("run", ran / "tiny.yaml", "--out", ran / "out", "--only", "FedE")
    assert status == 0
    assert "3 cells of 6, 0 runs to make" in err
    assert "TransE FedE two" in out
    assert finished_runs(ran / "out") == before
    status, _, err = invoke(
        "run", ran / "tiny.yaml", "--out", ran / "new", "--reuse", ran / "out", "--only", "FedE two"
    )
    assert status == 0
    assert "1 cell of 6, 0 runs to make" in err
    assert not finished_runs(ran / "new")
    assert "0.5000" in (ran / "new" / "table.md").read_text()


def test_the_table_from_records_alone(ran: Path) -> None:
    status, out, _ = invoke("show", ran / "tiny.yaml", ran / "out", "--only", "FedE", "--out", ran / "shown")
    assert status == 0
    assert "TransE FedE two" in out
    assert "FedR" not in out
    assert all(len(line) <= 80 for line in out.splitlines() if line.startswith("TransE"))
    assert (ran / "shown" / "table.json").read_bytes() == (ran / "out" / "table.json").read_bytes()
    one = ran / "out" / "TransE-FedR-two-seed0" / "record.json"
    status, out, _ = invoke("show", ran / "tiny.yaml", one, "--only", "FedR two")
    assert status == 0
    assert "its baseline is not run" in out
    status, _, err = invoke("show", ran / "tiny.yaml", ran / "nowhere")
    assert (status, err) == (2, f"fkgsec: {ran / 'nowhere'}: is not there\n")


def test_a_damaged_record_is_named_and_made_again(ran: Path, tmp_path: Path) -> None:
    record = tmp_path / "x" / "record.json"
    record.parent.mkdir()
    record.write_text("{}")
    status, _, err = invoke("show", ran / "tiny.yaml", ran / "out", tmp_path)
    assert status == 0
    assert err.startswith(f"warning: {record}: not a record")
    with pytest.raises(RunError, match="not a record"):
        read_records([record])


class Killed(Observer):
    """Stops the process, as it were, once a round is done."""

    def round_done(self, entry: RoundEntry) -> None:
        if entry.round == 1:
            raise KeyboardInterrupt


def test_a_killed_run_goes_on_and_a_failed_cell_stops_no_other(tmp_path: Path) -> None:
    text = TINY.replace(
        "absent, missing: nobody has these data", "absent, paper_settings: {data: ./nowhere, size: null}"
    )
    path = write(tmp_path, text)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(path, out=tmp_path / "out", observe=lambda spec, name: nullcontext(Killed()), only="FedR")
    assert not list((tmp_path / "out").glob("*/record.json"))
    status, out, err = invoke("run", path, "--out", tmp_path / "out", "--only", "FedR", "--quiet")
    assert (status, out) == (1, "")
    (line,) = err.splitlines()
    assert line.startswith("fkgsec: TransE FedR absent, seed 0: ")
    assert "nowhere" in line
    table = msgspec.json.decode((tmp_path / "out" / "table.json").read_bytes(), type=PaperTable)
    found = {cell.column: cell for cell in table.cells if cell.row == "TransE FedR"}
    assert {name: cell.status for name, cell in found.items()} == {"two": "done", "absent": "failed", "three": "done"}
    assert "nowhere" in found["absent"].reason
    assert "* TransE FedR absent failed, seed 0: " in (tmp_path / "out" / "table.md").read_text()


def test_a_bug_in_one_cell_keeps_its_traceback_and_the_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fkgsec.experiments.papers import workers

    real = workers.execute

    def broken(spec: Spec, *arguments: Any, **options: Any) -> Any:
        if spec.algorithm == "fede":
            raise ZeroDivisionError("a bug")
        return real(spec, *arguments, **options)

    monkeypatch.setattr(workers, "execute", broken)
    status, _, err = invoke("run", write(tmp_path, TINY), "--out", tmp_path / "out", "--only", "two", "--quiet")
    assert status == 1
    assert "Traceback" in err
    assert "fkgsec: TransE FedE two, seed 0: a bug" in err
    assert (tmp_path / "out" / "TransE-FedR-two-seed0" / "record.json").exists()


def test_an_attack_where_the_file_asks_for_one(tmp_path: Path) -> None:
    text = TINY.replace("title:", "attack: true\ntitle:").replace(
        "patience: 0", "patience: 0, leak: [1.0], threat: [collusion], unlinked_heads: 0"
    )
    path = write(tmp_path, re.sub(r"mrr: 0\.5", "err: 0.5, trr: 0.25", text))
    table = run_experiment(path, out=tmp_path / "out", observe=unobserved, only="FedE two").table
    record = read_record(tmp_path / "out" / "TransE-FedE-two-seed0" / "record.json")
    err, trr = (one for one in record.rebuilt if one.victim in ("all", "hospital-2") and one.variant == "cosine")
    assert figure_of(table, "TransE FedE two", "err").ours == err.estimate
    assert figure_of(table, "TransE FedE two", "trr").difference == trr.estimate.value - 0.25
    # A record that was not attacked is no finished cell of this file.
    unattacked = Results()
    unattacked.add(msgspec.structs.replace(record, figures=[]))
    assert not unattacked.of(read_experiment(path).cells[0])


# Figures, by hand.


def record_of(cell: Cell, mrr: float, *, seed: int = 0, bytes_a_round: int = 10, **changes: Any) -> Record:
    """A record of a cell with this test MRR, validated in rounds 1 to 4 at 0.1, 0.2, 0.21 and 0.2."""
    assert cell.spec
    template = committed("ddb14-clean5-fedr")
    rounds = [RoundEntry(0, None, None, 0, 0, 0.0)]
    rounds += [RoundEntry(n, 1.0, v, bytes_a_round, 0, 0.0) for n, v in enumerate((0.1, 0.2, 0.21, 0.2), 1)]
    return msgspec.structs.replace(
        template,
        spec=replace(cell.spec, seed=seed, **changes),
        seed=seed,
        rounds=rounds,
        best_round=3,
        utility=template.utility | {"mrr": Estimate(mrr, mrr - 0.01, mrr + 0.01, 100, "bootstrap")},
    )


def test_differences_and_intervals_over_seeds(tmp_path: Path) -> None:
    experiment = read_experiment(write(tmp_path, TINY))
    fede, fedr = experiment.cells[0], experiment.cells[3]
    results = Results()
    results.add(record_of(fede, 0.46))
    results.add(record_of(fedr, 0.30))
    results.add(record_of(fedr, 0.34, seed=1))
    table = table_of(experiment, results)
    one = figure_of(table, "TransE FedE two", "mrr")
    assert one.ours == Estimate(0.46, 0.46 - 0.01, 0.46 + 0.01, 100, "bootstrap")
    assert one.difference == pytest.approx(-0.04)
    # 0.30 and 0.34: mean 0.32, standard deviation 0.02828, t 12.706 for one degree of freedom, over the root of 2.
    both = figure_of(table, "TransE FedR two", "mrr").ours
    assert both
    assert (both.value, both.n, both.method) == (pytest.approx(0.32), 2, "student")
    assert both.high - both.value == pytest.approx(12.706 * 0.0282843 / 2**0.5, rel=1e-4)
    assert both.value - both.low == pytest.approx(both.high - both.value)
    assert cell_of(table, "TransE FedR two").seeds == [0, 1]
    # There is no baseline of seed 1.
    assert figure_of(table, "TransE FedR two", "p@cg").reason == "seed 1: its baseline is not run"
    assert "| TransE FedE two | 0.5000 | 0.4600 [0.4500, 0.4700] | -0.0400 | 0 |  |" in table_lines(table)
    # The same test triples in both: what they err by does not shrink.
    assert figure_of(table, "TransE FedR two", "mrr").sampled == (pytest.approx(0.31), pytest.approx(0.33))
    assert one.sampled is None
    assert any(line.endswith("| 0, 1 | [0.3100, 0.3300] |") for line in table_lines(table))


def test_costs_relative_to_the_baseline(tmp_path: Path) -> None:
    text = TINY.replace("two: {mrr: null, p@cg: 0.5}", "two: {p@98: 0.5, p@99: 0.5, p@cg: 0.5, r@cg: 9}")
    experiment = read_experiment(write(tmp_path, text))
    fede, fedr = experiment.cells[0], experiment.cells[3]
    results = Results()
    results.add(record_of(fede, 0.4))
    slower = record_of(fedr, 0.4, bytes_a_round=2)
    # The baseline reaches 98 % of its 0.21, 0.2058, in round 3 (30 bytes); this run in its round 4 (8 bytes).
    mrrs = (None, 0.1, 0.1, 0.2, 0.207)
    rounds = [msgspec.structs.replace(entry, valid=value) for entry, value in zip(slower.rounds, mrrs, strict=True)]
    results.add(msgspec.structs.replace(slower, rounds=rounds, best_round=4))
    table = table_of(experiment, results)
    found = {figure.metric: figure for figure in cell_of(table, "TransE FedR two").figures}
    assert found["p@98"].ours == exact(8 / 30, 1)
    assert found["p@98"].difference == pytest.approx(8 / 30 - 0.5)
    assert found["p@99"].ours is None
    assert found["p@99"].reason == "never reached"
    assert found["p@cg"].ours == exact(8 / 30, 1)
    assert (found["r@cg"].ours, found["r@cg"].difference) == (exact(4, 1), -5)
    assert "| TransE FedR two | 0.5000x | never reached |  | 0 |" in table_lines(table)
    assert cell_of(table, "TransE FedR two").remarks == ["seed 0: still improving at its last round, 4"]
    assert cell_of(table, "TransE FedE two").remarks == []


CHOOSING = TINY.replace(
    "algorithm: fedr}", "algorithm: fedr}\n    choose: {option: gamma, values: [4, 8, 6], why: its script tries these}"
)


def validated(cell: Cell, spec: Spec, best: float | None, test: float) -> Record:
    """A record of one of a cell's candidates, kept in round 3 at this validation MRR."""
    record = record_of(cell, test, gamma=spec.gamma)
    rounds = [*record.rounds[:3], msgspec.structs.replace(record.rounds[3], valid=best), *record.rounds[4:]]
    return msgspec.structs.replace(record, rounds=rounds)


def test_a_setting_is_chosen_on_validation(tmp_path: Path) -> None:
    """Not on test, where 4 would win; the relative figures are of the chosen run, and every value is said."""
    experiment = read_experiment(write(tmp_path, CHOOSING))
    cell = experiment.cells[3]
    assert (cell.chosen, [spec.gamma for spec in cell.candidates]) == ("gamma", [4, 8, 6])
    assert cell.stated["gamma"] == "its script tries these"
    results = Results()
    results.add(record_of(experiment.cells[0], 0.4))
    reached = {4.0: (0.25, 0.9), 8.0: (0.31, 0.3), 6.0: (0.3, 0.8)}
    for number, (spec, left) in enumerate(zip(cell.candidates, ([4, 8, 6], [8, 6], [6]), strict=True)):
        wanted = [spec.gamma for of, spec in unfinished([cell], [0], results)]
        assert wanted == left, number
        results.add(validated(cell, spec, *reached[spec.gamma]))
        if number == 1:
            (remark,) = cell_of(table_of(experiment, results), cell.name).remarks
            assert remark == "seed 0: gamma 8 by validation MRR, 0.2500 with 4, 0.3100 with 8; not run: 6"
    assert unfinished([cell], [0], results) == []
    table = table_of(experiment, results)
    assert figure_of(table, cell.name, "mrr").ours == Estimate(0.3, 0.29, 0.31, 100, "bootstrap")
    (remark,) = cell_of(table, cell.name).remarks
    assert remark == "seed 0: gamma 8 by validation MRR, 0.2500 with 4, 0.3100 with 8, 0.3000 with 6"
    lines = table_lines(table)
    assert "| TransE FedR | gamma | 4 or 8 or 6, by validation MRR | ours | its script tries these |" in lines


def test_the_first_of_equal_values_is_chosen_and_none_without_validation(tmp_path: Path) -> None:
    experiment = read_experiment(write(tmp_path, CHOOSING))
    cell = experiment.cells[3]
    level, blind = Results(), Results()
    for spec in cell.candidates:
        level.add(validated(cell, spec, 0.3, 0.1 * spec.gamma))
        blind.add(validated(cell, spec, None, 0.4))
    assert level.of(cell)[0].spec.gamma == 4
    with pytest.raises(RunError, match=r"TransE FedR two: gamma cannot be chosen on validation, .* has no valid split"):
        blind.of(cell)


def test_every_value_is_a_run_of_its_own_and_all_are_kept(tmp_path: Path) -> None:
    path = write(tmp_path, CHOOSING.replace("[4, 8, 6]", "[4, 8]"))
    outcome = run_experiment(path, out=tmp_path / "out", observe=unobserved, only="FedR two")
    assert not outcome.failures
    assert set(finished_runs(tmp_path / "out")) == {"TransE-FedR-two-gamma4-seed0", "TransE-FedR-two-gamma8-seed0"}
    records = [read_record(path) for path in sorted((tmp_path / "out").glob("*/record.json"))]
    assert [record.spec.gamma for record in records] == [4, 8]
    best = max(records, key=lambda record: record.rounds[record.best_round].valid or 0)
    assert figure_of(outcome.table, "TransE FedR two", "mrr").ours == best.utility["mrr"]
    status, out, _ = invoke("list", write(tmp_path, CHOOSING), "--runs", tmp_path / "out")
    (line,) = (line for line in out.splitlines() if "FedR two" in line)
    assert (status, line.split("consortium")[1].strip()) == (0, "0 (2 of 3)")


def test_a_variant_that_states_the_option_leaves_nothing_to_choose(tmp_path: Path) -> None:
    write(tmp_path, CHOOSING, "whole")
    text = "base: whole\ntitle: Small\nour_settings: {gamma: {value: 5, why: one is enough}}\n"
    cell = read_experiment(write(tmp_path, text, "small")).cells[3]
    assert (cell.chosen, [spec.gamma for spec in cell.candidates]) == ("", [5])


def test_a_row_may_show_the_shared_model(tmp_path: Path) -> None:
    text = TINY.replace("name: TransE FedR", "name: TransE FedLU (global)\n    shown: shared")
    experiment = read_experiment(write(tmp_path, text.replace("algorithm: fedr", "algorithm: fedlu")))
    cell = experiment.cells[3]
    results = Results()
    record = record_of(cell, 0.4)
    results.add(msgspec.structs.replace(record, utility_shared={"mrr": Estimate(0.3, 0.2, 0.4, 9, "bootstrap")}))
    results.add(record_of(experiment.cells[0], 0.1))
    table = table_of(experiment, results)
    shown = figure_of(table, "TransE FedLU (global) two", "mrr").ours
    assert shown
    assert shown.value == 0.3
    other = Results()
    other.add(record)
    assert (
        figure_of(table_of(experiment, other), "TransE FedLU (global) two", "mrr").reason
        == "no shared model was measured"
    )


def test_test_triples_that_stand_in_train_are_remarked(tmp_path: Path) -> None:
    experiment = read_experiment(write(tmp_path, TINY))
    leaky = committed("ddb14-fed5-fedr")
    results = Results()
    made = record_of(experiment.cells[0], 0.4)
    results.add(msgspec.structs.replace(made, utility_by_leak=leaky.utility_by_leak))
    (remark,) = cell_of(table_of(experiment, results), "TransE FedE two").remarks
    assert "MRR of test triples 1.0000 on 1,772 in own training, 0.0790 on 2,688 not in own training" in remark


@pytest.mark.parametrize(("warmup_rounds", "remarked"), [(2, False), (3, True)])
def test_a_run_that_was_kept_while_its_models_waited_is_remarked(
    warmup_rounds: int, remarked: bool, tmp_path: Path
) -> None:
    text = TINY.replace("algorithm: fedr", f"algorithm: fedlu, warmup_rounds: {warmup_rounds}")
    experiment = read_experiment(write(tmp_path, text))
    results = Results()
    results.add(record_of(experiment.cells[3], 0.4))
    remarks = cell_of(table_of(experiment, results), "TransE FedR two").remarks
    assert remarks == (["seed 0: kept at round 3, before its models learnt from each other"] if remarked else [])


def test_what_makes_two_runs_the_same(tmp_path: Path) -> None:
    experiment = read_experiment(
        write(tmp_path, TINY.replace("algorithm: fedr", "algorithm: feds, sparsity: 0.4, sparse_rounds: 4"))
    )
    cell = experiment.cells[3]

    def counts(**changes: Any) -> bool:
        results = Results()
        results.add(record_of(cell, 0.3, **changes))
        return bool(results.of(cell))

    assert counts()
    assert counts(device="cuda")
    assert counts(leak=(0.3,))
    assert counts(sparsity=None)  # the algorithm's own, which is 0.4
    assert not counts(sparsity=0.5)
    assert not counts(dim=5)
    assert not counts(clients=3)


def test_several_seeds_count_up_from_the_files_first(tmp_path: Path) -> None:
    path = write(tmp_path, TINY.replace("title:", "seeds: [4]\ntitle:"))
    status, _, _ = invoke("run", path, "--out", tmp_path / "out", "--only", "FedR two", "--seeds", "2", "--quiet")
    assert status == 0
    assert set(finished_runs(tmp_path / "out")) == {"TransE-FedR-two-seed4", "TransE-FedR-two-seed5"}
    table = json.loads((tmp_path / "out" / "table.json").read_text())
    assert next(cell["seeds"] for cell in table["cells"] if cell["name"] == "TransE FedR two") == [4, 5]


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get(DATA_VARIABLE), reason=f"{DATA_VARIABLE} names no data folder")
def test_every_shipped_cell_fits_its_data() -> None:
    graphs: dict[tuple[Any, ...], FederatedGraph] = {}
    for path in SHIPPED.values():
        for cell in read_experiment(path).cells:
            if cell.spec is None:
                continue
            if isinstance(cell.spec, GraphSpec):
                continue  # not all of its sets can be had
            data = (cell.spec.data, cell.spec.clients, cell.spec.partition)
            if data not in graphs:
                graphs[data] = cell.spec.load_graph()
            clients = re.search(r"\d+$", cell.column)
            assert clients
            assert len(graphs[data].clients) == int(clients[0]), cell.name
            check_run(cell.spec, graphs[data], attack=False)
