"""A run of graph classification as one flat document: every option of `fkgsec graphs train` is a field here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from defenses.options import check_defense
from fkgsec.errors import SpecError
from fkgsec.federation.options import flat, nested
from fkgsec.gnn.options import GnnOptions

if TYPE_CHECKING:
    from fkgsec.graphs.sets import FederatedGraphs


class GraphSpec(GnnOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A federation and its data.

    Attributes (beside those of `GnnOptions`):
        data, clients, partition, size, clean: see `fkgsec.graphs.collection.load_federation`.
        split_seed: of divisions, splits and generated data; `seed` redraws none of these.
    """

    data: str = "motifs"
    clients: int | None = None
    partition: str | None = None
    size: int | None = None
    split_seed: int = 0
    clean: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.split_seed < 0:
            raise SpecError(f"split_seed must be at least 0; got {self.split_seed}")
        check_defense(self)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> GraphSpec:
        """From options by name, settings of the algorithm among them. Raises `SpecError` for a value that is not allowed."""
        try:
            return msgspec.convert(nested(given), cls)
        except msgspec.ValidationError as error:
            raise SpecError(f"options: {error}") from error

    def gnn_options(self) -> GnnOptions:
        """What `run_federation` takes."""
        return GnnOptions(**{name: getattr(self, name) for name in GnnOptions.__struct_fields__})

    def load(self) -> FederatedGraphs:
        """The clients' graphs. Raises `DataError` and `SpecError`."""
        from fkgsec.graphs.collection import (
            load_federation,  # pandas, requests and networkx, which other commands do without
        )

        return load_federation(
            self.data,
            seed=self.split_seed,
            clients=self.clients,
            partition=self.partition,
            size=self.size,
            clean=self.clean,
        )

    def document(self) -> dict[str, Any]:
        """The options by name as plain values."""
        return flat(msgspec.to_builtins(self))
