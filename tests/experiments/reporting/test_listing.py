"""Finished runs in a list: found, filtered, sorted, written; damaged ones are named."""

import json
import sys
from pathlib import Path

import msgspec
import pandas as pd
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from fkgsec.attacks.figure import Figure, over_victims
from fkgsec.errors import RunError, SpecError
from fkgsec.experiments.cli.console import expected_errors
from fkgsec.experiments.reporting.cli import results
from fkgsec.experiments.reporting.frames import figures
from fkgsec.experiments.reporting.listing import (
    LEAST_FIRST,
    WIDE,
    listing_table,
    select,
    sort,
)
from fkgsec.experiments.reporting.reading import find_records
from fkgsec.experiments.reporting.sheets import interval
from fkgsec.experiments.runs.compare import SCHEMA, Case, Comparison
from fkgsec.experiments.runs.record import Record
from fkgsec.experiments.runs.run import execute
from fkgsec.experiments.runs.spec import Spec
from fkgsec.experiments.runs.stored import encode_stored
from fkgsec.experiments.tracking import final_figures, of_round

SPEC = Spec(
    size=300, dim=8, rounds=2, local_epochs=1, eval_every=2, batch_size=64, num_negatives=4, learning_rate=0.05,
    unlinked_heads=0, leak=(0.5, 1.0), device="cpu",
)  # fmt: skip
app = typer.Typer()
app.command()(expected_errors(results))


def fkgsec(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    return result.exit_code, result.stdout, result.stderr


def listing(records: dict[str, Record]) -> pd.DataFrame:
    """What the command lists."""
    return figures(records, over_victims)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four finished runs: attacked; attacked with nothing to attack; with a defense; and not attacked, one folder deeper."""
    root = tmp_path_factory.mktemp("runs")
    for name, changes, attack in (
        ("fede", {}, True),
        ("single", {"algorithm": "single"}, True),
        ("noise", {"defense": "dp:clip=0.5,noise_multiplier=0.5", "seed": 3}, True),
        ("below/fedr", {"algorithm": "fedr", "dim": 4}, False),
    ):
        spec = msgspec.structs.replace(SPEC, **changes)
        execute(spec, spec.load_graph(), root / name, attack=attack)
    return root


@pytest.fixture(scope="module")
def records(runs: Path) -> dict[str, Record]:
    return find_records([runs]).records


def test_every_finished_run_is_found_and_called_by_its_folder(runs: Path, records: dict[str, Record]) -> None:
    assert list(records) == ["below/fedr", "fede", "noise", "single"]
    assert find_records([runs / "fede"]).records == {"fede": records["fede"]}
    assert find_records([runs / "fede" / "record.json"]).records == {"fede": records["fede"]}
    twice = find_records([runs, runs / "fede"]).records
    assert set(twice) - set(records) == {(runs / "fede" / "record.json").as_posix()}


def test_files_of_other_names_and_comparisons(records: dict[str, Record], tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_bytes(encode_stored(records["fede"]))
    comparison = Comparison(SCHEMA, [Case("none", records["fede"]), Case("dp:epsilon=1", records["noise"])])
    (tmp_path / "several.json").write_bytes(msgspec.json.encode(comparison))
    found = find_records([tmp_path / "mine.json", tmp_path / "several.json"])
    assert list(found.records) == ["mine", "several none", "several dp:epsilon=1"]
    with pytest.raises(RunError, match=r"no record\.json at any depth"):
        find_records([tmp_path])
    with pytest.raises(RunError, match="nowhere: no such file or folder"):
        find_records([tmp_path / "nowhere"])


def test_figures_are_those_of_the_records(runs: Path, records: dict[str, Record]) -> None:
    raw = json.loads((runs / "fede" / "record.json").read_text())
    rows = listing(records).query("run == 'fede'").to_dict("records")
    expected = over_victims(msgspec.convert(raw["figures"], list[Figure]))
    assert [(row["attack"], row["metric"], row["threat_model"], row["victim"]) for row in rows] == [
        (one.attack, one.metric, one.threat_model, one.victim) for one in expected
    ]
    for row, one in zip(rows, expected, strict=True):
        assert (row["value"], row["low"], row["high"]) == (one.estimate.value, one.estimate.low, one.estimate.high)
        assert one.baseline is None or row["baseline"] == one.baseline.value
        assert row["status"] == one.status
        assert (row["mrr"], row["mrr_low"]) == (raw["utility"]["mrr"]["value"], raw["utility"]["mrr"]["low"])
        assert row["hits@10"] == raw["utility"]["hits@10"]["value"]
        assert (row["bytes_up"], row["bytes_down"]) == (raw["bytes"]["up"], raw["bytes"]["down"])
        assert row["seconds"] == pytest.approx(sum(entry["seconds"] for entry in raw["rounds"]))
        assert (row["clients"], row["dim"], row["rounds"], row["kept"]) == (3, 8, 2, raw["best_round"])
        assert row["commit"] == raw["environment"]["commit"]


def test_what_was_not_measured_is_missing_and_not_zero(records: dict[str, Record]) -> None:
    frame = listing(records).set_index("run")
    assert frame.loc[["below/fedr"], ["threat_model", "value", "reason"]].isna().all(axis=None)
    assert frame.loc["single", "value"].isna().all()
    assert frame.loc["single", "reason"].notna().all()
    empty = {name: msgspec.structs.replace(figure, n=0) for name, figure in records["fede"].utility.items()}
    frame = listing({"a": msgspec.structs.replace(records["fede"], utility=empty)})
    assert frame[["mrr", "mrr_low", "hits@10"]].isna().all(axis=None)


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        (["algorithm=fede"], {"fede", "noise"}),
        (["algorithm!=fede"], {"single", "below/fedr"}),
        (["algorithm=fede", "defense="], {"fede"}),
        (["defense!="], {"noise"}),
        ([" dim <= 4 "], {"below/fedr"}),
        (["leak=0.5", "threat_model = identifiers"], {"fede", "noise"}),
        (["metric=err", "value>=0"], {"fede", "noise"}),
        (["metric=err", "value<0"], set()),
        (["seed>2"], {"noise"}),
        (["rounds<3"], {"fede", "single", "noise", "below/fedr"}),
        (["reason!=x"], {"single"}),
    ],
)
def test_conditions(conditions: list[str], expected: set[str], records: dict[str, Record]) -> None:
    assert set(select(listing(records), conditions)["run"]) == expected


def test_dirty_is_true_or_false(records: dict[str, Record]) -> None:
    changed = {
        str(dirty): msgspec.structs.replace(
            records["fede"], environment=msgspec.structs.replace(records["fede"].environment, dirty=dirty)
        )
        for dirty in (True, False, None)
    }
    assert set(select(listing(changed), ["dirty=true"])["run"]) == {"True"}
    assert set(select(listing(changed), ["dirty!=True"])["run"]) == {"False"}


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("fede", "expected COLUMN, one of = != < <= > >=, and a value; got 'fede'"),
        ("mmr>1", "no column 'mmr'; columns: run, algorithm, "),
        ("mrr=good", "mrr is a number; got 'good'"),
        ("dirty=1", "dirty is true or false; got '1'"),
    ],
)
def test_conditions_that_make_no_sense(condition: str, message: str, records: dict[str, Record]) -> None:
    with pytest.raises(SpecError, match=f"where: {message}"):
        select(listing(records), [condition])


def test_order(records: dict[str, Record]) -> None:
    frame = listing(records)
    trr = sort(frame, "value")["value"]
    measured = trr.dropna()
    assert measured.is_monotonic_decreasing
    assert measured.iloc[0] > measured.iloc[-1]
    assert trr.iloc[len(measured) :].isna().all()
    assert sort(frame, "value", reverse=True)["value"].dropna().is_monotonic_increasing
    assert list(sort(frame, "run")["run"]) == sorted(frame["run"])
    with pytest.raises(SpecError, match="sort: no column 'mmr'"):
        sort(frame, "mmr")


def shown(frame: pd.DataFrame, width: int) -> tuple[list[list[str]], str, list[str]]:
    table, left_out = listing_table(frame, width)
    columns = [[str(column.header), *column.cells] for column in table.columns]  # type: ignore[list-item]
    return [list(row) for row in zip(*columns, strict=True)], str(table.title), left_out


@pytest.fixture(scope="module")
def one_commit(records: dict[str, Record]) -> dict[str, Record]:
    """The same runs, all made by one commit, whatever happened to the checkout meanwhile."""
    environment = msgspec.structs.replace(records["fede"].environment, commit="0123456789abcdef", dirty=False)
    return {name: msgspec.structs.replace(record, environment=environment) for name, record in records.items()}


def test_the_table_says_what_runs_share_once(one_commit: dict[str, Record]) -> None:
    records = one_commit
    rows, title, left_out = shown(listing(records), WIDE)
    assert left_out == []
    assert title == (
        "4 runs; all: model transe, data consortium-3, clients 3, temperature 1, rounds 2, commit 01234567, dirty False"
    )
    assert rows[0][:5] == ["run", "algorithm", "defense", "dim", "seed"]
    assert sum(row[0] != "" for row in rows[1:]) == len(records)  # each run is named once
    assert len(rows) - 1 == len(listing(records))
    first = dict(zip(rows[0], next(row for row in rows if row[0] == "fede"), strict=True))
    fede = records["fede"]
    assert first["MRR"] == interval(fede.utility["mrr"])
    assert first["figure"] == interval(over_victims(fede.figures)[0].estimate)
    assert first["defense"] == "–"
    assert rows[1][rows[0].index("figure")] == "–"
    assert rows[-1][rows[0].index("figure")] == "n/a"
    unattacked, title, _ = shown(select(listing(records), ["run=below/fedr"]), WIDE)
    assert "figure" not in unattacked[0]
    assert title.startswith("1 run; all: algorithm fedr, ")


def test_a_narrow_terminal_leaves_columns_out_and_cuts_no_figure(one_commit: dict[str, Record]) -> None:
    rows, _, left_out = shown(listing(one_commit), 100)
    assert left_out == [name for name in LEAST_FIRST if name in left_out]
    assert left_out[:2] == ["seed", "seconds"]
    assert "s" not in rows[0]
    assert {"MRR", "figure", "base"} <= set(rows[0])


def test_at_80_columns_every_row_of_a_listing_is_one_line(one_commit: dict[str, Record]) -> None:
    names = {f"psu-secagg-dp-unit-row-clip-0.1-epsilon-{number}": one for number, one in enumerate(one_commit.values())}
    table, left_out = listing_table(listing(names), 80)
    assert left_out == [name for name in LEAST_FIRST if name in left_out]
    assert {"attack", "figure"} <= {str(column.header) for column in table.columns}
    table.title = None
    console = Console(width=80)
    with console.capture() as captured:
        console.print(table)
    lines = captured.get().splitlines()
    assert len(lines) == 2 + table.row_count
    assert max(map(len, lines)) <= 80


def test_files_hold_every_column_and_row(runs: Path, tmp_path: Path) -> None:
    status, _, _ = fkgsec(
        runs,
        "--where",
        "algorithm=fede",
        "--sort",
        "value",
        "--csv",
        tmp_path / "a.csv",
        "--parquet",
        tmp_path / "a.parquet",
    )
    assert status == 0
    expected = sort(select(listing(find_records([runs]).records), ["algorithm=fede"]), "value")
    assert pd.read_parquet(tmp_path / "a.parquet").equals(expected.reset_index(drop=True))
    read = pd.read_csv(tmp_path / "a.csv", dtype=expected.dtypes.to_dict(), keep_default_na=True)
    read["defense"] = read["defense"].fillna("")
    status, out, err = fkgsec(runs, "--where", "algorithm=fede", "--sort", "value", "--csv", "-")
    assert (status, out) == (0, (tmp_path / "a.csv").read_text())
    assert "2 runs" in err
    assert read.drop(columns="commit").equals(expected.reset_index(drop=True).drop(columns="commit"))


def test_damaged_files_are_named_and_the_others_listed(runs: Path, tmp_path: Path) -> None:
    good = (runs / "fede" / "record.json").read_bytes()
    old = json.loads(good)
    old["spec"]["defense"] = "dp:clip=1,epsilon=1,delta=0.5"  # what an older version may have allowed
    for name, content in (("cut", good[:-200]), ("old", json.dumps(old).encode()), ("text", b"\xff"), ("good", good)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "record.json").write_bytes(content)
    status, out, err = fkgsec(tmp_path)
    assert status == 0
    assert "good" in out
    lines = err.splitlines()
    assert [line.split("/")[-2] for line in (line.split("record.json")[0] + "x" for line in lines)] == [
        "cut",
        "old",
        "text",
    ]
    assert all(line.startswith(f"fkgsec: left out: {tmp_path}/") for line in lines)
    assert "cut/record.json: not a record of schema" in lines[0]
    (tmp_path / "good" / "record.json").unlink()
    status, out, err = fkgsec(tmp_path)
    assert (status, out, len(err.splitlines())) == (2, "", 3)


def test_the_command(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status, out, err = fkgsec(runs, "--where", "threat_model=identifiers", "--quiet")
    assert (status, out, err) == (0, "", "")
    chosen = [
        word
        for one in ("threat_model=identifiers", "leak=1", "metric=trr", "variant=strongest")
        for word in ("--where", one)
    ]
    status, out, _ = fkgsec(runs, *chosen, "--sort", "value", "--reverse")
    lines = [line.split()[0] for line in out.splitlines()[3:]]
    assert sorted(lines) == ["fede", "noise"]
    assert fkgsec(runs, "--where", "mrr")[::2] == (
        2, "fkgsec: where: expected COLUMN, one of = != < <= > >=, and a value; got 'mrr'\n",
    )  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert fkgsec() == (2, "", "fkgsec: runs: no such file or folder\n")
    status, _, err = fkgsec(runs, "--csv", tmp_path / "no" / "a.csv", "--quiet")
    assert (status, "cannot be written" in err) == (2, True)


def test_figures_and_curves_for_trackers(records: dict[str, Record]) -> None:
    fede = records["fede"]
    attack = ("strongest", "collusion", 0.5, "all")
    err, trr = (one for one in fede.rebuilt if (one.variant, one.threat_model, one.leak, one.victim) == attack)
    found = final_figures(fede)
    assert found["err/collusion/leak_0.5"] == err.estimate.value
    assert found["trr_advantage/collusion/leak_0.5"] == trr.advantage
    assert found["hits_at_10"] == fede.utility["hits@10"].value
    assert not any(name.startswith("err") for name in final_figures(records["single"]))
    by_round = {entry.round: of_round(entry, fede.metric) for entry in fede.rounds}
    assert by_round[2]["round/valid_mrr"] == fede.rounds[2].valid
    assert "round/valid_mrr" not in by_round[1]
    assert "round/loss" not in by_round[0]


@pytest.mark.parametrize(("option", "module"), [("--tensorboard", "tensorboard"), ("--mlflow", "mlflow")])
def test_an_extra_that_is_not_installed_is_named(
    option: str, module: str, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not there
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard.writer", None)
    status, _, err = fkgsec(runs, "--quiet", option, tmp_path / "out")
    assert (status, err) == (2, f"fkgsec: {module} is not installed: pip install 'fkgsec[{module}]'\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_shows_the_curves_and_the_final_figures(
    runs: Path, records: dict[str, Record], tmp_path: Path
) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert fkgsec(runs, "--quiet", "--where", "run!=noise", "--tensorboard", tmp_path)[0] == 0
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if any(path.glob("events.*"))} == {
        "fede", "single", "below/fedr",
    }  # fmt: skip
    events = EventAccumulator(str(tmp_path / "fede"))
    events.Reload()
    loss = [(event.step, event.value) for event in events.Scalars("round/loss")]
    assert loss == [(entry.round, pytest.approx(entry.loss)) for entry in records["fede"].rounds[1:]]
    assert events.Scalars("mrr")[-1].value == pytest.approx(records["fede"].utility["mrr"].value)
    status, _, err = fkgsec(runs, "--quiet", "--tensorboard", tmp_path)
    assert (status, "holds events already" in err) == (2, True)


@pytest.mark.slow  # it builds its database
@pytest.mark.filterwarnings("ignore")
def test_mlflow_holds_settings_curves_and_final_figures(runs: Path, records: dict[str, Record], tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    assert fkgsec(runs, "--quiet", "--where", "algorithm=fede", "--mlflow", uri)[0] == 0
    client = mlflow.MlflowClient(tracking_uri=uri)
    found = {
        run.info.run_name: run for run in client.search_runs([client.get_experiment_by_name("fkgsec").experiment_id])
    }
    assert set(found) == {"fede", "noise"}
    run, record = found["fede"], records["fede"]
    assert run.info.status == "FINISHED"
    assert run.data.params["leak"] == "0.5,1.0"
    assert run.data.params["data_hash"] == record.data.hash
    assert run.data.metrics["err/collusion/leak_0.5"] == final_figures(record)["err/collusion/leak_0.5"]
    points = client.get_metric_history(run.info.run_id, "round/loss")
    assert [(point.step, point.value) for point in points] == [(entry.round, entry.loss) for entry in record.rounds[1:]]
    status, _, err = fkgsec(runs, "--quiet", "--mlflow", "nowhere://x")
    assert (status, err.count("\n")) == (2, 1)
