"""Tables and examples from per-item scores: triples rebuilt by relation, claims of the adversary, triples at greatest
risk.

run = Run("fede", record, scores)
relations_sheet(run).rows                # triples rebuilt by relation, sensitive ones first
examples_of(run).right                   # the adversary's most certain correct claims, chosen by `RULE`
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fkgsec import estimate
from fkgsec.attacks.figure import Figure
from fkgsec.attacks.options import RECONSTRUCTION
from fkgsec.attacks.reconstruction.evaluation import NO_NAME
from fkgsec.attacks.reconstruction.leakage import items_behind
from fkgsec.estimate import Estimate
from fkgsec.experiments.reporting.frames import attack_name, over_all
from fkgsec.experiments.reporting.membership import RISK_FILE, risk_table
from fkgsec.experiments.reporting.sheets import Column, Sheet, interval, short
from fkgsec.experiments.runs.record import Record
from fkgsec.experiments.runs.spec import CONSORTIUM
from fkgsec.randomness import generator

NUM_EXAMPLES, MOST_TRIPLES = 3, 20
RULE = (
    f"For each run, under the attack that rebuilds most triples: the {NUM_EXAMPLES} right and the {NUM_EXAMPLES} wrong claims of "
    "which the adversary was surest. Claims of sensitive relations come first, ties are drawn with the seed of the run. The "
    "score is the lower of the scores that named head and tail: a cosine of embeddings, the certainty of the holder where rows "
    "are summed, or 1 where names were read."
)


@dataclass(frozen=True, eq=False)
class Run:
    """A run with its name and scores.

    Attributes:
        scores: scores per item.
        candidates: scores of membership inference (`membership.candidates_of`).
        alone: record of the same clients alone, if such a run exists next to it.
    """

    name: str
    record: Record
    scores: pd.DataFrame | None = None
    candidates: pd.DataFrame | None = None
    alone: Record | None = None


class Example(NamedTuple):
    """Triple that the adversary claims, and the true triple."""

    victim: str
    claim: str
    truth: str
    score: float


@dataclass(frozen=True)
class Examples:
    """Claims about one run by its strongest attack."""

    run: str
    attack: str
    counts: str
    right: tuple[Example, ...]
    wrong: tuple[Example, ...]

    @property
    def scored(self) -> bool:
        """True if the scores of these claims differ."""
        # Compare as printed: equal scores would be a column without information.
        return len({f"{example.score:.3f}" for example in (*self.right, *self.wrong)}) > 1


def rebuilt(record: Record, metric: str = "trr") -> list[Figure]:
    """Return the figures over all victims of each threat model and leak that could be attacked.

    Args:
        metric: `trr` for triples, `err` for entities.
    """
    return [
        figure
        for figure in over_all(record.figures)
        if (figure.attack, figure.metric) == (RECONSTRUCTION, metric) and not figure.reason
    ]


def relations_sheet(run: Run) -> Sheet | None:
    """Return triples rebuilt by relation over all victims: sensitive relations first, then by the highest share.

    Args:
        run: an attacked run with scores.

    Returns:
        None without scores or reconstruction. Intervals are Wilson's; over all relations it is the attack's interval.
    """
    figures = rebuilt(run.record)
    if run.scores is None or not figures:
        return None
    # The chance of each triple without embeddings.
    has_base = "base" in run.scores
    # Per attack: correct claims, triples and expected correct claims by relation.
    tallies = []
    for figure in figures:
        triples = items_behind(figure, run.scores)
        columns = {"right": triples["right"].astype(float), "n": 1.0, "base": triples["base"] if has_base else 0.0}
        tallies.append(pd.DataFrame({"relation": triples["relation"].astype(str), **columns}).groupby("relation").sum())
    names = sorted({name for tally in tallies for name in tally.index})
    marked = run.record.data.sensitive
    sensitive = [name for name in names if name in marked]

    def cells(names: Sequence[str], estimates: Sequence[Estimate] = ()) -> tuple[Any, ...]:
        """Return triples of these relations, then for each attack the share rebuilt, with its base if there is one."""
        row, most = [], 0
        for place, tally in enumerate(tallies):
            right, n, base = tally.loc[tally.index.isin(names)].sum()
            # A relation's triples may be attacked in several draws of leaked entities, each counted.
            share = estimates[place] if estimates else estimate.proportion(int(right), int(n))
            row += [share, *([base / share.n if share.n else None] if has_base else [])]
            most = max(most, share.n)
        return most, *row

    rows = [(name, "sensitive" if name in marked else "", *cells([name])) for name in names]
    # `not row[1]` puts sensitive relations first.
    rows.sort(key=lambda row: (not row[1], -max(cell.value for cell in row if isinstance(cell, Estimate)), row[0]))
    foot = [("sensitive relations", "", *cells(sensitive))] if sensitive else []
    foot.append(("all relations", "", *cells(names, [figure.estimate for figure in figures])))
    columns = [Column("relation"), Column("marked"), Column("triples", "count")]
    places = [attack_name(figure.threat_model, figure.leak) for figure in figures]
    for place in places:
        columns += [Column(place, "figure"), *([Column("base", "value")] if has_base else [])]
    notes = [
        "The intervals of relations are of the triples alone; that over all relations also covers which entities leaked."
    ]
    if not sensitive:
        notes.append("No relation of these data is marked as sensitive.")
    if not has_base:
        bases = [
            f"{short(figure.baseline or 0.0)} under {place}" for figure, place in zip(figures, places, strict=True)
        ]
        notes.append(f"The scores have no base by relation; over all relations it is {', '.join(bases)}.")
    title = f"{run.name}: triples rebuilt by relation, all victims; sensitive ones first, then the highest share"
    return Sheet(title, tuple(columns), tuple(rows), tuple(foot), tuple(notes))


def examples_of(run: Run) -> Examples | None:
    """Select claims about one run by `RULE`.

    Args:
        run: an attacked run with scores.

    Returns:
        None if nothing was attacked or there are no scores.
    """
    best = max(rebuilt(run.record), key=lambda figure: figure.estimate.value, default=None)
    if best is None or run.scores is None:
        return None
    # The entity figure of the same threat model and leak holds the scores of names.
    (named,) = (figure for figure in rebuilt(run.record, "err") if figure.question[2:4] == best.question[2:4])
    entities, triples = items_behind(named, run.scores), items_behind(best, run.scores)
    score_of = dict(zip(zip(entities["victim"], entities["head"], strict=True), entities["score"], strict=True))
    ends = zip(triples["victim"], triples["head"], triples["tail"], strict=True)
    # A claimed triple is as certain as its less certain end.
    surety = np.array([min(score_of[victim, head], score_of[victim, tail]) for victim, head, tail in ends])
    truths, claims = (
        list(triples[["victim", *(f"{kind}{part}" for part in ("head", "relation", "tail"))]].itertuples(False, None))
        for kind in ("", "guessed_")
    )
    claimed = np.array([NO_NAME not in claim for claim in claims], dtype=bool)
    marked = np.isin(triples["guessed_relation"], run.record.data.sensitive)
    # Break ties by a seeded draw, so that no alphabetical order shows through.
    draw = generator(run.record.seed, "report examples").permutation(len(claims))
    # If two relations link the same pair, one claim serves both. It is wrong only if the victim has no such triple.
    true_triples, is_right = set(truths), triples["right"].to_numpy(dtype=bool)
    chosen: dict[bool, dict[tuple[str, ...], Example]] = {True: {}, False: {}}
    # Sort keys from the last to the first: sensitive relations, then certainty, then the draw.
    for place in np.lexsort((draw, -surety, ~marked)).tolist():
        claim, right = claims[place], bool(is_right[place])
        examples = chosen[right]
        if not claimed[place] or claim in examples or len(examples) == NUM_EXAMPLES:
            continue
        if right or claim not in true_triples:
            data = run.record.spec.data
            claim_words, true_words = (
                triple_words(head, relation, tail, data) for _, head, relation, tail in (claim, truths[place])
            )
            examples[claim] = Example(claim[0], claim_words, true_words, float(surety[place]))
    return Examples(
        run=run.name,
        attack=attack_name(best.threat_model, best.leak),
        counts=f"{claimed.sum():,} claims about {len(claims):,} training triples; {is_right.sum():,} are right: TRR "
        f"{interval(best.estimate)}.",
        right=tuple(chosen[True].values()),
        wrong=tuple(chosen[False].values()),
    )


def risk_sheets(runs: Sequence[Run]) -> tuple[Sheet, ...]:
    """Return for each run the training triples that are detected at the fewest false alarms.

    Args:
        runs: runs; those without membership candidates are left out.
    """
    # Columns of `risk_table` that a reader needs; the file has the others.
    heads = {
        "victim": "victim", "head": "head", "relation": "relation", "tail": "tail", "threat_model": "threat model", "by": "way",
        "false_alarms": Column("false alarms", "value"),
    }  # fmt: skip
    sheets = []
    for run in runs:
        if run.candidates is None or not len(run.candidates):
            continue
        table = risk_table(run.candidates)
        trained = table.loc[table["trained"]].sort_values("false_alarms", kind="stable")
        # Sorted by false alarms, so that each triple keeps its most dangerous threat model.
        first = trained.drop_duplicates(["victim", "head", "relation", "tail"]).head(MOST_TRIPLES)
        title = f"{run.name}: training triples at greatest risk, by the fewest false alarms at which one is found"
        notes = (f"The first {len(first)} of {len(trained):,}; {RISK_FILE} in the run's folder has all.",)
        sheets.append(Sheet.of(title, first, heads, notes=notes))
    return tuple(sheets)


# Phrases for the relations of the embedded consortium.
_PHRASES = {
    "diagnosed_with": "{} was diagnosed with {}",
    "prescribed": "{} was prescribed {}",
    "has_symptom": "{} has the symptom {}",
    "underwent": "{} underwent {}",
    "carries_variant": "{} carries a variant of {}",
    "treats": "{} treats {}",
    "is_treated_by": "{} is treated by {}",
    "contraindicated_for": "{} must not be given for {}",
    "interacts_with": "{} interacts with {}",
    "associated_with": "{} is associated with {}",
    "targets": "{} targets {}",
    "shares_pathway": "{} shares a pathway with {}",
    "belongs_to_class": "{} belongs to {}",
    "subtype_of": "{} is a subtype of {}",
    "presents_with": "{} presents with {}",
    "managed_by": "{} is managed by {}",
}
_KINDS = {"drug": "the drug {}", "gene": "the gene {}", "class": "the class {}"}


def triple_words(head: str, relation: str, tail: str, data: str) -> str:
    """Write a triple as a sentence for the embedded consortium, unchanged for other data.

    Args:
        data: the spec's data.

    >>> triple_words("hospital-2/patient-017", "prescribed", "drug:olsartan-206", "consortium")
    'patient 17 of hospital-2 was prescribed the drug olsartan-206'
    >>> triple_words("a", "r", "b", "own-files")
    'a — r — b'
    """
    if data != CONSORTIUM or relation not in _PHRASES:
        return f"{head} — {relation} — {tail}"
    return _PHRASES[relation].format(_entity_words(head), _entity_words(tail))


def _entity_words(name: str) -> str:
    patient = re.fullmatch(r"(hospital-\d+)/patient-0*(\d+)", name)
    if patient:
        return f"patient {patient[2]} of {patient[1]}"
    kind, colon, short_name = name.partition(":")
    return _KINDS.get(kind, "{}").format(short_name) if colon else name
