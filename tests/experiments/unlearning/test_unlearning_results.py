"""The committed verifications: where they come from, the table beside them, and the shape of fedlu.txt Tables 2 and 3."""

from pathlib import Path

import msgspec
import pytest

from benchmarks.certificates import Certificates, table
from benchmarks.fakes import FAKES
from fkgsec.attacks.forgetting.evaluation import METRICS, Membership, Role
from fkgsec.experiments.reporting import summary
from fkgsec.experiments.runs.stored import decode_stored
from fkgsec.experiments.unlearning.certificate import mean_of
from fkgsec.experiments.unlearning.verification import Verification, read_verification

FOLDER = Path(summary.__file__).resolve().parents[2] / "results" / "unlearning"
RECORDS: dict[str, Verification] = {
    path.stem: made for path in sorted(FOLDER.glob("*.json")) if (made := read_verification(path))
}
ROWS: dict[str, tuple[str, Role]] = {
    "raw, `c3-at-once`": ("c3-at-once-unlearned", "raw"),
    "re-trained, `c3-at-once-retrain`": ("c3-at-once-unlearned", "retrained"),
    "raw, `c3-waiting`": ("c3-unlearned", "raw"),
    "re-trained, `c3-retrain`": ("c3-unlearned", "retrained"),
    **{f"`{name}`": (name, "unlearned") for name in RECORDS if name != "c3-delete"},
}
RUNS = ("c3-at-once", "c3")


def hits(name: str, role: Role, model: str, triples: str) -> float:
    """Hits@1, mean over the clients that asked."""
    rows = [row for row in RECORDS[name].forgetting.quality if row.asked]
    return mean_of([row.figures[role]["hits@1"] for row in rows if (row.model, row.triples) == (model, triples)]).value


@pytest.mark.parametrize("row", ROWS)
def test_the_tables_have_the_records_figures(row: str) -> None:
    (line,) = (one for one in (FOLDER / "README.md").read_text().splitlines() if one.startswith(f"| {row}"))
    name, role = ROWS[row]
    local, world = (
        " / ".join(f"{hits(name, role, model, triples):.4f}".lstrip("0") for triples in ("forget", "test"))
        for model in ("local", "global")
    )
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    assert (cells[2], cells[4]) == (local, world)


@pytest.mark.parametrize("model", ["local", "global"])
@pytest.mark.parametrize("run", RUNS)
def test_forget_triples_fall_below_re_training_and_test_triples_stay(run: str, model: str) -> None:
    """fedlu.txt Table 2."""
    name = f"{run}-unlearned"
    assert hits(name, "unlearned", model, "forget") < 0.85 * hits(name, "retrained", model, "forget")
    assert hits(name, "unlearned", model, "test") > 0.93 * hits(name, "raw", model, "test")


@pytest.mark.parametrize("model", ["local", "global"])
@pytest.mark.parametrize("run", RUNS)
def test_without_hard_confusion_less_is_forgotten(run: str, model: str) -> None:
    """fedlu.txt Table 3."""
    with_it, without = (hits(f"{run}-{name}", "unlearned", model, "forget") for name in ("unlearned", "no-hard"))
    assert without > 1.05 * with_it


@pytest.mark.parametrize("run", RUNS)
def test_without_soft_confusion_local_models_forget_less(run: str) -> None:
    """fedlu.txt Table 3."""
    with_it, without = (hits(f"{run}-{name}", "unlearned", "local", "forget") for name in ("unlearned", "no-soft"))
    assert without > 1.05 * with_it


def test_figures_are_those_of_the_rows_and_name_the_client_that_was_attacked() -> None:
    made = RECORDS["c3-unlearned"]
    figures = {(one.metric, one.victim, one.variant): one for one in made.figures}
    assert {one.key for one in made.figures} == {f"unlearning.{metric}" for metric in METRICS}
    assert len(figures) == len(made.figures)
    for row in made.forgetting.membership:
        if row.asked:
            one = figures["auc", row.client, f"{row.model}, {row.attack}"]
            assert one.estimate == row.figures["unlearned"].distinguishability
            assert one.baseline == row.figures["retrained"].distinguishability
    loss = figures["auc", "0", "local, u-lira"]
    assert round(loss.estimate.value, 3) == 0.821  # as the README beside it says
    assert loss.advantage > 0.25
    # A client that asked and has too few triples is a figure with its reason, which no limit takes for a pass.
    none = Membership("0", True, "local", "loss", {}, None, "1 forgotten triples with 0 controls; it takes 2 of each")
    (alone,) = msgspec.structs.replace(made.forgetting, membership=[none], distances=[], quality=[]).attack_figures()
    assert (alone.reason, alone.estimate.low, alone.estimate.high) == (none.reason, 0.0, 1.0)


@pytest.mark.parametrize("path", sorted((FOLDER / "certificates").glob("*.json")), ids=lambda path: path.stem)
def test_committed_tables_of_fakes_certify_none_and_stand_in_their_readme(path: Path) -> None:
    made = decode_stored(path.read_bytes(), Certificates)
    assert made.environment.dirty is False
    for row in made.rows:
        if row.name in FAKES and row.outcome == "forgotten":
            assert row.held is not None, f"{row.name} is certified, and nothing says how little it holds"
            assert made.rejected_from is not None
            assert row.held[1] < made.rejected_from <= made.tolerated
            assert made.hiding_rejected_from is not None
            assert made.hiding_rejected_from <= made.tolerated
    nulls = [row.outcome for row in made.rows if row.name not in FAKES]
    assert nulls.count("not forgotten") <= 1
    assert table(made) in (FOLDER / "certificates" / "README.md").read_text()


def test_every_fake_stands_in_a_committed_table() -> None:
    records = [decode_stored(path.read_bytes(), Certificates) for path in (FOLDER / "certificates").glob("*.json")]
    assert {row.name for made in records for row in made.rows} >= set(FAKES)
    assert max(sum(", seed " in row.name for row in made.rows) for made in records) >= 20
