"""The auditor's own trainings: references without the forget set, shadows with half of it, plants with a known share left in.

Each is kept in a folder named after what it was trained on and how, so that a repeated audit (`--audit-seed`) finds it.
All seeds derive from the audit seed, which is drawn when the audit begins: nobody who unlearned before can have known them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from fkgsec.attacks.forgetting.evidence import Power, measure_power
from fkgsec.attacks.forgetting.readings import AuditRun, read_run
from fkgsec.attacks.membership.audits import Audited, Shadow, replace_train, train_shadow
from fkgsec.data.graph import FederatedGraph
from fkgsec.defenses.transport import make_transport
from fkgsec.errors import RunError
from fkgsec.experiments.cli.progress import Observe
from fkgsec.experiments.unlearning.unlearn import NO_TRACE, Unlearned
from fkgsec.federation.loop import run_federation, run_identity
from fkgsec.federation.options import CHECKPOINT_EVERY_S
from fkgsec.kge.options import KgeOptions
from fkgsec.kge.result import KgeResult
from fkgsec.randomness import generator
from fkgsec.unlearning.forget_sets import Forget
from fkgsec.unlearning.unlearning import unlearn

AUDIT_FOLDER = "audit"


class OwnRuns(NamedTuple):
    """The auditor's trainings as an audit uses them: whatever run is audited, these stay the same.

    Attributes:
        first: the first of the re-trainings; None where there are none. references, shadow_runs, plants: what is read off each.
        power: of `measure_power`; empty without references.
    """

    first: KgeResult | None
    references: list[AuditRun]
    shadows: list[Shadow]
    shadow_runs: list[AuditRun]
    plants: list[tuple[float, AuditRun]]
    power: dict[tuple[str, str], Power]


class Auditor(NamedTuple):
    """What trains and reads runs for one audit.

    Attributes:
        folder: keeps the trainings. candidate: the audited run. audits: of `audited_triples`.
        seed: the audit seed. relearn_steps: see `read_run`. observe: gives each training its observer.
    """

    folder: Path
    candidate: Unlearned
    audits: Sequence[Audited]
    seed: int
    relearn_steps: int
    observe: Observe

    def own_runs(
        self, num_references: int, num_shadows: int, shares: Sequence[float], *, tolerance: float, alarm: float
    ) -> OwnRuns:
        """Train and read everything. Args: shares: to be planted. tolerance, alarm: see `measure_power`."""
        first, references = self.references(num_references)
        shadows, shadow_runs = self.shadows(num_shadows)
        if first is None:
            return OwnRuns(None, [], shadows, shadow_runs, [], {})
        power = measure_power(
            references,
            shadow_runs,
            self.candidate.graph,
            self.audits,
            tolerance=tolerance,
            alarm=alarm,
            seed=self.seed,
        )
        return OwnRuns(first, references, shadows, shadow_runs, self.plants(shares), power)

    def references(self, count: int) -> tuple[KgeResult | None, list[AuditRun]]:
        """Re-trainings with other seeds. Returns the first one, and what is read off each."""
        first, runs = None, []
        for number in range(count):
            result = self._train(self.candidate.result.graph, "reference", number, count)
            first = first or result
            runs.append(self.read(result))
        return first, runs

    def shadows(self, count: int) -> tuple[list[Shadow], list[AuditRun]]:
        """Shadow federations (`train_shadow`), unlearned as the audited run was where that leaves a trace."""
        options = self.candidate.unlearning.options

        def forgetting(result: KgeResult, forget: Forget) -> KgeResult:
            return unlearn(result, forget, options, make_transport=make_transport)

        shadows, runs = [], []
        for number in range(count):
            trained: list[KgeResult] = []

            def train(
                graph: FederatedGraph,
                options: KgeOptions,
                number: int = number,
                trained: list[KgeResult] = trained,
            ) -> KgeResult:
                trained.append(self._run(graph, options, f"shadow {number + 1} of {count}"))
                return trained[0]

            shadow = train_shadow(
                self.candidate.graph,
                self.candidate.result.graph,
                self.audits,
                self.candidate.result.options,
                number,
                self.seed,
                unlearn=None if options.method in NO_TRACE else forgetting,
                train=train,
            )
            shadows.append(shadow)
            runs.append(self.read(trained[0], relearn=False, trained_on=shadow.member))
        return shadows, runs

    def plants(self, shares: Sequence[float]) -> list[tuple[float, AuditRun]]:
        """Re-trainings with a random share of each client's forget set left in."""
        plants = []
        for number, share in enumerate(shares):
            retained = self.candidate.result.graph
            clients = list(retained.clients)
            for audit in self.audits:
                if audit.asked:
                    rng = generator(self.seed, "plant", number, audit.name)
                    chosen = audit.forget[
                        rng.permutation(len(audit.forget))[: max(1, round(share * len(audit.forget)))]
                    ]
                    client = clients[audit.place]
                    clients[audit.place] = replace_train(client, np.concatenate([client.train, chosen]))
            graph = replace(retained, clients=tuple(clients))
            plants.append((share, self.read(self._train(graph, "plant", number, len(shares)))))
        return plants

    def read(
        self, result: KgeResult, *, relearn: bool = True, trained_on: dict[int, np.ndarray] | None = None
    ) -> AuditRun:
        """What evidence needs of a run."""
        return read_run(
            result,
            self.candidate.graph,
            self.audits,
            seed=self.seed,
            relearn_steps=self.relearn_steps if relearn else 0,
            trained_on=trained_on,
        )

    def _train(self, graph: FederatedGraph, kind: str, number: int, count: int) -> KgeResult:
        own_seed = int(generator(self.seed, f"{kind} seed", number).integers(2**31))
        options = msgspec.structs.replace(self.candidate.result.options, seed=own_seed)
        return self._run(graph, options, f"{kind} {number + 1} of {count}")

    def _run(self, graph: FederatedGraph, options: KgeOptions, name: str) -> KgeResult:
        folder = self.folder / AUDIT_FOLDER / run_identity(graph, options)[:16]
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"{folder}: cannot be made ({error.strerror})") from error
        with self.observe(options, name) as observer:
            return run_federation(graph, options, folder, observer, CHECKPOINT_EVERY_S, make_transport)
