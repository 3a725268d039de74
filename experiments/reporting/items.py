"""Tables and examples from per-item scores: triples rebuilt by relation, claims of the adversary, triples at greatest risk.

run = Run("fede", record, scores)
relations_sheet(run).rows                # triples rebuilt by relation, sensitive ones first
examples_of(run).right                   # claims of which the adversary was surest, chosen by `RULE`
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
    """A run by its name.

    Attributes:
        scores: per item. candidates: those of membership (`membership.candidates_of`).
        alone: record of the same clients alone, if such a run lies beside it.
    """

    name: str
    record: Record
    scores: pd.DataFrame | None = None
    candidates: pd.DataFrame | None = None
    alone: Record | None = None


class Example(NamedTuple):
    """A triple that the adversary claims, and the true one."""

    victim: str
    claim: str
    truth: str
    score: float


@dataclass(frozen=True)
class Examples:
    """Claims of one run under its strongest attack."""

    run: str
    attack: str
    counts: str
    right: tuple[Example, ...]
    wrong: tuple[Example, ...]

    @property
    def scored(self) -> bool:
        """Tell whether the scores of these claims differ."""
        return len({f"{example.score:.3f}" for example in (*self.right, *self.wrong)}) > 1


def rebuilt(record: Record, metric: str = "trr") -> list[Figure]:
    """Return the ERR or TRR over all victims of each threat model and leak that could be attacked."""
    return [
        figure
        for figure in over_all(record.figures)
        if (figure.attack, figure.metric) == (RECONSTRUCTION, metric) and not figure.reason
    ]


def relations_sheet(run: Run) -> Sheet | None:
    """Return triples rebuilt by relation over all victims; sensitive ones first, then the highest share under any attack.

    None without scores, or when nothing was attacked. Intervals are Wilson's; over all relations it is the attack's interval.
    """
    figures = rebuilt(run.record)
    if run.scores is None or not figures:
        return None
    has_base = "base" in run.scores  # the chance of each triple without embeddings
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
            share = estimates[place] if estimates else estimate.proportion(int(right), int(n))
            row += [share, *([base / share.n if share.n else None] if has_base else [])]
            most = max(most, share.n)
        return most, *row

    rows = [(name, "sensitive" if name in marked else "", *cells([name])) for name in names]
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
        bases = [f"{short(one.baseline or 0.0)} under {place}" for one, place in zip(figures, places, strict=True)]
        notes.append(f"The scores have no base by relation; over all relations it is {', '.join(bases)}.")
    title = f"{run.name}: triples rebuilt by relation, all victims; sensitive ones first, then the highest share"
    return Sheet(title, tuple(columns), tuple(rows), tuple(foot), tuple(notes))


def examples_of(run: Run) -> Examples | None:
    """Choose claims of one run by `RULE`; None when nothing was attacked or there are no scores."""
    best = max(rebuilt(run.record), key=lambda figure: figure.estimate.value, default=None)
    if best is None or run.scores is None:
        return None
    (named,) = (figure for figure in rebuilt(run.record, "err") if figure.question[2:4] == best.question[2:4])
    entities, triples = items_behind(named, run.scores), items_behind(best, run.scores)
    score_of = dict(zip(zip(entities["victim"], entities["head"], strict=True), entities["score"], strict=True))
    ends = zip(triples["victim"], triples["head"], triples["tail"], strict=True)
    surety = np.array([min(score_of[victim, head], score_of[victim, tail]) for victim, head, tail in ends])
    truths, claims = (
        list(triples[["victim", *(f"{kind}{part}" for part in ("head", "relation", "tail"))]].itertuples(False, None))
        for kind in ("", "guessed_")
    )
    claimed = np.array([NO_NAME not in claim for claim in claims], dtype=bool)
    marked = np.isin(triples["guessed_relation"], run.record.data.sensitive)
    draw = generator(run.record.seed, "report examples").permutation(len(claims))
    # Where two relations link a pair one claim answers for both; it is wrong only when the victim has no such triple.
    true_triples, is_right = set(truths), triples["right"].to_numpy(dtype=bool)
    chosen: dict[bool, dict[tuple[str, ...], Example]] = {True: {}, False: {}}
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
    """Return for each run the training triples that are found at the fewest false alarms."""
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
        first = trained.drop_duplicates(["victim", "head", "relation", "tail"]).head(MOST_TRIPLES)
        title = f"{run.name}: training triples at greatest risk, by the fewest false alarms at which one is found"
        notes = (f"The first {len(first)} of {len(trained):,}; {RISK_FILE} in the run's folder has all.",)
        sheets.append(Sheet.of(title, first, heads, notes=notes))
    return tuple(sheets)


# How the relations of the embedded consortium read.
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
    """Write a triple as a sentence for the embedded consortium, as it stands for other data (`data` is that of the spec).

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
