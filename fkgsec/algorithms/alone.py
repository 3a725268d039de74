"""Training without a federation, the references below and above it: each client alone, and all triples at one party."""

from fkgsec.federation.recipes import Recipe

SINGLE = Recipe(
    "single", (), "each client alone: 'Local' in fedr.txt Table 2, 'Single' in feds.txt", keep_optimizer=True
)
COLLECTIVE = Recipe(
    "collective", (), "all triples at one party: 'centralized' in fedlu.txt", pooled=True, keep_optimizer=True
)
