"""Requirements of attacks: what an adversary must hold, which threat models grant it, and why a victim cannot be attacked.

needs = Needs(single_uploads=("entities",))
needs.fit(THREAT_MODELS["server"])          # True
needs.never("fedr", THREAT_MODELS["server"])  # 'fedr transmits no entities'
"""

from __future__ import annotations

from dataclasses import dataclass

from fkgsec.attacks.options import ThreatModel
from fkgsec.attacks.view import Victim
from fkgsec.federation.recipes import RECIPES, Table


@dataclass(frozen=True)
class Needs:
    """The requirements of an attack.

    Attributes:
        colluder: element-embedding pairs of a client.
        names: the entity of each uploaded row.
        single_uploads: tables whose rows each victim must have uploaded individually, not only in a sum.
        entities: entity rows of the victims from any source: uploaded, in a sum, or assumed known.
        models: final models of the clients.
        server: the server's messages.
        auxiliary: some of the victims' triples, or graphs of the victims' data sets that nobody trains on.
        alone: a client's own data and the broadcasts it received, without any server.
        candidates: graphs of which some are the victims', for the attack to tell apart. Graph views contain them only for
            attacks that need them.
        first_round: messages of the first round of uploads, instead of the last round up to the best round.
    """

    colluder: bool = False
    names: bool = False
    single_uploads: tuple[Table, ...] = ()
    entities: bool = False
    models: bool = False
    server: bool = False
    auxiliary: bool = False
    alone: bool = False
    candidates: bool = False
    first_round: bool = False

    def fit(self, model: ThreatModel) -> bool:
        """Test whether a threat model meets the requirements."""
        # Only what an attack needs must be there: more knowledge than that does no harm.
        alone = model.colluder and not model.server
        gives = (model.colluder, model.identifiers, model.models, model.server, model.auxiliary, alone)
        needed = (self.colluder, self.names, self.models, self.server, self.auxiliary, self.alone)
        return all(has >= needs for has, needs in zip(gives, needed, strict=True))

    def missing(self, victim: Victim) -> str | None:
        """Explain why a victim cannot be attacked.

        Args:
            victim: victim of a view.

        Returns:
            The reason, or None if the view has all required parts of it.
        """
        parts = (*self.single_uploads, *(name for name in ("auxiliary", "candidates") if getattr(self, name)))
        return next((reason for part in parts if (reason := victim.why_none(part))), None)

    def never(self, algorithm: str, model: ThreatModel) -> str | None:
        """Explain why no run of an algorithm meets the requirements under a threat model.

        Args:
            algorithm: name in `RECIPES`.
            model: threat model.

        Returns:
            The reason, or None if a run may meet them.
        """
        recipe = RECIPES[algorithm]
        if recipe.pooled:
            return "one party holds all triples"
        if self.colluder and not model.colluder:
            graph = recipe.task == "graph"
            return "it takes a client" if graph else "no element-embedding pair is known without a colluder"
        if self.names and not model.identifiers:
            return "names are hidden"
        if self.alone and (model.server or not model.colluder):
            return "it takes a client alone"
        if self.server and not model.server:
            return "it takes a server"
        if self.auxiliary and not model.auxiliary:
            return "no labelled data of the victims are known"
        if self.models and not model.models:
            return "no model of a client is known"
        if missing := [table for table in self.single_uploads if table not in recipe.shared]:
            return f"{algorithm} transmits no {missing[0]}"
        if self.entities and "entities" not in recipe.shared and not model.victim_entities:
            return f"{algorithm} transmits no entity embedding"
        return None

    def words(self) -> str:
        """Describe the requirements for a table."""
        words = {
            "colluder": "a colluder", "names": "names", "models": "clients' models", "server": "a server",
            "auxiliary": "auxiliary data", "candidates": "candidates", "alone": "a client alone",
            "first_round": "the first round",
        }  # fmt: skip
        parts = [f"each victim's {table}" for table in self.single_uploads]
        return ", ".join([*parts, *(word for name, word in words.items() if getattr(self, name))]) or "nothing"
