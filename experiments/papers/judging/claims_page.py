r"""Page of the papers' claims, in Markdown.

print("\n".join(page_lines(judge_claims(read_claims(), read_experiments(), records))))
"""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

from fkgsec.experiments.papers.judging.admission import LIMITS, PROSE, left_out_lines
from fkgsec.experiments.papers.judging.claims import (
    LEAST,
    MIN_TESTS,
    MOST,
    OTHER_DEVIATION,
    PRIOR_SEEDS,
    SEED_DEVIATION,
    Claim,
    Judged,
    Pair,
)
from fkgsec.experiments.papers.table import STYLES
from fkgsec.experiments.reporting.sheets import Column, Sheet, markdown_lines
from fkgsec.text import printable


def page_lines(judged: Sequence[Judged], left_out: Sequence[str] = ()) -> list[str]:
    """Return the page in Markdown.

    Args:
        judged: the claims.
        left_out: see `admit`.
    """
    command = "fkgsec experiment claims results --markdown docs/reproduction.md --overwrite"
    rule = (
        "A claim is tested on pairs of cells of the paper's tables: one row against another, in one column. A pair is "
        "**for** the claim if the whole 95 % interval of the difference lies on the claim's side, **against** it if the "
        "interval lies on the other side, and else undecided. A claim of being above also has a smallest difference of "
        "interest: a share of the median difference that the paper prints over all pairs of the claim. `claims.yaml` fixes "
        "the share; it was chosen when six intervals of FedR against Local were known. A pair is also **against** the claim "
        "if its whole interval lies below that difference and includes 0: the interval excludes that share of the printed "
        "advantage. Claims of closeness have a margin instead: the first row must exceed the second row's figure less the "
        "margin. Two runs are compared test item by test item; each division of the data has its own items. The variance of "
        f"training is pooled over the seeds of all pairs of the claim, with {PRIOR_SEEDS} further seeds of a standard "
        f"deviation of {OTHER_DEVIATION} (accuracy: {SEED_DEVIATION['accuracy']}). Older records have no outcomes by test "
        "item. They count only if no seed has such outcomes for both runs. Their figures are then taken as independent, "
        "which widens the interval. The average over clients is that of the first row's code. Pairs that share a run are "
        "**one test**. It is for the claim if all its pairs are, and against it if one is: a method that is below one of "
        "three baselines is not above all three. Until November 2026 a test was against a claim only if all pairs were; "
        "the rule changed when 18 pairs of CEFGL were known."
    )
    decides = (
        f"**Only tests at the paper's own settings decide.** A claim *holds* if at least {MIN_TESTS} tests, and at least "
        f"{LEAST:.0%} of those that the paper's tables have, are run and {MOST:.0%} of them are for it. It *does not hold* if "
        "as many are against it. Else it is *open*. The cheapest tests are run first: small data and small models, which "
        "may not represent the others. Nothing is corrected for judging a claim several times. Pairs at reduced settings "
        "(smaller dimension, fewer rounds, less data) are listed below the others and decide nothing, since small models "
        "with less training may rank methods differently. Pairs on data that are not the paper's decide nothing either. The "
        "last column applies the same comparison to the printed figures, which have no intervals."
    )
    lines = ["# Do the papers' claims hold?", "", f"Written by `{command}`, from records alone."]
    for paragraph in (rule, decides, LIMITS):
        lines += ["", *wrap(paragraph, PROSE)]
    lines += ["", *left_out_lines(left_out), *markdown_lines(summary_sheet(judged))]
    for claimed in judged:
        claim = claimed.claim
        lines += ["", f"## {claim.claim}: {claimed.outcome}", "", f'{claim.paper}, {claim.where}: "{claim.words}".', ""]
        lines += [_test_line(claimed), ""]
        # State first if the paper's own figures contradict its claim.
        if against := [test.partition(": ")[2] for test in claimed.printed if test not in claimed.printed_for]:
            unmet = f"{len(against)} of {len(claimed.printed)} tests: {', '.join(against)}"
            lines += [*wrap(f"The paper's own figures do not meet the claim in {unmet}.", PROSE), ""]
        # Cheap columns come first, and need not be like the others.
        by_column = dict[str, list[str]]()
        for pair in claimed.full:
            by_column.setdefault(pair.column, []).append(pair.reading)
        if parts := [f"{name} {len(read)} ({read.count('for')} for)" for name, read in by_column.items()]:
            lines += [*wrap(f"Pairs run by column: {', '.join(parts)}.", PROSE), ""]
        reduced = [pair for pair in claimed.pairs if not pair.full]
        for title, pairs in (("At the paper's own settings", claimed.full), ("Reduced, or on other data", reduced)):
            if pairs:
                lines += [f"{title}:", "", *markdown_lines(pairs_sheet(claim, pairs)), ""]
        lines += command_lines(claimed)
    return lines


def summary_sheet(judged: Sequence[Judged]) -> Sheet:
    """Return a line for each claim.

    Args:
        judged: the claims.
    """
    rows = []
    for claimed in judged:
        counts = [str(claimed.readings.count(reading)) for reading in ("for", "against", "undecided")]
        run, printed = str(len(claimed.readings)), ""
        if claimed.printed:
            run = f"{run} of {len(claimed.printed)}"
            printed = f"{len(claimed.printed_for)} of {len(claimed.printed)}"
        rows.append((claimed.claim.claim, claimed.claim.paper, claimed.outcome, run, *counts, printed))
    heads = (
        "claim", "paper", "outcome", "tests run at full settings", "for", "against", "undecided", "for it in the paper's figures",
    )  # fmt: skip
    return Sheet("Claims", tuple(map(Column, heads)), tuple(rows))


def _test_line(judged: Judged) -> str:
    claim, metric = judged.claim, STYLES[judged.claim.metric][0]
    if claim.unlearning:
        line = (
            f"For it: {metric} of forget triples below re-training's, and that of test triples above {1 - claim.margin:.0%} of "
            "the raw run's; both means over clients, local and global models apart."
        )
    else:
        near = f"{1 - claim.margin:.0%} of the second row's" if claim.margin else "the second row's"
        line = f"For it: {metric} above {near}{f' less {claim.within:g}' if claim.within else ''}."
    if claim.most_bytes is not None:
        line += f" And at most {claim.most_bytes:.2f} of its bytes until convergence."
    if judged.smallest:
        below = [excess < judged.smallest for excesses in judged.printed.values() for excess in excesses]
        line += (
            f" Against it also: the whole interval below {judged.smallest:.4f}, {_share(claim)} of the median printed advantage "
            f"({sum(below)} of {len(below)} printed differences are smaller)."
        )
    return line + (f" ({claim.why}.)" if claim.why else "")


def _share(claim: Claim) -> str:
    return "half" if claim.least_share == 0.5 else f"{claim.least_share:.0%}"


def pairs_sheet(claim: Claim, pairs: Sequence[Pair]) -> Sheet:
    """Return a line for each pair."""
    rows = [
        (
            pair.name,
            *map(str, (pair.first, pair.second, pair.excess)),
            pair.excess.method,
            ", ".join(map(str, pair.seeds)),
            f"against: the interval excludes {_share(claim)} of the median printed advantage"
            if claim.least_share and pair.reading == "against" and pair.excess.high >= 0
            else pair.reading,
            pair.remark,
        )
        for pair in pairs
    ]
    first, second = ("unlearned", "re-trained") if claim.unlearning else ("the first", "the second")
    heads = ("pair", first, second, "difference", "unit of variation", "seeds", "reading", "beside")
    return Sheet(claim.claim, tuple(map(Column, heads)), tuple(rows))


def command_lines(judged: Judged) -> list[str]:
    """Return the commands that made a claim's records, and the command that makes the missing ones.

    Args:
        judged: the claim.
    """
    lines = []
    if commands := list(dict.fromkeys(command for pair in judged.pairs for command in pair.commands)):
        # Commands come from records: neutralize control characters and code fences.
        folded = (printable(" ".join(command.split())).replace("```", "` ` `") for command in commands)
        lines += ["These records are of", "", "```", *folded, "```"]
    if len(judged.readings) < len(judged.printed):
        rows = dict.fromkeys(row for pair in (*judged.claim.pairs, *judged.claim.unlearning) for row in pair)
        words = ", ".join(f"{table} {row}" for table in judged.claim.tables for row in rows)
        lines += ["", "This command trains what is missing, first what decides claims in the fewest hours:", "", "```"]
        lines += [f"fkgsec experiment run --all --hours 24 --nice --only '{words}'", "```"]
    return lines
