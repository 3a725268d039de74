"""FedAvg and FedPer over graph networks: means of parameters, weighted by the clients' training graphs.

FedPer keeps a client's own layers, here those that read its features and tell its classes. Data sets differ in both, so that the
codes of GCFL and FedStar average convolutions alone in "FedAvg" too, which makes it FedPer; `share=all` is FedAvg proper, for
clients of one data set.
"""

from typing import Annotated

from msgspec import Meta

from fkgsec.federation.recipes import Recipe, Table
from fkgsec.gnn.options import GnnSettings, Share

PARAMETERS: tuple[Table, ...] = ("parameters",)


class FedAvgSettings(GnnSettings, frozen=True):
    """What is averaged, and when models are judged.

    Attributes:
        share: the convolutions ("encoder"), or "all" parameters, where clients have one data set.
    """

    share: Annotated[Share, Meta(description="parameters that are averaged: the convolutions', or all")] = "encoder"


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
