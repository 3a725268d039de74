"""Options of a federation for graph classification: the network, its training, its evaluation.

    options = GnnOptions(algorithm="fedprox-gc", model="sage", layers=3, rounds=50, settings={"mu": 0.01})
    options.architecture()

Frozen, and validated on construction. `fkgsec.federation.options.RunOptions` has the options of every task.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, get_args

import msgspec
from msgspec import Meta

from fkgsec.errors import SpecError
from fkgsec.federation.options import RunOptions
from fkgsec.federation.settings import AlgorithmSettings
from fkgsec.randomness import generator

if TYPE_CHECKING:
    from fkgsec.gnn.result import GnnResult  # noqa: F401 (the base below names it)

Readout = Literal["sum", "mean", "max"]
MODELS = ("gin", "gcn", "sage")
Share = Literal["encoder", "all"]
Select = Literal["validation", "test", "last"]
Optimizer = Literal["adam", "sgd"]
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


class Architecture(msgspec.Struct, frozen=True):
    """Architecture of a classifier, apart from the widths of its data.

    Attributes:
        model: "gin", "gcn", "sage" or the dotted name of a convolution.
        layers: number of convolutions.
        width: of each convolution.
        dropout: share of dropped values, in steps of 1 / 65,536.
        readout: pooling of nodes to graphs.
    """

    model: str = "gin"
    layers: int = 2
    width: int = 64
    dropout: float = 0.5
    readout: Readout = "sum"

    def __post_init__(self) -> None:
        if self.model not in MODELS and not _DOTTED.fullmatch(self.model):
            raise SpecError(f"model must be {', '.join(MODELS)} or a convolution's dotted name; got {self.model!r}")
        for name in ("layers", "width"):
            if getattr(self, name) < 1:
                raise SpecError(f"{name} must be at least 1; got {getattr(self, name)}")
        if not 0 <= self.dropout < 1:
            raise SpecError(f"dropout must be at least 0 and below 1; got {self.dropout}")
        if self.readout not in get_args(Readout):
            raise SpecError(f"readout must be one of {', '.join(get_args(Readout))}; got {self.readout!r}")


class GnnOptions(RunOptions["GnnResult"], frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of graph classification. Defaults are those of cefgl.txt 5.1, and of GCFL's code where it is silent.

    Attributes (in addition to those of `RunOptions`):
        model, layers, width, dropout, readout: the network, see `Architecture`.
        optimizer: of local training: "adam", or plain "sgd", whose single step uploads a gradient.
        local_steps: number of batches per client and epoch; None: all. With `local_epochs=1`, `local_steps=1` and
            `optimizer="sgd"` clients share the gradient of one batch per round (FedSGD), the setting of gradient inversion.
        weight_decay: of the optimizer, the weight of half the squared norm of all parameters.
        select: best round: by validation accuracy ("validation"), by test accuracy ("test", which overestimates), or the "last"
            round, as the published code of GCFL and FedStar reports FedAvg, FedProx and FedStar.
    """

    task: ClassVar[str] = "graph"

    algorithm: str = "fedavg"
    model: str = "gin"
    layers: Annotated[int, Meta(description="number of convolutions")] = 2
    width: Annotated[int, Meta(description="hidden width of each convolution")] = 64
    dropout: float = 0.5
    readout: Annotated[Readout, Meta(description="pooling of node features into graph features")] = "sum"
    optimizer: Annotated[Optimizer, Meta(description="optimizer of local training; sgd has no momentum")] = "adam"
    local_steps: Annotated[
        int | None,
        Meta(description="batches per client and epoch (default: all); with sgd and 1 batch, an upload is a gradient"),
    ] = None
    weight_decay: Annotated[float, Meta(description="weight decay of the optimizer")] = 5e-4
    select: Annotated[
        Select,
        Meta(description="best round: by validation accuracy, by test accuracy (overestimates), or the last"),
    ] = "validation"
    batch_size: int = 128
    local_epochs: int = 1
    rounds: int = 200
    eval_every: int = 1
    patience: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.architecture()
        if self.local_steps is not None and self.local_steps < 1:
            raise SpecError(f"local_steps must be at least 1; got {self.local_steps}")
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise SpecError(f"weight_decay must be at least 0; got {self.weight_decay}")

    @property
    def keeps_last(self) -> bool:
        """Return whether the last round is the best round, whatever validation says."""
        return self.select == "last"

    def architecture(self) -> Architecture:
        """Return the architecture of every client's network."""
        return Architecture(self.model, self.layers, self.width, self.dropout, self.readout)


class DropoutSettings(AlgorithmSettings, frozen=True):
    """Dropouts: in each round a share of the participants drops out, drawn from a Beta distribution.

    At least one client stays. A client that dropped out neither trains nor uploads in that round; it receives the next
    broadcast.

    Attributes:
        drop_alpha, drop_beta: parameters of the distribution, mean alpha / (alpha + beta); both 0: nobody drops out.

    Source: cefgl.txt 5.8, which only says that the rate is drawn in each iteration, up to Beta(10, 1).
    """

    drop_alpha: Annotated[
        float,
        Meta(ge=0, le=1_000_000, description="alpha of the Beta distribution of the share of clients that drop out"),
    ] = 0.0
    drop_beta: Annotated[
        float, Meta(ge=0, le=1_000_000, description="beta of that distribution; both 0: no client drops out")
    ] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.drop_alpha > 0) != (self.drop_beta > 0):
            raise SpecError(
                f"drop_alpha and drop_beta must both be above 0, or both 0; got {self.drop_alpha}, {self.drop_beta}"
            )

    def num_present(self, count: int, round: int, seed: int) -> int:
        if not self.drop_alpha:
            return count
        # cefgl.txt 5.8: the dropout rate of a round follows a Beta distribution.
        rate = generator(seed, "dropping out", round).beta(self.drop_alpha, self.drop_beta)
        return max(1, math.floor((1 - rate) * count + 0.5))


class GnnSettings(DropoutSettings, frozen=True):
    """Settings of all algorithms for graphs: when shared models are evaluated.

    Attributes:
        evaluate: shared models are validated, selected and tested "after" the broadcast of a round, or "before" it, after local
            training.
    """

    evaluate: Annotated[
        Literal["after", "before"], Meta(description="evaluate shared models after a round's broadcast, or before it")
    ] = "after"

    @property
    def evaluates_before_broadcast(self) -> bool:
        return self.evaluate == "before"
