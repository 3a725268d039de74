"""The options of a federation of knowledge graphs: the scoring function, its training and its evaluation.

    options = KgeOptions(algorithm="feds", model="rotate", dim=64, rounds=20, settings={"sparsity": 0.3})
    options.kge_model()                            # the model whose rows are shared

Frozen; checked when made. What every task has is `fkgsec.federation.options.RunOptions`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from fkgsec.errors import SpecError
from fkgsec.federation.options import RunOptions
from fkgsec.kge.models import KgeModel, ModelName
from fkgsec.kge.ranking import Sides
from fkgsec.kge.settings import KgeSettings

if TYPE_CHECKING:
    from fkgsec.kge.local.result import KgeResult  # noqa: F401 (the base below names it)

EntityScope = Literal["own", "all", "published"]
NegativeSides = Literal["tail", "both", "each"]


class KgeOptions(RunOptions["KgeResult"], frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of knowledge-graph embedding. Defaults, those of `RunOptions` too, are of fedr.txt appendix B where it names them.

    Attributes (beside those of `RunOptions`):
        model, dim, gamma, init_epsilon: the scoring function, see `KgeModel`.
        num_negatives: negatives of each positive triple.
        temperature: of the self-adversarial weights of negatives; 0 weighs all alike. None takes the algorithm's own, which
            `sampling_temperature` says: 1, or 0 for `fedlu`, which has no such weights and refuses any other value.
        negative_sides: corrupt tails only (fedr.txt); "both", tails and heads in alternate steps; or "each", every batch's heads
            and then its tails, a step each, so that an epoch has twice the steps (FedLU's code).
        eval_sides: rank tails only (fedr.txt) or both.
        entity_scope: "own", a client trains, corrupts with and ranks its own entities (FedR's code); "all", those of the
            whole federation; "published", ranks all and corrupts with the global ids 0..n-1, n being the number of the
            client's own (the FedE beside FedR's code takes local counts for global ids, so a fifth of a client's entities
            is never drawn and many of another client's are).

    Differs: FedLU's code (nju-websoft/FedLU) has the other values of its settings (`fkgsec.algorithms.fedlu`), and "each" for
    `negative_sides`; the specs of its tables set them where the paper is silent. Of what else it does there is no option: it
    weighs triples by frequency, draws batches and negatives once for the run, keeps each client's models at that client's best
    validation, halves the initial range of RotatE's and ComplEx's entities, and begins each direction of distillation when
    validation stalls.
    """

    task: ClassVar[str] = "kge"

    model: ModelName = "transe"
    dim: int = 128
    gamma: float = 10.0
    init_epsilon: float = 2.0
    num_negatives: int = 256
    temperature: float | None = None
    negative_sides: NegativeSides = "both"
    eval_sides: Sides = "both"
    entity_scope: EntityScope = "own"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_negatives < 1:
            raise SpecError(f"num_negatives must be at least 1; got {self.num_negatives}")
        self.kge_settings.check(self.kge_model().entity_width)
        self._check_temperature()
        self.private_model()

    def _check_temperature(self) -> None:
        given = self.temperature
        if given is None:
            return
        if not (math.isfinite(given) and given >= 0):
            raise SpecError(f"temperature must be at least 0; got {given}")
        if given != self.sampling_temperature:
            raise SpecError(
                f"temperature does not apply to {self.algorithm} with these settings and {self.model}, which weighs negatives "
                f"alike; leave it out or give 0; got {given:g}"
            )

    @property
    def kge_settings(self) -> KgeSettings:
        """What the algorithm's settings say of the model; nothing, where they are settings of no model."""
        return self.settings if isinstance(self.settings, KgeSettings) else KgeSettings()

    def identity(self) -> dict[str, Any]:
        """As ever; what once stood there for all algorithms stays, and `init_epsilon` goes by its old name."""
        kept = {"temperature": 1.0, "tau": 0.2} | super().identity()
        return {"epsilon" if name == "init_epsilon" else name: value for name, value in kept.items()}

    def kge_model(self) -> KgeModel:
        """The model whose rows are shared."""
        return KgeModel(self.model, self.kge_settings.shared_dim(self.dim), self.gamma, self.init_epsilon)

    def private_model(self) -> KgeModel:
        """The model that a client keeps to itself, in algorithms that have one."""
        return KgeModel(self.model, self.dim, self.gamma, self.init_epsilon)

    @property
    def sampling_temperature(self) -> float:
        """Of the weights of negatives, in training and wherever its loss is computed again."""
        return self.kge_settings.sampling_temperature(self.temperature, self.model)
