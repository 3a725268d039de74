"""FedE-SVD: changes of entity rows are transmitted as a few singular triplets. FedE-SVD+ trains them in a round's last
epoch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from fkgsec.adam import Adam
from fkgsec.exchange.low_rank import Factors, factorise, orthogonality
from fkgsec.federation.recipes import Table
from fkgsec.kge.kernels import ordered_sum
from fkgsec.kge.local.rule import LocalRule
from fkgsec.kge.local.stack import ClientStack
from fkgsec.kge.options import KgeOptions


class FedESVDPlusRule(LocalRule):
    """Trains the singular triplets of the update in the last epoch of a round."""

    keeps_received = True

    def __init__(self, options: KgeOptions) -> None:
        super().__init__(options)
        self._factored: FactoredRows | None = None

    def begin_epoch(self, epoch: int, stack: ClientStack, received: Mapping[Table, Tensor]) -> None:
        # feds.txt VI-B: "in the final epoch of each round of local training".
        if epoch == self.options.local_epochs - 1:
            self._factored = FactoredRows(
                stack,
                "entities",
                received["entities"],
                columns=self.settings.columns,
                alpha=self.settings.mu,
                learning_rate=self.options.learning_rate,
            )

    def take(self, gradients: dict[Table, Tensor], clients: Collection[int]) -> dict[int, float]:
        return {} if self._factored is None else dict(self._factored.step(gradients.pop("entities"), clients))

    def end_round(self) -> None:
        self._factored = None


class FactoredRows:
    """Rows of a table as received rows plus factors, which a separate Adam trains.

    Each client's factors are separate tensors, and inputs of matrix products are copied out of the stacked table first.
    LAPACK and BLAS sum in an order that depends on memory alignment, thus on the position of rows in the stack.

    Source: feds.txt VI-B: all singular triplets are trained, with alpha times Eq. 7 for each entity.

    Args:
        stack: tables of all clients.
        table: name of the table.
        received: rows of all clients at the beginning of the round, float `[N, W]`.
        columns: of the matrix that an update is reshaped to.
        alpha: weight of Eq. 7.
        learning_rate: of Adam.
    """

    def __init__(
        self,
        stack: ClientStack,
        table: Table,
        received: Tensor,
        *,
        columns: int,
        alpha: float,
        learning_rate: float,
    ) -> None:
        self._stack, self._received, self._alpha = stack, received, alpha
        self._table: Table = table
        self._parameters: list[list[Tensor]] = []
        for client in range(len(stack.graphs)):
            # feds.txt VI-B: decompose each entity's update so far as e = U diag(s) V^T; U, s and V^T become the
            # parameters.
            updates = stack.rows(table, client).detach() - received[stack.span(table, client)]
            factors = factorise(updates, columns=columns, rank=columns)
            self._parameters.append([part.contiguous().requires_grad_() for part in factors])
        flat = [part for parameters in self._parameters for part in parameters]
        self._adam = Adam(flat, lr=learning_rate)

    def step(self, gradient: Tensor, clients: Collection[int]) -> Mapping[int, float]:
        """Carry the gradient of the rows over to the factors, and take a step.

        Args:
            gradient: of all clients' rows, float `[N, W]`.
            clients: places of the active clients.

        Returns:
            alpha L_r of each client.
        """
        losses = {}
        for client, parameters in enumerate(self._parameters):
            if client not in clients:
                for part in parameters:
                    part.grad = None
                continue
            span = self._stack.span(self._table, client)
            with torch.enable_grad():
                # Fresh leaves per step: gradients of the penalty and of the rows meet in the factors.
                factors = Factors(*(part.detach().requires_grad_() for part in parameters))
                # feds.txt Eq. 7: keep U and V^T orthogonal.
                penalty = self._alpha * orthogonality(factors.left, factors.right)
                outputs = [penalty, factors.rows()]
            slopes = torch.autograd.grad(outputs, list(factors), [torch.ones_like(penalty), gradient[span].clone()])
            for part, slope in zip(parameters, slopes, strict=True):
                part.grad = slope.contiguous()  # the fused Adam reads memory in its order, whatever the strides say
            losses[client] = ordered_sum(penalty.detach())
        # Clients that are not active have no gradient, so Adam skips their factors.
        self._adam.step()
        for client in clients:
            # Rows are received rows plus the update that the factors represent.
            rows = Factors(*self._parameters[client]).rows().detach()
            span = self._stack.span(self._table, client)
            self._stack.rows(self._table, client).detach().copy_(self._received[span] + rows)
        return losses
