"""The record of a deployed run: that of the laboratory, made of what parties said instead of what they have."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from experiments.deploy.core.measure import PARTS, reached
from experiments.integrity.origin import Origin
from experiments.runs.record import SCHEMA, Bytes, DataRecord, Record, environment_of
from experiments.tasks.contradictions import ABSENT
from experiments.tasks.kge import TASK, Spec
from fkgsec.federation.checkpoint import Progress
from fkgsec.federation.protection import Protection
from protocols.noise.guarantee import Guarantee

if TYPE_CHECKING:
    from experiments.deploy.server import Server

LEARNS = (
    "apart: the server learns of each client how many entities, relations and triples of each split it has, and a digest of its "
    "data that only the client can compute",
    "apart: each round the server learns each client's mean training loss, but under secure aggregation nobody's; in rounds that "
    "are validated the sum of its reciprocal ranks of validation triples and their number",
    "apart: at the end the server learns of each client sums of reciprocal ranks, of their squares and of hits on its test "
    "triples, and their numbers, of all, of those that stand in its train split and of the others; nothing of fewer triples than "
    "were agreed on",
    "apart: a server that does not follow the protocol chooses the table that clients validate, at most once in each validated "
    "round, and the one that they measure at the end: each sum tells whether a client holds a row, or a triple of the split "
    "between two entities; under secure aggregation a client refuses once to upload since training moved none of its rows, which "
    "tells whether it holds one of a few rows; without it each round's loss tells that (tests/deploy/test_oracles.py)",
)
AUDITED = (
    "audit: each client played the adversary against itself and told figures alone; adversaries that have something of another "
    "client are not among them, and controls of membership are triples that the client itself never saw"
)
DRAWN = {
    "operating system": "randomness: every client drew its own from its operating system, for training and for protocols",
    "laboratory": "randomness: training drew from the run's seed, and test ranks crossed one by one, for comparison with one "
    "process; keys, shares, masks and noise came from the operating systems",
}


def deployed_record(spec: Spec, server: Server, progress: Progress, origin: Origin) -> Record:
    """The record of a run whose rounds are over; its clients measure their models, and score the attacks that were agreed on."""
    measured, missing = server.measure()
    figures, unscored = server.audit()
    found, transcript = reached(measured, spec.seed), server.transcript
    protection: Protection = server.exchange.protection()
    absent = [f"{ABSENT}{name}, which did not measure ({why})" for name, why in missing.items()]
    absent += [f"apart: attacks are without {name}, which scored none ({why})" for name, why in unscored.items()]
    if whole := [name for name, one in measured.items() if PARTS[0] not in one.groups]:
        few = server.agreement.fewest_triples
        absent.append(
            f"apart: figures by split leak are without {', '.join(whole)}, with fewer than {few} triples of a kind"
        )
    audit = [AUDITED] if server.agreement.audit else []
    hellos = {name: server.hellos[party] for name, party in zip(server.agreement.parties, server.hellos, strict=True)}
    digest = hashlib.sha256(b"".join(hello.data for hello in hellos.values())).hexdigest()
    return Record(
        schema=SCHEMA,
        spec=spec,
        seed=spec.seed,
        data=DataRecord(spec.data, digest, {name: dict(hello.sizes) for name, hello in hellos.items()}, [], []),
        environment=environment_of(spec.federation_options()),
        utility=found.of_all,
        utility_by_client=found.by_client,
        utility_by_leak=found.by_leak,
        bytes=Bytes(
            transcript.num_bytes("up"),
            transcript.num_bytes("down"),
            [entry.bytes_up for entry in progress.rounds],
            [entry.bytes_down for entry in progress.rounds],
        ),
        rounds=progress.rounds,
        best_round=progress.best_round,
        protection=[*protection.lines(), *LEARNS, DRAWN[server.agreement.randomness], *audit, *absent],
        utility_shared=found.shared,
        guarantees={tables: one for tables, one in protection.guarantees.items() if isinstance(one, Guarantee)},
        withstands=protection.withstands,
        figures=figures,
        metric=TASK.metric,
        valid=next((entry.valid for entry in progress.rounds if entry.round == progress.best_round), None),
        origin=origin,
    )
