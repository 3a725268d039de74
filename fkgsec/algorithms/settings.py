"""The shipped algorithms for knowledge-graph embedding: the settings and the recipe of each. Nothing here loads torch.

    RECIPES["feds"].settings(sparsity=0.3)

What an algorithm adds to local training is a rule in a module of its own, which its recipe names and which is loaded with it.
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
        variant: "paper", or "published": triples weighed by frequency, and batches and negatives drawn once for the run
            (nju-websoft/FedLU). An option that is given wins over the variant's value.
    """

    variant: Annotated[Variant, Meta(description="training as the paper has it, or as FedLU's code")] = "paper"

    @property
    def training(self) -> Mapping[str, str]:
        return {"triple_weights": "frequency", "redraw": "never"} if self.variant == "published" else {}


class SingleSettings(VariantSettings, frozen=True):
    """Settings of clients that train alone.

    Attributes:
        variant: as in `VariantSettings`; "published" also keeps each client's own best round and starts from entity rows in the
            range that the code's server has.
        baseline: "papers", Adam's moments outlive a round as in the papers' baselines; or as in a federation that shares
            "entities" or "relations", but for the exchange: each round starts a new Adam, and clients start from the rows that
            its server would have sent. Clients that share nothing then gain exactly nothing by joining.
    """

    baseline: Annotated[
        Baseline,
        Meta(
            description="the papers' own, or as a federation that shares this starts: its first rows, a new Adam a round"
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
    """When shared models are judged.

    Attributes:
        variant: as in `VariantSettings`; "published" also starts from entity rows in the range that the code's server has.
        evaluate: whether they are validated, kept and tested "after" the broadcast of a round, or "before" it, as local training
            left them (FedLU's code, in FedE, FedProx and FedEC, too).
    """

    evaluate: Annotated[
        Literal["after", "before"], Meta(description="shared models after a round's broadcast, or before it")
    ] = "after"

    @property
    def training(self) -> Mapping[str, str]:
        published = {"entity_range": "width"} if self.variant == "published" else {}
        return {**super().training, **published}

    @property
    def evaluates_before_broadcast(self) -> bool:
        return self.evaluate == "before"


class FedProxSettings(FedESettings, frozen=True):
    """The proximal term, and when shared models are judged.

    Attributes:
        mu: its weight.
        proximal: how far a client's table is from the one received: "squared", mu / 2 |w - w_t|^2, as FedProx defines it and
            the code of FedLU's authors has it; or "distance", mu |w - w_t|, as their paper words it.
    """

    mu: Annotated[float, Meta(ge=0, le=1_000_000, description="weight of the proximal term")] = 0.1
    proximal: Annotated[
        Literal["distance", "squared"],
        Meta(description="half the squared distance to the rows received, or the distance"),
    ] = "squared"


class FedECSettings(FedESettings, frozen=True):
    """The contrastive term, and when shared models are judged.

    Attributes:
        mu: its weight. tau: its temperature.
    """

    mu: Annotated[float, Meta(ge=0, le=1_000_000, description="weight of the contrastive term")] = 0.3
    tau: Annotated[float, Meta(gt=0, description="temperature of the contrastive term")] = 0.2


def transmitted_ratio(sparsity: float, sparse_rounds: int, dim: int) -> float:
    """Numbers that FedS transmits in a cycle over those of FedE, at most: (p s + 1 + (2 + p) s / (2 D)) / (s + 1).

    Args:
        sparsity: p, the share of rows sent in a round between two synchronisations. sparse_rounds: s, how many such rounds there
            are. dim: D, the width of a row.

    Source: feds.txt Eq. 5. It counts a sign, a priority and a number of a row alike, as the paper does.
    Differs: without synchronisation (s = 0 here) there is no cycle; the ratio is that of one sparse round.
    """
    if sparse_rounds == 0:
        return sparsity + (2 + sparsity) / (2 * dim)
    return (sparsity * sparse_rounds + 1 + (2 + sparsity) * sparse_rounds / (2 * dim)) / (sparse_rounds + 1)


def equal_cost_dim(sparsity: float, sparse_rounds: int, dim: int) -> int:
    """The dimension at which FedE transmits as much as FedS, rounded up. Source: feds.txt VI-C (256: 135 for p = 0.4)."""
    return math.ceil(transmitted_ratio(sparsity, sparse_rounds, dim) * dim - 1e-9)  # 28.000000000000004 is 28


class FedSSettings(KgeSettings, frozen=True):
    """Settings of FedS: sparsity of rounds.

    Attributes:
        sparsity: share p of its shared rows that a client and the server send in a sparse round.
        sparse_rounds: so many sparse rounds lie between two in which all shared rows are sent; 0: never all.
    """

    sparsity: Annotated[float, Meta(ge=0, le=1, description="share of the shared rows sent in a sparse round")] = 0.4
    sparse_rounds: Annotated[
        int, Meta(ge=0, le=1_000_000, description="sparse rounds between two with all rows; 0: never all")
    ] = 4


class FedEPLSettings(FedSSettings, frozen=True):
    """The FedS whose cost is matched: the dimension is lowered until a round costs as much on average (feds.txt Eq. 5)."""

    def shared_dim(self, dim: int) -> int:
        return equal_cost_dim(self.sparsity, self.sparse_rounds, dim)


PrivateStart = Literal["own", "server"]


class FedLUSettings(FedESettings, frozen=True):
    """Mutual distillation, and when shared models are judged.

    Attributes:
        mu: weight of what a model learns from the other.
        warmup_rounds: rounds before the two models learn from each other; 0 is the paper's Algorithm 1. Ours: its code begins
            without, too, but switches each direction on by what validation says of both models.
        variant: as in `FedESettings`; "published" also has the code's loss (see `mutual`) and keeps each client's own best round.
        private_start: first entity rows of the model that a client keeps to itself: drawn on its "own", or those that the
            "server" sends in round 0, so that both models start alike (FedLU's code).
    """

    mu: Annotated[float, Meta(ge=0, le=1_000_000, description="weight of the distillation")] = 2.0
    warmup_rounds: Annotated[
        int, Meta(ge=0, le=1_000_000, description="rounds before the two models learn from each other")
    ] = 0
    private_start: Annotated[
        PrivateStart,
        Meta(description="first entities of a client's second model: its own, or those of the server"),
    ] = "own"

    @property
    def training(self) -> Mapping[str, str]:
        published = {"best_round": "client"} if self.variant == "published" else {}
        return {**super().training, **published}

    def sampling_temperature(self, option: float | None, model: str) -> float:
        return fedlu_temperature(self.variant, option, model)


def fedlu_temperature(variant: Variant, option: float | None, model: str) -> float:
    """FedLU weighs negatives alike (fedlu.txt Eq. 7), its code so but for RotatE."""
    if variant != "published" or model != "rotate":
        return 0.0
    return 1.0 if option is None else option


Affinity = Literal["shared", "embedding"]


class PFedEGSettings(AlgorithmSettings, frozen=True):
    """The personal means and what clients do with them.

    Attributes:
        mu: weight of the distance to the rows received.
        mixing: the paper's p, the share of the others' knowledge in what a client receives.
        affinity: how two clients are weighed, by the entities that they share or by the embeddings of these.
        start: what a round's training starts from, the rows received or the client's own (`_Reg` in pfedeg.txt 4.4).
    """

    mu: Annotated[float, Meta(ge=0, le=1_000_000, description="weight of the distance to the rows received")] = 0.003
    mixing: Annotated[float, Meta(ge=0, le=1, description="share of the others in what a client receives")] = 0.7
    affinity: Annotated[Affinity, Meta(description="near clients by what they share")] = "shared"
    start: Annotated[
        Literal["received", "own"], Meta(description="a round starts from the rows received, or a client's own")
    ] = "received"


class FedEKDSettings(KgeSettings, frozen=True):
    """The size of what is shared.

    Attributes:
        shared_dim_ratio: dimension of the shared model over that of the one that a client keeps.
    """

    shared_dim_ratio: Annotated[
        float, Meta(ge=0, le=1, description="the shared model's dimension over the private one's")
    ] = 0.75

    def shared_dim(self, dim: int) -> int:
        return math.ceil(self.shared_dim_ratio * dim)


class FedESVDSettings(KgeSettings, frozen=True):
    """The matrix that an entity's update is taken as.

    Attributes:
        rank: singular values sent of it. columns: of the matrix.
    """

    rank: Annotated[int, Meta(ge=1, le=1_000_000, description="singular values sent of an entity's update")] = 5
    columns: Annotated[int, Meta(ge=1, le=1_000_000, description="of the matrix that an update is taken as")] = 8

    def check(self, entity_width: int) -> None:
        rank, columns = self.rank, self.columns
        if entity_width % columns or columns >= entity_width // columns or rank > columns:
            raise SpecError(
                f"rank and columns: an update of {entity_width} numbers is no matrix of {columns} columns, more rows, and {rank} "
                "singular values"
            )


class FedESVDPlusSettings(FedESVDSettings, frozen=True):
    """The same, and the weight of keeping singular vectors orthogonal.

    Attributes:
        mu: the paper's alpha (feds.txt Eq. 7).
    """

    mu: Annotated[float, Meta(ge=0, le=1_000_000, description="weight of the singular vectors' orthogonality")] = 0.05


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
