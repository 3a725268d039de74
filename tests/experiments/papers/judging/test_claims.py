"""Claims of papers: pairs of cells by hand, the rule, and the committed page."""

import os
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest

from fkgsec.errors import SpecError
from fkgsec.estimate import Estimate
from fkgsec.experiments.papers.document import Average
from fkgsec.experiments.papers.judging.claims import (
    OTHER_DEVIATION,
    Claim,
    Compared,
    Outcome,
    Reading,
    comparisons,
    judge_claims,
    outcome_of,
    read_claims,
    reading_of,
    smallest_difference,
    together,
    with_intervals,
)
from fkgsec.experiments.papers.judging.claims_page import page_lines
from fkgsec.experiments.papers.spec import Experiment, find_experiment, read_experiment
from fkgsec.experiments.reporting.summary import __file__ as summary_file
from fkgsec.experiments.runs.record import Record, read_record
from fkgsec.experiments.tasks.items import TestItems
from fkgsec.kge.ranking import utility

RESULTS = Path(summary_file).resolve().parents[2] / "results"
PAPERS = os.environ.get("FKGSEC_PAPERS")
ROWS = ("TransE FedR", "TransE FedE")
CELL = "TransE FedR, TransE FedE, DDB14 C5"


def claim_of(**changes: object) -> Claim:
    plain = Claim(
        claim="c", paper="p", where="w", words="said", metric="mrr", tables=("zhang2022_fedr_table2",), pairs=(ROWS,)
    )
    return msgspec.structs.replace(plain, **changes)


@pytest.fixture(scope="module")
def table() -> Experiment:
    return read_experiment(find_experiment("zhang2022_fedr_table2"))


@pytest.fixture(scope="module")
def records() -> dict[str, Record]:
    names = {"fede": "fede-published", "fedr": "fedr", "single": "single"}
    return {name: read_record(RESULTS / f"ddb14-fed5-{file}.json") for name, file in names.items()}


def with_mrr(record: Record, value: float, half: float, seed: int = 0) -> Record:
    """The record with this figure, without outcomes by item."""
    mrr = Estimate(value, value - half, value + half, 100, "bootstrap")
    rounds = [msgspec.structs.replace(one, loss=one.loss and one.loss + seed) for one in record.rounds]
    by_client = {name: {"mrr": mrr} for name in record.utility_by_client}
    return msgspec.structs.replace(
        record, utility={"mrr": mrr}, utility_by_client=by_client, seed=seed, rounds=rounds, items=None
    )


def with_ranks(record: Record, ranks: np.ndarray, seed: int = 0) -> Record:
    """The record with these ranks of all its test triples, `[n, 1]`."""
    counts = [sizes["test"] for sizes in record.data.clients.values()]
    parts = np.split(ranks, np.cumsum(counts)[:-1])
    found = [utility(one, 0) for one in parts]
    made = with_mrr(record, 0.5, 0.1, seed)
    return msgspec.structs.replace(
        made,
        utility=utility(ranks, 0),
        utility_by_client=dict(zip(record.utility_by_client, found, strict=True)),
        items=TestItems.from_ranks(parts, [np.zeros(len(one)) for one in parts]),
    )


def drawn_ranks(correlation: float, better: float, rng: np.random.Generator, n: int = 4460) -> list[np.ndarray]:
    """Ranks of two methods `[n, 1]`, whose scores are normal and so correlated, before they become ranks 1 to 2,000."""
    shared, *own = rng.normal(size=(3, n))
    scores = (correlation**0.5 * shared + (1 - correlation) ** 0.5 * one for one in own)
    found = [np.clip(np.rint(np.exp(3 + 2.5 * one)), 1, 2000)[:, None] for one in scores]
    return [np.maximum(1, np.rint(found[0] * (1 - better))), found[1]]


def test_a_pair_without_items_is_judged_as_two_independent_figures(
    table: Experiment, records: dict[str, Record]
) -> None:
    made = [with_mrr(records["fedr"], 0.50, 0.03), with_mrr(records["fede"], 0.40, 0.04)]
    (judged,) = judge_claims([claim_of()], [table], made)
    (pair,) = judged.pairs
    assert pair.name == f"zhang2022_fedr_table2: {CELL}"
    assert pair.full
    # 0.5 - 0.4, half-widths 0.03 and 0.04, and over seeds that of the prior: 0.1 +- 0.05.
    assert (pair.excess.value, pair.excess.low, pair.excess.high) == pytest.approx((0.10, 0.05, 0.15), abs=1e-3)
    assert pair.excess.method == "test items, not paired; 1 seed"
    assert pair.reading == "for"
    assert "not in own training" in pair.remark
    assert (len(judged.printed), len(judged.printed_for)) == (12, 0)  # FedR is below FedE in every column
    assert judged.outcome == "open"  # one pair of twelve


@pytest.mark.parametrize("average", ["items", "clients"])
def test_runs_are_compared_item_by_item(table: Experiment, records: dict[str, Record], average: Average) -> None:
    """Two runs whose scores correlate at .93 differ by far less than their own intervals (defect 2)."""
    ranks = drawn_ranks(0.93, 0.02, np.random.default_rng(0))
    made = [with_ranks(records[name], one) for name, one in zip(("fedr", "fede"), ranks, strict=True)]
    cells = tuple(cell._replace(average=average) for cell in table.cells)
    (judged,) = judge_claims([claim_of()], [table._replace(cells=cells)], made)
    (pair,) = judged.pairs
    difference = (1 / ranks[0] - 1 / ranks[1])[:, 0]
    counts = [sizes["test"] for sizes in records["fedr"].data.clients.values()]
    parts = np.split(difference, np.cumsum(counts)[:-1])
    weights = np.array(counts) / sum(counts) if average == "items" else np.full(5, 1 / 5)
    assert pair.excess.value == pytest.approx(weights @ [part.mean() for part in parts])
    variance = weights**2 @ [part.var(ddof=1) / len(part) for part in parts]
    assert (pair.excess.high - pair.excess.low) / 2 == pytest.approx(
        1.96 * (variance + OTHER_DEVIATION**2) ** 0.5, rel=0.02
    )
    assert pair.excess.method == "4,460 test items, paired; 1 seed"
    without = [msgspec.structs.replace(one, items=None) for one in made]
    (plain,) = judge_claims([claim_of()], [table._replace(cells=cells)], without)
    widths = [one.excess.high - one.excess.low for one in (plain.pairs[0], pair)]
    assert widths[0] > 2 * widths[1]


def test_seeds_with_items_are_preferred_to_older_records(table: Experiment, records: dict[str, Record]) -> None:
    """An older record of another seed, or of the same seed, makes no pair with items unpaired."""
    ranks = drawn_ranks(0.93, 0.02, np.random.default_rng(0))
    made = [with_ranks(records[name], one) for name, one in zip(("fedr", "fede"), ranks, strict=True)]
    (alone,) = judge_claims([claim_of()], [table], made)
    other_seed = [with_mrr(records[name], 0.5, 0.1, 7) for name in ("fedr", "fede")]
    same_seed = []
    for record in made:
        environment = msgspec.structs.replace(record.environment, commit="0" * 40)
        same_seed.append(msgspec.structs.replace(record, items=None, environment=environment))
    for older in (other_seed, same_seed, same_seed[:1]):
        (judged,) = judge_claims([claim_of()], [table], [*older, *made])
        assert judged.pairs[0].excess == alone.pairs[0].excess
        assert judged.pairs[0].excess.method == "4,460 test items, paired; 1 seed"
    (plain,) = judge_claims([claim_of()], [table], [*other_seed, *made[:1]])
    assert plain.pairs[0].seeds == (7,)


@pytest.mark.parametrize(("margin", "reading"), [(0.0, "against"), (0.2, "undecided"), (0.5, "for")])
def test_near_is_above_what_the_margin_leaves(
    table: Experiment, records: dict[str, Record], margin: float, reading: str
) -> None:
    made = [with_mrr(records["fedr"], 0.30, 0.01), with_mrr(records["fede"], 0.38, 0.02)]
    (judged,) = judge_claims([claim_of(margin=margin)], [table], made)
    assert [pair.reading for pair in judged.pairs] == [reading]
    assert judged.pairs[0].excess.value == pytest.approx(0.30 - (1 - margin) * 0.38)


def test_a_second_seed_undoes_no_decision(table: Experiment, records: dict[str, Record]) -> None:
    """Differences of .010 and .012, each +-.003, are for the claim together as they are alone (defect 3)."""
    alone = [with_mrr(records["fedr"], 0.410, 0.003), with_mrr(records["fede"], 0.400, 1e-9)]
    both = [*alone, with_mrr(records["fedr"], 0.412, 0.003, 1), with_mrr(records["fede"], 0.400, 1e-9, 1)]
    for made, seeds in ((alone, (0,)), (both, (0, 1))):
        (judged,) = judge_claims([claim_of()], [table], [*made, with_mrr(records["fede"], 0.9, 0.2, 7)])
        (pair,) = judged.pairs
        assert (pair.seeds, pair.reading) == (seeds, "for")


def test_seeds_that_differ_much_widen_all_pairs_of_a_claim() -> None:
    one = Estimate(0.4, 0.39, 0.41, 9, "x")
    quiet = Compared(one, one, np.array([0.01]), 1e-6, "items")
    loud = Compared(one, one, np.array([0.03, -0.03, 0.05]), 1e-6, "items")
    alone, beside = with_intervals([quiet], "mrr")[0], with_intervals([quiet, loud], "mrr")[0]
    assert reading_of(alone) == "for"
    assert reading_of(beside) == "undecided"


MEDIAN = 0.04
"""A printed median advantage; that of FedR over Local is 0.05."""
DRAWS = 400


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize(
    ("truth", "smallest", "wrong"),
    [
        (1e-5, 0.0, "does not hold"),  # true by a hair, of a claim without a smallest difference
        (-1e-5, 0.0, "holds"),
        (MEDIAN, MEDIAN / 2, "does not hold"),
        (0.0, MEDIAN / 2, "holds"),
    ],
)
def test_a_claim_is_decided_wrongly_in_at_most_5_percent_of_draws(
    seeds: int, truth: float, smallest: float, wrong: Outcome
) -> None:
    """400 draws of twelve tests whose training varies three times as much as the prior has it.

    Tests share the difficulty of their items, and items are skewed as reciprocal ranks are. Some tests have so few items that
    their interval is as wide as the printed advantage.
    """
    rng = np.random.default_rng(seeds)
    num_tests, deviation, times = 12, 3 * OTHER_DEVIATION, 0
    for _ in range(DRAWS):
        shared, found = rng.exponential(0.05, 400) - 0.05, []
        for test in range(num_tests):
            own = rng.exponential(0.05, 400) - 0.05
            items = 0.5 * (shared + own) if test % 2 else 2 * own[:40]
            by_seed = truth + items.mean() + rng.normal(0, deviation, seeds)
            figure = Estimate(0.4, 0.4, 0.4, len(items), "x")
            found.append(Compared(figure, figure, by_seed, float(items.var(ddof=1)) / len(items), "items"))
        readings: list[Reading] = [reading_of(excess, smallest) for excess in with_intervals(found, "mrr")]
        times += outcome_of(readings, num_wanted=num_tests) == wrong
    assert times <= 0.05 * DRAWS


@pytest.mark.parametrize(
    ("truths", "wrong"), [((MEDIAN, MEDIAN, MEDIAN), "does not hold"), ((MEDIAN, MEDIAN, 0.0), "holds")]
)
def test_a_claim_of_being_above_three_rows_is_decided_wrongly_in_at_most_5_percent_of_draws(
    truths: tuple[float, ...], wrong: Outcome
) -> None:
    """400 draws of nine tests of three pairs, which share the first row's run."""
    rng, times = np.random.default_rng(0), 0
    figure = Estimate(0.4, 0.4, 0.4, 400, "x")
    for _ in range(DRAWS):
        compared = list[Compared]()
        for _ in range(9):
            first, first_seeds = rng.exponential(0.1, 400), rng.normal(0, OTHER_DEVIATION, 5)
            for truth in truths:
                items = first - rng.exponential(0.1, 400)
                by_seed = truth + items.mean() + first_seeds + rng.normal(0, OTHER_DEVIATION, 5)
                compared.append(Compared(figure, figure, by_seed, float(items.var(ddof=1)) / 400, "items"))
        readings = [reading_of(excess, MEDIAN / 2) for excess in with_intervals(compared, "mrr")]
        tests = [together(readings[start : start + 3]) for start in range(0, 27, 3)]
        times += outcome_of(tests, num_wanted=9) == wrong
    assert times <= 0.05 * DRAWS


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize(("truth", "wrong"), [(MEDIAN, "against"), (0.0, "for")])
def test_a_pair_is_read_wrongly_in_at_most_5_percent_of_draws(seeds: int, truth: float, wrong: Reading) -> None:
    """Of a pair with the printed median advantage, and of a tie. Training varies as the prior has it."""
    rng, times = np.random.default_rng(seeds), 0
    for _ in range(DRAWS):
        items = rng.exponential(0.1, 400) - 0.1
        by_seed = truth + items.mean() + rng.normal(0, OTHER_DEVIATION, seeds)
        figure = Estimate(0.4, 0.4, 0.4, 400, "x")
        (excess,) = with_intervals([Compared(figure, figure, by_seed, float(items.var(ddof=1)) / 400, "items")], "mrr")
        times += reading_of(excess, MEDIAN / 2) == wrong
    assert times <= 0.05 * DRAWS


def test_the_smallest_difference_is_half_the_median_that_the_paper_prints() -> None:
    claim = next(one for one in read_claims() if one.claim == "FedR is above Local")
    table = read_experiment(find_experiment("zhang2022_fedr_table2"))
    mrr = {cell.name: cell.figures["mrr"] or 0.0 for cell in table.cells}
    differences = [mrr[name] - mrr[name.replace("FedR", "Local")] for name in mrr if " FedR " in name]
    assert len(differences) == 60
    found = smallest_difference(claim, [excess for one in comparisons(claim, [table]) for excess in one.printed])
    assert found == pytest.approx(float(np.median(differences)) / 2)
    assert all(bool(one.least_share) != bool(one.margin or one.within) for one in read_claims())


def test_an_interval_that_excludes_the_smallest_difference_is_against(
    table: Experiment, records: dict[str, Record]
) -> None:
    """A tie beside a printed median advantage of some .05, which ended undecided."""
    claim = claim_of(pairs=(("TransE FedR", "TransE Local"),), least_share=0.5)
    made = [with_mrr(records["fedr"], 0.400, 0.003), with_mrr(records["single"], 0.401, 0.003)]
    (judged,) = judge_claims([claim], [table], made)
    assert judged.pairs[0].excess.low < 0 < judged.pairs[0].excess.high < judged.smallest
    assert judged.pairs[0].reading == "against"
    assert "| against: the interval excludes half of the median printed advantage |" in "\n".join(page_lines([judged]))
    (without,) = judge_claims([msgspec.structs.replace(claim, least_share=0.0)], [table], made)
    assert without.pairs[0].reading == "undecided"


def test_bytes_count_where_the_claim_is_of_them(table: Experiment, records: dict[str, Record]) -> None:
    made = [with_mrr(records["fedr"], 0.50, 0.01), with_mrr(records["fede"], 0.40, 0.01)]
    sent = [sum(one.bytes_up + one.bytes_down for one in record.rounds[: record.best_round + 1]) for record in made]
    share = sent[0] / sent[1]
    for most, reading in ((share * 1.01, "for"), (share * 0.99, "against")):
        (judged,) = judge_claims([claim_of(most_bytes=most)], [table], made)
        assert judged.pairs[0].reading == reading
        assert f"{share:.2f} of the bytes" in judged.pairs[0].remark


def test_bytes_of_seeds_on_both_sides_leave_a_claim_undecided(table: Experiment, records: dict[str, Record]) -> None:
    """Two seeds send .40 and .80 of the bytes, of which two thirds are allowed."""
    made = []
    for seed, share in enumerate((0.4, 0.8)):
        for name, mrr, sent in (("fedr", 0.50, share), ("fede", 0.40, 1.0)):
            one = with_mrr(records[name], mrr + seed / 1e4, 0.01, seed)
            rounds = [
                msgspec.structs.replace(entry, bytes_up=round(1e6 * sent), bytes_down=0) for entry in one.rounds[:6]
            ]
            made.append(msgspec.structs.replace(one, rounds=rounds, best_round=5, spec=one.spec.replace(rounds=5)))
    cells = tuple(
        cell._replace(candidates=tuple(spec.replace(rounds=5) for spec in cell.candidates)) for cell in table.cells
    )
    (judged,) = judge_claims([claim_of(most_bytes=0.67)], [table._replace(cells=cells)], made)
    assert (judged.pairs[0].reading, judged.pairs[0].excess.low > 0) == ("undecided", True)


def test_pairs_with_one_second_run_are_one_test(table: Experiment, records: dict[str, Record]) -> None:
    made = [with_mrr(records[name], mrr, 0.01) for name, mrr in (("fede", 0.40), ("fedr", 0.50), ("single", 0.30))]
    both = claim_of(pairs=(ROWS, ("TransE Local", "TransE FedE")))
    (judged,) = judge_claims([both], [table], made)
    assert [pair.reading for pair in judged.pairs] == ["for", "against"]
    assert judged.readings == ["against"]  # a row below one of two baselines is not above both
    (alone,) = judge_claims([both], [table], made[:2])
    assert alone.readings == ["for"]


def test_each_division_has_its_own_test_items(table: Experiment, records: dict[str, Record]) -> None:
    """Three divisions of equally many items, the first with two seeds: weights of 1/2, 1/4 and 1/4."""
    rng, made, differences = np.random.default_rng(0), list[Record](), list[np.ndarray]()
    for seed in range(4):
        ranks = drawn_ranks(0.8, 0.02, rng)
        differences.append((1 / ranks[0] - 1 / ranks[1])[:, 0])
        for name, of_run in zip(("fedr", "fede"), ranks, strict=True):
            record = with_ranks(records[name], of_run, seed)
            data = msgspec.structs.replace(record.data, hash=record.data.hash if seed < 2 else f"division {seed}")
            spec = record.spec.replace(split_seed=0 if seed < 2 else seed)
            made.append(msgspec.structs.replace(record, data=data, spec=spec))
    (judged,) = judge_claims([claim_of()], [table], made)
    (pair,) = judged.pairs
    assert pair.excess.method == "13,380 test items of 3 divisions, paired; 4 seeds"
    counts = [sizes["test"] for sizes in records["fedr"].data.clients.values()]

    def variance(items: np.ndarray) -> float:
        parts = np.split(items, np.cumsum(counts)[:-1])
        return sum((len(part) / len(items)) ** 2 * part.var(ddof=1) / len(part) for part in parts)

    expected = (
        variance((differences[0] + differences[1]) / 2) / 4 + (variance(differences[2]) + variance(differences[3])) / 16
    )
    assert pair.compared is not None
    assert pair.compared.items == pytest.approx(expected)


def test_reduced_runs_decide_nothing() -> None:
    experiments = [read_experiment(find_experiment(f"zhang2024_feds_table2{end}")) for end in ("", "_cpu")]
    found = [read_record(RESULTS / f"recipes/r3-{name}.json") for name in ("feds", "fedep")]
    claim = claim_of(tables=("zhang2024_feds_table2",), pairs=(("TransE FedS", "TransE FedEP"),), margin=0.01)
    (judged,) = judge_claims([claim], experiments, found)
    assert [(pair.full, pair.name.partition(":")[0]) for pair in judged.pairs] == [(False, "zhang2024_feds_table2_cpu")]
    assert judged.outcome == "open"
    assert (len(judged.printed), len(judged.printed_for)) == (3, 3)


@pytest.mark.skipif(not PAPERS, reason="FKGSEC_PAPERS is not set")
def test_the_words_of_a_claim_stand_in_its_paper() -> None:
    for claim in read_claims():
        name = claim.paper.partition("(")[2].rstrip(")").lower()
        text = (Path(PAPERS or "") / f"{name}.txt").read_text()
        text = re.sub(r"-\n|\*\*|<[^>]*>|\n", lambda found: " " if found.group() == "\n" else "", text)
        text = " ".join(text.split())
        for part in claim.words.split(" ... "):
            assert part in text, (claim.claim, part)


def test_runs_on_data_that_stand_in_for_the_papers_decide_nothing() -> None:
    """Defect 5: a column whose data are not the paper's is no test, whatever is run on it."""
    table = read_experiment(find_experiment("zhang2024_pfedeg_table2"))
    cells = [next(cell for cell in table.cells if cell.name == f"TransE {row} Fed3") for row in ("PFedEG*", "FedE")]
    plain = read_record(RESULTS / "recipes/r3-fedep.json")
    made = [
        msgspec.structs.replace(
            with_mrr(plain, mrr, 0.001),
            spec=cell.candidates[0].replace(rounds=plain.rounds[-1].round),
            rounds=plain.rounds,
        )
        for cell, mrr in zip(cells, (0.45, 0.40), strict=True)
    ]
    made[1] = msgspec.structs.replace(
        made[1], rounds=[msgspec.structs.replace(one, loss=one.loss and one.loss + 1) for one in plain.rounds]
    )
    short = [cell._replace(candidates=(record.spec,)) for cell, record in zip(cells, made, strict=True)]
    claim = claim_of(tables=(table.name,), pairs=(("TransE PFedEG*", "TransE FedE"),))
    (judged,) = judge_claims([claim], [table._replace(cells=tuple(short))], made)
    assert [(pair.full, pair.reading) for pair in judged.pairs] == [(False, "for")]
    assert "other data: a stand-in" in judged.pairs[0].remark
    assert not judged.printed


@pytest.mark.parametrize(
    ("readings", "outcome"),
    [
        ([], "open"), (["for"] * 2, "open"), (["for"] * 3, "holds"), (["for"] * 3 + ["against"], "holds"),
        (["for"] * 3 + ["against"] * 2, "open"), (["against"] * 3 + ["undecided"], "does not hold"),
        (["undecided"] * 9, "open"),
    ],
)  # fmt: skip
def test_the_rule(readings: list, outcome: str) -> None:
    assert outcome_of(readings) == outcome


def test_claims_on_nothing_are_refused(table: Experiment, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="tables: no file 'x'"):
        judge_claims([claim_of(tables=("x",))], [table], [])
    with pytest.raises(SpecError, match="no row 'TransE FedX' in zhang2022_fedr_table2"):
        judge_claims([claim_of(pairs=(("TransE FedX", "TransE FedE"),))], [table], [])
    plain = "claim: c, paper: p, where: w, words: x, metric: mrr, tables: [], least_share: 0.5"
    for changes, says in (("within: 0.03", "without margin and within"), ("margin: 0.1", "without margin and within")):
        (tmp_path / "claims.yaml").write_text(f"- {{{plain}, {changes}}}")
        with pytest.raises(SpecError, match=says):
            read_claims(tmp_path / "claims.yaml")
    (tmp_path / "claims.yaml").write_text("- {claim: c, near: 1}")
    with pytest.raises(SpecError, match=r"claims\.yaml: "):
        read_claims(tmp_path / "claims.yaml")
