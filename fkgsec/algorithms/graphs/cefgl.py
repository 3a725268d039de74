"""CEFGL: convolutions are a low-rank part that all clients share and a sparse part of each one's own; few bits cross, and seldom.

A round (cefgl.txt Algorithm 1), for a client with the received parameters Theta:

1. The shared part W starts at Theta and is trained with the gradients of f(W) - <h, W> + alpha / 2 |W - Theta|^2 (Eq. 6).
2. The sparse part S is trained with W aside, by the gradients of f(Theta + S) and soft shrinkage, then made sparse (Eq. 8).
3. The correction h takes in how far W went (Eq. 7).
4. With the probability `exchange` the client uploads W - h / alpha, or both, as numbers of a few bits; their mean, truncated, is
   the next Theta (Eq. 9). Else the client's own W is.

What is judged is Theta + S.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import torch
from msgspec import Meta
from torch import Tensor
from torch.nn import functional

from fkgsec.algorithms.graphs.fedavg import PARAMETERS
from fkgsec.errors import SpecError
from fkgsec.exchange.tensors.quantised import Rounding, Scale, check_bits
from fkgsec.exchange.tensors.truncated_svd import CORRECTION, Shrink
from fkgsec.federation.recipes import Recipe
from fkgsec.gnn.batches import Batch
from fkgsec.gnn.options import DropoutSettings
from fkgsec.gnn.training import GraphRule, pulled
from fkgsec.randomness import generator

if TYPE_CHECKING:
    from fkgsec.gnn.training import ClientTrainer

SPARSE, OWN = "sparse.", "own."


class CEFGLSettings(DropoutSettings, frozen=True):
    """The parts of the decomposition, and what crosses.

    Attributes:
        components: "both"; or one alone (cefgl.txt Table 5): "shared" has no sparse part, "sparse" no shared one, so that nothing
            that crosses is used.
        correction: "dual", h grows by alpha (Theta - W) and the server takes mean h / alpha off, as in FedSLR, so that the h of a
            client that has converged is its gradient (the paper's Remark 2); "printed", by (Theta - W) / learning rate, of which
            the server takes the learning rate's share (Eq. 7 and 9 as they stand); "off", there is none.
        alpha: weight of the distance to Theta.
        finetune_epochs: epochs of the sparse part in a round.
        l1: soft shrinkage of the sparse part in each step, times the learning rate.
        sparsify: what makes it sparse after its epochs: zeros below `sparse_threshold` ("threshold"), or but for the share
            `sparse_share` of its numbers that is largest ("top-k").
        singular_threshold: of the shared matrices, smaller singular values are dropped. shrink: the others stay ("hard"), or are
            made smaller by the threshold over alpha ("soft", FedSLR).
        bits: quantization bits per transmitted value (2 to 20; 32 disables quantization). scale, rounding: see
            `fkgsec.exchange.tensors.quantised`. The default has more levels than the paper's 4 bits, 2^4 magnitudes beside sign and
            zero, and rounds at random as its text says. With 4 bits and rounding to the nearest level, the shared weights freeze.
        exchange: probability that rows cross after a round; one draw for all clients.
        upload: "combined", W - h / alpha, which is all that the server needs; "both", W and h, quantised each, as the paper has
            it, in twice as many bytes: the server then sees an h that tends to the client's gradient.
        start: W starts a round at what was "received" (FedSLR), or where the client's "own" training left it, as Eq. 6 reads.
        factors: a matrix is sent as its two factors where they are "smaller" than it, or "never".
    """

    components: Annotated[
        Literal["both", "shared", "sparse"], Meta(description="parts of the model: both, or one alone")
    ] = "both"
    correction: Annotated[
        Literal["dual", "printed", "off"], Meta(description="of local gradients by how far earlier rounds went")
    ] = "dual"
    alpha: Annotated[float, Meta(ge=0, le=1_000_000, description="weight of the distance to the rows received")] = 0.6
    finetune_epochs: Annotated[int, Meta(ge=1, le=1_000_000, description="epochs of the sparse part in a round")] = 1
    l1: Annotated[float, Meta(ge=0, le=1_000_000, description="soft shrinkage of the sparse part, a learning rate")] = (
        1e-4
    )
    sparsify: Annotated[Literal["threshold", "top-k"], Meta(description="how the sparse part is made sparse")] = (
        "threshold"
    )
    sparse_threshold: Annotated[float, Meta(ge=0, le=1_000_000, description="smaller numbers are zero")] = 1e-4
    sparse_share: Annotated[float, Meta(ge=0, le=1, description="share of numbers that top-k keeps")] = 0.1
    singular_threshold: Annotated[
        float, Meta(ge=0, le=1_000_000, description="smaller singular values are dropped")
    ] = 1e-3
    shrink: Annotated[Shrink, Meta(description="whether the other singular values stay or are made smaller")] = "hard"
    bits: Annotated[int, Meta(ge=2, le=32, description="of a number that crosses, up to 20; 32: as it is")] = 6
    scale: Annotated[Scale, Meta(description="what a step of the numbers that cross is measured by")] = "max"
    rounding: Annotated[Rounding, Meta(description="of the numbers that cross")] = "stochastic"
    exchange: Annotated[float, Meta(ge=0, le=1, description="probability that rows cross after a round")] = 0.5
    upload: Annotated[Literal["combined", "both"], Meta(description="parameters less corrections, or both apart")] = (
        "combined"
    )
    start: Annotated[Literal["received", "own"], Meta(description="where a client's shared part starts a round")] = (
        "received"
    )
    factors: Annotated[Literal["smaller", "never"], Meta(description="when matrices are sent as two factors")] = (
        "smaller"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bits(self.bits)
        if self.alpha == 0 and (self.correction == "dual" or self.shrink == "soft"):
            raise SpecError("alpha must be above 0 with correction=dual or shrink=soft, which divide by it; got 0")
        if self.upload == "both" and self.correction == "off":
            raise SpecError("upload=both sends corrections, and correction=off has none; leave one of them out")

    def taken(self, learning_rate: float) -> float:
        """The share of h that is taken from W in the mean."""
        return 1 / self.alpha if self.correction == "dual" else learning_rate

    def exchanges(self, round: int, seed: int) -> bool:
        """The coin of Algorithm 1 line 3."""
        return bool(generator(seed, "exchange", round).random() < self.exchange)


class CEFGLRule(GraphRule):
    """The two phases of a round.

    Differs: the terms of Eq. 6 and 8 are gradients of alpha / 2 |W - Theta|^2 and l1 |S|_1 (printed as norms that are added to
    parameters). The client's other layers are trained in both phases; the paper does not say. S is made sparse once a round, and
    Adam's weight decay leaves it alone. h moves in every round, not only where rows cross as Scaffnew's does. A client goes on
    from W and h as they were before they were quantised (Algorithm 1 line 9 overwrites them, in rounds without exchange, too).
    """

    keeps_received = True

    def begin(self, trainer: ClientTrainer) -> None:
        zeros = {name: torch.zeros_like(one) for name, one in trainer.shared.items()}
        if self.settings.components != "shared":
            trainer.private = {f"{SPARSE}{name}": one.clone().requires_grad_() for name, one in zeros.items()}
        if self.settings.correction != "off":
            trainer.memory = {f"{CORRECTION}{name}": one for name, one in zeros.items()}
            self.upwards = tuple(trainer.memory) if self.settings.upload == "both" else ()

    def num_epochs(self) -> int:
        local = 0 if self.settings.components == "sparse" else self.options.local_epochs
        return local + (0 if self.settings.components == "shared" else self.settings.finetune_epochs)

    def train(self, trainer: ClientTrainer, round: int, on_step: Callable[[], None]) -> float:
        losses = []
        self._start(trainer)
        if self.settings.components != "sparse":
            losses.append(trainer.epochs(round, self.options.local_epochs, on_step))
        if self.settings.components != "shared":

            def tune(batch: Batch, rng: np.random.Generator) -> float:
                return self._tune(trainer, batch, rng)

            losses.append(trainer.epochs(round, self.settings.finetune_epochs, on_step, "fine-tuning", tune))
            self._make_sparse(trainer)
        self._take_in(trainer)
        if self.settings.start == "own":
            trainer.memory |= {f"{OWN}{name}": one.detach().clone() for name, one in trainer.shared.items()}
        if not self.options.exchanges(round):
            trainer.take({name: one.detach() for name, one in trainer.shared.items()})
        return float(np.mean(losses))

    @torch.no_grad()
    def _start(self, trainer: ClientTrainer) -> None:
        """Go back to where the client's own training left W."""
        for name, parameter in trainer.shared.items():
            parameter.copy_(trainer.memory.get(f"{OWN}{name}", parameter))

    def _corrections(self, trainer: ClientTrainer) -> dict[str, Tensor]:
        """h, by the names of the parameters; empty without."""
        return {
            name.removeprefix(CORRECTION): one for name, one in trainer.memory.items() if name.startswith(CORRECTION)
        }

    def correct(self, trainer: ClientTrainer) -> float:
        for name, corrected in self._corrections(trainer).items():
            gradient = trainer.shared[name].grad
            assert gradient is not None
            gradient.sub_(corrected)
        return pulled(trainer.shared, trainer.received, self.settings.alpha)

    def _tune(self, trainer: ClientTrainer, batch: Batch, rng: np.random.Generator) -> float:
        """A step of the sparse part, and of the client's own layers."""
        trainer.forget_gradients()
        trainer.optimizers["private"].zero_grad()
        hybrid = {name: self._base(trainer, name) + trainer.private[f"{SPARSE}{name}"] for name in trainer.shared}
        logits = torch.func.functional_call(trainer.model, hybrid, (batch, rng))
        loss = functional.cross_entropy(logits, batch.classes)
        loss.backward()
        for one in trainer.optimizers.values():
            one.step()  # shared parameters have no gradient, and stay
        with torch.no_grad():
            for sparse in trainer.private.values():
                sparse.copy_(functional.softshrink(sparse, self.options.learning_rate * self.settings.l1))
        return float(loss.detach())

    def _base(self, trainer: ClientTrainer, name: str) -> Tensor:
        """What the sparse part is added to."""
        received = trainer.received[name]
        return torch.zeros_like(received) if self.settings.components == "sparse" else received

    @torch.no_grad()
    def _make_sparse(self, trainer: ClientTrainer) -> None:
        threshold = self.settings.sparse_threshold
        if self.settings.sparsify == "top-k":
            sizes = (
                torch.cat([sparse.abs().flatten() for sparse in trainer.private.values()]).sort(descending=True).values
            )
            kept = int(self.settings.sparse_share * len(sizes))
            threshold = float(sizes[kept - 1]) if kept else torch.inf
        for sparse in trainer.private.values():
            sparse[sparse.abs() < threshold] = 0.0

    @torch.no_grad()
    def _take_in(self, trainer: ClientTrainer) -> None:
        """Eq. 7, and what the client would upload (Eq. 9)."""
        rate, corrections = self.options.learning_rate, self._corrections(trainer)
        moved = self.settings.alpha if self.settings.correction == "dual" else 1 / rate
        for name, corrected in corrections.items():
            corrected.add_(trainer.received[name] - trainer.shared[name], alpha=moved)
        if self.settings.upload == "combined":
            taken = self.settings.taken(rate)
            trainer.outgoing = {name: trainer.shared[name] - taken * one for name, one in corrections.items()}

    def judged(self, parameters: dict[str, Tensor]) -> dict[str, Tensor]:
        sparse = {name.removeprefix(SPARSE): one for name, one in parameters.items() if name.startswith(SPARSE)}
        own = {name: one for name, one in parameters.items() if not name.startswith(SPARSE)}
        alone = self.settings.components == "sparse"
        return own | {name: one if alone else own[name] + one for name, one in sparse.items()}


CEFGL = Recipe(
    "cefgl",
    PARAMETERS,
    "cefgl.txt Algorithm 1",
    CEFGLSettings,
    task="graph",
    keep_optimizer=True,
    keeps_first=True,
    codec="quantised",
    aggregation="truncated-svd",
    local=CEFGLRule,
)
