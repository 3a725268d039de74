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
from fkgsec.experiments.reporting.frames import attack_name, over_all
from fkgsec.experiments.reporting.membership import RISK_FILE, risk_table
from fkgsec.experiments.reporting.sheets import Column, Sheet, interval, short
from fkgsec.experiments.runs.record import Record
from fkgsec.experiments.runs.spec import CONSORTIUM
from fkgsec.randomness import generator

_Triple = tuple[str, str, str, str]  # victim, head, relation, tail
NUM_EXAMPLES, MOST_TRIPLES = 3, 20
RULE = (
    f"For each run, under the attack that rebuilds most triples: the {NUM_EXAMPLES} right and the {NUM_EXAMPLES} wrong claims of "
    "which the adversary was surest. Claims of sensitive relations come first, ties are drawn with the seed of the run. The "
    "score is the lower of the scores that named head and tail: a cosine of embeddings, the certainty of the holder where rows "
    "are summed, or 1 where names were read."
)


@dataclass(frozen=True, eq=False)
class Run:
    """A run by its name. `scores` are per item; `candidates` are those of membership (`membership.candidates_of`)."""

    name: str
    record: Record
    scores: pd.DataFrame | None = None
    candidates: pd.DataFrame | None = None


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
        return len({f"{one.score:.3f}" for one in (*self.right, *self.wrong)}) > 1


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
    rows = rebuilt(run.record)
    if run.scores is None or not rows:
        return None
    attacked = [items_behind(figure, run.scores) for figure in rows]
    has_base = "base" in run.scores  # the chance of each triple without embeddings
    tallies = [_tally(triples, has_base=has_base) for triples in attacked]
    names = sorted({name for tally in tallies for name in tally})
    sensitive = [name for name in names if name in run.record.data.sensitive]
    body = []
    for name in names:
        cells, highest = _relation_cells(tallies, [name], has_base=has_base)
        mark = "sensitive" if name in sensitive else ""
        body.append(((name not in sensitive, -highest, name), (name, mark, *cells)))
    foot = [("all relations", "", *_relation_cells(tallies, names, has_base=has_base, rows=rows)[0])]
    if sensitive:
        cells = _relation_cells(tallies, sensitive, has_base=has_base)[0]
        foot.insert(0, ("sensitive relations", "", *cells))
    columns = [Column("relation"), Column("marked"), Column("triples", "count")]
    for row in rows:
        columns += [
            Column(attack_name(row.threat_model, row.leak), "figure"),
            *([Column("base", "value")] if has_base else []),
        ]
    notes = [
        "The intervals of relations are of the triples alone; that over all relations also covers which entities leaked."
    ]
    if not sensitive:
        notes.append("No relation of these data is marked as sensitive.")
    if not has_base:
        bases = [f"{short(row.baseline or 0.0)} under {attack_name(row.threat_model, row.leak)}" for row in rows]
        notes.append(f"The scores have no base by relation; over all relations it is {', '.join(bases)}.")
    return Sheet(
        f"{run.name}: triples rebuilt by relation, all victims; sensitive ones first, then the highest share",
        tuple(columns),
        tuple(cells for _, cells in sorted(body, key=lambda item: item[0])),
        tuple(foot),
        tuple(notes),
    )


def _tally(triples: pd.DataFrame, *, has_base: bool) -> dict[str, np.ndarray]:
    """For each relation: triples rebuilt, all triples, and those expected without embeddings (zero where that is not known)."""
    names, place = np.unique(triples["relation"].astype(str), return_inverse=True)
    weights = (triples["right"], None, triples["base"] if has_base else np.zeros(len(place)))
    sums = np.stack([np.bincount(place, weight, len(names)) for weight in weights], axis=1)
    return dict(zip(names.tolist(), sums, strict=True))


def _relation_cells(
    tallies: Sequence[dict[str, np.ndarray]], names: Sequence[str], *, has_base: bool, rows: Sequence[Figure] = ()
) -> tuple[list[Any], float]:
    """Triples of these relations, then for each attack the share rebuilt, with its base if there is one; the highest share.

    Args:
        rows: the attacks, where `names` are all relations: then the figures are theirs.
    """
    cells, highest, most = [], 0.0, 0
    for place, tally in enumerate(tallies):
        right, n, expected = sum((tally[name] for name in names if name in tally), start=np.zeros(3))
        figure = rows[place].estimate if rows else estimate.proportion(int(right), int(n))
        cells.append(figure)
        if has_base:
            cells.append(float(expected) / figure.n if figure.n else None)
        highest, most = max(highest, figure.value), max(most, figure.n)
    return [most, *cells], highest


def examples_of(run: Run) -> Examples | None:
    """Choose claims of one run by `RULE`; None when nothing was attacked or there are no scores."""
    best = max(rebuilt(run.record), key=lambda figure: figure.estimate.value, default=None)
    if best is None or run.scores is None:
        return None
    (named_by,) = (one for one in rebuilt(run.record, "err") if one.question[2:4] == best.question[2:4])
    entities, triples = items_behind(named_by, run.scores), items_behind(best, run.scores)
    named = zip(entities["victim"], entities["head"], entities["score"], strict=True)
    score_of = {(victim, name): score for victim, name, score in named}
    ends = zip(triples["victim"], triples["head"], triples["tail"], strict=True)
    surety = np.array([min(score_of[victim, head], score_of[victim, tail]) for victim, head, tail in ends])
    victims = triples["victim"].tolist()
    truths, claims = (
        list(zip(victims, *(triples[f"{kind}{part}"].tolist() for part in ("head", "relation", "tail")), strict=True))
        for kind in ("", "guessed_")
    )
    claimed = np.array([NO_NAME not in claim for claim in claims], dtype=bool)
    marked = np.isin(triples["guessed_relation"], run.record.data.sensitive)
    draw = generator(run.record.seed, "report examples").permutation(len(claims))
    order = [place for place in np.lexsort((draw, -surety, ~marked)).tolist() if claimed[place]]
    # Where two relations link a pair one claim answers for both; it is wrong only when the victim has no such triple.
    known, right_ones = set(truths), triples["right"].to_numpy(dtype=bool)
    chosen: dict[bool, dict[_Triple, Example]] = {True: {}, False: {}}
    for place in order:
        claim, right, data = claims[place], bool(right_ones[place]), run.record.spec.data
        found = chosen[right]
        if (right or claim not in known) and claim not in found and len(found) < NUM_EXAMPLES:
            said, true = (
                triple_words(head, relation, tail, data) for _, head, relation, tail in (claim, truths[place])
            )
            found[claim] = Example(claim[0], said, true, float(surety[place]))
    num_claims, num_right = int(claimed.sum()), int(right_ones.sum())
    return Examples(
        run=run.name,
        attack=attack_name(best.threat_model, best.leak),
        counts=f"{num_claims:,} claims about {len(claims):,} training triples; {num_right:,} are right: TRR "
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
        found = table.loc[table["trained"]].sort_values("false_alarms", kind="stable")
        first = found.drop_duplicates(["victim", "head", "relation", "tail"]).head(MOST_TRIPLES)
        title = f"{run.name}: training triples at greatest risk, by the fewest false alarms at which one is found"
        notes = (f"The first {len(first)} of {len(found):,}; {RISK_FILE} in the run's folder has all.",)
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
    """A triple as a sentence for the embedded consortium, as it stands for other data (`data` is that of the spec).

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
    kind, colon, own = name.partition(":")
    return _KINDS.get(kind, "{}").format(own) if colon else name
