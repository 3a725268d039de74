"""Federated algorithms: each is a recipe of parts and settings, which `run_federation` reads; it knows no algorithm by name.

    RECIPES["feds"].settings(sparsity=0.3)              # validated: SpecError names the setting and the allowed values
    register(Recipe("mine", ENTITIES, "this script"))   # a new recipe; KgeOptions(algorithm="mine") runs it

Built-in recipes are in `fkgsec.algorithms.settings` and `fkgsec.algorithms.graphs.settings`. A package adds recipes by entry
points of group `fkgsec.recipes`. The command line reads all recipes, so a module with recipes should not load torch: name the
local rule as "module:attribute".
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from fkgsec.errors import SpecError
from fkgsec.federation.settings import AlgorithmSettings, SettingField, fields_of
from fkgsec.registry import Registry

Table = str  # name of a table of rows; knowledge graphs have "entities" and "relations"
ENTITIES: tuple[Table, ...] = ("entities",)
RELATIONS: tuple[Table, ...] = ("relations",)
ENTRY_POINTS = "fkgsec.recipes"


@dataclass(frozen=True)
class Recipe:
    """Definition of an algorithm.

    Attributes:
        shared: tables whose rows are uploaded and broadcast.
        source: publication.
        task: name in `fkgsec.federation.task.TASKS`.
        settings: options of this algorithm alone, with the paper's values as defaults.
        pooled: whether one party trains on the data of all clients. This is the upper bound of a task, not a federation: it has
            no victim to attack and no other client to unlearn with.
        keep_optimizer: whether Adam's moments outlive a round. The code of FedE and FedR builds a new Adam every round, since
            shared rows have changed. Training without exchange, and private models, keep theirs. The settings may
            reset what the recipe keeps, see `RunOptions.keeps_optimizer`.
        codec: encoding of shared rows, a name in `fkgsec.exchange.CODECS`.
        aggregation: the server's aggregation, a name in `fkgsec.exchange.AGGREGATIONS`.
        private: second model of each client of the task "kge", which is evaluated while the first is shared. "entities": it has
            its own entity rows and both models use one relation table; "whole": it has both tables. This is declared here, not
            in `local`, since attacks, unlearning and certificates must know the models before training.
        evaluated: "global": each client's model after the broadcast, or before it if the settings say so. "local": the model
            after local training; a broadcast then reaches only the clients that train next.
        local: addition to local training, constructed with the options: for knowledge graphs a
            `fkgsec.kge.local.rule.LocalRule`, for graph classification a `fkgsec.gnn.training.GraphRule`; or its
            "module:attribute", see `rule`.
        keeps_first: whether messages of the first upload are retained for attacks: optimizers are new in it.
    """

    name: str
    shared: tuple[Table, ...]
    source: str
    settings: type[AlgorithmSettings] = AlgorithmSettings
    pooled: bool = False
    keep_optimizer: bool = False
    codec: str = "dense"
    aggregation: str = "mean"
    private: Literal["none", "entities", "whole"] = "none"
    evaluated: Literal["global", "local"] = "global"
    local: Callable[[Any], Any] | str | None = None
    task: str = "kge"
    keeps_first: bool = False

    def __post_init__(self) -> None:
        fields_of(self.settings)  # reject unsupported settings here, not in the first run
        for part, allowed in (("private", ("none", "entities", "whole")), ("evaluated", ("global", "local"))):
            if (value := getattr(self, part)) not in allowed:
                raise SpecError(f"recipe {self.name!r}: {part} must be one of {', '.join(allowed)}; got {value!r}")

    @property
    def rule(self) -> Callable[[Any], Any] | None:
        """The local rule, imported if `local` names it."""
        return pkgutil.resolve_name(self.local) if isinstance(self.local, str) else self.local

    @property
    def alone(self) -> bool:
        """True if each client trains alone: no exchange, no pooled data."""
        return not self.shared and not self.pooled

    def has(self, name: str) -> bool:
        """Return whether the algorithm has a setting.

        Args:
            name: of the setting.
        """
        return any(field.name == name for field in fields_of(self.settings))


# Names only: the modules are imported when an algorithm is first used.
RECIPES: Registry[Recipe] = Registry(
    "algorithm",
    ENTRY_POINTS,
    {
        "single": "fkgsec.algorithms.settings:SINGLE",
        "collective": "fkgsec.algorithms.settings:COLLECTIVE",
        "fede": "fkgsec.algorithms.settings:FEDE",
        "fedep": "fkgsec.algorithms.settings:FEDEP",
        "fedepl": "fkgsec.algorithms.settings:FEDEPL",
        "fedprox": "fkgsec.algorithms.settings:FEDPROX",
        "fedec": "fkgsec.algorithms.settings:FEDEC",
        "fedr": "fkgsec.algorithms.settings:FEDR",
        "feds": "fkgsec.algorithms.settings:FEDS",
        "fedlu": "fkgsec.algorithms.settings:FEDLU",
        "pfedeg": "fkgsec.algorithms.settings:PFEDEG",
        "fede-kd": "fkgsec.algorithms.settings:FEDE_KD",
        "fede-svd": "fkgsec.algorithms.settings:FEDE_SVD",
        "fede-svd+": "fkgsec.algorithms.settings:FEDE_SVD_PLUS",
        "local-gc": "fkgsec.algorithms.graphs.settings:LOCAL",
        "fedavg": "fkgsec.algorithms.graphs.settings:FEDAVG",
        "fedper": "fkgsec.algorithms.graphs.settings:FEDPER",
        "fedgcn": "fkgsec.algorithms.graphs.settings:FEDGCN",
        "fedprox-gc": "fkgsec.algorithms.graphs.settings:FEDPROX",
        "gcfl": "fkgsec.algorithms.graphs.settings:GCFL",
        "gcfl+": "fkgsec.algorithms.graphs.settings:GCFL_PLUS",
        "gcfl+dws": "fkgsec.algorithms.graphs.settings:GCFL_PLUS_DWS",
        "fedstar": "fkgsec.algorithms.graphs.settings:FEDSTAR",
        "spreadgnn": "fkgsec.algorithms.graphs.settings:SPREADGNN",
        "cefgl": "fkgsec.algorithms.graphs.settings:CEFGL",
    },
)


def register(recipe: Recipe) -> Recipe:
    """Add a recipe and return it.

    Args:
        recipe: with a new name.

    Raises:
        SpecError: the argument is no recipe, or another recipe has its name.
    """
    if not isinstance(recipe, Recipe):
        raise SpecError(f"a recipe is expected; got {type(recipe).__name__}")
    return RECIPES.register(recipe.name, recipe)


def algorithms_of(task: str) -> dict[str, Recipe]:
    """Return the algorithms of a task by name, in the registry's order."""
    return {name: recipe for name, recipe in RECIPES.items() if recipe.task == task}


def all_settings(task: str | None = None) -> Mapping[str, Mapping[str, SettingField]]:
    """Return all settings of algorithms by setting and algorithm, in the registry's order.

    Args:
        task: name of the task; None: all.
    """
    return _settings_of(task, RECIPES.version)


@lru_cache(maxsize=8)
def _settings_of(task: str | None, version: int) -> Mapping[str, Mapping[str, SettingField]]:
    """Implement `all_settings`; `version` is the registry's, so that the cache notices changes."""
    fields: dict[str, dict[str, SettingField]] = {}
    for recipe in (RECIPES if task is None else algorithms_of(task)).values():
        for field in fields_of(recipe.settings):
            fields.setdefault(field.name, {})[recipe.name] = field
    return fields
