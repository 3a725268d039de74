"""The methods of unlearning: the training of the clients that ask, before they send their models.

    loss = METHODS["finetune"](Work(task, options, forgotten, observer))

Each trains in place and returns its last mean loss, weighted by what each client forgets; "delete" trains nothing.
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

ROUND = 1  # of the transcript: round 0 aligns and sends what clients have, this one unlearns


@dataclass(frozen=True)
class Work:
    """Input of a method: the parties at the end of the run, and what each of them is to forget.

    `forgotten` says it of each party's training triples, bool `[n]`, in the order of the stack's graphs.
    """

    task: KgeTask
    options: UnlearnOptions
    forgotten: list[np.ndarray]
    observer: Observer

    @property
    def asking(self) -> list[int]:
        """Indices of the parties that asked."""
        return [place for place, rows in enumerate(self.forgotten) if rows.any()]

    def forgetting(self) -> dict[int, TrainingSubset]:
        """Return the triples to forget of each party that asked; negatives avoid all that it holds."""
        return {
            place: TrainingSubset(self.task.stack.graphs[place].train, np.flatnonzero(self.forgotten[place]))
            for place in self.asking
        }

    def forgetting_alone(self) -> dict[int, TrainingSubset]:
        """Return them with negatives that avoid no others. Source: FedLU's code."""
        return {place: TrainingSubset.all(part.triples[part.rows]) for place, part in self.forgetting().items()}

    def retained(self) -> dict[int, TrainingSubset]:
        """Return the other triples; negatives avoid these, since the party has no others any more."""
        graphs = self.task.stack.graphs
        return {place: TrainingSubset.all(graphs[place].train[~self.forgotten[place]]) for place in self.asking}

    def run_options(self, phase: str, *, epochs: int = 1) -> KgeOptions:
        """Return the run's options for training of `epochs` epochs under a name that its randomness derives from."""
        run = self.task.options
        return msgspec.structs.replace(
            run,
            local_epochs=epochs,
            learning_rate=self.options.learning_rate or run.learning_rate,
            batch_size=self.options.batch_size or run.batch_size,
            seed=int(generator(self.options.seed, "unlearning", phase, run.seed).integers(2**31)),
        )

    def train(self, trainer: LocalTrainer, phase: str, clients: Sequence[int], round: int = 0) -> float:
        """Call `train_round`; returns the mean loss, clients weighted by what they forget."""
        try:
            losses = trainer.train_round(round, clients, self.observer.step_done)
        except TrainingError as error:
            raise TrainingError(f"{phase}: {error}") from error
        sizes = [int(self.forgotten[client].sum()) for client in losses]
        return float(np.average(list(losses.values()), weights=sizes))


def _fedlu(work: Work) -> float:
    """Retroactive interference over the forget set, then passive decay over what is retained. Returns the last loss.

    Interference: on each batch the local model goes down on Eq. 14, then the global one, each with the other as teacher. Decay:
    on each batch the local model learns from the global one, then the global one from the local, by the run's own loss.

    In variant "published" as FedLU's code has it: an epoch of interference goes over the forget set three times (global alone;
    local alone; both by turns), only the global model distils, and negatives avoid the forget set only; in decay each batch
    has five steps, and a client ends with the first epoch that does not raise its local validation MRR. Nothing is sent.

    Source: fedlu.txt 4.2, Eq. 12-14. Differs: relations stand still, see `AlternatingTrainer`; a batch corrupts heads or
    tails, as in all training here (the code: each batch of heads is followed by one of tails). As in the code, a client keeps
    the models of its last epoch, not of its best. Triples weigh and batches are drawn as the run has it (`triple_weights`,
    `redraw`). What the code has and "published" does not: one Adam through interference and decay (here a new one at decay).
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
    loss = 0.0
    for number in range(num_passes):
        first.moves = passes[number % len(passes)]
        loss = work.train(first, "retroactive interference", work.asking, number)
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
    """Further training on what is retained and on the forget set with random tails."""
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
    """`rows` int64 `[k]` of `triples` `[n, 3]` with tails drawn from `tails` that make none of `triples`: int64 `[k, 3]`.

    Raises:
        DataError: every tail makes one of them.
    """
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
    """Train the asking parties on these subsets; returns the last loss."""
    task = work.task
    trainer = trainer_type(task.stack, work.run_options(phase, epochs=epochs), task.private, subsets)
    work.observer.round_started(ROUND, trainer.num_steps(work.asking))
    return work.train(trainer, phase, work.asking)


class _Ascent(LocalTrainer):
    """Goes up the loss of scores; further objectives on rows still pull down."""

    def _alone(self, triples: Tensor, candidates: Tensor, weights: Tensor, side: Side, segments: Segments) -> Steps:
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
