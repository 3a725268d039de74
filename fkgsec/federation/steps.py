"""A round of training as a sequence of steps, for clients in this process or on separate machines.

    passed = train_and_upload(sites, number, observer)
    broadcast_and_check(sites, passed)
    judge(sites, progress, passed)                   # adds the round to `progress`, and selects the best round

`fkgsec.federation.loop` takes the steps in order. With slow connections, a round can be judged after the uploads of the next one:
`validate` and `train` return functions that wait for their figures.
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
        """Handle the start of another run, such as a shadow federation of an attack.

        Args:
            name: of the run.
            num_rounds: maximum number of rounds.
        """

    def round_started(self, round: int, num_steps: int) -> None:
        """Handle the start of a round.

        Args:
            num_steps: number of steps; 0 if unknown.
        """

    def step_done(self) -> None:
        """Handle a step of all active clients."""

    def round_done(self, entry: RoundEntry) -> None:
        """Handle the end of a round.

        Args:
            entry: figures of the round.
        """


class Sites(Protocol):
    """Clients and server of a run, in this process or on separate machines.

    Attributes:
        judged_before_broadcast: whether validation uses the models after local training, which a broadcast would
            replace.
    """

    @property
    def options(self) -> RunOptions:
        """Options of the run."""
        ...

    @property
    def transcript(self) -> Transcript:
        """Messages transmitted so far."""
        ...

    @property
    def judged_before_broadcast(self) -> bool:
        """See the class."""
        ...

    def participants(self, round: int) -> list[int]:
        """Return the client indices of a round."""
        ...

    def num_steps(self, places: Sequence[int]) -> int:
        """Count the steps of a round, for progress; 0 if unknown.

        Args:
            places: client indices.
        """
        ...

    def train(self, round: int, places: Sequence[int], on_step: Callable[[], None]) -> Callable[[], float | None]:
        """Train clients.

        Args:
            places: client indices.
            on_step: called after every step.

        Returns:
            A function that returns the mean loss, weighted by training items.
        """
        ...

    def validate(self, round: int) -> Callable[[], float | None]:
        """Validate all clients' current models.

        Returns:
            A function that returns the metric, None without validation items.
        """
        ...

    def upload(self, round: int, places: Sequence[int]) -> list[Uploaded]:
        """Upload and aggregate trained rows.

        Args:
            places: client indices.

        Returns:
            One outcome per shared table.
        """
        ...

    def broadcast(self, round: int) -> None:
        """Send clients their rows of every shared table."""

    def keep(self, round: int) -> None:
        """Save the models of a round as the best so far. Its validation and broadcast are complete."""

    def retain(self, *rounds: int) -> None:
        """Discard messages, except those of some rounds and of others that are needed.

        Args:
            rounds: round numbers.
        """


@dataclass
class Passed:
    """A round after training and before `judge`. `began` is its start by `time.perf_counter`."""

    round: int
    began: float
    checked: bool
    loss: Callable[[], float | None]
    outcomes: list[Uploaded]
    valid: Callable[[], float | None] | None = None


def train_and_upload(sites: Sites, number: int, observer: Observer) -> Passed:
    """Run the first half of a round. Models that are judged before the broadcast are validated here.

    Args:
        sites: clients and server.
        number: of the round.
        observer: progress callbacks.
    """
    began, participants = time.perf_counter(), sites.participants(number)
    observer.round_started(number, sites.num_steps(participants))
    loss = sites.train(number, participants, observer.step_done)
    checked = sites.options.is_checked(number)
    # Before the upload: the broadcast will replace the models that are judged.
    valid = sites.validate(number) if checked and sites.judged_before_broadcast else None
    outcomes = sites.upload(number, participants) if sites.options.exchanges(number) else []
    return Passed(number, began, checked, loss, outcomes, valid)


def broadcast_and_check(sites: Sites, passed: Passed) -> None:
    """Run the second half of a round. Models that are judged after the broadcast are validated here.

    Args:
        sites: clients and server.
        passed: from `train_and_upload`; its validation is set.
    """
    if sites.options.exchanges(passed.round):
        sites.broadcast(passed.round)
    # Not validated before the upload, so the broadcast's models are judged.
    if passed.checked and passed.valid is None:
        passed.valid = sites.validate(passed.round)


def judge(sites: Sites, progress: Progress, passed: Passed, begins: int = 0) -> None:
    """Add a round to `progress`, select it if no earlier round is better, and stop the run if it was the last.

    Args:
        sites: clients and server.
        progress: of the run; changed in place.
        passed: from `broadcast_and_check`.
        begins: rounds before this one are replaced as best round by any later validated one, since the adversary acts
            from it.
    """
    number, valid = passed.round, passed.valid() if passed.valid else None
    if passed.checked:
        # Without validation items, the last checked round is the best.
        better = valid is None or progress.best_valid is None or valid > progress.best_valid
        # The honest rounds before the adversary acts must not be selected.
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
    # Patience 0 never stops early.
    progress.finished = number == options.rounds or 0 < options.patience <= progress.bad_checks


def mean_loss(losses: Mapping[int, float], sizes: Sequence[int]) -> float | None:
    """Compute the mean of clients' losses, weighted by their training items; None without losses.

    Args:
        losses: by client index.
        sizes: number of training items of each client.
    """
    if not losses:
        return None
    # In the order of clients: floating-point sums depend on it.
    places = sorted(losses)
    return float(np.average([losses[place] for place in places], weights=[sizes[place] for place in places]))


def round_entry(
    transcript: Transcript, number: int, loss: float | None, valid: float | None, outcomes: list[Uploaded], began: float
) -> RoundEntry:
    """Collect the figures of a round.

    Args:
        transcript: of the run.
        number: of the round.
        loss: mean over clients.
        valid: validation metric.
        outcomes: one per table.
        began: start by `time.perf_counter`.
    """
    return RoundEntry(
        round=number,
        loss=loss,
        valid=valid,
        bytes_up=transcript.num_bytes("up", number),
        bytes_down=transcript.num_bytes("down", number),
        seconds=time.perf_counter() - began,
        # The table with the fewest survivors limits what a round averages.
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
