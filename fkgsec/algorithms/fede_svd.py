"""FedE-SVD: changes of entity rows are transmitted as a few singular triplets. FedE-SVD+ trains them in a round's last
epoch.
"""

from collections.abc import Collection, Mapping

from torch import Tensor

from fkgsec.algorithms.factored import FactoredRows
from fkgsec.federation.recipes import Table
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
        """Factor the updates before the last epoch; see `LocalRule.begin_epoch`."""
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
        """Step the factors instead of the rows; see `LocalRule.take`."""
        return {} if self._factored is None else dict(self._factored.step(gradients.pop("entities"), clients))

    def end_round(self) -> None:
        """Discard the factors."""
        self._factored = None
