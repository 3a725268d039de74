"""What stands behind a verdict: which relations and triples were rebuilt, where the bytes went, what the defense promises.

for line in evidence_lines(finished, "reconstruction.trr", question, num_examples=3):
    print(line)
"""

from __future__ import annotations

import pandas as pd

from fkgsec.estimate import proportion
from fkgsec.experiments.gate.measures import (
    ITEMISED,
    MEASURES,
    NotMeasured,
    Question,
    attacked_items,
    conspicuous,
    find_figure,
    unlearning_of,
    verification_of,
)
from fkgsec.experiments.runs.record import Record
from fkgsec.experiments.runs.run import Finished

_MOST_RELATIONS = 6


def evidence_lines(finished: Finished, measure: str, question: Question, num_examples: int) -> list[str]:
    """Sentences for a report, without a full stop.

    Args:
        num_examples: how many rebuilt triples (or named entities) to spell out. They are the victims' own data.
    """
    name = measure.rpartition(".")[2]
    if MEASURES[measure].attack is not None:
        return _attack(finished, MEASURES[measure].key, question, num_examples)
    if measure.startswith("utility."):
        parts = [f"{client} {figures[name]}" for client, figures in finished.record.utility_by_client.items()]
        return [f"{name} by client: {', '.join(parts)}"]
    if MEASURES[measure].kind == "bytes":
        return _bytes(finished.record)
    if measure.startswith("membership."):
        figure = conspicuous(finished, question)
        told = max((one.value for one in figure.guesses.values()), default=0.0)
        return [
            f"strongest of {figure.compared} ways: {figure.by}, AUC {figure.estimate} over {figure.counts['members']:,} members "
            f"and {figure.counts['controls']:,} never-seen triples; the baseline is {told:.4f}"
        ]
    if measure.startswith("unlearning."):
        return _unlearning(finished, question)
    if measure == "epsilon":
        unlearning = unlearning_of(finished, question)
        stated = unlearning.protection if unlearning else finished.record.protection
        return [line for line in stated if line.startswith("dp")]
    return []


def _unlearning(finished: Finished, question: Question) -> list[str]:
    made = verification_of(finished, question)
    return [f"verified: {made.verdict.outcome}", *made.verdict.reasons]


def _attack(finished: Finished, key: str, question: Question, num_examples: int) -> list[str]:
    try:
        figure = find_figure(finished.record, key, question)
    except NotMeasured:
        return []
    lines = []
    if figure.baseline is not None:
        guess = f"the best guess without what crossed in the rounds gets {figure.baseline.value:.4f}"
        lines.append(f"the attack got {figure.estimate.value:.4f}, {guess}")
    if key not in ITEMISED:
        return lines
    if sources := find_figure(finished.record, ITEMISED[0], question).counts:
        told = ", ".join(f"{source} {count:,}" for source, count in sources.items())
        lines.append(f"rows were summed; what told the holders of the entities that it named: {told}")
    items = attacked_items(finished, key, question)
    if not len(items):
        return lines
    triples = figure.metric == "trr"
    if triples:
        lines.append(_by_relation(items, finished.record))
    hits = items.loc[items["right"].to_numpy(dtype=bool)]
    for _, one in _sensitive_first(hits, finished.record).head(num_examples).iterrows():
        words = f"{one['head']} {one['relation']} {one['tail']}" if triples else one["head"]
        lines.append(f"rebuilt, of {one['victim']}: {words}")
    return lines


def _by_relation(items: pd.DataFrame, record: Record) -> str:
    """The relations of which most is rebuilt for certain, by the lower end of the interval; sensitive ones are marked."""
    found: list[tuple[float, str]] = []
    for relation, group in items.groupby("relation", sort=True)["right"]:
        right, count = int(group.to_numpy(dtype=bool).sum()), len(group)
        mark = " (sensitive)" if relation in record.data.sensitive else ""
        if right:
            found.append((proportion(right, count).low, f"{relation}{mark} {right:,} of {count:,}"))
    if not found:
        return "no triple was rebuilt"
    found.sort(key=lambda one: -one[0])
    return f"most rebuilt relations: {', '.join(text for _, text in found[:_MOST_RELATIONS])}"


def _sensitive_first(hits: pd.DataFrame, record: Record) -> pd.DataFrame:
    """Triples of sensitive relations, then the others; each in the order of the data."""
    ordinary = ~hits["relation"].isin(record.data.sensitive).to_numpy()
    return hits.iloc[ordinary.argsort(kind="stable")]


def _bytes(record: Record) -> list[str]:
    trained = record.rounds[1:]
    if not trained:
        return []
    largest = max(trained, key=lambda entry: entry.bytes_up + entry.bytes_down)
    alignment = record.rounds[0].bytes_up + record.rounds[0].bytes_down
    return [
        f"largest round {largest.round}: {largest.bytes_up:,} B up, {largest.bytes_down:,} B down; alignment {alignment:,} B; "
        f"{len(trained)} rounds, {record.bytes.up:,} B up and {record.bytes.down:,} B down in all"
    ]
