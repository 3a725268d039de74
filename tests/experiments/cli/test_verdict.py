"""The verdict: first, in words, with each figure beside its base; and one notation of intervals wherever figures are written."""

import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from fkgsec.attacks.figure import Figure
from fkgsec.attacks.outcomes import of_mean
from fkgsec.attacks.planted import PLANTED_ITEMS
from fkgsec.attacks.questions import QUESTIONS
from fkgsec.attacks.registry import ATTACKS
from fkgsec.estimate import Estimate, exact, proportion
from fkgsec.experiments.cli.main import app
from fkgsec.experiments.reporting.verdict import (
    DIFFERENCES,
    comparison_sheets,
    difference,
    figure_text,
    verdict_of,
    verdict_over,
    verdict_sheet,
)
from fkgsec.experiments.runs.record import Record, read_record

RECORD = Path(__file__).parents[3] / "results/fb15k237-c3-fede.json"
SMALL = [
    "--size", "600", "--dim", "8", "--batch-size", "64", "--num-negatives", "8", "--rounds", "2", "--unlinked-heads", "10",
    "--device", "cpu",
]  # fmt: skip
INTERVAL = re.compile(r"(?:\d*\.\d+|[01]) \[(?:\d*\.\d+|[01]), (?:\d*\.\d+|[01])\]")
OTHER = re.compile(r"±|\d[–-]\.?\d*\.\d|\(\d*\.\d+[–,] ?\d*\.\d+\)")  # `.343–.383`, `.363 ±.020`, `(0.34–0.38)`


def figure(low: float, value: float, high: float, base: float | None, **more: Any) -> Figure:
    fields: dict[str, Any] = {
        "attack": "edges",
        "metric": "auc",
        "threat_model": "server",
        "victim": "all",
        "attainable": 1.0,
    } | more
    return Figure(
        estimate=Estimate(value, low, high, 50, "wilson"), baseline=None if base is None else exact(base, 50), **fields
    )


@pytest.fixture(autouse=True)
def _planted(monkeypatch: pytest.MonkeyPatch) -> None:
    for attack, items in (("edges", {"auc": 50}), ("x", {"error": 50}), ("fewer", {"auc": 51})):
        monkeypatch.setitem(PLANTED_ITEMS, attack, items)


def of(*figures: Figure) -> Record:
    return msgspec.structs.replace(read_record(RECORD), figures=list(figures))


@pytest.mark.parametrize(
    ("one", "label"),
    [
        (figure(0.6, 0.7, 0.8, 0.5), "LEAKS"),
        (figure(0.6, 0.7, 0.8, 0.5, exposed=exact(0.7, 50)), "EXPOSED"),
        (figure(0.72, 0.75, 0.8, 0.5, exposed=exact(0.7, 50)), "LEAKS"),
        (figure(0.4, 0.55, 0.7, 0.5, exposed=exact(0.6, 50)), "INCONCLUSIVE"),
        (figure(0.4, 0.55, 0.7, 0.5), "INCONCLUSIVE"),
        (figure(0.49, 0.5, 0.51, 0.5), "NO EVIDENCE"),
        (figure(0.27, 0.3, 0.32, 0.5), "NO EVIDENCE"),
        (figure(0.49, 0.5, 0.51, 0.5, attack="fewer"), "INCONCLUSIVE"),
        (figure(0.49, 0.5, 0.51, 0.5, attack="none"), "INCONCLUSIVE"),
        (figure(0.6, 0.7, 0.8, 0.5, attack="none"), "LEAKS"),
        (figure(0.9, 1.0, 1.0, 1.0), "NOT APPLICABLE"),
        (figure(0.1, 0.2, 0.3, 0.5, attack="x", metric="error", less_is_worse=True, attainable=0.0), "LEAKS"),
        (figure(0.58, 0.6, 0.61, 0.5, attack="x", metric="error", less_is_worse=True, attainable=0.0), "NO EVIDENCE"),
        (figure(0, 0, 1, None, reason="nothing crossed"), "NOT APPLICABLE"),
    ],
)
def test_a_label_compares_the_interval_with_the_baseline_the_exposure_and_the_smallest_effect(
    one: Figure, label: str
) -> None:
    assert one.status == label
    assert [answer.label for answer in verdict_of([one]).answers] == [label]


def test_the_error_of_the_baseline_counts() -> None:
    sure = figure(0.55, 0.65, 0.75, 0.5)
    unsure = msgspec.structs.replace(sure, baseline=Estimate(0.5, 0.38, 0.62, 50, "wilson"))
    assert (sure.status, unsure.status) == ("LEAKS", "INCONCLUSIVE")
    assert unsure.excess().low == pytest.approx(0.15 - np.hypot(0.1, 0.12))
    error = msgspec.structs.replace(
        figure(0.3, 0.35, 0.42, 0.5, less_is_worse=True), baseline=Estimate(0.5, 0.46, 0.6, 50, "x")
    )
    assert error.excess().low == pytest.approx(0.15 - np.hypot(0.07, 0.04))
    assert error.excess().high == pytest.approx(0.15 + np.hypot(0.05, 0.1))


def test_few_items_leak_where_guessing_finds_none() -> None:
    """21 of 274 rebuilt triples are no chance where guessing finds 2 in a million, however wide the interval over leaks is."""
    wide = Estimate(21 / 274, -0.1, 0.3, 274, "wilson, 6 leaks")
    rebuilt = msgspec.structs.replace(figure(0, 0, 1, 2e-6, attack="reconstruction", metric="trr"), estimate=wide)
    assert rebuilt.excess().low < 0
    assert rebuilt.answer(20) == "LEAKS"
    assert msgspec.structs.replace(rebuilt, exposed=exact(0.08, 274)).answer(20) == "EXPOSED"
    assert msgspec.structs.replace(rebuilt, baseline=exact(0.01, 274)).status == "INCONCLUSIVE"
    assert msgspec.structs.replace(rebuilt, baseline=exact(0.003, 274)).status == "LEAKS"
    assert msgspec.structs.replace(rebuilt, baseline=exact(0.003, 274)).answer(2) == "INCONCLUSIVE"
    assert msgspec.structs.replace(rebuilt, baseline=exact(0.003, 274), compared=2).status == "INCONCLUSIVE"
    unsure = Estimate(0.0, 0.0, 0.02, 274, "wilson")  # none was guessed in so many trials
    assert msgspec.structs.replace(rebuilt, baseline=unsure).status == "INCONCLUSIVE"
    cosine = msgspec.structs.replace(
        rebuilt, estimate=Estimate(0.02, -0.1, 0.1, 274, "bootstrap"), baseline=exact(0.0, 274)
    )
    assert cosine.status == "INCONCLUSIVE"


def test_figures_are_judged_together() -> None:
    """One of twenty figures at chance beats its baseline by its own interval; a verdict on all does not count it."""
    barely = figure(0.51, 0.6, 0.69, 0.5)
    others = [figure(0.4, 0.5, 0.6, 0.5, threat_model=f"model {number}") for number in range(19)]
    assert verdict_of([barely]).label == "LEAKS"
    assert verdict_of([barely, *others]).label == "INCONCLUSIVE"
    reasons = [msgspec.structs.replace(one, reason="nothing crossed") for one in others]
    assert verdict_of([barely, *reasons]).label == "LEAKS"  # those that were not attacked cost nothing
    known = [figure(0.9, 1.0, 1.0, 1.0, threat_model=one.threat_model) for one in others]
    assert verdict_of([barely, *known]).label == "LEAKS"  # nor do those whose baseline is at the upper bound


@pytest.mark.parametrize("num_figures", [1, 6, 20])
def test_nulls_rarely_leak_and_the_named_effect_shows(num_figures: int) -> None:
    """At most 5 % of verdicts on figures at their baselines say LEAKS, and at least 90 % on an effect as large as they name."""
    rng = np.random.default_rng(7)
    items, trials, base = 4000, 1000, 0.4

    def draw(rate: float) -> list[Figure]:
        sample = rng.binomial(items, [rate, *[base] * (num_figures - 1)])
        return [
            msgspec.structs.replace(
                figure(0, 0, 1, base, threat_model=f"model {number}"), estimate=proportion(successes, items)
            )
            for number, successes in enumerate(sample.tolist())
        ]

    silent = [verdict_of(draw(base)) for _ in range(trials)]
    assert sum(verdict.label == "LEAKS" for verdict in silent) <= 0.05 * trials
    quiet = [figure.answer(num_figures) for _, figure in silent[0].ranked]
    assert quiet.count("NO EVIDENCE") >= num_figures - 1
    effect = silent[0].ranked[0][1].visible_effect(num_figures)
    assert effect <= 0.1 * (1 - base)
    seen = [verdict_of(draw(base + effect)).label == "LEAKS" for _ in range(trials)]
    assert sum(seen) >= 0.9 * trials - 3 * np.sqrt(0.9 * 0.1 * trials)


def test_each_question_has_one_answer_by_its_worst_figure() -> None:
    weak = figure(0.4, 0.55, 0.7, 0.5, attack="degrees", metric="degree")
    named = figure(0.6, 0.7, 0.8, 0.5, attack="structure", metric="err")
    other = figure(0.6, 0.7, 0.8, 0.5, attack="of a plug-in", metric="x")
    silent = figure(0, 0, 1, None, attack="client-poison", metric="hits@10", reason="nobody is poisoned")
    verdict = verdict_of([weak, figure(0.8, 0.9, 1.0, 0.5), named, other, silent])
    assert [(one.question, one.label) for one in verdict.answers] == [
        ("entities", "LEAKS"), ("links", "LEAKS"), ("integrity", "NOT APPLICABLE"), ("other", "LEAKS"),
    ]  # fmt: skip
    assert verdict.brief == "LEAKS: entities, links, other"
    sheet = verdict_sheet(verdict, "Verdict")
    assert [row[2].value for row in sheet.rows if row[2]] == [0.7, 0.9, 0.7]
    assert "integrity: client-poison, server: nobody is poisoned" in sheet.notes
    assert verdict_of([]).label == "NOT ATTACKED"
    assert verdict_sheet(verdict_of([]), "Verdict").rows == ()


def test_a_small_leak_does_not_hide_a_large_exposure() -> None:
    small = figure(0.51, 0.52, 0.53, 0.5)
    large = figure(0.8, 0.9, 0.95, 0.5, exposed=exact(0.9, 50), threat_model="identifiers")
    (answer,) = verdict_of([small, large]).answers
    assert (answer.label, answer.figure.estimate.value) == ("EXPOSED", 0.9)


@pytest.mark.parametrize("less_is_worse", [False, True])
def test_an_attack_that_reaches_less_than_the_protocol_shows_gives_way(less_is_worse: bool) -> None:
    """The MLP rebuilds .2 where reading the messages rebuilds .36."""
    mirrored = (lambda *ends: tuple(1 - end for end in reversed(ends))) if less_is_worse else (lambda *ends: ends)
    weak, base = mirrored(0.15, 0.2, 0.25), *mirrored(0.05)
    one = figure(*weak, base, exposed=exact(*mirrored(0.36), 50), less_is_worse=less_is_worse, by="mlp")
    (answer,) = verdict_of([one]).answers
    assert (answer.label, answer.figure.estimate.value, answer.figure.by) == (
        "EXPOSED",
        *mirrored(0.36),
        "the protocol",
    )
    strong = msgspec.structs.replace(one, estimate=Estimate(*(mirrored(0.4)[0], *mirrored(0.3, 0.5)), 50, "wilson"))
    assert verdict_of([strong]).answers[0].figure == strong
    assert verdict_over([of(one), of(one)]).answers[0].figure.estimate.value == one.exposed.value


def test_of_equal_excesses_the_adversary_that_has_least_is_named() -> None:
    strong = figure(0.8, 0.9, 0.95, 0.5, threat_model="identifiers")
    (answer,) = verdict_of([strong, figure(0.8, 0.9, 0.95, 0.5)]).answers
    assert answer.figure.threat_model == "server"


def test_what_the_adversary_has_without_the_messages_is_known_not_missing() -> None:
    known = figure(1.0, 1.0, 1.0, 1.0, attack="reconstruction", metric="err", threat_model="identifiers")
    sheet = verdict_sheet(verdict_of([known]), "Verdict")
    assert sheet.rows[0][1] == "KNOWN"
    assert "has it without the messages of the rounds" in sheet.notes[0]
    nothing = figure(0.0, 0.0, 0.0, 0.0, attack="reconstruction", metric="trr", attainable=0.0)
    sheet = verdict_sheet(verdict_of([nothing]), "Verdict")
    assert sheet.rows[0][1] == "n/a"
    assert "there is nothing to find" in sheet.notes[0]


def test_an_adversary_that_reaches_more_with_less_excess_is_named() -> None:
    """Ranking is by what the messages add; the other figure must not look like a bound on what adversaries reach."""
    added = figure(0.6, 0.65, 0.7, 0.5)
    more = figure(0.9, 0.95, 0.97, 0.92, threat_model="identifiers")
    assert "reaches .950, of which .920 without the messages" in verdict_sheet(verdict_of([added, more]), "V").notes[0]
    assert "identifiers" not in verdict_sheet(verdict_of([added]), "V").notes[0]


def test_more_seeds_decide_where_several_are_too_few() -> None:
    wide = msgspec.structs.replace(figure(0, 0, 1, 0.5), estimate=Estimate(0.5, 0.3, 0.7, 100, "wilson, 3 seeds"))
    (answer,) = verdict_of([wide]).answers
    assert answer.about.endswith("more trainings would decide (--seeds)")


def test_an_attack_that_alters_training_succeeds() -> None:
    planted = figure(0.8, 0.9, 1.0, 0.01, attack="client-poison", metric="hits@10", threat_model="client")
    verdict = verdict_of([planted, figure(0.6, 0.7, 0.8, 0.5)])
    assert verdict.brief == "LEAKS: links; SUCCEEDS: integrity"
    sheet = verdict_sheet(verdict, "Verdict")
    assert [row[1] for row in sheet.rows] == ["LEAKS", "SUCCEEDS"]
    assert any("the run without the attack" in note for note in sheet.notes)


def test_a_comparison_follows_the_adversary_that_gains_most_over_all_cases() -> None:
    """Of two adversaries that are equal without a defense, the one that the defense does not stop."""
    stopped, strong = (figure(0.98, 1.0, 1.0, 0.5, threat_model=name) for name in ("server", "collusion"))
    cases = {
        "none": of(stopped, strong),
        "sums": of(figure(0.49, 0.5, 0.51, 0.5), figure(0.7, 0.8, 0.9, 0.5, threat_model="collusion")),
    }
    (sheet,) = comparison_sheets(cases)
    assert sheet.title.endswith("edges.auc by collusion")
    assert [row[2] for row in sheet.rows] == pytest.approx([0.5, 0.3])
    assert sheet.columns[-1].head == "against none"
    (sheet,) = comparison_sheets({"silent": of(), **cases})
    assert sheet.columns[-1].head == "against none"


def test_an_inconclusive_answer_names_the_items_that_would_decide() -> None:
    """With that many items, an effect of the smallest size of interest is seen."""
    few = msgspec.structs.replace(figure(0, 0, 1, 0.5), estimate=proportion(50, 100))
    (answer,) = verdict_of([few]).answers
    assert answer.label == "INCONCLUSIVE"
    needed = int(answer.about.partition("too few; ")[2].split()[0].replace(",", ""))
    times = needed // 100
    assert f"100 items are too few; {needed:,} would decide" in answer.about
    many = msgspec.structs.replace(few, estimate=proportion(50 * times, 100 * times))
    fewer = msgspec.structs.replace(few, estimate=proportion(50 * times // 2, 100 * times // 2))
    assert (fewer.status, many.status) == ("INCONCLUSIVE", "NO EVIDENCE")
    (answer,) = verdict_of([many]).answers
    assert "an excess of .0" in answer.about


def test_a_baseline_near_the_upper_bound_calls_for_no_thousands_of_items() -> None:
    """It once said that 3984 times the items would decide, where the baseline was .996 of 1."""
    near = msgspec.structs.replace(figure(0.979, 0.996, 1.0, 0.996), estimate=proportion(269, 270))
    (answer,) = verdict_of([near]).answers
    assert answer.label == "INCONCLUSIVE"
    assert answer.about.endswith("the baseline leaves .004 to gain, which is too little to show")


def test_what_no_planted_signal_shows_is_inconclusive_and_says_why() -> None:
    for attack, why in (
        ("fewer", "50 items are too few; the attack finds planted signals in 51"),
        ("none", "no test shows that this attack finds a planted signal"),
    ):
        (answer,) = verdict_of([figure(0.49, 0.5, 0.51, 0.5, attack=attack)]).answers
        assert answer.label == "INCONCLUSIVE"
        assert why in answer.about


def test_every_metric_of_an_attack_answers_a_question() -> None:
    for name, attack in ATTACKS.items():
        assert set(attack.questions) >= set(attack.leading), name
        assert set(attack.questions.values()) <= QUESTIONS.keys(), name


def test_over_several_trainings_the_interval_and_the_worst_base_count() -> None:
    """What lies beyond the base in each training may not do so over all of them."""
    steady = [of(figure(0.6, 0.7, 0.8, 0.5)), of(figure(0.602, 0.702, 0.802, 0.55, by="cosine"))]
    ((label, combined),) = verdict_over(steady).ranked
    assert label == "LEAKS"
    assert figure_text(combined).endswith("], baseline .550, at most 1.000")
    apart = [of(figure(0.6, 0.65, 0.7, 0.5)), of(figure(0.85, 0.9, 0.95, 0.5))]
    assert [verdict_of(record.figures).label for record in apart] == ["LEAKS", "LEAKS"]
    assert verdict_over(apart).label == "INCONCLUSIVE"
    error = {"attack": "x", "metric": "error", "less_is_worse": True, "attainable": 0.0}
    errors = [of(figure(0.1, 0.2, 0.3, base, **error)) for base in (0.5, 0.25)]
    assert "baseline .250" in figure_text(verdict_over(errors).ranked[0][1])
    shown = of(figure(0.6, 0.7, 0.8, 0.5, exposed=exact(0.7, 50)))
    assert verdict_over([shown, shown]).label == "EXPOSED"
    missing = [of(figure(0.6, 0.7, 0.8, 0.5)), of(figure(0, 0, 1, None, reason="nothing crossed"))]
    assert verdict_over(missing).label == "NOT APPLICABLE"
    assert verdict_over([of(), of()]).label == "NOT ATTACKED"


def test_a_comparison_is_of_the_same_figure_in_each_case() -> None:
    safe = [figure(0.49, 0.5, 0.51, 0.5), figure(0.8, 0.9, 0.95, 0.5, threat_model="identifiers")]
    cases = {
        "none": of(figure(0.78, 0.8, 0.82, 0.5)),
        "alike": of(figure(0.77, 0.79, 0.81, 0.5)),
        "safe": of(*safe),
        "hidden": of(figure(0, 0, 1, None, reason="nothing crossed")),
        "silent": of(),
    }
    (sheet,) = comparison_sheets(cases)
    assert sheet.title == "Which links, properties? edges.auc by server"
    none, alike, lower, *reasons = (row[-1] for row in sheet.rows)
    assert (none, *reasons) == (None, "nothing crossed", "not attacked")
    assert re.fullmatch(r"no difference shown \(≥ \.\d{3}\) \*", alike)
    assert re.fullmatch(r"lower by \.300 \[.*\] \*", lower)
    assert sheet.notes == tuple(DIFFERENCES.values())
    assert comparison_sheets({"none": of()}) == []


def test_intervals_of_differences_hold_together() -> None:
    """Two cases without a difference are rarely told apart, however many cases and questions are compared."""
    rng = np.random.default_rng(3)
    told, trials = 0, 1000
    for _ in range(trials):
        shares = [proportion(int(successes), 400) for successes in rng.binomial(400, 0.3, size=5)]
        first, *others = (msgspec.structs.replace(figure(0, 0, 1, 0.1), estimate=share) for share in shares)
        told += any(difference(other, first, compared=4).shown for other in others)
    assert told <= 0.05 * trials
    assert str(difference(figure(0.4, 0.5, 0.6, 0.1), figure(0.2, 0.3, 0.4, 0.1))).startswith("higher by .200 [.0")


def test_a_comparison_pairs_the_items_that_both_cases_have() -> None:
    """Of 400 items 20 are lost: as independent runs the two do not differ."""

    def named(count: int, of_items: int = 400, *, ends: bool = True) -> Figure:
        outcomes = of_mean(np.arange(of_items) < count, np.arange(of_items)[:, None])
        assert outcomes is not None
        outcomes = outcomes if ends else msgspec.structs.replace(outcomes, ends=b"")
        return msgspec.structs.replace(figure(0, 0, 1, 0.1), estimate=proportion(count, of_items), outcomes=outcomes)

    fewer = of(named(180))
    cases = {
        "none": of(named(200)),
        "same": of(named(200)),
        "fewer": fewer,
        "ends elsewhere": of(named(180, ends=False)),
        "other items": of(named(90, 200)),
        "other seed": msgspec.structs.replace(fewer, seed=fewer.seed + 1),
    }
    (sheet,) = comparison_sheets(cases)
    told = {row[0]: str(row[-1]) for row in sheet.rows[1:]}
    assert told["same"] == "no difference shown"
    assert told["fewer"] == told["ends elsewhere"]
    assert told["fewer"].startswith("lower by .050 [.0")
    assert [case for case, words in told.items() if words.endswith(" *")] == ["other items", "other seed"]
    assert all(told[case].startswith("no difference") for case in ("other items", "other seed"))


def test_a_comparison_follows_the_victim_of_the_first_case() -> None:
    """The worst victim of each case is another one; items are compared of the same."""
    worst, lower = ([figure(low, low + 0.1, low + 0.2, 0.5, victim=name) for name in "ab"] for low in (0.6, 0.3))
    (sheet,) = comparison_sheets({"none": of(worst[0], lower[1]), "other": of(lower[0], worst[1])})
    assert sheet.title.endswith(", a")
    assert [round(row[1].value, 1) for row in sheet.rows] == [0.7, 0.4]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("runs") / "fede"
    done = CliRunner().invoke(app, ["attack", *SMALL, "--leak", "0.5", "--out", str(folder)])
    assert done.exit_code == 0, done.output
    return folder, done.stdout


def test_the_verdict_fits_a_terminal_and_tables_are_printed_where_asked(run: tuple[Path, str]) -> None:
    lines = run[1].splitlines()
    assert lines[0].startswith("Verdict: fede on consortium-3, ")
    assert len(lines) <= 20
    assert max(map(len, lines[:5])) <= 80
    shown = CliRunner().invoke(app, ["show", str(run[0])]).stdout.splitlines()
    place = shown.index(lines[0])
    assert place > next(index for index, line in enumerate(shown) if line.startswith("reconstruction, round"))
    assert shown[place : place + 8] == lines[:8]
    again = CliRunner().invoke(app, ["attack", "--run", str(run[0]), "--details"]).stdout.splitlines()
    assert [line for line in again if line.startswith("reconstruction, round")]


def test_every_output_writes_intervals_in_one_way(run: tuple[Path, str], tmp_path: Path) -> None:
    folder, shown = run
    outputs = {"attack": shown}
    for name, words in {
        "results": ["results", str(folder)],
        "compare": [
            "compare",
            *SMALL,
            "--case",
            "none",
            "--case",
            "fedr",
            "--out",
            str(tmp_path / "compare"),
            "--attack",
            "edges",
        ],
        "seeds": ["train", *SMALL[:-4], "--device", "cpu", "--seeds", "2", "--out", str(tmp_path / "seeds")],
    }.items():
        done = CliRunner().invoke(app, words, env={"COLUMNS": "300"})
        assert done.exit_code == 0, done.output
        outputs[name] = done.stdout
    for name, text in outputs.items():
        assert INTERVAL.search(text), name
        assert not OTHER.search(text), (name, OTHER.search(text))
