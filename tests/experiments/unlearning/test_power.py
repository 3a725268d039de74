"""`fkgsec verify --power`: what is measured is what was planted, and the forecast is that of real audits."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from fkgsec.attacks.forgetting.evidence import Spread, measure_spread
from fkgsec.attacks.forgetting.hidden import Exceedance
from fkgsec.attacks.forgetting.paired import Memory, Noise, Runs, measure_noise, paired_difference
from fkgsec.errors import DataError, SpecError
from fkgsec.experiments.runs.run import execute
from fkgsec.experiments.unlearning.options import AuditOptions, Thresholds
from fkgsec.experiments.unlearning.power import Forecast, forecast_from, forecast_lines, forecast_verdict
from tests.experiments.unlearning.test_sequential import NUM_CONTROLS, NUM_FORGOTTEN, World
from tests.experiments.unlearning.test_unlearn import SPEC, app

NOISE, MEMORY = Noise(1.0, 1.0, 0.001), Memory(4.0, 0.02)
CLEAR = [Exceedance(0.02, 0.9, 0.02)]


def forecast(size: int, noise: Noise = NOISE, memory: Memory | None = MEMORY, **changes: int) -> Forecast:
    spreads = [Spread("a", "local", noise, memory, CLEAR, 200, 400, 160, 100.0)]
    limits = {"largest": 1000, "most_controls": 500} | changes
    return forecast_from(spreads, size, Thresholds(), AuditOptions(), seconds=6.0, **limits)


def test_a_larger_request_more_references_and_less_noise_never_lower_the_chance() -> None:
    chances = [forecast(size).costs[-1].chance for size in (20, 50, 100, 200, 500, 1000)]
    assert chances == sorted(chances)
    assert chances[0] < 0.5 < 0.9 < chances[-1]
    by_noise = [forecast(200, Noise(variance, variance, 0.0)).costs[-1].chance for variance in (1.0, 4.0, 16.0)]
    assert by_noise == sorted(by_noise, reverse=True)
    assert by_noise[-1] < 0.2


def test_the_smallest_request_is_the_smallest_that_earns_it() -> None:
    made = forecast(20)
    assert not made.earned
    assert made.smallest is not None
    size, cost = made.smallest
    assert cost.chance >= 0.9
    assert cost.minutes == pytest.approx(6.0 * (cost.references + 4 + 1) / 60)
    assert forecast(size).earned
    assert not forecast(size - 10).earned


def test_a_request_that_fails_at_this_tolerance_is_told_one_that_it_passes_at() -> None:
    made = forecast(200, Noise(4.0, 4.0, 0.0))
    assert not made.earned
    assert made.passes_from is not None
    assert Thresholds().share < made.passes_from < 0.3
    assert f"--share {made.passes_from:.2f}" in " ".join(forecast_lines(made, Thresholds()))
    assert forecast(20).passes_from is None, "no tolerance helps where too few triples can be told apart at all"


@pytest.mark.parametrize(
    ("noise", "memory", "named"),
    [(NOISE, None, "may remember"), (Noise(1.0, 1.0, 1.0), MEMORY, "the share that a local may remember")],
)
def test_where_no_size_suffices_it_is_said_why(noise: Noise, memory: Memory | None, named: str) -> None:
    """No memory to measure by; or trainings that shift all triples more than any number of these averages out."""
    made = forecast(1000, noise, memory)
    assert (made.earned, made.smallest) == (False, None)
    assert named in made.obstacle
    lines = forecast_lines(made, Thresholds())
    assert "No request of up to 1,000 triples" in " ".join(lines)
    assert lines[-1].startswith("Verdict: this request cannot earn")


@pytest.mark.parametrize("against_controls", [True, False])
def test_the_noise_that_is_measured_is_the_planted_one_and_predicts_the_error(against_controls: bool) -> None:
    rng = np.random.default_rng(0)
    forgotten = np.arange(600) < 400
    shift = rng.normal(size=(40, 1)) * np.where(forgotten, 0.3, 0.0)
    values = 3 * rng.normal(size=600) + rng.normal(size=(40, 600)) * np.where(forgotten, 2.0, 1.0) + shift
    runs = Runs(values, np.zeros(values.shape, dtype=bool))
    noise = measure_noise(runs, forgotten, against_controls=against_controls)
    assert noise.forgotten == pytest.approx(4.0, rel=0.1)
    assert noise.controls == (pytest.approx(1.0, rel=0.1) if against_controls else 0)
    assert noise.trainings == pytest.approx(0.09, rel=0.6)
    real = paired_difference(values[0], runs.without(0), forgotten, against_controls=against_controls).error
    assert noise.error(400, 200, 39) == pytest.approx(real, rel=0.15)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("power") / "run"
    execute(SPEC, SPEC.load_graph(), folder, attack=False)
    return folder


def test_the_command_answers_before_any_unlearning(run: Path, tmp_path: Path) -> None:
    command = [
        "verify",
        "--run",
        run,
        "--power",
        "--request",
        40,
        "--client",
        "hospital-1",
        "--out",
        tmp_path,
        "--quiet",
    ]
    command += ["--audit-seed", 1, "--json", tmp_path / "forecast.json"]
    made = CliRunner().invoke(app, [str(word) for word in command], catch_exceptions=False)
    lines = made.output.splitlines()
    assert made.exit_code == 0, "what was trained here is repeated here"
    written = msgspec.json.decode((tmp_path / "forecast.json").read_bytes(), type=Forecast)
    assert lines == forecast_lines(written, Thresholds())
    assert lines[0].startswith("Request: 40 triples of hospital-1")
    assert lines[-1].startswith("Verdict: this request can")
    assert len(lines) <= 20
    assert [int(line.split()[0]) for line in lines if re.match(r" +\d+ ", line)] == [4, 8, 16]
    assert len(list((tmp_path / "audit").iterdir())) == 4 + 4 + 1, "the replay, and nothing else"


def test_what_no_audit_can_judge_is_refused_before_any_training(run: Path, tmp_path: Path) -> None:
    """Two triples without two controls; a replay judges them."""
    options = AuditOptions(audit_seed=1, replay=False)
    with pytest.raises(DataError, match="no request like this can be audited: hospital-1: "):
        forecast_verdict(run, Thresholds(), options, request=2, folder=tmp_path / "audit")
    assert not (tmp_path / "audit").exists()
    options = msgspec.structs.replace(options, replay=True)
    made = forecast_verdict(run, Thresholds(), options, request=2, folder=tmp_path / "audit")
    assert (made.earned, made.costs) == (True, [])
    assert "by `--method retrain`" in forecast_lines(made, Thresholds())[-1]


@pytest.mark.parametrize("option", ["--raw", "--against"])
def test_options_of_an_audit_alone_are_refused_with_power(run: Path, option: str) -> None:
    made = CliRunner().invoke(app, ["verify", "--run", str(run), "--power", option, str(run)])
    assert made.exit_code == 2
    assert f"{option} does not apply with --power" in made.output


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"options": AuditOptions(references=0)}, SpecError, "it needs references from 3 and shadows from 4"),
        ({"request": 10**6}, DataError, r"request must lie in \[2, .*; got 1000000"),
        ({"client": "nobody"}, DataError, "client must be one of .*; got 'nobody'"),
    ],
)
def test_wrong_questions_are_refused(run: Path, changes: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        forecast_verdict(run, Thresholds(), changes.pop("options", AuditOptions()), **changes)


@pytest.mark.slow
def test_the_forecast_is_the_rate_of_simulated_audits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A world in which some audits pass: the forecast is a lower bound, and not far below their rate."""
    monkeypatch.setattr("tests.experiments.unlearning.test_sequential.GAIN", 3.0)
    world = World(0)
    nothing = np.zeros(NUM_FORGOTTEN + NUM_CONTROLS, dtype=bool)
    halves = [world.rng.permutation(len(nothing)) % 2 == 0 for _ in range(2)]
    shadows = [world.train(inside) for half in halves for inside in (half, ~half)]
    spreads = measure_spread([world.train(nothing) for _ in range(12)], shadows, world.graph, world.audits)
    made = forecast_from(
        spreads, NUM_FORGOTTEN, Thresholds(), AuditOptions(), largest=1000, most_controls=NUM_CONTROLS, seconds=1.0
    )
    rate = np.mean([World(seed).audit(0.0) == "forgotten" for seed in range(100)])
    print(f"forecast {max(cost.chance for cost in made.costs):.2f}, simulated {rate:.2f}")
    assert max(cost.chance for cost in made.costs) <= rate + 0.15
