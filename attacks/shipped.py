"""The attacks that come with fkgsec, registered when `attacks.registry.ATTACKS` is first read."""

from attacks.reconstruction.evaluation import reconstruction
from attacks.registry import ATTACKS, RECONSTRUCTION, UPDATE_RECOVERY
from attacks.update_recovery import ATTACK

ATTACKS.register(RECONSTRUCTION, reconstruction())
ATTACKS.register(UPDATE_RECOVERY, ATTACK)
