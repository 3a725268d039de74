"""What a record cannot say and be of one run: words of another task, or figures, rounds and bytes that contradict each other.

>>> check_numbering([0, 1, 2], best_round=2)
>>> check_numbering([0, 1], best_round=7)
Traceback (most recent call last):
    ...
fkgsec.errors.RunError: best_round: must be one of the rounds 0 to 1; got 7
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from attacks.registry import ATTACKS
from attacks.view import ALL, threat_models
from experiments.tasks.task import RunTask, task_of
from fkgsec.data.split_leaks import OWN_TRAIN
from fkgsec.errors import RunError

if TYPE_CHECKING:
    from experiments.runs.record import Record

_ROUNDING = 1e-9
ABSENT = "apart: utility is without "
"""How a line of a record's statement begins that names a client whose figures are missing."""


def check_record(record: Record) -> None:
    """Raises `RunError` that names the field, what stands there and what would be right."""
    task = task_of(record.spec)
    if record.metric != task.metric:
        raise RunError(f"metric: {record.spec.algorithm} is validated by {task.metric}; got {record.metric!r}")
    if record.seed != record.spec.seed:
        raise RunError(f"seed: the spec's is {record.spec.seed}; got {record.seed}")
    check_numbering([entry.round for entry in record.rounds], record.best_round)
    _check_utility(record, task)
    _check_bytes(record)
    for client, sizes in record.data.clients.items():
        _check_names(f"data.clients.{client}", sizes, task.sizes, task.sizes)
        if min(sizes.values()) < 0:
            raise RunError(f"data.clients.{client}: a size is {min(sizes.values())}")
    if record.data.sensitive and not task.marked:
        raise RunError(f"data.sensitive: data of {task.about} mark nothing; got {', '.join(record.data.sensitive)}")
    _check_figures(record, task)
    _check_items(record, task)


def _check_figures(record: Record, task: RunTask) -> None:
    """Attacks, threat models and victims; an attack of a package that is not installed may measure what it likes."""
    threats, victims = threat_models(task.name), {*record.data.clients, ALL}
    for number, one in enumerate(record.figures):
        known = ATTACKS[one.attack] if one.attack in ATTACKS else None  # noqa: SIM401 (a registry raises for unknown names)
        if known and known.task != task.name:
            raise RunError(
                f"figures[{number}]: {one.attack} is no attack on {task.about}, which {record.spec.algorithm} is of"
            )
        if one.threat_model not in threats:
            allowed = ", ".join(threats)
            raise RunError(f"figures[{number}]: threat_model must be one of {allowed}; got {one.threat_model!r}")
        if one.victim not in victims:
            raise RunError(f"figures[{number}]: victim must be a client or {ALL}; got {one.victim!r}")
        if known and one.metric not in known.metrics:
            allowed = ", ".join(known.metrics)
            raise RunError(f"figures[{number}]: metrics of {one.attack} are {allowed}; got {one.metric!r}")


def check_numbering(rounds: Sequence[int], best_round: int) -> None:
    """Rounds are numbered from 0, the alignment, and the kept one is among them."""
    if not rounds or list(rounds) != list(range(len(rounds))):
        raise RunError(f"rounds: must be numbered 0, 1, 2, ...; got {', '.join(map(str, rounds[:10])) or 'none'}")
    if not 0 <= best_round < len(rounds):
        raise RunError(f"best_round: must be one of the rounds 0 to {len(rounds) - 1}; got {best_round}")


def _check_utility(record: Record, task: RunTask) -> None:
    absent = [line for line in record.protection if line.startswith(ABSENT)]
    due = {name for name in record.data.clients if not any(line.startswith(f"{ABSENT}{name}, ") for line in absent)}
    if record.utility_by_client.keys() != due:
        named = ", ".join(record.utility_by_client) or "nobody"
        raise RunError(f"utility_by_client: must be of {', '.join(record.data.clients) or 'nobody'}; got {named}")
    whole = "clean" in record.utility_by_leak or "new" not in task.leaked
    parts = ("leaked", "clean") if whole else ("leaked", "elsewhere", "new")
    _check_names("utility_by_leak", record.utility_by_leak, parts, parts)
    parts = {
        "utility": record.utility,
        **{f"utility_by_client.{name}": figures for name, figures in record.utility_by_client.items()},
        **{f"utility_by_leak.{name}": figures for name, figures in record.utility_by_leak.items()},
        **({"utility_shared": record.utility_shared} if record.utility_shared else {}),
    }
    for where, figures in parts.items():
        _check_names(where, figures, (task.metric,), task.metrics)
        if (fewest := min(one.n for one in figures.values())) < 0:
            raise RunError(f"{where}: a figure rests on {fewest} items")


def _check_items(record: Record, task: RunTask) -> None:
    """Items are those of the clients' test splits, and their mean is the figure of utility."""
    if record.items is None:
        return
    tested = [sizes["test"] for sizes in record.data.clients.values()]
    if record.items.counts != tested:
        raise RunError(f"items: clients have {tested} test items; got {record.items.counts}")
    try:
        outcomes, seen = record.items.values(), record.items.where_seen()
    except ValueError as error:
        raise RunError(f"items: {error}") from error
    scores = (2 / outcomes if task.metric == "mrr" else outcomes).mean(axis=1)
    for name, rows in zip(record.data.clients, record.items.client_slices(), strict=True):
        said = record.utility_by_client[name][task.metric]
        if said.n and abs(scores[rows].mean() - said.value) > _ROUNDING:
            raise RunError(
                f"items: {name} has {task.metric} {scores[rows].mean():.6f}; the record says {said.value:.6f}"
            )
    leaked = record.utility_by_leak["leaked"][task.metric].n
    if task.metric == "mrr" and leaked != (seen == OWN_TRAIN).sum():
        raise RunError(f"items: {(seen == OWN_TRAIN).sum():,} stand in own training; utility_by_leak says {leaked:,}")


def _check_names(where: str, found: Mapping[str, object], needed: Iterable[str], allowed: Iterable[str]) -> None:
    """Raises `RunError` for a name that is missing or foreign."""
    least, most = tuple(needed), tuple(allowed)
    if not set(least) <= found.keys() <= set(most):
        further = "" if set(least) == set(most) else f", further ones are {', '.join(most)}"
        raise RunError(f"{where}: must have {', '.join(least)}{further}; got {', '.join(found) or 'none'}")


def _check_bytes(record: Record) -> None:
    for direction in ("up", "down"):
        total, by_round = getattr(record.bytes, direction), getattr(record.bytes, f"{direction}_by_round")
        of_rounds = [getattr(entry, f"bytes_{direction}") for entry in record.rounds]
        if by_round != of_rounds or total != sum(by_round):
            raise RunError(
                f"bytes: {direction} must be {sum(of_rounds):,}, the sum over rounds, each as it says; got {total:,}"
            )
