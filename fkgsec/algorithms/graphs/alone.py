"""Training without a federation, the reference below it."""

from fkgsec.federation.recipes import Recipe
from fkgsec.federation.settings import AlgorithmSettings

LOCAL = Recipe(
    "local-gc",
    (),
    "each client alone, from the same first convolutions: 'self-train' in GCFL's code",
    AlgorithmSettings,
    task="graph",
    keep_optimizer=True,
)
