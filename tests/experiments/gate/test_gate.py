"""The gate: figures and intervals, verdicts on the bound, baselines, and a small federation from policy to exit status."""

import base64
import io
import json
import shutil
import zlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from fkgsec.attacks.figure import Figure, headline
from fkgsec.attacks.options import KgeAttackOptions
from fkgsec.attacks.registry import run_attacks
from fkgsec.attacks.view import ALL
from fkgsec.data.consortium import generate_consortium
from fkgsec.errors import RunError
from fkgsec.estimate import Estimate, exact, proportion
from fkgsec.experiments.gate import CHECK_FILE, SCHEMA, folders
from fkgsec.experiments.gate import judge as gate
from fkgsec.experiments.gate.audits import UNLEARNING_FOLDER, unlearning_of
from fkgsec.experiments.gate.baseline import BaselineRun, read_baseline, worse_by
from fkgsec.experiments.gate.judge import exit_status
from fkgsec.experiments.gate.measures import MEASURES, NotMeasured, Question
from fkgsec.experiments.gate.policy import Limit
from fkgsec.experiments.gate.verdicts import Runs, evidence_lines, judge, judge_limit, overall, what_would_settle
from fkgsec.experiments.reporting.frames import figures
from fkgsec.experiments.reporting.html.page import assemble, render
from fkgsec.experiments.reporting.items import Run
from fkgsec.experiments.reporting.sheets import interval, print_sheets
from fkgsec.experiments.reporting.tables import attack_sheets
from fkgsec.experiments.reporting.worth import gains
from fkgsec.experiments.runs.intervals import over_seeds
from fkgsec.experiments.runs.record import Record, read_record
from fkgsec.experiments.runs.run import Finished, load_run
from fkgsec.protocols.noise.accounting import Guarantee
from fkgsec.unlearning.unlearning import Method
from tests.experiments.commands import fkgsec

FEDERATION = """\
federations:
  small: {size: 600, dim: 8, batch_size: 64, num_negatives: 8, rounds: 3, eval_every: 1, unlinked_heads: 0}
"""
LOOSE = """\
limits:
  reconstruction.trr: {max: 0.9, threat: identifiers, leak: 0.5}
  utility.mrr: {min: 0.001}
  bytes.total: {max: 1 GB}
  no_worse_than: {baseline: old.json, by: 0.02}
"""
COLLUSION = Question("collusion", 0.5)
ERR = "small/reconstruction.err/collusion/0.5/all"


def check(folder: Path, *arguments: str, text: str | None = None) -> tuple[int, str, str]:
    """Run `fkgsec check` in a folder, with this policy if it is given."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        if text is not None:
            (folder / "policy.yaml").write_text(text)
        return fkgsec("check", *arguments)


def judged(folder: Path, limits: str, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """Exit status and verdicts of limits on the small federation."""
    status, out, err = check(folder, "--json", "-", *arguments, text=f"{FEDERATION}limits:\n{limits}")
    assert status != 2, err
    assert (folder / "runs" / "check" / CHECK_FILE).read_text() == out
    return status, json.loads(out)["verdicts"]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a policy that holds, its baseline and its run."""
    folder = tmp_path_factory.mktemp("project")
    status, _, err = check(folder, "--update-baseline", "--quiet", text=FEDERATION + LOOSE)
    assert status == 0, err
    return folder


@pytest.fixture(scope="module")
def finished(project: Path) -> Finished:
    (folder,) = (project / "runs" / "check").glob("*/")
    return Finished(read_record(folder / "record.json"), pd.read_parquet(folder / "scores.parquet"), folder)


def test_a_check_that_ends_in_an_error_leaves_no_verdict_beside_the_runs(tmp_path: Path) -> None:
    kept = tmp_path / "runs" / "check" / CHECK_FILE
    kept.parent.mkdir(parents=True)
    kept.write_text(f'{{"schema": "{SCHEMA}"}}')
    assert check(tmp_path, text="federations: 1")[0] == 2
    assert not kept.exists()
    kept.write_text("somebody's own")
    status, _, err = check(tmp_path, text="federations: 1")
    assert (status, kept.read_text()) == (2, "somebody's own")
    assert "is not a json report of an earlier check" in err


def changed(run: Finished, **changes: Any) -> Finished:
    """The run with these fields of its record changed."""
    return run._replace(record=msgspec.structs.replace(run.record, **changes))


def read(name: str, run: Finished, question: Question | None = None) -> Estimate:
    return MEASURES[name].read(run, question or Question())


def figure_of(record: Record, metric: str = "err", victim: str = ALL, threat: str = "collusion") -> Figure:
    asked = (metric, threat, victim)
    return next(one for one in headline(record.rebuilt) if (one.metric, one.threat_model, one.victim) == asked)


def guess_of(figure: Figure) -> float:
    assert figure.baseline is not None
    return figure.baseline.value


# Figures.


def test_a_figure_is_the_records_own_with_its_interval(finished: Finished) -> None:
    record = finished.record
    err, trr = (figure_of(record, metric) for metric in ("err", "trr"))
    assert read("reconstruction.err", finished, COLLUSION) == err.estimate
    assert read("reconstruction.trr", finished, COLLUSION) == trr.estimate
    assert (err.estimate.method, trr.estimate.method) == ("wilson, 6 leaks", f"wilson, best of {trr.compared}, 6 leaks")
    single = read("reconstruction.err", finished, COLLUSION._replace(victim="hospital-3"))
    expected = figure_of(record, "err", "hospital-3").estimate
    assert (single.value, single.n) == (expected.value, expected.n)
    assert read("utility.hits@3", finished) == record.utility["hits@3"]
    assert read("bytes.total", finished).value == record.bytes.up + record.bytes.down
    by_round = zip(record.bytes.up_by_round[1:], record.bytes.down_by_round[1:], strict=True)
    assert read("bytes.per_round", finished) == exact(max(up + down for up, down in by_round), 1)


def test_an_advantage_is_the_figure_shifted_by_the_guess(finished: Finished) -> None:
    whole, figure = (read(f"reconstruction.err{name}", finished, COLLUSION) for name in ("", "_advantage"))
    guess = guess_of(figure_of(finished.record))
    assert guess > 0
    assert (figure.value, figure.low, figure.high) == pytest.approx(
        (whole.value - guess, whole.low - guess, whole.high - guess)
    )


def test_an_adversary_may_ignore_what_it_saw(finished: Finished) -> None:
    """Noise on uploads must not make a federation look better than guessing is; the interval shown is the attack's own."""
    guess = exact(0.3, 100)
    worse = msgspec.structs.replace(
        figure_of(finished.record, "trr"), estimate=proportion(1, 100), baseline=guess, guesses={"prior": guess},
        attainable=0.9,
    )  # fmt: skip
    run = changed(finished, figures=[figure_of(finished.record), worse])
    assert read("reconstruction.trr", run, COLLUSION) == proportion(1, 100)
    below, above = (
        judge_limit(Limit("reconstruction.trr", "small", COLLUSION, allowed, 7), Runs({0: run}, None))
        for allowed in (0.2, 0.31)
    )
    assert (below.status, below.measured) == ("fail", proportion(1, 100))
    assert below.message == (
        "0.0100 [0.0018, 0.0545] by the attack, but its baseline is 0.3000, which lies above 0.2000"
    )
    assert (above.status, above.measured) == ("pass", proportion(1, 100))
    assert above.reached_by == worse.by is not None


def test_what_was_not_attacked_is_not_measured(finished: Finished) -> None:
    found = finished.record.rebuilt
    with pytest.raises(
        NotMeasured, match=r"no attack that measures reconstruction.trr was run under collusion, leak 0.9"
    ):
        read("reconstruction.trr", finished, Question("collusion", 0.9))
    nothing = changed(finished, figures=[msgspec.structs.replace(one, reason="no row crossed") for one in found])
    with pytest.raises(NotMeasured, match="nothing to attack: no row crossed"):
        read("reconstruction.trr", nothing, COLLUSION)
    silent = {"hospital-3": "silent"}
    part = changed(
        finished,
        figures=[msgspec.structs.replace(one, num_attacked=1, reason=silent.get(one.victim)) for one in found],
    )
    with pytest.raises(NotMeasured, match=r"only 1 of 2 victims could be attacked \(hospital-3: silent\)"):
        read("reconstruction.trr", part, COLLUSION)
    assert read("reconstruction.trr", part, COLLUSION._replace(victim="hospital-2")).n
    without = changed(finished, utility={name: proportion(0, 0) for name in finished.record.utility})
    with pytest.raises(NotMeasured, match="there are no test triples"):
        read("utility.mrr", without)


def test_the_only_victim_stands_for_all(finished: Finished) -> None:
    alone = changed(finished, figures=[one for one in finished.record.rebuilt if one.victim == "hospital-2"])
    expected = figure_of(finished.record, "err", "hospital-2").estimate.value
    assert read("reconstruction.err", alone, COLLUSION).value == expected


def test_membership_is_the_attacks_on_the_model_that_gives_more_away(finished: Finished) -> None:
    spec, result = load_run(finished.folder)
    options = KgeAttackOptions(attack=("membership",), threat=("models",), seed=spec.seed)
    inferences = run_attacks(result, options).figures
    for victim in ("hospital-1", "hospital-2"):
        question = Question(victim=victim)
        for metric in ("auc", "advantage"):
            own = {one.variant: one for one in inferences if (one.victim, one.metric) == (victim, metric)}
            assert len(own) == 7
            found = read(f"membership.{metric}", finished, question)
            assert found == own.pop("strongest").estimate
            assert found.value >= max(one.estimate.value for one in own.values())
            assert found.method.endswith("best of 6")
        (line,) = evidence_lines(finished, "membership.auc", question, 0)
        assert line.startswith("strongest of 6 ways: ")
    client = Question("client", victim="hospital-2")
    assert read("membership.auc", finished, client) != read("membership.auc", finished, Question(victim="hospital-2"))
    with pytest.raises(NotMeasured, match="hospital-1 has too few"):  # which is the client
        read("membership.auc", finished, client._replace(victim="hospital-1"))
    with pytest.raises(NotMeasured, match=r"0\.1% false alarms take 1,000 never-seen triples"):
        read("membership.tpr@0.001", finished, Question(victim="hospital-1"))
    assert read("membership.auc", finished).n > read("membership.auc", finished, Question(victim="hospital-1")).n
    with pytest.raises(NotMeasured, match="nobody has too few training triples"):
        read("membership.auc", finished, Question(victim="nobody"))


def test_an_audits_shadows_are_trained_once_and_seen(tmp_path: Path) -> None:
    limits = "limits:\n" + "".join(
        f"  membership.{metric}: {{max: 0.99, shadows: 4, victim: hospital-1}}\n" for metric in ("auc", "advantage")
    )
    status, _, err = check(tmp_path, text=FEDERATION + limits)
    assert status == 0, err
    shadows = [line for line in err.splitlines() if line.startswith("membership on runs/check/small-")]
    assert [line.partition(": ")[2] for line in shadows] == [f"shadow {number} of 4" for number in (1, 2, 3, 4)]
    assert check(tmp_path, "--fresh", "--quiet")[0::2] == (0, "")


FORGETFUL = """\
federations:
  small: {algorithm: fedlu, size: 3000, dim: 24, gamma: 4, batch_size: 64, num_negatives: 16, rounds: 30, local_epochs: 2,
    eval_every: 30, learning_rate: 0.02, unlinked_heads: 0}
limits:
"""
FORGET = "forget: forget.tsv, client: hospital-1"


@pytest.mark.slow
def test_unlearning_is_made_and_verified_for_the_limits_that_ask(tmp_path: Path) -> None:
    """Deleting is caught, re-training passes; what an audit would not have noticed fails."""
    client = generate_consortium(clients=3, size=3000, seed=0).clients[0]
    chosen = np.random.default_rng(0).permutation(np.unique(client.train, axis=0))[:300]
    graph = generate_consortium(clients=3, size=3000, seed=0)
    names = [
        f"{graph.entities[h]}\t{graph.relations[r]}\t{graph.entities[t]}\n" for h, r, t in client.to_global(chosen)
    ]
    (tmp_path / "forget.tsv").write_text("".join(names))
    limits = f"""\
  membership.auc: {{max: 0.51, victim: hospital-1}}
  unlearning.auc:
    - {{max: 0.74, {FORGET}, method: retrain}}
    - {{max: 0.55, {FORGET}, method: delete}}
  unlearning.forget_mrr: {{max: 0.35, {FORGET}, method: delete}}
  unlearning.ks: {{max: 0.01, {FORGET}, method: delete}}
"""
    status, out, err = check(tmp_path, "--json", "-", text=FORGETFUL + limits)
    assert status == 1, err
    verdicts = {one["id"]: one for one in json.loads(out)["verdicts"]}
    assert {key: one["status"] for key, one in verdicts.items()} == {
        "small/membership.auc/hospital-1": "fail",
        "small/unlearning.auc/retrain/forget.tsv": "pass",
        "small/unlearning.auc/delete/forget.tsv": "fail",
        "small/unlearning.forget_mrr/delete/forget.tsv": "fail",
        "small/unlearning.ks/delete/forget.tsv": "fail",
    }, {key: one["message"] for key, one in verdicts.items()}
    assert "verified: not forgotten" in verdicts["small/unlearning.auc/delete/forget.tsv"]["evidence"]
    (run,) = (tmp_path / "runs" / "check").glob("*/")
    assert sorted(path.name.split("-")[0] for path in (run / "unlearning").iterdir()) == ["delete", "retrain"]
    assert [err.count(f"{method} on {run.relative_to(tmp_path)}\n") for method in ("delete", "retrain")] == [1, 1]
    # An audit that the raw run passes, too, measures nothing: two members and two controls cannot exclude an AUC of 0.5.
    (tmp_path / "forget.tsv").write_text("".join(names[:3]))
    limits = f"  unlearning.auc: {{max: 0.9, {FORGET}, method: delete}}\n"
    status, out, err = check(tmp_path, "--json", "-", text=FORGETFUL + limits)
    assert out, err
    (verdict,) = json.loads(out)["verdicts"]
    assert (status, verdict["status"]) == (1, "fail")
    assert "the audit does not detect the memory before unlearning either" in verdict["message"]
    (tmp_path / "forget.tsv").write_text("a\tb\tc\n")
    status, out, err = check(tmp_path, text=FORGETFUL + limits)
    assert (status, out) == (2, "")
    assert err.startswith("fkgsec: policy.yaml:5: limits.unlearning.auc.forget: forget.tsv:1: ")
    assert err.count("\n") == 1


def test_an_unlearning_that_was_planted_is_refused(project: Path, finished: Finished, tmp_path: Path) -> None:
    """The outcome of re-training, under the name of a method that forgets less, and one of another request."""
    shutil.copytree(project, tmp_path, dirs_exist_ok=True)
    run = finished._replace(folder=tmp_path / finished.folder.relative_to(project))
    graph = load_run(run.folder)[1].graph
    client = graph.clients[0]
    lines = [
        f"{graph.entities[h]}\t{graph.relations[r]}\t{graph.entities[t]}\n"
        for h, r, t in client.to_global(client.train[:2])
    ]
    forget = tmp_path / "forget.tsv"

    def unlearn(method: Method, request: list[str]) -> Path:
        """Let the gate unlearn, and return the folder."""
        forget.write_text("".join(request))
        unlearning_of(run, Question(forget=str(forget), client=client.name, method=method))
        return max((run.folder / UNLEARNING_FOLDER).glob(f"{method}-*"), key=lambda path: path.stat().st_mtime_ns)

    retrained, deleted, less = unlearn("retrain", lines), unlearn("delete", lines), unlearn("delete", lines[:1])
    for planted, request, message in ((retrained, lines, "method or settings"), (less, lines, "request")):
        shutil.rmtree(deleted)
        shutil.copytree(planted, deleted)
        with pytest.raises(RunError, match=f"another {message} than the policy names"):
            unlearn("delete", request)
    check(tmp_path, "--fresh")
    assert not (run.folder / UNLEARNING_FOLDER).exists()


def test_epsilon_of_an_unlearning_counts_what_the_run_had_released(tmp_path: Path) -> None:
    graph = generate_consortium(clients=3, size=600, seed=0)
    h, r, t = graph.clients[0].to_global(graph.clients[0].train[:1])[0]
    (tmp_path / "forget.tsv").write_text(f"{graph.entities[h]}\t{graph.relations[r]}\t{graph.entities[t]}\n")
    federation = FEDERATION.replace("}", ", defense: 'dp:clip=0.1,epsilon=8'}")
    limits = f"""\
limits:
  epsilon:
    - {{max: 7.9}}
    - {{max: 9.4, {FORGET}, method: finetune}}
    - {{max: 12.1, {FORGET}, method: retrain}}
"""
    status, out, err = check(tmp_path, "--json", "-", text=federation + limits)
    assert status == 1, err
    verdicts = json.loads(out)["verdicts"]
    assert [one["status"] for one in verdicts] == ["fail"] * 3
    assert [one["measured"]["value"] for one in verdicts] == pytest.approx([8.0, 9.50, 12.17], abs=0.01)
    told = [" ".join(one["evidence"]) for one in verdicts]
    assert ["3 releases" in told[0], "4 releases" in told[1], "6 releases" in told[2]] == [True] * 3


def guaranteed(run: Finished, *guarantees: Guarantee) -> Finished:
    return changed(run, guarantees={f"table{number}": one for number, one in enumerate(guarantees)})


@pytest.mark.parametrize("epsilon", [0.0, 1.23456789, 8, 123456.789])
def test_epsilon_is_the_stated_one_and_never_less(epsilon: float, finished: Finished) -> None:
    one = Guarantee(epsilon, 1.00004e-5, "row", "one row of one client's uploads replaced", "Gaussian", 20, None, "rdp")
    other = Guarantee(epsilon / 2, 1e-5, "row", "one row replaced", "Gaussian", 20, 3, "rdp")
    figure = read("epsilon", guaranteed(finished, other, one), Question(unit="row"))
    assert figure.value == epsilon
    assert figure.low == figure.high == figure.value


def test_a_guarantee_of_another_unit_or_with_a_larger_delta_does_not_count(finished: Finished) -> None:
    run = guaranteed(finished, Guarantee(2, 1e-3, "row", "one row replaced", "Gaussian", 20, None, "rdp"))
    for question, says in (
        (Question(unit="client"), "the guarantee is per row, the limit is per client"),
        (Question(unit="row"), r"the guarantee's delta is 0.001, above 0.0001"),
    ):
        with pytest.raises(NotMeasured, match=says):
            read("epsilon", run, question)
    assert read("epsilon", run, Question(unit="row", delta=0.01)).value == 2
    with pytest.raises(NotMeasured, match="epsilon is unbounded"):
        read("epsilon", finished)


# Advice and verdicts.


@pytest.mark.parametrize(
    ("right", "count", "allowed"), [(64, 1000, 0.07), (64, 1000, 0.055), (300, 1000, 0.31), (900, 1000, 0.905)]
)
def test_the_advice_would_settle_it(right: int, count: int, allowed: float) -> None:
    figure = proportion(right, count)
    assert judge(figure, "max", allowed) == "inconclusive"
    advice = what_would_settle([figure], allowed, "triples")
    more = int(advice.split()[1].replace(",", ""))
    assert advice == f"about {more:,} more triples (now {count:,}) would decide, if the figure stays"
    enough, fewer = count + 1.1 * more, count + 0.9 * more
    assert judge(proportion(right / count * enough, round(enough)), "max", allowed) == (
        "pass" if right / count < allowed else "fail"
    )
    assert judge(proportion(right / count * fewer, round(fewer)), "max", allowed) == "inconclusive"


def test_the_advice_on_seeds_and_where_none_helps() -> None:
    narrow = [Estimate(value, value - 0.001, value + 0.001, 10_000, "wilson") for value in (0.28, 0.30, 0.32)]
    assert judge(over_seeds(narrow), "max", 0.32) == "inconclusive"
    advice = what_would_settle(narrow, 0.32, "triples")
    more = int(advice.split()[1])
    assert advice == f"about {more} more seeds (now 3) would decide, if mean and spread stay"
    assert 2 <= more <= 6
    wide = [Estimate(value, value - 0.1, value + 0.1, 100, "wilson") for value in (0.2, 0.4)]
    assert "more triples and more seeds (now 100)" in what_would_settle(wide, 0.35, "triples")
    assert "move the limit" in what_would_settle([proportion(1, 2)], 0.5, "triples")


def test_verdicts_lie_on_the_bound_not_on_the_point() -> None:
    figure = Estimate(0.5, 0.4, 0.6, 100, "wilson")
    for allowed, most, least in (
        (0.6, "pass", "inconclusive"),
        (0.59, "inconclusive", "inconclusive"),
        (0.4, "inconclusive", "pass"),
        (0.39, "fail", "pass"),
        (0.61, "pass", "fail"),
    ):
        assert judge(figure, "max", allowed) == most
        assert judge(figure, "min", allowed) == least
    assert judge(exact(5, 1), "max", 5) == "pass"
    assert judge(exact(5.1, 1), "max", 5) == "fail"


def test_at_the_limit_a_verdict_is_wrong_in_a_twentieth_of_samples() -> None:
    """Decided either way although the true share is the limit: 5 % by construction; far from it never."""
    rng = np.random.default_rng(0)
    figures = [proportion(int(right), 2000) for right in rng.binomial(2000, 0.1, size=2000)]
    decided = np.mean([judge(figure, "max", 0.1) != "inconclusive" for figure in figures])
    assert 0.035 < decided < 0.065
    assert {judge(figure, "max", 0.1 + 2 * (figures[0].high - figures[0].low)) for figure in figures} == {"pass"}


def test_statuses_together() -> None:
    assert overall([]) == "fail"
    assert overall(["pass", "inconclusive", "pass"]) == "inconclusive"
    assert overall(["inconclusive", "fail", "vacuous"]) == "fail"
    assert overall(["inconclusive", "vacuous", "pass"]) == "vacuous"
    assert [exit_status("vacuous", when) for when in ("report", "pass", "fail")] == [3, 3, 1]
    assert [exit_status("inconclusive", when) for when in ("report", "pass", "fail")] == [3, 0, 1]
    assert [exit_status("fail", when) for when in ("report", "pass", "fail")] == [1, 1, 1]
    assert [exit_status("pass", when) for when in ("report", "pass", "fail")] == [0, 0, 0]


# Baselines.


def then_of(project: Path) -> BaselineRun:
    (run,) = read_baseline(project / "old.json").federations["small"]
    return run


def test_an_equal_run_is_exactly_as_bad(project: Path, finished: Finished) -> None:
    then = then_of(project)
    assert set(then.figures) == {
        "small/utility.mrr", "small/bytes.total",
        "small/reconstruction.err/collusion/0.5/all", "small/reconstruction.trr/collusion/0.5/all",
        "small/reconstruction.err/identifiers/0.5/all", "small/reconstruction.trr/identifiers/0.5/all",
        "small/reconstruction.err_advantage/collusion/0.5/all", "small/reconstruction.trr_advantage/collusion/0.5/all",
        "small/reconstruction.err_advantage/identifiers/0.5/all", "small/reconstruction.trr_advantage/identifiers/0.5/all",
    }  # fmt: skip
    for key in then.figures:
        measure = key.split("/")[1]
        question = Question(key.split("/")[2], 0.5) if "reconstruction" in key else Question()
        found = worse_by(finished, then, key, measure, question)
        assert (found.low, found.value, found.high) == (0, 0, 0)


def test_a_baseline_above_what_can_be_reached_on_the_data_is_not_compared(project: Path, finished: Finished) -> None:
    """It contradicts nothing in itself, but every later run would be better than it."""
    key = "small/reconstruction.err/collusion/0.5/all"
    then = then_of(project)
    claimed = Estimate(1.0, 0.99, 1.0, then.figures[key].n, "wilson")
    then = msgspec.structs.replace(then, figures={**then.figures, key: claimed}, items={})
    with pytest.raises(
        NotMeasured, match=r"the baseline has 1.0000, but on the same data the adversary can reach at most"
    ):
        worse_by(finished, then, key, "reconstruction.err", COLLUSION)


def test_a_figure_that_may_get_worse_by_all_that_it_can_be_is_no_pass(project: Path) -> None:
    limit = f"  no_worse_than: {{baseline: {(project / 'old.json').as_posix()}, by: 0.999}}"
    status, verdicts = judged(project, limit)
    found = {one["id"].partition("no_worse_than/")[2]: one for one in verdicts}
    assert status == 3
    assert found["utility.mrr"]["status"] == found["reconstruction.err/collusion/0.5/all"]["status"] == "vacuous"
    assert found["utility.mrr"]["message"].startswith("nothing can break this limit: the figure lies between 0 and 0.")
    assert found["bytes.total"]["status"] == "pass"


def test_worse_is_more_leakage_less_utility_and_more_bytes(project: Path, finished: Finished) -> None:
    then, record = then_of(project), finished.record
    key = "small/reconstruction.err/collusion/0.5/all"
    scores: Any = finished.scores.copy()
    entities = (scores["item"] == "entity") & (scores["threat_model"] == "collusion")
    flipped = scores.index[entities & ~scores["right"]][:20]
    scores.loc[flipped, "right"] = True
    count = int(entities.sum())
    err = proportion(int(scores.loc[entities, "right"].sum()), count)
    leaky = changed(
        finished,
        figures=[
            msgspec.structs.replace(one, estimate=err)
            if (one.metric, one.threat_model, one.victim) == ("err", "collusion", ALL)
            else one
            for one in record.rebuilt
        ],
    )
    found = worse_by(leaky._replace(scores=scores), then, key, "reconstruction.err", COLLUSION)
    assert (found.value, found.method) == (pytest.approx(20 / count), "paired, linked")
    assert found.low < found.value < found.high

    mrr = record.utility["mrr"]
    lower = Estimate(mrr.value / 2, mrr.low / 2, mrr.high / 2, mrr.n, mrr.method)
    dull = msgspec.structs.replace(record, utility={**record.utility, "mrr": lower})
    found = worse_by(
        Finished(dull, finished.scores, finished.folder), then, "small/utility.mrr", "utility.mrr", Question()
    )
    assert found.value == pytest.approx(mrr.value / 2)
    assert found.high - found.value == pytest.approx(np.hypot(mrr.high - mrr.value, lower.value - lower.low))
    assert found.value - found.low == pytest.approx(np.hypot(mrr.value - mrr.low, lower.high - lower.value))

    loud = msgspec.structs.replace(record, bytes=msgspec.structs.replace(record.bytes, up=record.bytes.up * 2))
    found = worse_by(
        Finished(loud, finished.scores, finished.folder), then, "small/bytes.total", "bytes.total", Question()
    )
    assert found.value == pytest.approx(record.bytes.up / (record.bytes.up + record.bytes.down))


def with_err(run: Finished, err: Estimate, guess: float, by: str) -> Finished:
    """The run where this is the ERR of all victims together under collusion."""
    replaced = figure_of(run.record)
    found = msgspec.structs.replace(replaced, estimate=err, by=by, baseline=exact(guess, err.n))
    return changed(run, figures=[found if one is replaced else one for one in run.record.rebuilt])


def test_a_guess_that_got_better_is_worse_and_no_count_of_items(project: Path, finished: Finished) -> None:
    """The adversary takes the guess where it beats the attack; which items that gets right is not known."""
    then, err = then_of(project), figure_of(finished.record).estimate
    guess = proportion(round(0.9 * err.n), err.n)
    found = worse_by(with_err(finished, guess, guess.value, "baseline"), then, ERR, "reconstruction.err", COLLUSION)
    assert (found.value, found.method) == (pytest.approx(guess.value - err.value), "two samples")
    assert found.low < found.value - 0.01


def test_what_embeddings_add_may_not_grow_where_the_figure_stays(project: Path, finished: Finished) -> None:
    """A defense under which the adversary guesses as much as it finds without: ERR does not tell that it was taken out."""
    then, figure = then_of(project), figure_of(finished.record)
    bare = with_err(finished, figure.estimate, guess_of(figure) - 0.1, "attack")
    assert worse_by(bare, then, ERR, "reconstruction.err", COLLUSION) == exact(0.0, figure.estimate.n)
    key = ERR.replace("err", "err_advantage")
    found = worse_by(bare, then, key, "reconstruction.err_advantage", COLLUSION)
    assert (found.value, found.method) == (pytest.approx(0.1), "paired, linked")
    assert found.low > 0.05


def test_an_advantage_that_no_guess_leaves_is_refused(project: Path, tmp_path: Path) -> None:
    figures = json.loads((project / "old.json").read_text())["federations"]["small"][0]["figures"]
    key = ERR.replace("err", "err_advantage")
    higher = {part: figures[key][part] + 0.01 for part in ("low", "value", "high")}
    for change in (higher | {"high": 1.0}, {part: figures[ERR][part] + 0.01 for part in higher}):
        edited(project, tmp_path, figures=figures | {key: figures[key] | change})
        with pytest.raises(RunError, match=r"the advantage is 0\.\d+, which no guess leaves of 0\."):
            read_baseline(tmp_path / "old.json")


def edited(project: Path, folder: Path, **changes: Any) -> Path:
    """The baseline with changes in its one run."""
    content = json.loads((project / "old.json").read_text())
    content["federations"]["small"][0] |= changes
    (folder / "old.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"data_hash": "0" * 64}, "small, seed 0: the data have changed since (hash 00000000, now "),
        ({"seed": 3}, "small has other seeds (3)"),
    ],
)
def test_a_baseline_of_something_else_is_wrong_input(
    changes: dict[str, Any], says: str, project: Path, tmp_path: Path
) -> None:
    edited(project, tmp_path, **changes)
    status, _, err = check(tmp_path, text=FEDERATION + LOOSE)
    assert status == 2
    assert err.startswith("fkgsec: old.json: ")
    assert says in err
    assert not (tmp_path / "runs").exists()


def test_damaged_baselines(project: Path, tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    for content, says in (
        ("{", "not a baseline of schema fkgsec/baseline/1"),
        ((project / "old.json").read_text().replace("baseline/1", "baseline/9"), "but of 'fkgsec/baseline/9'"),
    ):
        path.write_text(content)
        with pytest.raises(RunError, match=says):
            read_baseline(path)


IMPOSSIBLE = {
    "another value": ({"value": 0.95, "high": 1.0}, "the figure is 0.95, but "),
    "value above its interval": ({"value": 0.9, "high": 0.5}, "the value 0.9 is not inside its interval ["),
    "value below its interval": ({"low": 0.99}, "is not inside its interval [0.99, "),
    "above 1": ({"high": 7.0}, "7] is not a range of a share"),
    "fewer items": ({"n": 5}, "the number of its items is not 5"),
    "no items": ({"n": 0}, "rests on 0 items"),
    "no number": ({"value": None}, "not a baseline of schema"),
}


@pytest.mark.parametrize(("change", "says"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_a_baseline_that_no_run_can_have_written_is_refused(
    change: dict[str, Any], says: str, project: Path, tmp_path: Path
) -> None:
    """A figure edited upwards would let any leak pass as no worse."""
    figures = json.loads((project / "old.json").read_text())["federations"]["small"][0]["figures"]
    figures[ERR] |= change
    edited(project, tmp_path, figures=figures)
    status, out, err = check(tmp_path, "--runs", str(project / "runs" / "check"), text=FEDERATION + LOOSE)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert says in err


@pytest.mark.parametrize("packed", ["!", "é", "AAAA", base64.b64encode(zlib.compress(bytes(10**6))).decode()])
def test_damaged_items_are_refused(packed: str, project: Path, tmp_path: Path) -> None:
    items = json.loads((project / "old.json").read_text())["federations"]["small"][0]["items"]
    edited(project, tmp_path, items=items | {ERR: packed})
    with pytest.raises(
        RunError, match=f"old.json: seed 0: {ERR}: (its items are damaged|the number of its items is not)"
    ):
        read_baseline(tmp_path / "old.json")
    edited(project, tmp_path, items=items | {"small/utility": ""})
    with pytest.raises(RunError, match="has items, but no figure"):
        read_baseline(tmp_path / "old.json")


def test_a_figure_that_the_policy_no_longer_asks_for_fails(project: Path, tmp_path: Path) -> None:
    edited(project, tmp_path)
    text = FEDERATION.replace("size: 600", "size: 600, threat: [identifiers]") + LOOSE
    status, out, _ = check(tmp_path, "--json", "-", "--runs", str(project / "runs" / "check"), text=text)
    verdicts = {one["id"]: one for one in json.loads(out)["verdicts"]}
    gone = verdicts["small/no_worse_than/reconstruction.trr/collusion/0.5/all"]
    assert (status, gone["status"], gone["measured"]) == (1, "fail", None)
    assert "the policy no longer needs it" in gone["message"]


# From policy to exit status.


def test_the_same_commit_gives_the_same_bytes_and_does_not_train_twice(project: Path) -> None:
    (run,) = (project / "runs" / "check").glob("*/")
    before = (run / "checkpoint.safetensors").stat().st_mtime_ns
    first, second = (check(project, "--json", "-", text=FEDERATION + LOOSE) for _ in range(2))
    assert first[0] == 0
    assert first[1] == second[1]
    assert (run / "checkpoint.safetensors").stat().st_mtime_ns == before
    fresh = check(project, "--json", "-", "--fresh")
    assert fresh[1] == first[1]
    assert (run / "checkpoint.safetensors").stat().st_mtime_ns > before


@pytest.mark.parametrize(
    ("module", "counts"),
    [("adam", True), ("kge/models", True), ("defenses/transport", True), ("protocols/secagg/client", True),
     ("attacks/view", False), ("experiments/cli/main", False)],
)  # fmt: skip
def test_runs_are_trained_again_after_a_change_of_what_trains(
    module: str, counts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "fkgsec"
    shutil.copytree(Path(gate.__file__).parents[2], package, ignore=shutil.ignore_patterns("__pycache__"))
    before = folders.code_digest()
    monkeypatch.setattr(folders.resources, "files", lambda name: package)
    assert folders.code_digest() == before
    with (package / f"{module}.py").open("a") as file:
        file.write("# changed\n")
    assert (folders.code_digest() != before) == counts


def test_other_code_does_not_find_the_run(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = set((project / "runs" / "check").iterdir())
    monkeypatch.setattr(folders, "_NUMERIC", ("torch", "numpy", "numba", "pandas"))
    assert check(project, "--quiet", text=FEDERATION + LOOSE)[0] == 0
    (other,) = set((project / "runs" / "check").iterdir()) - before
    assert (other / "record.json").exists()


def test_exit_statuses_of_one_federation(project: Path) -> None:
    _, (verdict,) = judged(project, "  reconstruction.trr: {max: 0.9, threat: identifiers}")
    low, value, high = (verdict["measured"][name] for name in ("low", "value", "high"))
    for allowed, expected in ((high + 0.01, "pass"), (0.9 * low, "fail"), (value, "inconclusive")):
        limits = f"  reconstruction.trr: {{max: {allowed}, threat: identifiers}}"
        status, (verdict,) = judged(project, limits)
        assert (status, verdict["status"]) == ({"pass": 0, "fail": 1, "inconclusive": 3}[expected], expected)
        assert bool(verdict["evidence"]) == (expected != "pass")
        assert (project / verdict["records"][0]).exists()
    assert judged(project, limits, "--inconclusive", "pass")[0] == 0


def test_a_federation_that_is_not_worth_joining_fails(tmp_path: Path) -> None:
    """Its clients are trained alone once, for all limits and later checks."""
    reports = ("--junit", "check.xml", "--markdown", "check.md", "--sarif", "check.sarif")
    status, (verdict,) = judged(tmp_path, "  gain_over_single: {min: 0.9}\n", *reports)
    assert (status, verdict["status"], verdict["id"]) == (1, "fail", "small/gain_over_single")
    (alone,), (joined,) = (
        sorted((tmp_path / "runs" / "check").glob(f"{name}-seed0-*")) for name in ("single", "small")
    )
    records = [read_record(folder / "record.json") for folder in (joined, alone)]
    assert verdict["measured"]["value"] == pytest.approx(
        records[0].utility["mrr"].value - records[1].utility["mrr"].value
    )
    assert verdict["evidence"][0].startswith("gain by client: hospital-1 ")
    for name in ("check.xml", "check.md", "check.sarif"):
        assert "gain_over_single" in (tmp_path / name).read_text()
    assert '<failure type="fail"' in (tmp_path / "check.xml").read_text()
    trained = (alone / "checkpoint.safetensors").stat().st_mtime_ns
    each, single = gains(records[0], records[1], 3), gains(records[0], records[1])["hospital-3"]
    limits = f"[{{min: -0.9}}, {{min: -0.9, client: each}}, {{min: {single.value:.4f}, client: hospital-3}}]"
    status, verdicts = judged(tmp_path, f"  gain_over_single: {limits}\n")
    assert (status, [one["status"] for one in verdicts]) == (3, ["pass", "pass", "inconclusive"])
    worst = min((gain for client, gain in each.items() if client != ALL), key=lambda gain: gain.value)
    assert verdicts[1]["measured"]["value"] == pytest.approx(worst.value)
    assert verdicts[1]["measured"]["low"] == pytest.approx(min(each[client].low for client in records[0].data.clients))
    assert verdicts[2]["measured"]["low"] == pytest.approx(single.low)
    assert (alone / "checkpoint.safetensors").stat().st_mtime_ns == trained


@pytest.mark.slow
def test_fresh_trains_the_clients_alone_anew_and_no_other_limit_trains_them(tmp_path: Path) -> None:
    assert judged(tmp_path, "  utility.mrr: {min: 0.001}\n")[0] == 0
    assert not list((tmp_path / "runs" / "check").glob("single-*"))
    times = []
    for _ in range(2):
        judged(tmp_path, "  gain_over_single: {min: -0.9}\n", "--fresh")
        (file,) = (tmp_path / "runs" / "check").glob("single-*/checkpoint.safetensors")
        times.append(file.stat().st_mtime_ns)
    assert times[1] > times[0]


def test_an_attack_that_found_nothing_to_attack_is_no_pass(tmp_path: Path) -> None:
    """So many clients drop out that no sum is ever opened."""
    text = FEDERATION.replace("size: 600", 'size: 300, defense: "psu,secagg:dropout=0.95"')
    status, out, _ = check(
        tmp_path, "--json", "-", text=f"{text}limits: {{reconstruction.trr: {{max: 0.9, threat: collusion}}}}"
    )
    (verdict,) = json.loads(out)["verdicts"]
    assert (status, verdict["status"], verdict["measured"]) == (1, "fail", None)
    assert "not measured, so it cannot pass: nothing to attack: no sum" in verdict["message"]


REACH = {
    "above the ceiling": ("reconstruction.trr", "0.15", "collusion", "0.5"),
    "ERR at its ceiling": ("reconstruction.err", "0.9", "collusion", "0.5"),
    "an advantage above it": ("reconstruction.trr_advantage", "0.15", "collusion", "0.5"),
    "an advantage where names are read as they are": ("reconstruction.err_advantage", "0.05", "identifiers", "0.5"),
    "one leaked entity": ("reconstruction.trr", "0.05", "collusion", "0.000001"),
}


@pytest.mark.parametrize(("measure", "allowed", "threat", "leak"), REACH.values(), ids=REACH)
def test_a_limit_that_nothing_can_break_is_no_pass(
    measure: str, allowed: str, threat: str, leak: str, project: Path
) -> None:
    """Whatever the attack got: the adversary cannot name and relate enough to reach the limit."""
    limit = f"  {measure}: {{max: {allowed}, threat: {threat}, leak: {leak}}}"
    status, (verdict,) = judged(project, limit, "--inconclusive", "pass")
    assert (status, verdict["status"]) == (3, "vacuous")
    assert verdict["attainable"] <= float(allowed)
    assert verdict["message"].startswith(
        "nothing can break this limit: with what it knows this adversary reaches at most "
    )
    assert f"and {float(allowed):.4f} is allowed" in verdict["message"]
    assert verdict["measured"]["low"] <= verdict["measured"]["high"]


@pytest.mark.parametrize(
    ("defense", "threat", "status"),
    [("", "collusion", "vacuous"), ("psu,secagg", "identifiers", "vacuous"), ("psu,secagg", "collusion", "pass")],
)
def test_an_advantage_is_what_is_left_above_the_guess(
    defense: str, threat: str, status: str, finished: Finished
) -> None:
    """With a private alignment the guess is the defense's own, and a limit must go on to break when it is taken out."""
    figure = msgspec.structs.replace(
        figure_of(finished.record), threat_model=threat, estimate=proportion(500, 10_000), baseline=exact(0.05, 10_000),
        attainable=0.1,
    )  # fmt: skip
    run = changed(finished, figures=[figure], spec=finished.record.spec.replace(defense=defense))
    limit = Limit("reconstruction.err_advantage", "small", Question(threat, 0.5), 0.06, 7)
    verdict = judge_limit(limit, Runs({0: run}, None))
    assert (verdict.status, verdict.attainable) == (status, pytest.approx(0.1 if status == "pass" else 0.05))


@pytest.mark.parametrize(("right", "status"), [(100, "fail"), (97, "inconclusive")])
def test_a_limit_below_the_ceiling_fails_where_the_attack_reaches_it(
    right: int, status: str, finished: Finished
) -> None:
    """Every leaked entity was named: no larger sample of them would settle a limit of .49."""
    err = proportion(right, 200, attainable=0.5)
    figure = msgspec.structs.replace(
        figure_of(finished.record), estimate=err, baseline=exact(0.01, 200), attainable=0.5
    )
    limit = Limit("reconstruction.err", "small", COLLUSION, 0.49, 7)
    verdict = judge_limit(limit, Runs({0: changed(finished, figures=[figure])}, None))
    assert (verdict.status, verdict.measured) == (status, err)
    assert bool(verdict.evidence)


def test_where_no_relation_is_shared_a_zero_is_no_pass(tmp_path: Path) -> None:
    """Every federation that is divided by relations: TRR is 0 by construction, and says nothing of protection."""
    rng = np.random.default_rng(0)
    rows = {f"e{head}\tr{relation}\te{tail}" for head, relation, tail in rng.integers(0, [30, 6, 30], size=(400, 3))}
    (tmp_path / "triples.tsv").write_text("\n".join(["head\trelation\ttail", *sorted(rows)]) + "\n")
    text = FEDERATION.replace("size: 600", "data: triples.tsv, partition: relations")
    text += "limits: {reconstruction.trr: {max: 0.05}}\n"
    status, out, err = check(tmp_path, "--json", "-", text=text)
    assert status == 3, err
    verdicts = json.loads(out)["verdicts"]
    assert {one["status"] for one in verdicts} == {"vacuous"}
    assert all(
        one["attainable"] == 0 and "no relation is shared with the colluder" in one["message"] for one in verdicts
    )


def test_several_seeds_and_federations(tmp_path: Path) -> None:
    text = (
        "federations:\n  a:\n"
        + "    {size: 300, dim: 4, rounds: 1, num_negatives: 4, unlinked_heads: 0}\n"
        + "  b: {size: 300, dim: 4, rounds: 1, num_negatives: 4, algorithm: single}\n"
        + "seeds: [0, 1]\nlimits:\n  utility.mrr: {min: 0.9}\n"
        + "  reconstruction.trr: {max: 0.9, threat: identifiers, federation: a}\n"
    )
    status, out, _ = check(tmp_path, "--json", "-", text=text)
    content = json.loads(out)
    verdicts = {one["id"]: one for one in content["verdicts"]}
    assert status == 1
    assert set(verdicts) == {"a/utility.mrr", "b/utility.mrr", "a/reconstruction.trr/identifiers/0.5/all"}
    assert len(set(content["data"]["a"].values())) == 1  # seeds vary the training, not the data
    assert len(verdicts["a/utility.mrr"]["records"]) == 2
    assert verdicts["a/utility.mrr"]["measured"]["method"] == "bootstrap, 2 seeds"
    assert verdicts["a/utility.mrr"]["evidence"][0].startswith("seed 0: mrr by client: hospital-1 ")
    assert verdicts["a/reconstruction.trr/identifiers/0.5/all"]["measured"]["method"].endswith(" leaks, 2 seeds")


# Evidence.


def test_evidence_counts_what_the_scores_say(finished: Finished) -> None:
    lines = evidence_lines(finished, "reconstruction.trr", Question("identifiers", 0.5), 2)
    scores = finished.scores
    triples = scores[(scores["item"] == "triple") & (scores["threat_model"] == "identifiers")]
    hits: Any = triples[triples["right"]]
    assert len(hits) > 2
    by_relation = next(line for line in lines if line.startswith("most rebuilt relations: "))
    relation = hits["relation"].iloc[0]
    of_it: Any = triples[triples["relation"] == relation]
    assert f"{relation} {int(of_it['right'].sum())} of {len(of_it)}" in by_relation.replace(" (sensitive)", "")
    spelt = [line for line in lines if line.startswith("rebuilt, of ")]
    assert len(spelt) == 2
    known = {f"{one.victim}: {one.head} {one.relation} {one.tail}" for one in hits.itertuples()}
    assert {line.removeprefix("rebuilt, of ") for line in spelt} <= known
    sensitive = hits["relation"].isin(finished.record.data.sensitive)
    if sensitive.any():
        assert any(name in spelt[0] for name in finished.record.data.sensitive)


def test_the_victims_own_data_are_spelt_out_only_when_asked_for(finished: Finished) -> None:
    limit = Limit("reconstruction.err", "small", COLLUSION, 0.001, 1)
    own = msgspec.structs.replace(finished.record, spec=finished.record.spec.replace(data="mine"))
    for record, examples, count in ((finished.record, None, 3), (own, None, 0), (own, 5, 5), (finished.record, 0, 0)):
        verdict = judge_limit(limit, Runs({0: Finished(record, finished.scores, finished.folder)}, examples))
        assert verdict.status == "fail"
        assert sum(line.startswith("rebuilt, of ") for line in verdict.evidence) == count


# A first policy.


# One figure, one interval.


def test_table_record_report_and_verdict_print_the_same_interval(project: Path, finished: Finished) -> None:
    """Of TRR under identifiers, which the policy limits."""
    figure = figure_of(finished.record, "trr", threat="identifiers")
    trr = figure.estimate
    _, (verdict,) = judged(project, "  reconstruction.trr: {max: 0.9, threat: identifiers}")
    judged_on = msgspec.convert(verdict["measured"], Estimate)
    assert judged_on == trr
    assert trr.method.endswith(" leaks")

    console = Console(width=200, record=True, file=io.StringIO())
    print_sheets(console, attack_sheets(finished.record.figures))
    assert interval(trr) in console.export_text()
    page = render(assemble([Run("one", finished.record, finished.scores)]))
    assert interval(trr) in page
    listed = figures({"one": finished.record})
    chosen = (
        (listed["threat_model"] == "identifiers") & (listed["variant"] == figure.variant) & (listed["metric"] == "trr")
    )
    (cells,) = listed[chosen & (listed["victim"] == ALL)][["low", "value", "high"]].to_numpy().tolist()
    assert cells == [trr.low, trr.value, trr.high]
