"""Public vocabulary of the generated dataset: kinds of entities in topics within disease areas, and draws from them.

Legend: `T` topics, `n` entities of a kind.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

KINDS_PER_TOPIC = {"diagnosis": 10, "drug": 9, "gene": 7, "symptom": 4, "procedure": 4, "class": 1}
ENTITIES_PER_TOPIC = sum(KINDS_PER_TOPIC.values())

# Words for one disease area: diagnosis, drug, gene, symptom, procedure, class. Invented names without medical meaning.
AREAS = tuple(
    dict(zip(KINDS_PER_TOPIC, line.split(), strict=True))
    for line in (
        "asthma budesolin ORMD wheeze spirometry bronchodilators",
        "cardiopathy olsartan SCNX palpitation stenting sartans",
        "diabetes gliptaxin TCFL thirst insulin-pump gliptins",
        "arthritis tocimab HLDR joint-pain arthroscopy interleukin-blockers",
        "melanoma vemurax BRFA skin-lesion excision kinase-inhibitors",
        "leukaemia imatonib ABLX fatigue marrow-transplant tyrosine-blockers",
        "epilepsy levetrax KCNR seizure electrography anticonvulsants",
        "depression sertralan SLCT low-mood psychotherapy serotonergics",
        "hepatitis sofobuvan IFNX jaundice liver-biopsy antivirals",
        "nephropathy finerolin APOM oedema dialysis antagonists",
        "colitis mesalaxin NODR abdominal-pain colonoscopy salicylates",
        "sepsis meropexam TLRX fever lavage carbapenems",
        "migraine ergotrilan CACN headache nerve-block triptans",
        "anaemia epoetan HBBX pallor transfusion erythropoietics",
        "psoriasis secukilab CARD rash phototherapy biologics",
        "osteoporosis alendrex COLA fracture densitometry bisphosphonates",
    )
)


class Kind(NamedTuple):
    """Entities of one kind, sorted by topic; `topic_bounds` is `[T + 1]`, `edges` `[n + 1]` is cumulative popularity."""

    name: str
    first_id: int
    topics: np.ndarray
    topic_bounds: np.ndarray
    popularity: np.ndarray
    edges: np.ndarray

    @property
    def num_entities(self) -> int:
        """Number of entities of this kind."""
        return len(self.topics)

    def draw_between(self, low: np.ndarray, high: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw one entity ID by popularity from each range `low <= position < high`.

        Args:
            low, high: int64 `[n]`.
            rng: source of randomness.
        """
        # Inverse sampling on cumulative popularity, restricted to the range.
        start, stop = self.edges[low], self.edges[high]
        position = np.searchsorted(self.edges, start + rng.random(len(low)) * (stop - start), side="right") - 1
        return self.first_id + np.clip(position, low, high - 1)  # rounding may step over an edge

    def draw(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Draw entity IDs by popularity.

        Args:
            count: number of draws.
            rng: source of randomness.
        """
        return self.draw_between(np.zeros(count, np.int64), np.full(count, self.num_entities), rng)


class World:
    """Public vocabulary: topics within areas, and the kinds of entities in them. IDs count through the kinds."""

    def __init__(
        self,
        num_topics: int,
        *,
        zipf_exponent: float,
        topic_focus: float,
        area_focus: float,
        composed_share: float,
        rng: np.random.Generator,
    ) -> None:
        self.zipf_exponent, self.composed_share = zipf_exponent, composed_share
        self.topic_focus, self.area_focus = topic_focus, area_focus
        self.num_topics, self.num_areas = num_topics, min(len(AREAS), num_topics)
        # Consecutive topics form an area.
        self.area_of_topic = np.arange(num_topics) * self.num_areas // num_topics
        self.area_bounds = np.searchsorted(self.area_of_topic, np.arange(self.num_areas + 1))
        self.kinds: dict[str, Kind] = {}
        self.num_entities = 0
        for name, per_topic in KINDS_PER_TOPIC.items():
            self.kinds[name] = kind = self._make_kind(name, per_topic * num_topics, rng)
            self.num_entities += kind.num_entities
        self.topic_of_entity = np.concatenate([kind.topics for kind in self.kinds.values()])

    def _make_kind(self, name: str, count: int, rng: np.random.Generator) -> Kind:
        # One entity of each kind in every topic, so that no topic is empty; the others anywhere.
        topics = np.sort(
            np.concatenate([np.arange(self.num_topics), rng.integers(self.num_topics, size=count - self.num_topics)])
        )
        # Zipf's law over a random order, so that hubs are spread over topics.
        popularity = (1.0 + rng.permutation(count)) ** -self.zipf_exponent
        bounds = np.searchsorted(topics, np.arange(self.num_topics + 1))
        return Kind(name, self.num_entities, topics, bounds, popularity, np.concatenate([[0.0], np.cumsum(popularity)]))

    def draw_near(self, kind_name: str, topics: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw one entity ID of a kind for each topic: from the topic, else from its area, else from anywhere.

        Args:
            kind_name: key of `KINDS_PER_TOPIC`.
            topics: int64 `[n]`.
            rng: source of randomness.
        """
        kind, chance = self.kinds[kind_name], rng.random((2, len(topics)))
        areas = self.area_of_topic[topics]
        in_topic = chance[0] < self.topic_focus
        in_area = chance[1] < self.area_focus
        first = np.where(in_topic, topics, np.where(in_area, self.area_bounds[areas], 0))
        last = np.where(in_topic, topics + 1, np.where(in_area, self.area_bounds[areas + 1], self.num_topics))
        return kind.draw_between(kind.topic_bounds[first], kind.topic_bounds[last], rng)

    def follow(self, facts: np.ndarray, starts: np.ndarray, kind_name: str, rng: np.random.Generator) -> np.ndarray:
        """Draw for each start the end of a fact with this start, with probability `composed_share`; else `draw_near`.

        Args:
            facts: int64 `[m, 2]`, start and end.
            starts: int64 `[n]`, entity IDs.
            kind_name: kind of the ends.
            rng: source of randomness.
        """
        # Sorted by start, the facts of each start are a range.
        ordered = facts[np.argsort(facts[:, 0], kind="stable")]
        low, high = (np.searchsorted(ordered[:, 0], starts, side=side) for side in ("left", "right"))
        followed = (rng.random(len(starts)) < self.composed_share) & (high > low)
        ends = self.draw_near(kind_name, self.topic_of_entity[starts], rng)
        position = low + (rng.random(len(starts)) * (high - low)).astype(np.int64)
        ends[followed] = ordered[position[followed], 1]
        return ends

    def entity_names(self) -> list[str]:
        """Return a name for each entity, such as `drug:olsartan-003`."""
        return [
            f"{name}:{AREAS[area][name]}-{number:03d}"
            for name, kind in self.kinds.items()
            for number, area in enumerate(self.area_of_topic[kind.topics].tolist(), start=1)
        ]
