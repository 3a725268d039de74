"""Aggregation of uploads: an aggregation says what it needs, and computes a table.

    class Median(Aggregation):
        needs = "single uploads"

        def aggregate(self, round: int, previous: Tensor, delivered: Delivered) -> Tensor: ...   # float32 [N, width]

    AGGREGATIONS.register("median", Median)                       # or by an entry point of group `fkgsec.aggregations`
    recipes.register(Recipe("fede-median", ENTITIES, "this script", aggregation="median"))

`needs` is compared with what the transport delivers: a median runs on plaintext, and is refused where only sums are opened.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal

from torch import Tensor

from fkgsec.exchange.parts import Delivered, Delivery, SharedTable
from fkgsec.federation.options import RunOptions
from fkgsec.registry import Registry

Answers = Literal["rows", "personal rows", "counted sums"]


class Aggregation(ABC):
    """The aggregation of one shared table; it lives with the server.

    Attributes:
        needs: "sum", the weighted sum of uploads is enough; or "single uploads". One that needs a sum may use single uploads
            where a transport delivers them.
        answers: what clients are sent: "rows" of the table; "personal rows", other values for each client, of the rows that
            it uploads alone; "counted sums", in rounds between two synchronisations sums of uploads with the number of
            uploaders as a last column, else rows. A codec says which of these it can carry.
        keeps_uploads: the most recent upload of every client has a part in every round, whoever takes part; `tensors` has them.
    """

    needs: ClassVar[Delivery] = "sum"
    answers: ClassVar[Answers] = "rows"
    keeps_uploads: ClassVar[bool] = False

    def __init__(self, shared: SharedTable, options: RunOptions) -> None:
        self.shared, self.options = shared, options

    def begin(self) -> None:
        """Prepare the state, once the first rows are set, and after a resume before `load`."""
        return

    @abstractmethod
    def aggregate(self, round: int, previous: Tensor, delivered: Delivered) -> Tensor:
        """Compute the new table, float32 `[N, width]`.

        Args:
            previous: value of rows that nobody uploaded: the table, or zeros if a codec carries changes.
            delivered: uploads of the round.
        """

    def answer(self, round: int, party: str | None, holding: Tensor) -> Tensor:
        """Return the values that a client receives.

        Args:
            party: receiver; None: the values that are the same for all clients.
            holding: its rows in the table, int64 `[n]`.
        """
        # By default, every client receives the rows of the table.
        return self.shared.rows[holding]

    def tensors(self) -> dict[str, Tensor]:
        """Return the state for a checkpoint beside the table, by name."""
        return {}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state that `tensors` returned."""
        return


class MeanOverHolders(Aggregation):
    """The weighted mean of each row over the clients that uploaded it.

    Source: fedr.txt Algorithm 1 line 8 (sum of masked rows divided by the sum of masks), all weights 1. Differs: the published
    codes set rows nobody holds to zero, and sum over clients that did not train when only a part takes part.
    """

    def aggregate(self, round: int, previous: Tensor, delivered: Delivered) -> Tensor:
        # fedr.txt Algorithm 1 line 8: the sum of masked rows divided by the sum of masks.
        return delivered.sum().mean(previous)


AGGREGATIONS: Registry[type[Aggregation]] = Registry("aggregation", "fkgsec.aggregations")
AGGREGATIONS.register("mean", MeanOverHolders)
