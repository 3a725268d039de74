"""Results for pandas and notebooks: a row for each figure, what was not measured is missing, and names stay in their cells."""

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest

from fkgsec import KgeResult, generate_consortium, graph_from, run_federation
from fkgsec.attacks import headline, run_attacks
from fkgsec.attacks.figure import NOT_ATTACKED, Figure
from fkgsec.attacks.forgetting.evaluation import Distance, Forgetting, Membership, Quality, Rebuilt
from fkgsec.attacks.forgetting.update_difference import UpdateDifference
from fkgsec.attacks.frames import COLUMNS, figures_to_frame
from fkgsec.attacks.membership.figures import ScoreDistance, measure_membership
from fkgsec.attacks.registry import Attacked
from fkgsec.estimate import Estimate, exact, proportion
from fkgsec.experiments.runs.compare import Case, Comparison, read_comparison
from fkgsec.experiments.runs.record import Record, make_record
from fkgsec.experiments.runs.spec import Spec
from fkgsec.experiments.unlearning.verification import read_verification
from fkgsec.frames import block

RESULTS = Path(__file__).parents[1] / "results"
HOSTILE = '<img src=x onerror="alert(1)">&\u202e\x1b[2J'
SPEC = Spec(
    dim=8, rounds=2, local_epochs=1, batch_size=64, num_negatives=4, eval_every=1, learning_rate=0.05, unlinked_heads=0,
    device="cpu",
)  # fmt: skip


class Shown(HTMLParser):
    """The tags and the text of a piece of HTML."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[Any] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def check_html(shown: Any, *says: str) -> None:
    html = Shown(shown._repr_html_())
    assert html.tags <= {"div", "strong", "table", "thead", "tbody", "tr", "th", "td"}
    assert html.attributes == [("class", "tex2jax_ignore mathjax_ignore")]  # no formulas in names
    assert not set(html.text) & {"\u202e", "\x1b"}
    for one in says:
        assert one in html.text


@pytest.fixture(scope="module")
def result() -> KgeResult:
    return run_federation(generate_consortium(clients=3, size=400, seed=5), SPEC.federation_options())


@pytest.fixture(scope="module")
def attacked(result: KgeResult) -> Attacked:
    return run_attacks(result, SPEC.attack_options())


@pytest.fixture(scope="module")
def record(result: KgeResult, attacked: Attacked) -> Record:
    return make_record(SPEC, result, attacked.figures)


def test_a_training(result: KgeResult) -> None:
    rounds, reached = result.to_frame(), result.utility_frame()
    assert list(rounds.index) == [0, 1, 2]
    assert list(reached.columns) == ["client", "metric", "value", "low", "high", "n", "method"]
    names = [client.name for client in result.graph.clients]
    assert list(dict.fromkeys(reached["client"])) == [*names, "all"]
    mrr = reached[reached["metric"] == "mrr"].set_index("client")
    for client, ranks in zip(names, result.test_ranks, strict=True):
        assert mrr.loc[client, "value"] == pytest.approx((1 / ranks).mean())
    assert mrr.loc["all", "value"] == pytest.approx((1 / np.concatenate(result.test_ranks)).mean())
    assert ((reached["low"] <= reached["value"]) & (reached["value"] <= reached["high"])).all()
    assert [str(kind) for kind in reached[["value", "n"]].dtypes] == ["float64", "Int64"]
    check_html(result, "fede, transe, dimension 8", "hospital-2", "mrr", "bytes:")


def test_without_test_triples_nothing_is_zero() -> None:
    rows = [(f"a{number}", "r", f"b{number % 5}") for number in range(20)]
    graph = graph_from({HOSTILE: rows, "b": rows})
    result = run_federation(graph, SPEC.replace(rounds=1).federation_options())
    reached = result.utility_frame()
    assert len(reached)
    assert reached[["value", "low", "high"]].isna().all(axis=None)
    check_html(result, "nothing to count")
    check_html(graph, "<img src=x onerror=")


def test_attacks(attacked: Attacked) -> None:
    frame = attacked.to_frame()
    assert list(frame.columns) == list(COLUMNS)
    assert len(frame) == len(attacked.figures)
    for row, one in zip(frame.to_dict("records"), attacked.figures, strict=True):
        assert (row["attack"], row["metric"], row["victim"], row["threat_model"]) == (
            one.attack, one.metric, one.victim, one.threat_model,
        )  # fmt: skip
        assert (row["value"], row["low"], row["high"]) == (one.estimate.value, one.estimate.low, one.estimate.high)
        if one.baseline is not None:
            assert (row["baseline"], row["advantage"]) == (one.baseline.value, pytest.approx(one.advantage))
    assert frame["headline"].sum() == len(headline(attacked.figures))
    assert pd.api.types.is_bool_dtype(frame["headline"])
    check_html(attacked, "reconstruction", "identifiers")


def test_what_was_not_attacked_has_no_value() -> None:
    none = Figure("shapes", "auc", "server", HOSTILE, NOT_ATTACKED, baseline=exact(0.5, 9), reason="it sent nothing")
    frame = figures_to_frame([none])
    assert frame[["value", "low", "high", "n", "attainable", "advantage"]].isna().all(axis=None)
    assert frame.loc[0, "reason"] == "it sent nothing"
    assert list(figures_to_frame([]).columns) == list(COLUMNS)
    assert figures_to_frame([])["value"].dtype == "float64"
    check_html(Attacked([none], pd.DataFrame()), "not attacked: it sent nothing", "<img src=x")


def test_a_record_and_a_comparison(record: Record, attacked: Attacked) -> None:
    frame = record.to_frame()
    assert list(frame.columns) == list(COLUMNS)
    utility = frame[(frame["attack"] == "utility") & (frame["metric"] == "mrr")].set_index("victim")
    assert utility.loc["all", "value"] == record.utility["mrr"].value
    assert set(utility.index) == {"all", *record.data.clients}
    sent = frame[frame["attack"] == "bytes"].set_index("metric")
    assert (sent.loc["up", "value"], sent.loc["down", "value"]) == (record.bytes.up, record.bytes.down)
    assert len(frame) == len(utility) * len(record.utility) + 2 + len(attacked.figures)
    other = msgspec.structs.replace(record, figures=[])
    both = Comparison("fkgsec/comparison/1", [Case(HOSTILE, record, attacked.figures[:2]), Case("secagg", other)])
    cases = both.to_frame()
    assert cases.groupby("case").size().to_dict() == {
        HOSTILE: len(frame) + 2,
        "secagg": len(frame) - len(attacked.figures),
    }
    assert cases["unlearned"].sum() == 2
    check_html(record, "fede, transe, no defense", "reconstruction")
    check_html(both, "<img src=x", "secagg")


def test_membership_and_forgetting() -> None:
    rng = np.random.default_rng(0)
    forgotten = np.arange(200) < 100
    made = measure_membership(rng.normal(size=200) + forgotten, forgotten, attack="loss", control="held_out", rng=rng)
    one: dict[str, Estimate] = {"unlearned": proportion(3, 10), "retrained": proportion(2, 10)}
    by_role = {role: {"mrr": figure} for role, figure in one.items()}
    forgetting = Forgetting(
        {},
        [Quality("a", True, "own", "forget", by_role)],
        [Membership("a", True, "own", "loss", {"unlearned": made, "retrained": made}),
         Membership("b", False, "own", "loss", {}, reason="too few")],
        [Distance("a", True, "own", {"unlearned": ScoreDistance(proportion(1, 10), 0.5)})],
        [],
        [UpdateDifference("a", {"unlearned": made}, {"retrained": "a whole run"})],
        [Rebuilt("a", "identifiers", one)],
        [],
    )  # fmt: skip
    rows = forgetting.to_frame().set_index(["measure", "client", "role"])
    assert rows.loc[("forget.mrr", "a", "unlearned"), "value"] == 0.3
    assert rows.loc[("forget.mrr", "a", "unlearned"), "baseline"] == 0.2
    assert rows.loc[("membership.auc", "a", "unlearned"), "value"] == made.auc.value
    assert rows.loc[("rebuilt.trr", "a", "unlearned"), "variant"] == "identifiers"
    reasons = forgetting.to_frame().set_index("reason")
    assert reasons.loc["too few", "client"] == "b"
    assert reasons.loc["a whole run", "measure"] == "update.auc"


def test_committed_verifications_and_comparisons() -> None:
    made = read_verification(RESULTS / "unlearning" / "c3-unlearned.json")
    assert made is not None
    left = made.to_frame().query("measure == 'forget.mrr' and client == '0' and model == 'local'").set_index("role")
    row = next(
        row for row in made.forgetting.quality if (row.client, row.model, row.triples) == ("0", "local", "forget")
    )
    assert left["value"].to_dict() == {role: figures["mrr"].value for role, figures in row.figures.items()}
    assert left.loc["unlearned", "baseline"] == left.loc["retrained", "value"]
    check_html(made, f"Unlearning: {made.verdict.outcome}", "unlearned", "re-trained")
    compared = read_comparison(RESULTS / "recipes" / "ddb14-clean5-recipes.json")
    assert compared is not None
    assert compared.to_frame()["case"].nunique() == len(compared.cases)
    check_html(compared, f"{len(compared.cases)} cases")


def test_long_tables_say_what_they_leave_out() -> None:
    html = block(HOSTILE * 100, [HOSTILE], heads=(HOSTILE,), rows=[(HOSTILE,)] * 50)
    shown = Shown(html)
    assert shown.tags == {"div", "strong", "table", "thead", "tbody", "tr", "th", "td"}
    assert html.count("<tr>") == 41
    assert "and 10 more rows" in shown.text
