"""What earlier versions wrote is read as what it meant: the old name of an option, and a temperature that FedLU never used."""

import json
import shutil
from pathlib import Path

import msgspec
import pytest
from safetensors import safe_open
from safetensors.torch import save_file

from fkgsec.data.consortium import generate_consortium
from fkgsec.errors import SpecError
from fkgsec.experiments.reporting.frames import mixed_temperatures
from fkgsec.experiments.runs.compare import read_comparison
from fkgsec.experiments.runs.record import SCHEMA, read_record
from fkgsec.experiments.runs.run import RECORD_FILE, SPEC_FILE, load_run
from fkgsec.experiments.runs.spec import Spec, make_spec
from fkgsec.experiments.runs.stored import decode_stored, encode_stored
from fkgsec.federation.loop import run_identity
from fkgsec.federation.options import nested
from fkgsec.kge.options import KgeOptions
from tests.experiments.commands import fkgsec

RESULTS = Path(__file__).parents[3] / "results"
SMALL = ["--size", "400", "--clients", "2", "--dim", "8", "--rounds", "1", "--num-negatives", "4", "--device", "cpu"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run, attacked."""
    folder = tmp_path_factory.mktemp("stored") / "run"
    assert fkgsec("attack", *SMALL, "--unlinked-heads", "0", "--out", folder, "--quiet")[0] == 0
    return folder


def of_version_0_1(content: bytes) -> bytes:
    """A spec as 0.1 wrote it."""
    spec = json.loads(content)
    return json.dumps(spec | {"epsilon": spec.pop("init_epsilon"), "temperature": spec["temperature"] or 1.0}).encode()


class TestTemperature:
    @pytest.mark.parametrize(
        ("settings", "used"),
        [
            ({}, 1.0),
            ({"temperature": 0.5}, 0.5),
            ({"algorithm": "fedlu"}, 0.0),
            ({"algorithm": "fedlu", "variant": "published"}, 0.0),
            ({"algorithm": "fedlu", "variant": "published", "model": "rotate"}, 1.0),
            ({"algorithm": "fedlu", "variant": "published", "model": "rotate", "temperature": 0.5}, 0.5),
            ({"algorithm": "fede-kd", "temperature": 2.0}, 2.0),
        ],
    )
    def test_that_is_used(self, settings: dict[str, object], used: float) -> None:
        assert KgeOptions(**nested(settings)).sampling_temperature == used

    @pytest.mark.parametrize("settings", [{}, {"variant": "published"}, {"variant": "published", "model": "complex"}])
    def test_that_would_be_ignored_is_refused(self, settings: dict[str, str]) -> None:
        with pytest.raises(SpecError, match=r"temperature does not apply to fedlu .* leave it out or give 0; got 1$"):
            make_spec(None, {"algorithm": "fedlu", "temperature": 1.0, **settings})
        assert make_spec(None, {"algorithm": "fedlu", "temperature": 0.0, **settings}).sampling_temperature == 0

    def test_that_differs_between_cases_is_named_by_compare(self, tmp_path: Path) -> None:
        attack = ("--unlinked-heads", "0", "--threat", "identifiers")
        arguments = ("compare", *SMALL, *attack, "--case", "none", "--case", "fedlu", "--out", tmp_path / "compare")
        status, out, _ = fkgsec(*arguments)
        assert status == 0
        assert "The temperature of negatives differs: 0 in fedlu; 1 in none" in out
        status, out, err = fkgsec(*arguments, "--temperature", "1")
        assert (status, "temperature does not apply to fedlu" in err) == (2, True)


class TestEarlierVersions:
    @pytest.mark.parametrize(
        ("settings", "identity"),
        [
            ({}, "a05364c01d13e6f9"),
            ({"algorithm": "fedlu"}, "2e5f151f00f36e2f"),
            ({"algorithm": "fedlu", "temperature": 0.0}, "05b0d1879bceacd2"),
            ({"init_epsilon": 3.0, "temperature": 0.5}, "c24f19226a20f862"),
        ],
    )
    def test_their_runs_keep_their_identity(self, settings: dict[str, object], identity: str) -> None:
        """The digests are those that 0.1 printed for these options, `init_epsilon` by its old name."""
        options = KgeOptions(**settings)  # type: ignore[arg-type]
        assert run_identity(generate_consortium(clients=2, size=200, seed=0), options).startswith(identity)

    @pytest.mark.parametrize("algorithm", ["fede", "fedlu"])
    def test_their_run_folders_are_read(self, algorithm: str, tmp_path: Path) -> None:
        run = tmp_path / "run"
        assert fkgsec("train", "--algorithm", algorithm, *SMALL, "--out", run)[0] == 0
        (run / SPEC_FILE).write_bytes(of_version_0_1((run / SPEC_FILE).read_bytes()))
        record = json.loads((run / RECORD_FILE).read_bytes())
        assert record["spec"]["temperature"] == {"fedlu": 0.0, "fede": 1.0}[algorithm]
        record["spec"] = json.loads(of_version_0_1(json.dumps(record["spec"]).encode()))
        (run / RECORD_FILE).write_text(json.dumps(record))
        spec, _ = load_run(run)
        assert (spec.init_epsilon, spec.sampling_temperature) == (2.0, 0.0 if algorithm == "fedlu" else 1.0)
        assert read_record(run / RECORD_FILE).spec.temperature == spec.sampling_temperature

    def test_no_other_word_is_let_through(self) -> None:
        for wrong in (
            b'{"epsilonn": 1}',
            b'{"algorithm": "fedlu", "temperature": -1, "variant": "published", "model": "rotate"}',
        ):
            with pytest.raises((msgspec.ValidationError, SpecError)):
                decode_stored(wrong, Spec)

    @pytest.mark.parametrize("content", ["[1, 2]", "3", "null", '"text"', '{"schema": 5}', "{}"])
    def test_json_of_another_kind_is_no_comparison_and_no_error(self, content: str, tmp_path: Path) -> None:
        path = tmp_path / "rows.json"
        path.write_text(content)
        assert read_comparison(path) is None
        status, out, err = fkgsec("report", path, "--out", tmp_path / "page.html")
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert f"{path}: not a record of schema" in err

    def test_the_committed_comparison_that_mixed_temperatures_says_so(self) -> None:
        folder = Path(__file__).parents[3] / "results"
        mixed = {}
        for path in sorted([*folder.glob("defended/*.json"), *folder.glob("recipes/*.json")]):
            comparison = read_comparison(path)
            if comparison is not None and mixed_temperatures(case.record for case in comparison.cases):
                mixed[path.name] = {case.name: case.record.spec.temperature for case in comparison.cases}
        assert list(mixed) == ["ddb14-clean5-recipes.json"]
        assert {name for name, temperature in mixed["ddb14-clean5-recipes.json"].items() if temperature == 0} == {
            "fedlu"
        }
        text = (folder / "recipes/README.md").read_text()
        assert "| ddb14-clean5-recipes fedlu | 0 |" in text
        assert "| ddb14-clean5-recipes fede | 1 |" in text


def test_data_of_earlier_runs_were_divided_by_their_seed() -> None:
    assert decode_stored(b'{"seed": 12345}', Spec).split_seed == 12345
    assert decode_stored(b'{"seed": 12345, "split_seed": 3}', Spec).split_seed == 3


def test_a_record_says_what_validation_measured(tmp_path: Path) -> None:
    fkgsec("train", *SMALL, "--eval-every", "1", "--out", tmp_path / "run")
    record = read_record(tmp_path / "run" / RECORD_FILE)
    assert record.metric == "mrr"
    assert record.valid == next(one.valid for one in record.rounds if one.round == record.best_round)
    older = json.loads((tmp_path / "run" / RECORD_FILE).read_text())
    del older["metric"], older["valid"]
    (tmp_path / RECORD_FILE).write_text(json.dumps(older))
    assert (read_record(tmp_path / RECORD_FILE).metric, read_record(tmp_path / RECORD_FILE).valid) == ("mrr", None)


class TestContradictions:
    @pytest.mark.parametrize("command", ["results", "report", "attack"])
    def test_a_figure_outside_its_interval_is_no_figure_of_a_run(
        self, command: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """`results` and `attack --run` printed it as the run's."""
        monkeypatch.chdir(tmp_path)
        record = json.loads((run / RECORD_FILE).read_text())
        record["utility"]["mrr"]["value"] = record["utility"]["mrr"]["high"] + 0.1
        shutil.copytree(run, "tampered")
        Path("tampered", RECORD_FILE).write_text(json.dumps(record))
        where = {"report": ("tampered", "--out", "report.html"), "attack": ("--run", "tampered")}
        status, _, err = fkgsec(command, *where.get(command, ("tampered",)))
        assert status == 2
        assert "tampered/record.json: not a record of schema" in err
        assert "$.utility.mrr: " in err
        assert " is not inside its own interval [" in err

    @pytest.mark.parametrize("where", ["utility", "spec"])
    def test_an_integer_that_no_machine_holds_hides_no_other_run(
        self, where: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One such record ended `results` of the whole folder in a traceback."""
        monkeypatch.chdir(tmp_path)
        record = json.loads((run / RECORD_FILE).read_text())
        if where == "spec":
            record["spec"]["dim"] = 2**63
        else:
            record["utility"]["mrr"]["value"] = 10**4000 - 1
        shutil.copytree(run, "runs/good")
        shutil.copytree(run, "runs/tampered")
        Path("runs/tampered", RECORD_FILE).write_text(json.dumps(record))
        status, out, err = fkgsec("results", "runs")
        assert status == 0
        assert "good" in out
        assert "left out: runs/tampered/record.json" in err
        assert "bits fit" in err

    def test_a_file_that_stops_in_the_middle_is_called_that(self, run: Path, tmp_path: Path) -> None:
        """The report said that it was "not a comparison"."""
        shutil.copytree(run, tmp_path / "half")
        content = (run / RECORD_FILE).read_bytes()
        (tmp_path / "half" / RECORD_FILE).write_bytes(content[: len(content) // 2])
        status, _, err = fkgsec("report", tmp_path / "half", "--out", tmp_path / "report.html")
        assert (status, err.strip().splitlines()) == (
            2, [f"fkgsec: {tmp_path / 'half' / RECORD_FILE}: not a record of schema {SCHEMA} (Input data was truncated)"],
        )  # fmt: skip

    def test_a_checkpoint_of_an_earlier_version_is_named(self, tmp_path: Path) -> None:
        given = ("train", *SMALL, "--defense", "secagg", "--out", tmp_path / "old", "--quiet")
        assert fkgsec(*given)[0] == 0
        path = tmp_path / "old" / "checkpoint.safetensors"
        with safe_open(path, framework="pt") as handle:
            progress = handle.metadata()["progress"].replace('"schema":3', '"schema":2')
            tensors = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118 (not a dict)
        save_file(tensors, path, {"progress": progress})
        status, _, err = fkgsec("export", "--run", tmp_path / "old", "--out", tmp_path / "tables")
        assert status == 2
        assert err == f"fkgsec: {path}: checkpoint schema 2; this version reads 3 and 4\n"


def test_a_record_is_written_and_read_as_it_is(tmp_path: Path) -> None:
    comparison = read_comparison(RESULTS / "defended/ddb14-c03.json")
    assert comparison is not None
    (tmp_path / "record.json").write_bytes(encode_stored(comparison.cases[0].record))
    assert read_record(tmp_path / "record.json") == comparison.cases[0].record
