"""The report's words: figures with their intervals, who the adversary is, what a finding means, triples as sentences.

share(row.trr), adversary(record, row).saw, verdict(row.trr, base_of(row, "trr"))
"""

from __future__ import annotations

import math
import re
from typing import Literal, NamedTuple

from attacks.figure import TOGETHER
from attacks.reconstruction.leakage import Leakage
from attacks.residual import SOURCES
from attacks.view import THREAT_MODELS
from defenses.options import parse_defense
from experiments.reporting.html.notation import NONE, mebibytes, score_text
from experiments.reporting.sheets import Column, Style, number, written
from experiments.runs.record import Record
from experiments.runs.spec import CONSORTIUM
from fkgsec.estimate import Estimate
from fkgsec.federation.recipes import RECIPES

NO_BREAK = "\N{NO-BREAK SPACE}"

Verdict = Literal["above", "open", "below"]
VERDICTS: dict[Verdict, tuple[str, str]] = {
    "above": ("▲ above base", "the embeddings leak"),
    "open": ("= like base", "the interval holds the base; no leak is shown, and none is excluded"),
    "below": ("▼ below base", "the adversary does better by ignoring the embeddings, so that the base is what it has"),
}

FOUND: dict[str, str] = dict(
    zip(
        SOURCES,
        (
            "",
            "told by alignment in clear",
            "because one victim was alone in the sum",
            "because every victim in the sum held the row",
            "by comparing rounds with other survivors",
            "drawn among those who may hold the row",
            "because the server knew every other part of the sum",
        ),
        strict=True,
    )
)

_BYTES = ("Bytes", "length of all messages as they were serialised, both ways, alignment included. An exact count.")
_GLOSSARY = (
    ("Victim", "a client that does not collude with the server. “All” is all victims together."),
    (
        "Entities named (ERR)",
        "share of a victim's entities whose name the adversary gets right from what it saw.",
    ),
    (
        "Triples rebuilt (TRR)",
        "share of a victim's training triples that the adversary gets right, head, relation and tail, when it is told which "
        "rows are linked (the definition of the FedR paper).",
    ),
    (
        "Base",
        "the same figure for an adversary with the same knowledge that ignores the embeddings: the better of its guesses. It "
        "is computed, not sampled, and has no interval. Only what exceeds it is leaked by embeddings; where the figure is below "
        "it, the adversary does better by ignoring them, and the base is what it has.",
    ),
    (
        "Without links",
        "the adversary is not told which rows are linked. It claims as many triples as the colluder's own density suggests: "
        "precision is the share of claims that are right, recall the share of triples that are claimed.",
    ),
    ("Leak", "share of the colluding client's entity-embedding pairs that the server was handed."),
    (
        "Interval",
        "95 %: Wilson for shares, bootstrap for MRR (normal with parties apart). That of ERR and TRR also covers which entities "
        "leaked: the attack is repeated on others. None covers other trainings, which several seeds do.",
    ),
    (
        "MRR",
        "mean reciprocal rank of filtered link prediction on test triples, from 0 to 1: what the federation is for.",
    ),
    _BYTES,
)
_GRAPH_GLOSSARY = (
    ("Victim", "a client that is attacked. “All” is all victims together."),
    (
        "Base",
        "the same figure for an adversary with the same knowledge that ignores what crossed: a guess. Only what exceeds it is "
        "leaked by what crossed.",
    ),
    ("Max", "the most that a figure can be."),
    (
        "AUC",
        "how often a graph that was trained on is ranked above one that was not; 0.5 is a guess, 1 tells all apart.",
    ),
    ("tpr@0.01", "share of trained graphs that are found where 1 % of the others are taken for them, too."),
    (
        "Interval",
        "95 %: Wilson for shares, and these put together over clients for the mean. None covers other trainings, which several "
        "seeds do.",
    ),
    (
        "Accuracy",
        "share of test graphs that are classified right, the mean over clients: what the federation is for. A twin is a graph "
        "in train that is isomorphic to a test graph, labels included; figures on such graphs say what was remembered.",
    ),
    _BYTES,
)


class Words(NamedTuple):
    """What a page says of a task's runs.

    Attributes:
        verdicts: of an interval and its base, in short and in full. base: what the base is.
        glossary: the terms of its figures. remembered: what test items are that stand in train, too, after their number.
    """

    verdicts: dict[Verdict, tuple[str, str]]
    base: str
    glossary: tuple[tuple[str, str], ...]
    remembered: str


WORDS = {
    "kge": Words(
        VERDICTS,
        "Base is what the same adversary reaches without embeddings.",
        _GLOSSARY,
        "also stand in their own client's training data",
    ),
    "graph": Words(
        {
            "above": ("▲ above base", "what crossed, or was kept, leaks"),
            "open": ("= like base", "the interval holds the base; no leak is shown, and none is excluded"),
            "below": ("▼ below base", "the adversary does better by guessing, so that the base is what it has"),
        },
        "Base is what the same adversary reaches by guessing.",
        _GRAPH_GLOSSARY,
        "are isomorphic to a graph in some client's training data",
    ),
}
"""By task."""


class Adversary(NamedTuple):
    """Who attacks, what it knew beforehand, and what it saw of a run; phrases for a sentence."""

    who: str
    knows: str
    saw: str


def percent(share: float) -> str:
    """A share in per cent; what is not 0 or 100 is not written so. The space does not break.

    >>> [percent(value).replace(NO_BREAK, " ") for value in (0.3628, 0.00134, 2e-13, 0.99998, 1.0)]
    ['36.3 %', '0.13 %', '<0.01 %', '99.99 %', '100 %']
    """
    return f"{_hundredths(share)}{NO_BREAK}%"


def share(figure: Estimate) -> str:
    """A share with its interval, `36.3 % [34.5, 38.0]`; a figure that was computed exactly stands alone."""
    if not figure.n:
        return NONE
    value = percent(figure.value)
    return value if figure.method == "exact" else f"{value} [{_hundredths(figure.low)}, {_hundredths(figure.high)}]"


def _hundredths(share: float) -> str:
    percents = 100 * share
    if share in (0, 1):
        return f"{percents:.0f}"
    if 0 < percents < 0.005:
        return "<0.01"
    if 99 < percents < 100:
        return f"{math.floor(100 * percents) / 100:.2f}"
    return f"{percents:.2f}" if percents < 1 else f"{percents:.1f}"


PAGE: Style = {
    "count": "{:,}".format,
    "number": "{:g}".format,
    "exact": "{:.4f}".format,
    "rate": share,
    "score": score_text,
    "share": lambda value: percent(number(value)),
    "MiB": mebibytes,
    "ratio": "{:.3g}".format,
}


def cell_text(value: object, column: Column) -> str:
    """A cell as the page writes it."""
    return written(value, column.kind, PAGE)


def cell_order(value: object, column: Column) -> float | None:
    """What a reader sorts it by: the number; what was not measured comes last; None: the text."""
    if column.kind == "text":
        return None
    return -1.0 if cell_text(value, column) == NONE or isinstance(value, str) else number(value)


def base_of(row: Leakage, rate: Literal["err", "trr"]) -> float:
    """The best guess without embeddings."""
    return getattr(row, rate).value - getattr(row, f"{rate}_advantage")


def verdict(figure: Estimate, base: float) -> Verdict:
    """What an interval says of the base that stands beside it."""
    return "above" if figure.low > base else "below" if figure.high < base else "open"


def adversary(record: Record, row: Leakage) -> Adversary:
    """The threat model of a row of leakage in words, with what this run let it see."""
    model, defense = THREAT_MODELS[row.threat_model], parse_defense(record.spec.defense)
    tables = RECIPES[record.spec.algorithm].shared
    rows = " and ".join({"entities": "entity", "relations": "relation"}[table] for table in tables) + " embeddings"
    who, knows = "the server alone; it follows the protocol and is curious", "nothing"
    if not model.server:
        who = model.about
    elif model.colluder:
        several = TOGETHER in (row.colluder or "")
        who = f"the server together with {row.colluder}, {'some' if several else 'one'} of the clients"
        knows = (
            f"{100 * row.leak:g}{NO_BREAK}% of the entity-embedding pairs of {row.colluder}, and the relations of its triples "
            "that touch them"
        )
    if model.victim_entities:
        knows += "; and it is assumed to have the victims' entity embeddings, without names, though they never crossed"
    if not tables:
        return Adversary(who, knows, "nothing: these clients exchange nothing")
    if defense.secagg:
        saw = f"the sum of the {rows} of round {row.round}, how many clients hold each row, and who is in the sum"
        if model.colluder:
            saw += f"; it subtracts the part of {row.colluder}"
        if not defense.psu:
            saw += "; alignment in clear told it who holds which row"
    else:
        saw = f"each victim's own {rows}, as uploaded up to round {row.round}"
    if defense.dp:
        saw += ", clipped and with noise"
    if not model.identifiers:
        return Adversary(who, knows, f"{saw}; names are hidden from it")
    names = "the union of all names" if defense.psu else "the names that each client sent for alignment"
    return Adversary(who, knows, f"{saw}; and {names}")


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
