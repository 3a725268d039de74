"""The result of a federation of knowledge graphs.

result = run_federation(graph, options)
(1 / result.test_ranks[0]).mean()              # the first client's test MRR
result.tables[0].entities                      # its entity rows, `[n, W]`
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fkgsec.data.graph import FederatedGraph
from fkgsec.errors import RunError
from fkgsec.estimate import Estimate
from fkgsec.federation import packing
from fkgsec.federation.result import RunResult
from fkgsec.kge.models import ClientTables, KgeModel
from fkgsec.kge.ranking import sampled_mrr, utility

STORED_TABLES = ("tables", "trained", "private", "encoded", "trained_encoded")
STORED_RANKS = ("test_ranks", "shared_test_ranks", "valid_ranks")


@dataclass(frozen=True, repr=False, kw_only=True)
class KgeResult(RunResult):
    """A finished run, at its best validation.

    Attributes (in addition to those of `RunResult`):
        tables: each client's embeddings after the broadcast of that round.
        trained: each client's embeddings before that broadcast, which a colluder would reveal. A client that skipped the round
            has those of its last broadcast.
        test_ranks: ranks of each client's test triples, float64 `[n, sides]`, by `trained` or `tables`, as the recipe says.
        private: each client's embeddings of its private model, if the recipe has one. `test_ranks` are then ranks by this
            model, and `shared_test_ranks` those by the shared model.
        valid_ranks: ranks of the drawn validation triples by the best models, if validation is sampled; see `validation`.
        encoded, trained_encoded: `tables` and `trained` after each client's encoder, if the model has one.
    """

    graph: FederatedGraph
    options: Any  # `KgeOptions`, which name this type
    tables: list[ClientTables]
    trained: list[ClientTables]
    test_ranks: list[np.ndarray]
    private: list[ClientTables] = field(default_factory=list)
    shared_test_ranks: list[np.ndarray] = field(default_factory=list)
    valid_ranks: list[np.ndarray] = field(default_factory=list)
    encoded: list[ClientTables] = field(default_factory=list)
    trained_encoded: list[ClientTables] = field(default_factory=list)

    def predictor(self, kind: Literal["tables", "trained", "private"], place: int) -> tuple[KgeModel, ClientTables]:
        """Return the model that a client predicts with, and its rows, encoded if the model has an encoder.

        Args:
            kind: which of the client's tables.
            place: index of the client.

        Raises:
            RunError: the model has an encoder, and the tables were trained elsewhere without it.
        """
        if kind == "private":
            return self.options.private_model(), self.private[place]
        if not self.options.has_encoder:
            return self.options.kge_model(), getattr(self, kind)[place]
        # Without its network, an encoder model cannot score.
        if not self.encoded:
            raise RunError(
                f"{self.options.model}: input rows alone say nothing of what a client predicts; its network is missing"
            )
        encoded = self.encoded[place] if kind == "tables" else self.trained_encoded[place]
        return self.options.decoder(encoded), encoded

    @property
    def validation(self) -> Estimate | None:
        """Estimate of the best models' sampled validation MRR; None if validation is full."""
        if not self.valid_ranks:
            return None
        sizes = [len(client.valid) for client in self.graph.clients]
        return sampled_mrr(self.valid_ranks, sizes, self.options.eval_candidates)

    def headline(self) -> str:
        return f"{self.options.algorithm}, {self.options.model}, dimension {self.options.dim}"

    def reached(self) -> list[str]:
        if not any(len(ranks) for ranks in self.test_ranks):
            return []
        sampled = self.validation
        lines = [f"validation mrr: {sampled} ({sampled.method})"] if sampled else []
        return [*lines, *(f"test {name}: {figure}" for name, figure in self.utility()[0].items())]

    def utility(self) -> tuple[dict[str, Estimate], dict[str, dict[str, Estimate]]]:
        """Compute filtered MRR and Hits@k on test triples: over all clients, weighted by their triples, and by
        client."""
        seed, clients = self.options.seed, zip(self.graph.clients, self.test_ranks, strict=bool(self.test_ranks))
        by_client = {client.name: utility(ranks, seed) for client, ranks in clients}
        return utility(np.concatenate(self.test_ranks), seed) if self.test_ranks else {}, by_client

    def outcome_tree(self) -> dict[str, packing.Tree]:
        tree: dict[str, packing.Tree] = {
            kind: {
                str(place): {
                    "entities": client_tables.entities,
                    "relations": client_tables.relations,
                    "decoder": client_tables.decoder,
                }
                for place, client_tables in enumerate(getattr(self, kind))
            }
            for kind in STORED_TABLES
        }
        for kind in STORED_RANKS:
            tree[kind] = {str(place): torch.from_numpy(ranks) for place, ranks in enumerate(getattr(self, kind))}
        return tree

    @classmethod
    def read_outcome(cls, tensors: Mapping[str, Tensor], num_clients: int) -> dict[str, Any]:
        def tables(kind: str) -> list[ClientTables]:
            """Read the tables of one kind, by client."""
            packed = packing.below(f"{kind}.", tensors)
            return [
                ClientTables(
                    packed[f"{place}.entities"],
                    packed[f"{place}.relations"],
                    packing.below(f"{place}.decoder.", packed),
                )
                for place in range(num_clients)
                if f"{place}.entities" in packed and f"{place}.relations" in packed
            ]

        def ranks(kind: str) -> list[np.ndarray]:
            """Read the ranks of one kind, by client."""
            names = [f"{kind}.{place}" for place in range(num_clients)]
            return [tensors[name].numpy() for name in names if name in tensors]

        return {kind: tables(kind) for kind in STORED_TABLES} | {kind: ranks(kind) for kind in STORED_RANKS}
