"""Settings of an algorithm that concern the embedding model: dimension, weights of negatives, and supported models.

    class Halved(KgeSettings, frozen=True):
        def shared_dim(self, dim: int) -> int:
            return dim // 2                        # the model whose rows are shared is smaller than --dim

Settings that do not concern the model may extend `AlgorithmSettings` alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from fkgsec.federation.recipes import Table
from fkgsec.federation.settings import AlgorithmSettings


class KgeSettings(AlgorithmSettings, frozen=True):
    """Settings of an algorithm for knowledge-graph embedding; as they stand, the model is that of the options."""

    def shared_dim(self, dim: int) -> int:
        """Return the dimension of the model whose rows are shared.

        Args:
            dim: option `dim`.
        """
        return dim

    def sampling_temperature(self, option: float | None, model: str) -> float:
        """Return the temperature of the self-adversarial weights of negatives.

        Args:
            option: option `temperature`; None if not set.
            model: name of the scoring function.
        """
        return 1.0 if option is None else option

    @property
    def training(self) -> Mapping[str, str]:
        """Values of `fkgsec.kge.options.TRAINING` that the algorithm changes."""
        return {}

    @property
    def starts_from_server(self) -> tuple[Table, ...]:
        """Return the tables of which clients start from the server's first rows although nothing is exchanged."""
        return ()

    def check(self, entity_width: int) -> None:
        """Validate the settings against the shared model.

        Args:
            entity_width: W of shared rows.

        Raises:
            SpecError: the settings do not fit this width.
        """
