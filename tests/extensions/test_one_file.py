"""A codec, an attack with a setting and a section of the report from outside: one file each, used from the command line."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from fkgsec import (
    ATTACKS,
    RECIPES,
    KgeAttackOptions,
    KgeOptions,
    generate_consortium,
    read_record,
    register,
    run_attacks,
    run_federation,
)
from fkgsec.attacks.registry import check_attacks
from fkgsec.errors import SpecError, ThreatModelError
from fkgsec.exchange import CODECS, Holding
from fkgsec.exchange.codec import ServerCodec
from fkgsec.exchange.low_rank import LowRankServer
from fkgsec.experiments.cli.main import app
from fkgsec.experiments.reporting.html.sections import SECTIONS
from fkgsec.federation.messages import decode, encode
from tests.extensions.central_attack import CENTRAL
from tests.extensions.eight_bit import EIGHT_BIT, FEDE_8BIT
from tests.extensions.upload_sizes import UPLOAD_SIZES

SMALL = ["--size", "300", "--dim", "8", "--batch-size", "64", "--num-negatives", "8", "--rounds", "4"]
SMALL += ["--eval-every", "2", "--learning-rate", "0.02", "--device", "cpu", "--unlinked-heads", "0"]


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    CODECS.register("eight-bit", EIGHT_BIT)
    register(FEDE_8BIT)
    ATTACKS.register("central", CENTRAL)
    SECTIONS.register("upload-sizes", UPLOAD_SIZES)
    yield
    for registry, name in ((CODECS, "eight-bit"), (RECIPES, "fede-8bit"), (ATTACKS, "central")):
        registry.remove(name)
    SECTIONS.remove("upload-sizes")


def fkgsec(*arguments: str, status: int = 0) -> str:
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert done.exit_code == status, done.output
    return " ".join(done.output.split())


@pytest.mark.parametrize(
    ("name", "most"), [("central_attack", 30), ("eight_bit", 30), ("upload_sizes", 30), ("shapes_attack", 40)]
)
def test_each_fits_on_a_page(name: str, most: int) -> None:
    assert len(Path(__file__).with_name(f"{name}.py").read_text().splitlines()) <= most


def test_the_codec_sends_each_value_within_half_a_step() -> None:
    rows = torch.tensor([[1.0, -0.5, 0.004], [0.0, 0.0, 0.0]])
    client = EIGHT_BIT.client(Holding(["a", "b"], 2), KgeOptions(), "rows")
    contribution = client.encode(1, rows)
    message = decode(encode(client.pack(1, "client/a", "entities", contribution)))
    torch.testing.assert_close(message.rows(), contribution.rows)
    assert (contribution.rows - rows).abs().max() <= 0.5 / 127


def test_attacks_read_what_the_codec_uploads(tmp_path: Path) -> None:
    """They once found that no embedding crossed, and the verdict was that nothing leaks."""
    attacks = ["--attack", "reconstruction", "--attack", "update-recovery", "--threat", "collusion"]
    fkgsec("attack", "--algorithm", "fede-8bit", *SMALL, *attacks, "--out", str(tmp_path / "run"))
    record = read_record(tmp_path / "run/record.json")
    (cosine, *_) = [one for one in record.figures if one.key == "update-recovery.cosine"]
    assert cosine.estimate.value > 0.9
    assert not [one.reason for one in record.figures if one.reason]


def test_uploads_that_attacks_cannot_read_are_refused(request: pytest.FixtureRequest) -> None:
    class Blind(LowRankServer):
        observed = ServerCodec.observed

    CODECS.register("blind", replace(CODECS["low-rank"], server=Blind))
    register(replace(RECIPES["fede-svd"], name="blind", codec="blind"))
    request.addfinalizer(lambda: (RECIPES.remove("blind"), CODECS.remove("blind")))
    options = KgeOptions(algorithm="blind", dim=8, rounds=2, device="cpu", settings={"columns": 2, "rank": 1})
    result = run_federation(generate_consortium(clients=2, size=200, seed=0), options)
    with pytest.raises(ThreatModelError, match="codec 'blind' uploads low-rank-rows, which attacks cannot read"):
        run_attacks(result, KgeAttackOptions(threat=("server",)))


def test_the_attack_takes_its_setting_and_the_report_shows_the_section(tmp_path: Path) -> None:
    shown = fkgsec("attack", "--attack", "list")
    assert "settings: central:norm=1.0" in shown
    for norm in ("1", "8"):
        fkgsec("attack", *SMALL, "--attack", f"central:norm={norm}", "--out", str(tmp_path / norm))
    first, second = (read_record(tmp_path / norm / "record.json") for norm in ("1", "8"))
    assert {one.attack for one in (*first.figures, *second.figures)} == {"central"}
    assert [one.estimate for one in first.figures] != [one.estimate for one in second.figures]
    fkgsec("report", str(tmp_path / "1"), str(tmp_path / "8"), "--out", str(tmp_path / "report.html"))
    assert ">Upload sizes</h2>" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("written", "says"),
    [
        (["central:norm=0.5"], "central: norm: Expected `float` >= 1"),
        (["central:nrm=2"], "unknown field `nrm`"),
        (["central:norm"], "'norm' is no setting; write central:key=value,key=value"),
        (["edges:norm=2"], "edges has no settings of its own"),
        (["central", "central:norm=2"], "central is named twice"),
    ],
)
def test_a_setting_that_is_not_allowed_is_refused(written: list[str], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        check_attacks(written)
