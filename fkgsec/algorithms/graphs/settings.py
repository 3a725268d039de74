"""Built-in algorithms for graph classification: settings and recipe of each. This module does not load torch.

FedAvg averages parameters, weighted by the clients' training graphs. FedPer keeps private layers, here those that read features
and predict classes. Data sets differ in both, so the code of GCFL and FedStar averages convolutions alone in "FedAvg" too, which
makes it FedPer. `share=all` is FedAvg itself, for clients of one data set.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from fkgsec.errors import SpecError
from fkgsec.federation.recipes import Recipe, Table
from fkgsec.federation.settings import AlgorithmSettings
from fkgsec.gnn.options import DropoutSettings, GnnSettings, Share
from fkgsec.randomness import generator

PARAMETERS: tuple[Table, ...] = ("parameters",)


class FedAvgSettings(GnnSettings, frozen=True):
    """Settings of FedAvg: the parameters that are averaged, and when models are evaluated.

    Attributes:
        share: the convolutions ("encoder"), or "all" parameters, where clients have one data set.
    """

    share: Annotated[Share, Meta(description="averaged parameters: those of the convolutions, or all")] = "encoder"


class GraphFedProxSettings(FedAvgSettings, frozen=True):
    """Settings of FedProx: those of FedAvg, and the weight of the proximal term, mu / 2 |w - w_t|^2.

    Attributes:
        mu: the default 0.01 is that of GCFL's code; cefgl.txt gives none.
    """

    mu: Annotated[float, Meta(ge=0, le=1_000_000, description="weight of the proximal term")] = 0.01


class GCFLSettings(GnnSettings, frozen=True):
    """Settings of GCFL: when a cluster is split. Thresholds depend on the network and the data.

    The defaults are those of the published code for molecules, with three layers.

    Attributes:
        epsilon1: a cluster is split only if the Euclidean norm of its mean update is below this value.
        epsilon2: a cluster is split only if the norm of its longest update is above this value.
        first_cut: last round without splits.
    """

    epsilon1: Annotated[
        float, Meta(ge=0, le=1_000_000, description="split a cluster only if the norm of its mean update is below this")
    ] = 0.07
    epsilon2: Annotated[
        float,
        Meta(ge=0, le=1_000_000, description="split a cluster only if the norm of its longest update is above this"),
    ] = 0.28
    first_cut: Annotated[int, Meta(ge=0, le=1_000_000, description="round after which clusters may be split")] = 20


class GCFLPlusSettings(GCFLSettings, frozen=True):
    """Settings of GCFL+: those of GCFL, and the series by which clients are compared.

    Attributes:
        seq_length: number of norms in a series.
        standardize: whether each series is divided by its standard deviation.
    """

    seq_length: Annotated[
        int, Meta(ge=1, le=10_000, description="length of the series of update norms by which clients are compared")
    ] = 5
    standardize: Annotated[bool, Meta(description="divide each series by its standard deviation")] = False


class FedStarSettings(GnnSettings, frozen=True):
    """Settings of FedStar: length of the structure features.

    Attributes:
        num_walks, num_degrees: number of random-walk return probabilities, and of columns of the one-hot degree; one of them
            may be 0 (types "dg" and "rw" in FedStar's code).
    """

    num_walks: Annotated[int, Meta(ge=0, le=1_000, description="steps of the longest random walk")] = 16
    num_degrees: Annotated[
        int, Meta(ge=0, le=1_000, description="largest node degree with its own feature; larger degrees share one")
    ] = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_walks + self.num_degrees == 0:
            raise SpecError("num_walks and num_degrees are both 0; FedStar's shared channel would read nothing")


class SpreadGNNSettings(GnnSettings, frozen=True):
    """Settings of SpreadGNN: the ring of neighbors, the time between exchanges, and the multi-task term.

    Attributes:
        neighbours: number of neighbors on either side in the ring.
        period: number of rounds from one exchange to the next.
        task_reg: weight of the multi-task term; 0.01 is that of the published code.
    """

    neighbours: Annotated[int, Meta(ge=1, le=1_000_000, description="neighbors on either side in the ring")] = 1
    period: Annotated[int, Meta(ge=1, le=1_000_000, description="rounds from one exchange to the next")] = 1
    task_reg: Annotated[float, Meta(ge=0, le=1_000_000, description="weight of the multi-task term")] = 0.01

    def exchanges(self, round: int, seed: int) -> bool:
        return round % self.period == 0


class CEFGLSettings(DropoutSettings, frozen=True):
    """Settings of CEFGL: the parts of the decomposition, and their transmission.

    Attributes:
        components: "both"; or one alone (cefgl.txt Table 5): "shared" has no sparse part, "sparse" no shared part, so that
            received rows are not used.
        correction: "dual": h grows by alpha (Theta - W) and the server subtracts the mean of h / alpha, as in FedSLR. The h of a
            converged client is then its gradient (Remark 2 of the paper). "printed": h grows by (Theta - W) / learning rate, and
            the server subtracts the learning rate times its mean (Eq. 7 and 9 as printed). "off": no correction.
        alpha: weight of the distance to Theta.
        finetune_epochs: epochs of the sparse part in a round.
        l1: soft shrinkage of the sparse part in each step, times the learning rate.
        sparsify: how the sparse part is made sparse after its epochs. "threshold" sets values below `sparse_threshold` to zero;
            "top-k" keeps the share `sparse_share` of largest values.
        sparse_threshold, sparse_share: see `sparsify`.
        singular_threshold: smaller singular values of shared matrices are dropped.
        shrink: the other singular values stay ("hard"), or are reduced by the threshold over alpha ("soft", FedSLR).
        bits: quantization bits per transmitted value (2 to 20; 32 disables quantization). scale, rounding: see
            `fkgsec.exchange.tensors.quantised`. The default represents the paper's 4 bits, which are 2^4 magnitudes besides a
            sign and zero, and rounds at random as its text says. With 4 bits and rounding to the nearest level, the shared
            weights freeze.
        exchange: probability of an exchange after a round; one draw for all clients.
        upload: "combined": W - h / alpha, which is all that the server needs. "both": W and h, each quantized, as in the paper,
            in twice as many bytes; the server then sees an h that converges to the client's gradient.
        start: W starts a round at the "received" rows (FedSLR), or at the client's "own" last W, as in Eq. 6.
        factors: send a matrix as its two factors if they are "smaller", or "never".
    """

    components: Annotated[
        Literal["both", "shared", "sparse"], Meta(description="parts of the model to use: both, or one alone")
    ] = "both"
    correction: Annotated[
        Literal["dual", "printed", "off"],
        Meta(description="correction of local gradients by the client drift of earlier rounds"),
    ] = "dual"
    alpha: Annotated[float, Meta(ge=0, le=1_000_000, description="weight of the distance to the received rows")] = 0.6
    finetune_epochs: Annotated[
        int, Meta(ge=1, le=1_000_000, description="epochs that train the sparse part in a round")
    ] = 1
    l1: Annotated[float, Meta(ge=0, le=1_000_000, description="L1 shrinkage of the sparse part per learning rate")] = (
        1e-4
    )
    sparsify: Annotated[Literal["threshold", "top-k"], Meta(description="how the sparse part is made sparse")] = (
        "threshold"
    )
    sparse_threshold: Annotated[float, Meta(ge=0, le=1_000_000, description="smaller sparse values become zero")] = 1e-4
    sparse_share: Annotated[float, Meta(ge=0, le=1, description="share of values that top-k keeps")] = 0.1
    singular_threshold: Annotated[
        float, Meta(ge=0, le=1_000_000, description="singular values below this are dropped")
    ] = 1e-3
    shrink: Annotated[
        Literal["hard", "soft"], Meta(description="keep the other singular values (hard), or shrink them (soft)")
    ] = "hard"
    bits: Annotated[
        int, Meta(ge=2, le=32, description="quantization bits per transmitted value (2-20; 32 disables quantization)")
    ] = 6
    scale: Annotated[Literal["max", "l2"], Meta(description="norm that scales the quantization step")] = "max"
    rounding: Annotated[Literal["nearest", "stochastic"], Meta(description="rounding of transmitted values")] = (
        "stochastic"
    )
    exchange: Annotated[float, Meta(ge=0, le=1, description="probability that rows are exchanged after a round")] = 0.5
    upload: Annotated[
        Literal["combined", "both"],
        Meta(description="upload corrected parameters, or both parts"),
    ] = "combined"
    start: Annotated[
        Literal["received", "own"],
        Meta(description="rows from which the shared part starts a round"),
    ] = "received"
    factors: Annotated[Literal["smaller", "never"], Meta(description="when to send a matrix as its two factors")] = (
        "smaller"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        # 20 is `MOST_BITS` of `fkgsec.exchange.tensors.quantised`, which loads torch and is not imported here.
        if 20 < self.bits < 32:
            raise SpecError(f"bits must be 2 to 20, or 32 for rows as they are; got {self.bits}")
        if self.alpha == 0 and (self.correction == "dual" or self.shrink == "soft"):
            raise SpecError("alpha must be above 0 with correction=dual or shrink=soft, which divide by it; got 0")
        if self.upload == "both" and self.correction == "off":
            raise SpecError("upload=both sends corrections, and correction=off has none; leave one of them out")

    def taken(self, learning_rate: float) -> float:
        """Return the factor of h that is subtracted from W in the mean.

        Args:
            learning_rate: of local training.
        """
        return 1 / self.alpha if self.correction == "dual" else learning_rate

    def exchanges(self, round: int, seed: int) -> bool:
        # Flip the coin of cefgl.txt Algorithm 1, line 3.
        # One draw from the run's seed: server and clients flip the same coin without a message.
        return bool(generator(seed, "exchange", round).random() < self.exchange)


LOCAL = Recipe(
    "local-gc",
    (),
    "each client alone, from the same first convolutions: 'self-train' in GCFL's code",
    AlgorithmSettings,
    task="graph",
    keep_optimizer=True,
)
FEDAVG = Recipe(
    "fedavg",
    PARAMETERS,
    "McMahan et al. 2017, as in GCFL's code and cefgl.txt 5.1",
    FedAvgSettings,
    task="graph",
    keep_optimizer=True,
    keeps_first=True,
)
FEDGCN = Recipe(
    "fedgcn",
    PARAMETERS,
    "Yao et al. 2024; clients' graphs have no edges between them, so that nothing is left of it but FedAvg",
    FedAvgSettings,
    task="graph",
    keep_optimizer=True,
    keeps_first=True,
)
"""Differs: FedGCN exchanges, once, features of neighbours over the edges between clients' parts of one graph, and classifies
nodes. In graph classification there are no such edges; cefgl.txt, which names it as a baseline, does not say what it runs."""
FEDPER = Recipe(
    "fedper",
    PARAMETERS,
    "Arivazhagan et al. 2019: convolutions shared, the other layers each client's own",
    GnnSettings,
    task="graph",
    keep_optimizer=True,
    keeps_first=True,
)
FEDPROX = Recipe(
    "fedprox-gc",
    PARAMETERS,
    "Li et al. 2020, as in GCFL's code; the name fedprox is that of knowledge graphs",
    GraphFedProxSettings,
    task="graph",
    keep_optimizer=True,
    keeps_first=True,
    local="fkgsec.algorithms.graphs.fedprox:GraphFedProxRule",
)
GCFL = Recipe(
    "gcfl",
    PARAMETERS,
    "Xie et al. 2021: clusters by the cosines of updates",
    GCFLSettings,
    task="graph",
    keep_optimizer=True,
    keeps_first=True,
    aggregation="clusters",
)
GCFL_PLUS = Recipe(
    "gcfl+",
    PARAMETERS,
    "Xie et al. 2021, as in its code: clusters by series of gradient norms",
    GCFLPlusSettings,
    task="graph",
    keep_optimizer=True,
    keeps_first=True,
    aggregation="clusters-by-gradient-norms",
    local="fkgsec.algorithms.graphs.gcfl:GradientNormRule",
)
GCFL_PLUS_DWS = Recipe(
    "gcfl+dws",
    PARAMETERS,
    "Xie et al. 2021: clusters by series of update norms, as the paper has GCFL+ and its code GCFL+dWs",
    GCFLPlusSettings,
    task="graph",
    keep_optimizer=True,
    keeps_first=True,
    aggregation="clusters-by-update-norms",
)
FEDSTAR = Recipe(
    "fedstar",
    PARAMETERS,
    "Tan et al. 2023: the structure channel is shared; its code has 3 layers (--layers 3), cefgl.txt 5.1 two",
    FedStarSettings,
    task="graph",
    keep_optimizer=True,
    local="fkgsec.algorithms.graphs.fedstar:FedStarRule",
    keeps_first=True,
)
SPREADGNN = Recipe(
    "spreadgnn",
    PARAMETERS,
    "He et al. 2022: averages with neighbours in a ring, and a multi-task term; neighbors' rows pass through a relay",
    SpreadGNNSettings,
    task="graph",
    keep_optimizer=True,
    codec="peers",
    aggregation="relay",
    local="fkgsec.algorithms.graphs.spreadgnn:SpreadGNNRule",
)
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
    local="fkgsec.algorithms.graphs.cefgl:CEFGLRule",
)
