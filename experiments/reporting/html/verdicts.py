"""Verdicts that were made beside the runs: of a policy, and of audits of forgetting.

    judged, certificates = policy_part(checked, runs), certificate_part("mine-audit", verification, runs)

A policy's verdict is read from what `fkgsec check --json` wrote, an audit's from `fkgsec verify`; nothing is judged here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fkgsec.experiments.gate import CHECK_FILE
from fkgsec.experiments.gate import SCHEMA as CHECK_SCHEMA
from fkgsec.experiments.gate.judge import Checked
from fkgsec.experiments.gate.verdict_formats import headline_lines
from fkgsec.experiments.gate.verdicts import show, show_figure
from fkgsec.experiments.reporting.items import Run
from fkgsec.experiments.reporting.sheets import NONE, Column, Sheet
from fkgsec.experiments.runs.record import read_if_of
from fkgsec.experiments.unlearning.summary import read_verification
from fkgsec.experiments.unlearning.verification import Verification
from fkgsec.federation.options import run_identities

AUDIT_FILE = "verification.json"
POLICY_SAYS_NOT = (
    "A policy judges the limits that it names, against the adversaries that it names. What no limit is about is not judged, and "
    "a limit that holds is no proof that nothing leaks."
)
AUDIT_SAYS_NOT = (
    "An audit bounds what may still be remembered by the share that it tolerates; it is no proof that nothing is."
)


@dataclass(frozen=True)
class Judged:
    """Verdict of a policy or of an audit of forgetting.

    Attributes:
        lines: the reasons. notice: that it is of other runs; empty where it is of these. says_not: what it does not prove.
        sheet: the limits of a policy.
    """

    title: str
    status: str
    sentence: str
    lines: tuple[str, ...]
    notice: str
    says_not: str
    sheet: Sheet | None


def read_judged(path: Path) -> Checked | Verification | None:
    """The policy's verdict or the audit at a place; None where a run is, or nothing of both. Raises `RunError`."""
    if path.is_dir():
        inside = path / AUDIT_FILE
        return read_verification(inside) if inside.is_file() else None
    if path.suffix != ".json" or not path.is_file():
        return None
    return read_if_of(path, CHECK_SCHEMA, Checked) or read_verification(path)


def judged_beside(places: Sequence[Path], runs: Sequence[Run]) -> dict[Path, Checked]:
    """By its file each verdict that `fkgsec check` left in the folder that these runs lie in, where it is on data of theirs.

    Raises:
        RunError: such a file cannot be read.
    """
    hashes = {run.record.data.hash for run in runs}
    folders = dict.fromkeys((place if place.is_dir() else place.parent).resolve().parent for place in places)
    found: dict[Path, Checked] = {}
    for file in (folder / CHECK_FILE for folder in folders):
        made = read_if_of(file, CHECK_SCHEMA, Checked) if file.is_file() else None
        if made is not None and hashes & {digest for by_seed in made.data.values() for digest in by_seed.values()}:
            found[file] = made
    return found


def judged_part(name: str, made: Checked | Verification, runs: Sequence[Run]) -> Judged:
    """What the page shows of a verdict that was given beside these runs."""
    return policy_part(made, runs) if isinstance(made, Checked) else certificate_part(name, made, runs)


def policy_part(checked: Checked, runs: Sequence[Run]) -> Judged:
    """A policy's verdict, a row for each limit; what was judged on other data than these runs is said."""
    judged = {digest for by_seed in checked.data.values() for digest in by_seed.values()}
    foreign = sorted({run.name for run in runs if run.record.data.hash not in judged})
    first, *others = headline_lines(checked)
    rows = tuple(
        (
            f"{one.federation}: {one.about}",
            one.status,
            show_figure(one.measured, one.kind),
            NONE if one.baseline is None else show(one.baseline, one.kind),
            f"{'at most' if one.bound == 'max' else 'at least'} {show(one.allowed, one.kind)}",
            one.message,
        )
        for one in checked.verdicts
    )
    heads = tuple(map(Column, ("limit", "verdict", "measured", "base", "allowed", "why")))
    notice = (
        f"The policy was judged on other data than {', '.join(foreign)}: it says nothing of these runs."
        if foreign
        else ""
    )
    return Judged(
        title=f"Policy {checked.policy}: {checked.status}",
        status=checked.status,
        sentence=first,
        lines=tuple(line.strip() for line in others),
        notice=notice,
        says_not=POLICY_SAYS_NOT,
        sheet=Sheet(f"Limits of {checked.policy}", heads, rows),
    )


def certificate_part(name: str, made: Verification, runs: Sequence[Run]) -> Judged:
    """The outcome of an audit with its reasons; an audit of another run's unlearning is said to be one."""
    known = {one for run in runs if run.record.spec.task == "kge" for one in _identities(run)}
    asked = ", ".join(f"{client}: {number:,} triples" for client, number in made.unlearning.asked.items())
    foreign = made.unlearning.identity not in known
    return Judged(
        title=f"Forgetting ({name}): {made.verdict.outcome}",
        status=made.verdict.outcome,
        sentence=f"{made.verdict.outcome}: {asked}, unlearned by {made.unlearning.options.method}.",
        lines=(*made.verdict.reasons, *made.assumptions, *made.remarks),
        notice="The audit is of the unlearning of a run that is not on this page." if foreign else "",
        says_not=AUDIT_SAYS_NOT,
        sheet=None,
    )


def _identities(run: Run) -> tuple[str, ...]:
    return run_identities(run.record.data, run.record.spec.federation_options())
