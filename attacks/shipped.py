"""The attacks that come with fkgsec, registered when `attacks.registry.ATTACKS` is first read."""

from attacks import update_recovery
from attacks.clients import active, guess, passive
from attacks.graphs import backdoor, degree_support, kinship, properties
from attacks.graphs.inversion import evaluation as gradient_inversion
from attacks.graphs.membership import membership as graph_membership
from attacks.membership import inference as membership
from attacks.poisoning import client as client_poison
from attacks.poisoning import server as server_poison
from attacks.poisoning import untargeted
from attacks.reconstruction.evaluation import reconstruction
from attacks.registry import ATTACKS, MEMBERSHIP, RECONSTRUCTION, UPDATE_RECOVERY
from attacks.sums import differences, disaggregation, inconsistent, misordered
from attacks.uploads import attributes, auxiliary, degrees, edges, patterns, rounds, structure

ATTACKS.register(RECONSTRUCTION, reconstruction())
ATTACKS.register(UPDATE_RECOVERY, update_recovery.ATTACK)
ATTACKS.register(MEMBERSHIP, membership.ATTACK)
for one in (
    edges.ATTACK,
    rounds.EDGES,
    degrees.ATTACK,
    patterns.ATTACK,
    auxiliary.ATTACK,
    rounds.TRIPLES,
    attributes.ATTACK,
    structure.ATTACK,
    passive.ATTACK,
    active.ATTACK,
    guess.ATTACK,
    client_poison.ATTACK,
    server_poison.ATTACK,
    untargeted.ATTACK,
    inconsistent.ATTACK,
    disaggregation.ATTACK,
    misordered.ATTACK,
    differences.DROPOUT,
    differences.LIES,
):
    ATTACKS.register(one.name, one)
for one in (
    graph_membership(),
    degree_support.ATTACK,
    properties.ATTACK,
    kinship.ATTACK,
    gradient_inversion.ATTACK,
    backdoor.ATTACK,
):
    ATTACKS.register(one.name, one)
