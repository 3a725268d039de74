"""The methods of unlearning: how the requesting clients train before they send their models.

    loss = METHODS["finetune"](Work(task, options, forgotten, observer))

Each trains in place and returns its last mean loss, weighted by the size of the forget sets; "delete" trains nothing.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from torch import Tensor

from fkgsec.algorithms.settings import fedlu_temperature
from fkgsec.errors import DataError, TrainingError
from fkgsec.federation.loop import Observer
from fkgsec.kge.kernels import Segments
from fkgsec.kge.local.learner import Learner
from fkgsec.kge.local.task import KgeTask
from fkgsec.kge.local.training import LocalTrainer, TrainingSubset, corrupting_entities
from fkgsec.kge.models import Side
from fkgsec.kge.options import KgeOptions
from fkgsec.randomness import generator
from fkgsec.unlearning.interference import DECAY, INTERFERENCE, AlternatingTrainer, Steps, decay_loss, interference
from fkgsec.unlearning.options import UnlearnOptions

# Of the transcript: round 0 aligns and sends the current rows, round 1 unlearns.
ROUND = 1


@dataclass(frozen=True)
class Work:
    """Input of a method: the parties at the end of the run, and the triples that each of them forgets.

    Attributes:
        forgotten: for each party its training triples to forget, bool `[n]`, in the order of the stack's graphs.
    """

    task: KgeTask
    options: UnlearnOptions
    forgotten: list[np.ndarray]
    observer: Observer

    @property
    def asking(self) -> list[int]:
        """Indices of the requesting parties."""
        return [place for place, rows in enumerate(self.forgotten) if rows.any()]

    def forgetting(self) -> dict[int, TrainingSubset]:
        """Return the forget set of each requesting party; negatives avoid all of its triples."""
        return {
            place: TrainingSubset(self.task.stack.graphs[place].train, np.flatnonzero(self.forgotten[place]))
            for place in self.asking
        }

    def forgetting_alone(self) -> dict[int, TrainingSubset]:
        """Return the forget sets with negatives that avoid only these. Source: FedLU's code."""
        return {place: TrainingSubset.all(part.triples[part.rows]) for place, part in self.forgetting().items()}

    def retained(self) -> dict[int, TrainingSubset]:
        """Return the other triples; negatives avoid only these, since the party has no others any more."""
        graphs = self.task.stack.graphs
        return {place: TrainingSubset.all(graphs[place].train[~self.forgotten[place]]) for place in self.asking}

    def run_options(self, phase: str, *, epochs: int = 1) -> KgeOptions:
        """Return the run's options for one phase of unlearning.

        Args:
            phase: names the training; its randomness derives from it.
            epochs: local epochs.
        """
        run = self.task.options
        return msgspec.structs.replace(
            run,
            local_epochs=epochs,
            learning_rate=self.options.learning_rate or run.learning_rate,
            batch_size=self.options.batch_size or run.batch_size,
            seed=int(generator(self.options.seed, "unlearning", phase, run.seed).integers(2**31)),
        )

    def train(self, trainer: LocalTrainer, phase: str, clients: Sequence[int], round: int = 0) -> float:
        """Train clients, and return the mean loss, weighted by the size of their forget sets.

        Args:
            phase: named in errors.
            clients: indices of the parties.
            round: number for the trainer's randomness.

        Raises:
            TrainingError: a loss is not finite.
        """
        try:
            losses = trainer.train_round(round, clients, self.observer.step_done)
        except TrainingError as error:
            raise TrainingError(f"{phase}: {error}") from error
        sizes = [int(self.forgotten[client].sum()) for client in losses]
        return float(np.average(list(losses.values()), weights=sizes))


def _fedlu(work: Work) -> float:
    """Run retroactive interference over the forget set, then passive decay over the retained triples. Returns the last loss.

    Source: fedlu.txt 4.2, Eq. 12-14. Differs: relations are frozen, see `AlternatingTrainer`; a batch corrupts heads or tails,
    as in all training here (the code: each batch of heads is followed by one of tails). As in the code, a client keeps the
    models of its last epoch, not of its best. Triples are weighted and batches drawn as in the run (`triple_weights`,
    `redraw`). The code uses one Adam through interference and decay; here, "published" too starts a new one for decay.
    """
    task, options, variant = work.task, work.options, work.options.variant
    assert task.private is not None
    published = variant == "published"
    run = task.options
    temperature = fedlu_temperature(variant, run.temperature, run.model)
    interfere = functools.partial(
        interference,
        hard=options.hard,
        soft=options.soft,
        mu_soft=options.mu_soft,
        variant=variant,
        temperature=temperature,
    )
    decay = functools.partial(decay_loss, variant=variant, temperature=temperature)
    subsets = work.forgetting_alone() if published else work.forgetting()
    first = AlternatingTrainer(task.stack, work.run_options("interference"), task.private, subsets, interfere)
    then = AlternatingTrainer(task.stack, work.run_options("decay"), task.private, work.retained(), decay)
    passes, then.moves = INTERFERENCE[variant], DECAY[variant]
    num_passes = options.epochs * len(passes)
    steps = num_passes * first.num_steps(work.asking) + options.decay_epochs * then.num_steps(work.asking)
    work.observer.round_started(ROUND, steps)
    # Interference, Eq. 14. "paper": on each batch the local model steps, then the global one, each with the other as teacher.
    # "published": an epoch has three passes (global alone, local alone, both in turn), and only the global model distills.
    loss = 0.0
    for number in range(num_passes):
        first.moves = passes[number % len(passes)]
        loss = work.train(first, "retroactive interference", work.asking, number)
    # Passive decay, Eq. 7-11: on each batch the local model learns from the global one, then the global one from the local.
    # "published" takes five steps per batch; a client stops after the first epoch without a higher local validation MRR.
    clients, best = work.asking, np.zeros(len(task.graph.clients))
    for epoch in range(options.decay_epochs):
        loss = work.train(then, "passive decay", clients, epoch)
        if published:
            ranks = work.task.evaluator.ranks("valid")
            mrr = np.array([(1 / of_client).mean() if len(of_client) else math.inf for of_client in ranks])
            clients = [client for client in clients if mrr[client] > best[client] or not len(ranks[client])]
            best = np.maximum(best, mrr)
        if not clients:
            break
    return loss


def _relabel(work: Work) -> float:
    """Train further on the retained triples and on the forget set with random tails."""
    subsets = work.retained()
    for place, forgetting in work.forgetting().items():
        stack = work.task.stack
        tails = corrupting_entities(stack.graphs[place], work.task.options)
        rng = generator(work.options.seed, "relabel", stack.keys[place])
        try:
            wrong = with_random_tails(forgetting.triples, forgetting.rows, tails, rng)
        except DataError as error:
            raise DataError(f"client {stack.graphs[place].name}: {error}") from error
        subsets[place] = TrainingSubset.all(np.concatenate([subsets[place].triples, wrong]))
    return _train(work, LocalTrainer, subsets, "relabel", work.options.decay_epochs)


def with_random_tails(triples: np.ndarray, rows: np.ndarray, tails: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Replace the tails of some triples so that the result is not one of the triples.

    Args:
        triples: int64 `[n, 3]`.
        rows: int64 `[k]`, indices of the triples to change.
        tails: entities to draw from.

    Returns:
        int64 `[k, 3]`.

    Raises:
        DataError: every tail makes one of `triples`.
    """
    # A random tail must not be correct by chance, or the triple would be trained, not forgotten.
    true_triples, wrong = set(map(tuple, triples.tolist())), triples[rows]
    for row, (head, relation, _) in enumerate(wrong.tolist()):
        free = [tail for tail in tails.tolist() if (head, relation, tail) not in true_triples]
        if not free:
            raise DataError(f"relabel: every entity is a tail of ({head}, {relation}, ?) in its local ids")
        wrong[row, 2] = rng.choice(free)
    return wrong


def _train(
    work: Work, trainer_type: type[LocalTrainer], subsets: Mapping[int, TrainingSubset], phase: str, epochs: int
) -> float:
    """Train the requesting parties on these subsets; returns the last loss."""
    task = work.task
    trainer = trainer_type(task.stack, work.run_options(phase, epochs=epochs), task.private, subsets)
    work.observer.round_started(ROUND, trainer.num_steps(work.asking))
    return work.train(trainer, phase, work.asking)


class _Ascent(LocalTrainer):
    """Ascends the loss of scores; further objectives on rows still descend."""

    def _alone(self, triples: Tensor, candidates: Tensor, weights: Tensor, side: Side, segments: Segments) -> Steps:
        # Negative weights turn gradient descent on the scores' loss into ascent.
        return super()._alone(triples, candidates, -weights, side, segments)

    def _together(
        self, private: Learner, triples: Tensor, candidates: Tensor, weights: Tensor, importance: Tensor, side: Side,
        segments: Segments,
    ) -> Steps:  # fmt: skip
        return super()._together(private, triples, candidates, -weights, importance, side, segments)


METHODS: dict[str, Callable[[Work], float | None]] = {
    "fedlu": _fedlu,
    "finetune": lambda work: _train(work, LocalTrainer, work.retained(), "finetune", work.options.decay_epochs),
    "ascent": lambda work: _train(work, _Ascent, work.forgetting(), "ascent", work.options.epochs),
    "relabel": _relabel,
    "delete": lambda work: None,
}
