"""The federated algorithms: each a row of parts with its own settings; `run_federation` reads it and knows none by name.

    RECIPES["feds"].settings(sparsity=0.3)              # checked: SpecError names the setting and what is allowed
    register(Recipe("mine", ENTITIES, "this script"))   # a row of one's own; KgeOptions(algorithm="mine") runs it

The shipped ones are in `fkgsec.algorithms.settings` and `fkgsec.algorithms.graphs.settings`. A package adds its own by an entry
point of group `fkgsec.recipes` whose object is a `Recipe`. The command line reads all recipes, so a module with recipes should
not load torch: name the local rule as "module:attribute".
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

Table = str  # the name of a table of rows; knowledge graphs have "entities" and "relations"
ENTITIES: tuple[Table, ...] = ("entities",)
RELATIONS: tuple[Table, ...] = ("relations",)
ENTRY_POINTS = "fkgsec.recipes"


@dataclass(frozen=True)
class Recipe:
    """Definition of an algorithm.

    Attributes:
        shared: the tables whose rows go to the server and come back.
        source: where it comes from.
        task: what is trained, a name in `fkgsec.federation.task.TASKS`.
        settings: the options that this algorithm has beside those of every federation, at the paper's values.
        pooled: one party trains on the data of all clients. Not one algorithm's part but the absence of a federation, the upper
            reference of every task: there is no victim to attack, and nobody else to unlearn with.
        keep_optimizer: whether Adam's moments outlive a round. FedE's and FedR's codes build a new Adam every round, since
            the shared rows have changed under it; training without exchange keeps its own, and so does a private model. The
            settings may reset what the recipe keeps, see `RunOptions.keeps_optimizer`.
        codec: how shared rows cross, a name in `fkgsec.exchange.CODECS`.
        aggregation: what the server makes of them, a name in `fkgsec.exchange.AGGREGATIONS`.
        private: a second model that each client of the task "kge" keeps to itself: "entities", it has entity rows of its own and
            both models use one relation table; "whole", it has both tables. The first model is the one whose rows are shared,
            the second the one that is evaluated. It stands here, and not in `local`, since attacks, unlearning and certificates
            must know which models there are before anything is trained.
        evaluated: "global", each client's model after the broadcast, or before it where the settings say so; "local", as its own
            training left it: then a broadcast reaches only those who train next.
        local: what it adds to local training, made with the options: for knowledge graphs a `fkgsec.kge.local.rule.LocalRule`,
            for graph classification a `fkgsec.gnn.training.GraphRule`; or where it is, as "module:attribute", see `rule`.
        keeps_first: whether the messages of the first round of uploads are kept for attacks: optimisers are new in it.
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
        fields_of(self.settings)  # a struct that cannot be read is refused here, not by the first run
        for part, allowed in (("private", ("none", "entities", "whole")), ("evaluated", ("global", "local"))):
            if (value := getattr(self, part)) not in allowed:
                raise SpecError(f"recipe {self.name!r}: {part} must be one of {', '.join(allowed)}; got {value!r}")

    @property
    def rule(self) -> Callable[[Any], Any] | None:
        """`local`, imported where it is named."""
        return pkgutil.resolve_name(self.local) if isinstance(self.local, str) else self.local

    def has(self, name: str) -> bool:
        """Return whether the algorithm has this setting."""
        return any(field.name == name for field in fields_of(self.settings))


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
    """Add a recipe of one's own; returns it. Raises `SpecError` for something else, or a name that another recipe has."""
    if not isinstance(recipe, Recipe):
        raise SpecError(f"a recipe is expected; got {type(recipe).__name__}")
    return RECIPES.register(recipe.name, recipe)


def algorithms_of(task: str) -> dict[str, Recipe]:
    """The algorithms of a task, by name, in the registry's order."""
    return {name: recipe for name, recipe in RECIPES.items() if recipe.task == task}


def all_settings(task: str | None = None) -> Mapping[str, Mapping[str, SettingField]]:
    """Return all settings of algorithms, of a task or of any, by name and algorithm, in the registry's order."""
    return _settings_of(task, RECIPES.version)


@lru_cache(maxsize=8)
def _settings_of(task: str | None, version: int) -> Mapping[str, Mapping[str, SettingField]]:
    """Implement `all_settings`. Args: version: of the registry, so that the cache notices changes."""
    fields: dict[str, dict[str, SettingField]] = {}
    for recipe in (RECIPES if task is None else algorithms_of(task)).values():
        for field in fields_of(recipe.settings):
            fields.setdefault(field.name, {})[recipe.name] = field
    return fields
