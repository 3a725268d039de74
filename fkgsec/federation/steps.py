"""A round of training as a sequence of steps, whoever takes them: clients in this process, or each on a machine of its own.

    passed = train_and_upload(sites, number, observer)
    broadcast_and_check(sites, passed)
    judge(sites, progress, passed)                   # adds the round to `progress`, and says which round is best

`fkgsec.federation.loop` takes them one after the other. Where what a client answers is long on its way, the round may be judged
once the next one's uploads are there: `validate` and `train` return what can be called for their figures then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fkgsec.exchange import Uploaded, all_cut, all_excluded
from fkgsec.federation.checkpoint import Progress, RoundEntry
from fkgsec.federation.messages import Transcript
from fkgsec.federation.options import RunOptions


class Observer:
    """Progress callbacks of a run; the defaults do nothing. Subclass to draw a progress bar."""

    def run_started(self, name: str, num_rounds: int) -> None:
        """Another run of at most so many rounds begins, such as a shadow federation of an attack."""

    def round_started(self, round: int, num_steps: int) -> None:
        """A round of so many steps begins."""

    def step_done(self) -> None:
        """Report that every busy client has done a step."""

    def round_done(self, entry: RoundEntry) -> None:
        """The round is over."""


class Sites(Protocol):
    """The clients and the server of a run, wherever they are.

    Attributes:
        judged_before_broadcast: whether validation looks at what local training left and a broadcast would replace.
    """

    @property
    def options(self) -> RunOptions: ...
    @property
    def transcript(self) -> Transcript: ...
    @property
    def judged_before_broadcast(self) -> bool: ...

    def participants(self, round: int) -> list[int]:
        """The clients of a round, by place."""
        ...

    def num_steps(self, places: Sequence[int]) -> int:
        """Steps of a round of these, for progress; 0 where nobody here can tell."""
        ...

    def train(self, round: int, places: Sequence[int], on_step: Callable[[], None]) -> Callable[[], float | None]:
        """Let these train; what is returned gives the mean loss, clients weighted by their training items."""
        ...

    def validate(self, round: int) -> Callable[[], float | None]:
        """Let all validate their models as they are now; what is returned gives the metric, None without validation items."""
        ...

    def upload(self, round: int, places: Sequence[int]) -> list[Uploaded]:
        """Their trained rows are aggregated; one outcome for each shared table."""
        ...

    def broadcast(self, round: int) -> None:
        """Clients receive their rows of every shared table."""
        ...

    def keep(self, round: int) -> None:
        """The models of this round are the best so far; its validation has been judged, and its broadcast was sent."""
        ...

    def retain(self, *rounds: int) -> None:
        """Keep of the transcript the messages of these rounds and what else is needed of others."""
        ...


@dataclass
class Passed:
    """A round that was trained and is not judged yet: what it came to so far. `began` is when, by `time.perf_counter`."""

    round: int
    began: float
    checked: bool
    loss: Callable[[], float | None]
    outcomes: list[Uploaded]
    valid: Callable[[], float | None] | None = None


def train_and_upload(sites: Sites, number: int, observer: Observer) -> Passed:
    """The first half of a round. Models that are judged as training left them are validated here."""
    began, participants = time.perf_counter(), sites.participants(number)
    observer.round_started(number, sites.num_steps(participants))
    loss = sites.train(number, participants, observer.step_done)
    checked = sites.options.is_checked(number)
    valid = sites.validate(number) if checked and sites.judged_before_broadcast else None
    outcomes = sites.upload(number, participants) if sites.options.exchanges(number) else []
    return Passed(number, began, checked, loss, outcomes, valid)


def broadcast_and_check(sites: Sites, passed: Passed) -> None:
    """The second half. Models that are judged with what the broadcast says are validated here."""
    if sites.options.exchanges(passed.round):
        sites.broadcast(passed.round)
    if passed.checked and passed.valid is None:
        passed.valid = sites.validate(passed.round)


def judge(sites: Sites, progress: Progress, passed: Passed, begins: int = 0) -> None:
    """Add a round to `progress`, keep its models if no earlier ones are better, and say whether it was the last.

    Args:
        begins: rounds before this one are not kept once a later one was validated: of interest is what an adversary left.
    """
    number, valid = passed.round, passed.valid() if passed.valid else None
    if passed.checked:
        better = valid is None or progress.best_valid is None or valid > progress.best_valid
        restarts = progress.best_round < begins <= number
        if valid is not None and (better or restarts):
            progress.best_valid = valid
        if better or restarts or sites.options.keeps_last:
            progress.best_round = number
            sites.keep(number)
        progress.bad_checks = 0 if better else progress.bad_checks + 1
    sites.retain(progress.best_round, number)
    entry = round_entry(sites.transcript, number, passed.loss(), valid, passed.outcomes, passed.began)
    progress.rounds.append(entry)
    options = sites.options
    progress.finished = number == options.rounds or 0 < options.patience <= progress.bad_checks


def mean_loss(losses: Mapping[int, float], sizes: Sequence[int]) -> float | None:
    """The mean of clients' losses by place, weighted by their training items; None without losses."""
    if not losses:
        return None
    places = sorted(losses)
    return float(np.average([losses[place] for place in places], weights=[sizes[place] for place in places]))


def round_entry(
    transcript: Transcript, number: int, loss: float | None, valid: float | None, outcomes: list[Uploaded], began: float
) -> RoundEntry:
    """The round in numbers; `began` is when, by `time.perf_counter`."""
    return RoundEntry(
        round=number,
        loss=loss,
        valid=valid,
        bytes_up=transcript.num_bytes("up", number),
        bytes_down=transcript.num_bytes("down", number),
        seconds=time.perf_counter() - began,
        num_survivors=min((outcome.num_survivors for outcome in outcomes), default=0),
        num_clipped=sum(outcome.num_clipped for outcome in outcomes),
        excluded=all_excluded(outcomes),
        cut_rows=all_cut(outcomes),
        num_kept_rows=sum(outcome.num_kept_rows for outcome in outcomes),
        changed_levels=next(
            (upload_outcome.changed_levels for upload_outcome in outcomes if upload_outcome.changed_levels is not None),
            None,
        ),
    )
