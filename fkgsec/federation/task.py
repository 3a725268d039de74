"""Training task of a federation: the interface between the loop and the models, which the loop does not know.

    class Shapes:                                # a new task, see `Task`
        options_type, result_type = ShapeOptions, ShapeResult
        def __init__(self, graph, options): ...
    TASKS.register("shapes", Shapes)
    register(Recipe("fed-shapes", ("parameters",), "this script", task="shapes"))

Methods take client indices. Rows of a shared table are a client's parameters, laid out as a table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from torch import Tensor

from fkgsec.exchange import Holding, Received
from fkgsec.federation.options import RunOptions
from fkgsec.federation.recipes import Table
from fkgsec.federation.result import RunResult
from fkgsec.registry import Registry


class Task(Protocol):
    """Data and models of the clients.

    Attributes:
        options_type: struct of the task's options.
        result_type: result of a run.
        metric: name of the validation metric, larger is better; such as "mrr".
        names: of the clients that train, in order.
        sizes: number of training items of each, the weight of its loss in the mean.
        judged_before_broadcast: whether `validate` uses the models after local training, which a broadcast would replace.
    """

    options_type: ClassVar[type[RunOptions]]
    result_type: ClassVar[type[RunResult]]
    metric: str
    names: Sequence[str]
    sizes: Sequence[int]
    judged_before_broadcast: bool

    def __init__(self, graph: Any, options: Any) -> None:
        """Raise `DataError` for data of another task."""

    def data(self, place: int) -> Any:
        """Return a client's training data; an adversary at this client sees no other.

        Args:
            place: client index.
        """
        ...

    def train_on(self, place: int, subset: Any) -> None:
        """Replace a client's training items.

        Args:
            place: client index.
            subset: its type depends on the task, such as `TrainingSubset`.
        """

    def first_rows(self, table: Table, names: Sequence[str]) -> Tensor:
        """Draw the server's initial rows of a shared table, `[n, width]`. The row of a name does not depend on the
        order.

        Args:
            names: of the rows.
        """
        ...

    def holdings(self, table: Table) -> list[Holding]:
        """Return the names of the rows of a shared table that each client holds; it uploads the first of them."""
        ...

    def rows(self, table: Table, place: int) -> Tensor:
        """Return a client's rows of a shared table, `[n, width]`, without gradient.

        Args:
            place: client index.
        """
        ...

    def receive(self, round: int, table: Table, place: int, received: Received) -> None:
        """Apply a broadcast.

        Args:
            round: number of the round; 0 is the initial broadcast.
            place: client index.
            received: rows for this client.
        """

    def begin_round(self) -> None:
        """Prepare a round of training."""

    def num_steps(self, places: Collection[int]) -> int:
        """Count the steps of a round, for progress.

        Args:
            places: client indices.
        """
        ...

    def train(self, round: int, places: Sequence[int], on_step: Callable[[], None]) -> dict[int, float]:
        """Train one round.

        Args:
            places: client indices.
            on_step: called after every step.

        Returns:
            Mean loss of each client.

        Raises:
            TrainingError: a loss is not finite.
        """
        ...

    def validate(self) -> float | None:
        """Compute the metric on the validation items of all clients; None without any."""
        ...

    def snapshot(self, *, shared_only: bool = False) -> dict[str, Tensor]:
        """Copy the models by name.

        Args:
            shared_only: whether to copy shared models alone.
        """
        ...

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Load a snapshot.

        Args:
            tensors: from `snapshot`.
        """

    def trainer_state(self) -> dict[str, Tensor]:
        """Return the state that a checkpoint between rounds needs besides the models, by name."""
        ...

    def load_trainer_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Load a trainer state.

        Args:
            tensors: from `trainer_state`.
        """

    def outcome(self, trained: Mapping[str, Tensor], final: Mapping[str, Tensor]) -> dict[str, Any]:
        """Compute the fields of `result_type` that `RunResult` lacks. Current models stay as they are.

        Args:
            trained: snapshot of the shared models of the best round after local training.
            final: snapshot of all models after its broadcast.
        """
        ...


TASKS: Registry[type[Task]] = Registry(
    "task", "fkgsec.tasks", {"kge": "fkgsec.kge.local.task:KgeTask", "graph": "fkgsec.gnn.task:GraphTask"}
)

MakeTask = Callable[[Any, Any], Task]
"""Maps graph and options to the task of a run: one of `TASKS`, or one that trains in other processes."""
