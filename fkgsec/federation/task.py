"""Training task of a federation: the contract between the loop and the models that it knows nothing of.

    class Shapes:                                # a task of one's own, see `Task`
        options_type, result_type = ShapeOptions, ShapeResult
        def __init__(self, graph, options): ...
    TASKS.register("shapes", Shapes)
    register(Recipe("fed-shapes", ("parameters",), "this script", task="shapes"))

Parties go by their place. Rows of a shared table are rows of a party's own tensor: a model's parameters, laid out as a table.
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
    """The parties' data and models.

    Attributes:
        options_type: the struct of its options. result_type: what a finished run comes to.
        metric: what `validate` measures, larger is better; such as "mrr".
        names: of the clients that train, in their order.
        sizes: of each one's training items, which weigh its loss in the mean.
        judged_before_broadcast: whether `validate` looks at what local training left and a broadcast would replace.
    """

    options_type: ClassVar[type[RunOptions]]
    result_type: ClassVar[type[RunResult]]
    metric: str
    names: Sequence[str]
    sizes: Sequence[int]
    judged_before_broadcast: bool

    def __init__(self, graph: Any, options: Any) -> None:
        """Raises `DataError` for data of another task."""
        ...

    def data(self, place: int) -> Any:
        """Return what a party has to train on; an adversary at this place sees no other's."""
        ...

    def train_on(self, place: int, subset: Any) -> None:
        """Let a party train on this instead of its own training items."""
        ...

    def first_rows(self, table: Table, names: Sequence[str]) -> Tensor:
        """The server's first rows of a shared table, `[n, width]`, one for each name whatever their order."""
        ...

    def holdings(self, table: Table) -> list[Holding]:
        """Return which rows of a shared table each party holds, by name; it uploads the first of them."""
        ...

    def rows(self, table: Table, place: int) -> Tensor:
        """The party's rows of a shared table, `[n, width]` without gradient; once it has trained, those that it uploads."""
        ...

    def receive(self, round: int, table: Table, place: int, received: Received) -> None:
        """Take over what a broadcast said; round 0 is the first."""
        ...

    def begin_round(self) -> None:
        """Called before each round of training."""
        ...

    def num_steps(self, places: Collection[int]) -> int:
        """Steps of a round of these parties, for progress."""
        ...

    def train(self, round: int, places: Sequence[int], on_step: Callable[[], None]) -> dict[int, float]:
        """Train one round; returns each party's mean loss. Raises `TrainingError` for one that is not finite."""
        ...

    def validate(self) -> float | None:
        """The metric on the validation items of all parties; None without any."""
        ...

    def snapshot(self, *, shared_only: bool = False) -> dict[str, Tensor]:
        """Copies of the models by name; `shared_only`, of those that are exchanged."""
        ...

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what `snapshot` gave."""
        ...

    def trainer_state(self) -> dict[str, Tensor]:
        """Return what else a checkpoint between two rounds must hold, by name."""
        ...

    def load_trainer_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what `trainer_state` gave."""
        ...

    def outcome(self, trained: Mapping[str, Tensor], final: Mapping[str, Tensor]) -> dict[str, Any]:
        """The fields that `result_type` has beside those of `RunResult`, of two snapshots of the best round: the shared models as
        training left them, and all models after its broadcast. Live models stay as they are."""
        ...


TASKS: Registry[type[Task]] = Registry(
    "task", "fkgsec.tasks", {"kge": "fkgsec.kge.local.task:KgeTask", "graph": "fkgsec.gnn.task:GraphTask"}
)

MakeTask = Callable[[Any, Any], Task]
"""(graph, options) -> the task of a run: one of `TASKS`, or one that trains elsewhere."""
