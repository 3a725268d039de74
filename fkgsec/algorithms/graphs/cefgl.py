"""CEFGL: convolutions have a shared low-rank part and a private sparse part; few bits are transmitted, and not in every round.

A round (cefgl.txt Algorithm 1), for a client with the received parameters Theta:

1. The shared part W starts at Theta and is trained with the gradients of f(W) - <h, W> + alpha / 2 |W - Theta|^2 (Eq. 6).
2. The sparse part S is trained without W, by the gradients of f(Theta + S) and soft shrinkage, then made sparse (Eq. 8).
3. The correction h accumulates the movement of W (Eq. 7).
4. With probability `exchange` the client uploads W - h / alpha, or both, in a few bits per value. Their mean, truncated, is the
   next Theta (Eq. 9). Otherwise the client's W is its next Theta.

Models are evaluated with Theta + S.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fkgsec.exchange.tensors.truncated_svd import CORRECTION
from fkgsec.gnn.batches import Batch
from fkgsec.gnn.training import GraphRule, pulled

if TYPE_CHECKING:
    from fkgsec.gnn.training import ClientTrainer

SPARSE, OWN = "sparse.", "own."


class CEFGLRule(GraphRule):
    """The two phases of a round.

    Differs: the terms of Eq. 6 and 8 are gradients of alpha / 2 |W - Theta|^2 and l1 |S|_1 (the paper prints norms that are added
    to parameters). The client's other layers are trained in both phases; the paper does not say. S is made sparse once a round,
    without weight decay. h is updated in every round; Scaffnew updates it only in rounds with an exchange. A client continues
    from the unquantized W and h (Algorithm 1, line 9 overwrites them with quantized values, also in rounds without exchange).
    """

    keeps_received = True

    def begin(self, trainer: ClientTrainer) -> None:
        # h and S have the shapes of the shared parameters, and start at zero.
        zeros = {name: torch.zeros_like(tensor) for name, tensor in trainer.shared.items()}
        if self.settings.components != "shared":
            trainer.private = {f"{SPARSE}{name}": tensor.clone().requires_grad_() for name, tensor in zeros.items()}
        if self.settings.correction != "off":
            trainer.memory = {f"{CORRECTION}{name}": tensor for name, tensor in zeros.items()}
            self.upwards = tuple(trainer.memory) if self.settings.upload == "both" else ()

    def num_epochs(self) -> int:
        """Count the epochs of both phases."""
        local = 0 if self.settings.components == "sparse" else self.options.local_epochs
        return local + (0 if self.settings.components == "shared" else self.settings.finetune_epochs)

    def train(self, trainer: ClientTrainer, round: int, on_step: Callable[[], None]) -> float:
        losses = []
        self._start(trainer)
        if self.settings.components != "sparse":
            # cefgl.txt Algorithm 1, line 6 (Eq. 6); `correct` adds the terms of h and alpha.
            losses.append(trainer.epochs(round, self.options.local_epochs, on_step))
        if self.settings.components != "shared":

            def tune(batch: Batch, rng: np.random.Generator) -> float:
                """Take a step of the sparse part."""
                return self._tune(trainer, batch, rng)

            # cefgl.txt Algorithm 1, line 7 (Eq. 8).
            losses.append(trainer.epochs(round, self.settings.finetune_epochs, on_step, "fine-tuning", tune))
            self._make_sparse(trainer)
        # cefgl.txt Algorithm 1, line 8 (Eq. 7).
        self._take_in(trainer)
        if self.settings.start == "own":
            trainer.memory |= {f"{OWN}{name}": tensor.detach().clone() for name, tensor in trainer.shared.items()}
        if not self.options.exchanges(round):
            # cefgl.txt Algorithm 1, line 14: without an exchange, the client's W is its next Theta.
            trainer.take({name: tensor.detach() for name, tensor in trainer.shared.items()})
        return float(np.mean(losses))

    @torch.no_grad()
    def _start(self, trainer: ClientTrainer) -> None:
        """Restore W as the client's training left it, if the settings say so."""
        for name, parameter in trainer.shared.items():
            parameter.copy_(trainer.memory.get(f"{OWN}{name}", parameter))

    def _corrections(self, trainer: ClientTrainer) -> dict[str, Tensor]:
        """Return h by parameter name; empty without a correction."""
        return {
            name.removeprefix(CORRECTION): tensor
            for name, tensor in trainer.memory.items()
            if name.startswith(CORRECTION)
        }

    def correct(self, trainer: ClientTrainer) -> float:
        for name, corrected in self._corrections(trainer).items():
            gradient = trainer.shared[name].grad
            assert gradient is not None
            # cefgl.txt Eq. 6: grad f(W) - h.
            gradient.sub_(corrected)
        return pulled(trainer.shared, trainer.received, self.settings.alpha)

    def _tune(self, trainer: ClientTrainer, batch: Batch, rng: np.random.Generator) -> float:
        """Take a step of the sparse part and of the client's private layers."""
        # W is frozen in this phase: only S and the private layers have gradients.
        trainer.forget_gradients()
        trainer.optimizers["private"].zero_grad()
        # cefgl.txt Eq. 8: the gradient is taken at Theta + S.
        hybrid = {name: self._base(trainer, name) + trainer.private[f"{SPARSE}{name}"] for name in trainer.shared}
        # Evaluate the network at Theta + S without copying it into the module.
        logits = torch.func.functional_call(trainer.model, hybrid, (batch, rng))
        loss = functional.cross_entropy(logits, batch.classes)
        loss.backward()
        for optimizer in trainer.optimizers.values():
            optimizer.step()  # shared parameters have no gradient, and stay
        with torch.no_grad():
            for sparse in trainer.private.values():
                # The proximal step of l1 |S|_1.
                sparse.copy_(functional.softshrink(sparse, self.options.learning_rate * self.settings.l1))
        return float(loss.detach())

    def _base(self, trainer: ClientTrainer, name: str) -> Tensor:
        """Return the parameters that the sparse part is added to."""
        received = trainer.received[name]
        return torch.zeros_like(received) if self.settings.components == "sparse" else received

    @torch.no_grad()
    def _make_sparse(self, trainer: ClientTrainer) -> None:
        threshold = self.settings.sparse_threshold
        if self.settings.sparsify == "top-k":
            sizes = (
                torch.cat([sparse.abs().flatten() for sparse in trainer.private.values()]).sort(descending=True).values
            )
            # cefgl.txt 4.1: top-k keeps the k largest values over all matrices.
            num_dense = int(self.settings.sparse_share * len(sizes))
            threshold = float(sizes[num_dense - 1]) if num_dense else torch.inf
        for sparse in trainer.private.values():
            # cefgl.txt 4.1: values below the threshold become zero.
            sparse[sparse.abs() < threshold] = 0.0

    @torch.no_grad()
    def _take_in(self, trainer: ClientTrainer) -> None:
        """Update h (cefgl.txt Eq. 7), and prepare the upload (Eq. 9)."""
        rate, corrections = self.options.learning_rate, self._corrections(trainer)
        # h += alpha (Theta - W) as in FedSLR, or (Theta - W) / learning rate as printed in Eq. 7.
        moved = self.settings.alpha if self.settings.correction == "dual" else 1 / rate
        for name, corrected in corrections.items():
            # cefgl.txt Eq. 7 (Algorithm 1, line 8).
            corrected.add_(trainer.received[name] - trainer.shared[name], alpha=moved)
        if self.settings.upload == "combined":
            # Eq. 9 needs only the difference W - rate * h, so that one table is uploaded instead of two.
            mixed = self.settings.taken(rate)
            trainer.outgoing = {
                name: trainer.shared[name] - mixed * correction for name, correction in corrections.items()
            }

    def judged(self, parameters: dict[str, Tensor]) -> dict[str, Tensor]:
        sparse = {name.removeprefix(SPARSE): tensor for name, tensor in parameters.items() if name.startswith(SPARSE)}
        dense = {name: tensor for name, tensor in parameters.items() if not name.startswith(SPARSE)}
        alone = self.settings.components == "sparse"
        # The evaluated model is Theta + S, or S alone in the ablation.
        return dense | {name: tensor if alone else dense[name] + tensor for name, tensor in sparse.items()}
