"""Built-in algorithms for knowledge-graph embedding: settings and recipe of each. This module does not load torch.

    RECIPES["feds"].settings(sparsity=0.3)

An algorithm's addition to local training is a rule in a separate module, which is imported when the recipe is used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta

from fkgsec.errors import SpecError
from fkgsec.federation.recipes import ENTITIES, RELATIONS, Recipe, Table
from fkgsec.federation.settings import AlgorithmSettings
from fkgsec.kge.settings import KgeSettings

Variant = Literal["paper", "published"]
Baseline = Literal["papers", "entities", "relations"]


class VariantSettings(KgeSettings, frozen=True):
    """Choice between a paper's text and FedLU's published code, which also trains its baselines.

    Attributes:
        variant: "paper", or "published": triples weighted by frequency, and batches and negatives drawn once for the run
            (nju-websoft/FedLU). An option that the user sets takes precedence over the variant.
    """

    variant: Annotated[Variant, Meta(description="training as in the paper, or as in FedLU's code")] = "paper"

    @property
    def training(self) -> Mapping[str, str]:
        return {"triple_weights": "frequency", "redraw": "never"} if self.variant == "published" else {}


class SingleSettings(VariantSettings, frozen=True):
    """Settings of clients that train alone.

    Attributes:
        variant: as in `VariantSettings`; "published" also selects each client's own best round, and draws initial entity rows
            in the range of the code's server.
        baseline: "papers", Adam's moments outlive a round as in the papers' baselines; or as in a federation that shares
            "entities" or "relations", but for the exchange: each round starts a new Adam, and clients start from the rows that
            its server would have sent. Clients that share nothing then gain exactly nothing by joining.
    """

    baseline: Annotated[
        Baseline,
        Meta(
            description="optimizer and first rows: as the papers train alone, or as a federation that shares this table"
        ),
    ] = "papers"

    @property
    def resets_optimizer(self) -> bool:
        return self.baseline != "papers"

    @property
    def starts_from_server(self) -> tuple[Table, ...]:
        return () if self.baseline == "papers" else (self.baseline,)

    @property
    def training(self) -> Mapping[str, str]:
        published = {"entity_range": "width", "best_round": "client"} if self.variant == "published" else {}
        return {**super().training, **published}


class FedESettings(VariantSettings, frozen=True):
    """Settings of FedE: when shared models are evaluated.

    Attributes:
        variant: as in `VariantSettings`; "published" also draws initial entity rows in the range of the code's server.
        evaluate: shared models are validated, selected and tested "after" the broadcast of a round, or "before" it, after local
            training (FedLU's code, also in FedE, FedProx and FedEC).
    """

    evaluate: Annotated[
        Literal["after", "before"], Meta(description="evaluate shared models after a round's broadcast, or before it")
    ] = "after"

    @property
    def training(self) -> Mapping[str, str]:
        published = {"entity_range": "width"} if self.variant == "published" else {}
        return {**super().training, **published}

    @property
    def evaluates_before_broadcast(self) -> bool:
        return self.evaluate == "before"


class FedProxSettings(FedESettings, frozen=True):
    """Settings of FedProx: the proximal term, and when shared models are evaluated.

    Attributes:
        mu: weight of the proximal term.
        proximal: distance of a client's table to the received one: "squared", mu / 2 |w - w_t|^2, as in FedProx's definition and
            the code of FedLU; or "distance", mu |w - w_t|, as in the paper of FedLU.
    """

    mu: Annotated[float, Meta(ge=0, le=1_000_000, description="weight of the proximal term")] = 0.1
    proximal: Annotated[
        Literal["distance", "squared"],
        Meta(description="proximal term: half the squared distance to the received rows, or the distance"),
    ] = "squared"


class FedECSettings(FedESettings, frozen=True):
    """Settings of FedEC: the contrastive term, and when shared models are evaluated.

    Attributes:
        mu: weight of the contrastive term.
        tau: its temperature.
    """

    mu: Annotated[float, Meta(ge=0, le=1_000_000, description="weight of the contrastive term")] = 0.3
    tau: Annotated[float, Meta(gt=0, description="temperature of the contrastive term")] = 0.2


def transmitted_ratio(sparsity: float, sparse_rounds: int, dim: int) -> float:
    """Compute the most values that FedS transmits per cycle, relative to FedE: (p s + 1 + (2 + p) s / (2 D)) / (s + 1).

    Args:
        sparsity: p, share of the rows sent in a sparse round, 0 to 1.
        sparse_rounds: s, number of sparse rounds between two synchronizations.
        dim: D, width of a row.

    Source: feds.txt Eq. 5. Like the paper, it counts a sign, a priority and an embedding value as one each.
    Differs: without synchronization (s = 0 here) there is no cycle; the ratio is that of one sparse round.
    """
    # Without synchronization there is no full round in a cycle.
    if sparse_rounds == 0:
        return sparsity + (2 + sparsity) / (2 * dim)
    return (sparsity * sparse_rounds + 1 + (2 + sparsity) * sparse_rounds / (2 * dim)) / (sparse_rounds + 1)


def equal_cost_dim(sparsity: float, sparse_rounds: int, dim: int) -> int:
    """Compute the dimension at which FedE transmits as much as FedS, rounded up.

    Args:
        sparsity, sparse_rounds, dim: as in `transmitted_ratio`.

    Source: feds.txt VI-C (256: 135 for p = 0.4).
    """
    # Rounding errors must not add a dimension.
    return math.ceil(transmitted_ratio(sparsity, sparse_rounds, dim) * dim - 1e-9)  # 28.000000000000004 is 28


class FedSSettings(KgeSettings, frozen=True):
    """Settings of FedS: sparsity of rounds.

    Attributes:
        sparsity: share p of its shared rows that a client and the server send in a sparse round.
        sparse_rounds: number of sparse rounds between two in which all shared rows are sent; 0: never all.
    """

    sparsity: Annotated[float, Meta(ge=0, le=1, description="share of the shared rows sent in a sparse round")] = 0.4
    sparse_rounds: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000,
            description="sparse rounds between two synchronization rounds; 0: no such rounds",
        ),
    ] = 4


class FedEPLSettings(FedSSettings, frozen=True):
    """Settings of FedEPL: the FedS whose cost it matches, by a lower dimension of equal average cost (feds.txt Eq. 5)."""

    def shared_dim(self, dim: int) -> int:
        return equal_cost_dim(self.sparsity, self.sparse_rounds, dim)


PrivateStart = Literal["own", "server"]


class FedLUSettings(FedESettings, frozen=True):
    """Settings of FedLU: mutual distillation, and when shared models are evaluated.

    Attributes:
        mu: weight of the distillation.
        warmup_rounds: rounds without distillation; 0 is the paper's Algorithm 1. The published code also begins without it, but
            enables each direction by the validation of both models.
        variant: as in `FedESettings`; "published" also uses the code's loss (see `mutual`) and each client's own best round.
        private_start: initial entity rows of the private model: its "own" draw, or the rows that the "server" sends in round 0,
            so that both models start alike (FedLU's code).
    """

    mu: Annotated[float, Meta(ge=0, le=1_000_000, description="weight of the distillation")] = 2.0
    warmup_rounds: Annotated[
        int, Meta(ge=0, le=1_000_000, description="rounds before the two models learn from each other")
    ] = 0
    private_start: Annotated[
        PrivateStart,
        Meta(description="initial entity rows of a client's second model: its own, or the server's"),
    ] = "own"

    @property
    def training(self) -> Mapping[str, str]:
        published = {"best_round": "client"} if self.variant == "published" else {}
        return {**super().training, **published}

    def sampling_temperature(self, option: float | None, model: str) -> float:
        return fedlu_temperature(self.variant, option, model)


def fedlu_temperature(variant: Variant, option: float | None, model: str) -> float:
    """Return 0, equal weights (fedlu.txt Eq. 7), except for RotatE in FedLU's code.

    Args:
        variant: "paper" or "published".
        option: option `temperature`; None if not set.
        model: name of the scoring function.
    """
    if variant != "published" or model != "rotate":
        return 0.0
    # RotatE in FedLU's code keeps self-adversarial weights.
    return 1.0 if option is None else option


Affinity = Literal["shared", "embedding"]


class PFedEGSettings(AlgorithmSettings, frozen=True):
    """Settings of PFedEG: the personal means and their use by clients.

    Attributes:
        mu: weight of the distance to received rows; beta in pfedeg.txt Eq. 2.
        mixing: p in pfedeg.txt Eq. 10, share of the other clients' knowledge in received rows.
        affinity: weight of two clients: by the entities that they share (Eq. 4), or by the embeddings of these (Eq. 5).
        start: rows from which a round's training starts: received, or the client's own (`_Reg` in pfedeg.txt 4.4).
    """

    mu: Annotated[float, Meta(ge=0, le=1_000_000, description="weight of the distance to the received rows")] = 0.003
    mixing: Annotated[float, Meta(ge=0, le=1, description="share of other clients' rows in what a client receives")] = (
        0.7
    )
    affinity: Annotated[Affinity, Meta(description="measure of similarity between clients")] = "shared"
    start: Annotated[
        Literal["received", "own"],
        Meta(description="rows from which a client starts a round: the received ones, or its own"),
    ] = "received"


class FedEKDSettings(KgeSettings, frozen=True):
    """Settings of FedE-KD: the dimension of the shared model.

    Attributes:
        shared_dim_ratio: dimension of the shared model over that of the private one.
    """

    shared_dim_ratio: Annotated[
        float, Meta(ge=0, le=1, description="dimension of the shared model divided by that of the private model")
    ] = 0.75

    def shared_dim(self, dim: int) -> int:
        # Return the dimension of the shared model, rounded up.
        return math.ceil(self.shared_dim_ratio * dim)


class FedESVDSettings(KgeSettings, frozen=True):
    """Settings of FedE-SVD: the matrix that an entity's update is reshaped to.

    Attributes:
        rank: number of transmitted singular values.
        columns: of the matrix.
    """

    rank: Annotated[int, Meta(ge=1, le=1_000_000, description="number of singular values sent per entity update")] = 5
    columns: Annotated[int, Meta(ge=1, le=1_000_000, description="columns of the matrix form of an entity update")] = 8

    def check(self, entity_width: int) -> None:
        """Raise `SpecError` unless an update is a matrix with more rows than columns (feds.txt VI-B: m > n)."""
        rank, columns = self.rank, self.columns
        if entity_width % columns or columns >= entity_width // columns or rank > columns:
            raise SpecError(
                f"rank and columns: an update of {entity_width} numbers is no matrix of {columns} columns, more rows, and {rank} "
                "singular values"
            )


class FedESVDPlusSettings(FedESVDSettings, frozen=True):
    """Settings of FedE-SVD+: those of FedE-SVD, and the weight of the singular vectors' orthogonality.

    Attributes:
        mu: the paper's alpha (feds.txt Eq. 7).
    """

    mu: Annotated[
        float, Meta(ge=0, le=1_000_000, description="weight of the orthogonality term of the singular vectors")
    ] = 0.05


SINGLE = Recipe(
    "single",
    (),
    "each client alone: 'Local' in fedr.txt Table 2, 'Single' in feds.txt",
    SingleSettings,
    keep_optimizer=True,
)
COLLECTIVE = Recipe(
    "collective",
    (),
    "all triples at one party: 'centralized' in fedlu.txt",
    VariantSettings,
    pooled=True,
    keep_optimizer=True,
)
FEDE = Recipe("fede", ENTITIES, "Chen et al. 2021, as in fedr.txt section 2", FedESettings)
FEDEP = Recipe("fedep", ENTITIES, "FedE with each client's own model evaluated, feds.txt IV-B", evaluated="local")
FEDPROX = Recipe(
    "fedprox",
    ENTITIES,
    "FedE with a proximal term, fedlu.txt section 2 (and 5.2, footnote 3: distance)",
    FedProxSettings,
    local="fkgsec.algorithms.fedprox:FedProxRule",
)
FEDEC = Recipe(
    "fedec",
    ENTITIES,
    "FedE with a contrastive term (Chen et al. 2022), fedlu.txt section 3",
    FedECSettings,
    local="fkgsec.algorithms.fedec:FedECRule",
)
FEDR = Recipe("fedr", RELATIONS, "fedr.txt Algorithm 1, without its PSU and SecAgg")
FEDS = Recipe(
    "feds",
    ENTITIES,
    "feds.txt section III",
    FedSSettings,
    codec="top-k",
    aggregation="sum of others",
    evaluated="local",
)
FEDEPL = Recipe(
    "fedepl",
    ENTITIES,
    "FedEP at the dimension that costs as much as FedS, feds.txt IV-B, VI-C",
    FedEPLSettings,
    evaluated="local",
)
FEDLU = Recipe(
    "fedlu",
    ENTITIES,
    "fedlu.txt 4.1, Algorithm 1",
    FedLUSettings,
    private="entities",
    local="fkgsec.algorithms.fedlu:FedLURule",
)
PFEDEG = Recipe(
    "pfedeg",
    ENTITIES,
    "pfedeg.txt section 3",
    PFedEGSettings,
    aggregation="affinity",
    evaluated="local",
    local="fkgsec.algorithms.pfedeg:PFedEGRule",
)
FEDE_KD = Recipe(
    "fede-kd",
    ENTITIES,
    "feds.txt VI-A",
    FedEKDSettings,
    private="whole",
    local="fkgsec.algorithms.fede_kd:FedEKDRule",
)
FEDE_SVD = Recipe("fede-svd", ENTITIES, "feds.txt VI-B", FedESVDSettings, codec="low-rank")
FEDE_SVD_PLUS = Recipe(
    "fede-svd+",
    ENTITIES,
    "feds.txt VI-B",
    FedESVDPlusSettings,
    codec="low-rank",
    local="fkgsec.algorithms.fede_svd:FedESVDPlusRule",
)
