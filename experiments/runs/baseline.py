"""The baseline of a federation, the same clients alone: its spec, and which of several runs it is.

    alone_spec(make_spec(None, {"algorithm": "fede", "defense": "secagg"})).settings.baseline    # "entities"
    alone_among(record, records)                       # the record of the same clients alone, if it is there

Nothing here trains; `fkgsec.experiments.runs.alone` does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from fkgsec.experiments.runs.record import Record
from fkgsec.experiments.tasks.spec import RunSpec
from fkgsec.federation.recipes import RECIPES, algorithms_of


def exchanges(spec: RunSpec) -> bool:
    """Return True if the clients of a run exchange rows, so that joining can be worth something."""
    return bool(RECIPES[spec.algorithm].shared)


def trains_alone(spec: RunSpec) -> bool:
    """Return True if each client of a run trains alone: no exchange, no pooled data."""
    return RECIPES[spec.algorithm].alone


def alone_spec(spec: RunSpec) -> RunSpec:
    """Return the spec of the same clients alone, without defense and attacks; settings that they do not have are left out.

    They start from the rows that the server would have sent, and the optimizer of the model that is evaluated keeps or resets its
    moments as in the federation. A private model has first rows of its own and keeps its moments.
    """
    recipes, federated = algorithms_of(spec.task), RECIPES[spec.algorithm]
    # The algorithm that neither shares rows nor pools data trains each client alone.
    algorithm = next(name for name, recipe in recipes.items() if recipe.alone)
    settings = {name: value for name, value in spec.settings.given().items() if recipes[algorithm].has(name)}
    resets = federated.private == "none" and not spec.federation_options().keeps_optimizer
    if federated.shared and resets and recipes[algorithm].has("baseline"):
        settings["baseline"] = federated.shared[0]
    # Options of attacks do not change a training, so the baseline has their defaults.
    of_attacks = set(spec.attacks_type.__struct_fields__) - set(spec.options_type.__struct_fields__)
    defaults = {name: getattr(type(spec)(), name) for name in (*of_attacks, "attack_seed")}
    options: Any = spec.settled()
    changes = {"algorithm": algorithm, "defense": "", "settings": settings, "device": spec.device}
    return msgspec.structs.replace(options, **defaults, **changes)


def alone_among(record: Record, runs: Iterable[Record]) -> Record | None:
    """Return the run of the same clients alone, with the same data, seed and optimizer schedule; None without one.

    One that starts from the server's first rows of another table will do: it differs by chance only.
    """

    def options(spec: RunSpec, table: str | None = None) -> Any:
        """Return the options to compare; with a table, as if the first rows were those of this table."""
        if table is not None and getattr(spec.settings, "baseline", "papers") != "papers":
            spec = spec.replace(baseline=table)
        return spec.settled().federation_options()

    if not exchanges(record.spec):
        return None
    wanted = alone_spec(record.spec)
    same = [run for run in runs if run.spec.algorithm == wanted.algorithm and run.data.hash == record.data.hash]
    # Prefer a run with the very same first rows, then accept those of another table.
    for table in (None, "entities"):
        for run in same:
            if options(run.spec, table) == options(wanted, table):
                return run
    return None
