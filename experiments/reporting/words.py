"""Sentences printed below tables: protection by a defense, meaning of figures, and reasons for missing figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from fkgsec.attacks.figure import Figure, headline
from fkgsec.attacks.registry import ATTACKS
from fkgsec.attacks.view import ALL
from fkgsec.experiments.reporting.frames import attack_name, mixed_temperatures
from fkgsec.experiments.runs.record import Record
from fkgsec.experiments.tasks.task import task_named, task_of
from fkgsec.federation.checkpoint import quantization_lines

LEGEND = (
    "base: the baseline, the same adversary without access to the messages of the rounds. max: the upper bound of the figure. "
    "[low, high]: 95% interval over items of this training, not over other trainings."
)


def reading_aid(record: Record) -> list[str]:
    """State what a run's defense protects, what its figures mean, and why some were not measured."""
    return [*protection_lines(record), *figure_aid(record.figures)]


def protection_lines(record: Record) -> list[str]:
    """State what the defense protects, and its cost for the training."""
    return [*(f"{line}." for line in record.protection), *training_lines(record)]


def guarantee_lines(record: Record) -> list[str]:
    """State the guarantee of differential privacy, and losses of the training by a defense or codec."""
    return [*(f"{line}." for line in record.protection if line.startswith("dp, ")), *training_lines(record)]


def training_lines(record: Record) -> list[str]:
    """State which rounds, rows or values of the training were lost to a defense or a codec."""
    trained, lines = record.rounds[1:], []
    void = sum(entry.num_survivors == 0 for entry in trained)
    if record.protection and void:
        # Below the threshold of survivors, the server cannot unmask the sum.
        lines.append(f"{void} of {len(trained)} rounds gave no aggregate: too many clients dropped out.")
    if unchanged := sum(entry.num_kept_rows for entry in trained):
        lines.append(f"{unchanged:,} rows kept their old value, because a client exceeded the clip of the secure sum.")
    lines += [f"{line[0].upper()}{line[1:]}." for line in quantization_lines(trained)]
    clipped = sum(entry.num_clipped for entry in trained)
    return [*lines, f"{clipped:,} uploaded values were cut by the server's robust rule."] if clipped else lines


def lines_by_case(
    records: Mapping[str, Record], lines_of: Callable[[Record], list[str]] = protection_lines
) -> list[str]:
    """State each sentence once, preceded by the name of the case if it holds for only one.

    Args:
        records: runs by the name of the case.
        lines_of: returns the sentences of a run.
    """
    # Most sentences hold for all cases; naming the case each time would hide those that differ.
    owners: dict[str, list[str]] = {}
    for case, record in records.items():
        for line in lines_of(record):
            owners.setdefault(line, []).append(case)
    return [line if len(names) > 1 else f"{names[0]}: {line}" for line, names in owners.items()]


def figure_aid(listed: Sequence[Figure]) -> list[str]:
    """State the meaning of figures, and why some were not measured; nothing without an attack.

    Args:
        listed: figures of one run or of several.
    """
    if not listed:
        return []
    shown = dict.fromkeys((figure.attack, figure.metric) for figure in headline(listed) if not figure.reason)
    metrics = [f"{attack}.{name}: {ATTACKS[attack].metrics[name]}." for attack, name in shown if attack in ATTACKS]
    return [*metrics, LEGEND, *figure_reasons(listed), *_remarks(listed)]


def figure_reasons(listed: Sequence[Figure]) -> list[str]:
    """State why victims were not attacked, or which metrics of an attack were not measured.

    Args:
        listed: figures of one run or of several.
    """
    attacked = {(figure.attack, figure.threat_model, figure.victim) for figure in listed if not figure.reason}
    unmeasured: dict[tuple[str, str, str], list[str]] = {}
    for figure in listed:
        if figure.reason:
            # If other metrics of the attack were measured, name the metric, otherwise the attack.
            whole = (figure.attack, figure.threat_model, figure.victim) not in attacked
            name = figure.attack if whole else figure.key
            unmeasured.setdefault((name, figure.threat_model, figure.reason), []).append(figure.victim)
    return [
        f"{name} under {threat}: not measured for {ALL if ALL in victims else ', '.join(dict.fromkeys(victims))} ({reason})."
        for (name, threat, reason), victims in unmeasured.items()
    ]


def _remarks(listed: Sequence[Figure]) -> Iterator[str]:
    """State each remark once, preceded by its victims and threat models."""
    # The same remark usually concerns several victims and threat models; group them into one sentence.
    places: dict[str, dict[str, list[str]]] = {}
    for figure in listed:
        for remark in filter(None, (figure.remark or "").split("; ")):
            victims = places.setdefault(remark, {}).setdefault(attack_name(figure.threat_model, figure.leak), [])
            victims.extend({figure.victim} - {ALL, *victims})
    for remark, victims_of in places.items():
        by_victims: dict[str, list[str]] = {}
        for place, victims in victims_of.items():
            by_victims.setdefault(", ".join(victims) or ALL, []).append(place)
        about = "; ".join(f"{victims} under {' and '.join(where)}" for victims, where in by_victims.items())
        yield f"{about}: {remark}."


def temperature_remark(records: Mapping[str, Record]) -> str | None:
    """State the temperatures of negative sampling if runs differ in them; None otherwise.

    Args:
        records: runs by name.
    """
    if not mixed_temperatures(records.values()):
        return None
    names: dict[float, list[str]] = {}
    for name, record in records.items():
        names.setdefault(task_of(record.spec).columns(record.spec)["temperature"], []).append(name)
    parts = "; ".join(f"{temperature:g} in {', '.join(which)}" for temperature, which in sorted(names.items()))
    return f"The temperature of negatives differs: {parts} (0 weights all negatives equally)."


def attack_lines() -> list[str]:
    """Describe the registered attacks: needs, threat models, settings and metrics."""
    lines = []
    for name, attack in ATTACKS.items():
        about = f"{attack.about} ({task_named(attack.task).about})"
        lines += [
            f"{name}: {about}",
            f"  needs: {attack.need_words}",
            f"  threat models: {', '.join(attack.threat_models)}",
        ]
        if attack.settings is not None:
            fields = ((field.name, field.default) for field in msgspec.structs.fields(attack.settings))
            lines.append(f"  settings: {name}:{','.join(f'{key}={default}' for key, default in fields)}")
        lines += [f"  {name}.{metric}: {meaning}" for metric, meaning in attack.metrics.items()]
    return lines
