"""The small federations of the loop's tests, and options of both models with an encoder."""

from typing import Any

from fkgsec.kge.options import KgeOptions
from tests.federation.conftest import consortium, options, uneven

__all__ = ["MODELS", "consortium", "options", "tiny", "uneven"]

MODELS = ("noge", "kb-gat")


def tiny(model: str, **changes: Any) -> KgeOptions:
    """A few steps a round, on the CPU."""
    own: dict[str, Any] = {"decoder_epochs": 1, "decoder_negatives": 2} if model == "kb-gat" else {}
    common: dict[str, Any] = {
        "dim": 8, "batch_size": 16, "local_epochs": 2, "rounds": 3, "eval_every": 2, "patience": 0, "learning_rate": 0.01,
        "seed": 5, "device": "cpu",
    }  # fmt: skip
    return KgeOptions(model=model, **(common | own | changes))
