"""Generated dataset: hospitals with their patients' records and parts of the public medical knowledge.

All of it is drawn at random; it contains no real record. It has the properties of published graphs: Zipf degrees, areas, inverse,
symmetric, composed, one-to-many and many-to-one relations. It also has what they lack and an evaluation of privacy needs: secret
triples, in relations that are marked as sensitive.

Legend: `T` topics, `C` hospitals, `n` entities of a kind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fkgsec.arguments import checked
from fkgsec.data.graph import ClientGraph, FederatedGraph
from fkgsec.data.partition import split_triples
from fkgsec.errors import SpecError
from fkgsec.randomness import generator

# Relations about a patient: each of their triples is health data about a person, so all of them are sensitive.
PATIENT_RELATIONS = ("diagnosed_with", "prescribed", "has_symptom", "underwent", "carries_variant")
PUBLIC_RELATIONS = (
    "treats",  # drug -> diagnosis
    "is_treated_by",  # diagnosis -> drug, inverse of treats
    "contraindicated_for",  # drug -> diagnosis, never one that it treats
    "interacts_with",  # drug - drug, symmetric
    "associated_with",  # gene -> diagnosis
    "targets",  # drug -> gene, mostly treats o associated_with^-1
    "shares_pathway",  # gene - gene, symmetric
    "belongs_to_class",  # drug -> drug class, many to one
    "subtype_of",  # diagnosis -> diagnosis, trees with some grandparents
    "presents_with",  # diagnosis -> symptom
    "managed_by",  # diagnosis -> procedure
)
RELATIONS = PATIENT_RELATIONS + PUBLIC_RELATIONS
SYMMETRIC_RELATIONS = ("interacts_with", "shares_pathway")
INVERSE_RELATIONS = (("treats", "is_treated_by"),)
SMALLEST_SIZE_PER_CLIENT = 20
LARGEST_SIZE = 10_000_000  # triples: minutes and gigabytes to draw

# Shares of the patients' triples, and of the public facts. Treatment leads, as in DDB14's "may cause" and FB15k-237's
# award relations; classes and hierarchy are as many as there are drugs and diagnoses to be put in order.
_PATIENT_BUDGET = {
    "diagnosed_with": 0.34, "prescribed": 0.28, "has_symptom": 0.16, "underwent": 0.12, "carries_variant": 0.10,
}  # fmt: skip
_PUBLIC_BUDGET = {
    "treats": 0.25, "contraindicated_for": 0.08, "interacts_with": 0.14, "associated_with": 0.11, "targets": 0.10,
    "shares_pathway": 0.07, "belongs_to_class": 0.06, "subtype_of": 0.07, "presents_with": 0.08, "managed_by": 0.04,
}  # fmt: skip


# Parameters of the generated consortium, held against `fkgsec data stats` of real graphs.
# Share of all triples that state public knowledge. Just under half: patients come first, yet there is enough shared
# vocabulary for a federation to gain from.
PUBLIC_SHARE = 0.45
# Mean number of triples at an entity. DDB14 has 9.7, FB15k-237 42.7, WN18RR 4.5.
MEAN_DEGREE = 12.0
# Mean number of triples of a patient; below `MEAN_DEGREE`, since records are shorter than textbooks.
PATIENT_TRIPLES = 10.0
# Popularity of the k-th entity of a kind is `k ** -ZIPF_EXPONENT`. The log-log slope of degrees over the top tenth of
# entities is -0.48 by default and steeper in larger consortia (-0.56 at 100,000 triples); it is -0.66 in DDB14, -0.63
# in FB15k-237, -0.49 in WN18RR. The largest hub is in 2.5 % of triples, 2.8 % in FB15k-237.
ZIPF_EXPONENT = 1.1
# Probability that a fact stays within one topic (some 35 entities). Plain TransE on the pooled default reaches a
# filtered MRR of 0.32 to 0.34 by seed, about as on FB15k-237; the most frequent tail or head of the relation has
# 0.08, chance 0.004.
TOPIC_FOCUS = 0.9
# Probability that a fact that leaves its topic stays within the disease area.
AREA_FOCUS = 0.7
# Probability that a patient's prescription, symptom, procedure or variant follows from a diagnosis by a public fact
# (diagnosed_with o is_treated_by => prescribed), and a drug's target from what it treats. The public fact may stand
# at another hospital: that is what federation has to give.
COMPOSED_SHARE = 0.8
# Share of symmetric and of treats facts that stand in both directions; the others stand in one, drawn at random.
# FB15k-237 has 11 % of its triples in symmetric pairs and 28 % with an inverse pair, the default 4 % and 10 %.
STATED_TWICE = 0.3
# Share of public facts that a second hospital holds too; by default 3 to 4 % of all triples repeat one of another
# hospital. Partitions of published graphs have none; hospitals read the same textbooks.
OVERLAP = 0.08
# Share of a patient's diagnoses that belong to a second illness, in a topic of its own.
COMORBIDITY = 0.25
# Share of patients that a second hospital knows too. Their triples still stand at one hospital each.
TRANSFER_SHARE = 0.03
# Dirichlet concentration of a hospital's interest in the areas. 2 makes specialised hospitals, less so than FedLU's
# clustered partitions; large values make them alike.
AREA_CONCENTRATION = 2.0
# The k-th hospital has patients in proportion to `k ** -SIZE_EXPONENT`; clients of real federations are uneven, so
# that a mean and a weighted mean differ.
SIZE_EXPONENT = 0.25


# Public vocabulary: kinds of entities in topics within disease areas, and draws from them.

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

    def __init__(self, num_topics: int, rng: np.random.Generator) -> None:
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
        popularity = (1.0 + rng.permutation(count)) ** -ZIPF_EXPONENT
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
        in_topic = chance[0] < TOPIC_FOCUS
        in_area = chance[1] < AREA_FOCUS
        first = np.where(in_topic, topics, np.where(in_area, self.area_bounds[areas], 0))
        last = np.where(in_topic, topics + 1, np.where(in_area, self.area_bounds[areas + 1], self.num_topics))
        return kind.draw_between(kind.topic_bounds[first], kind.topic_bounds[last], rng)

    def follow(self, facts: np.ndarray, starts: np.ndarray, kind_name: str, rng: np.random.Generator) -> np.ndarray:
        """Draw for each start the end of a fact with this start, with probability `COMPOSED_SHARE`; else `draw_near`.

        Args:
            facts: int64 `[m, 2]`, start and end.
            starts: int64 `[n]`, entity IDs.
            kind_name: kind of the ends.
            rng: source of randomness.
        """
        # Sorted by start, the facts of each start are a range.
        ordered = facts[np.argsort(facts[:, 0], kind="stable")]
        low, high = (np.searchsorted(ordered[:, 0], starts, side=side) for side in ("left", "right"))
        followed = (rng.random(len(starts)) < COMPOSED_SHARE) & (high > low)
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


# Facts and records.


def _distinct(rows: np.ndarray) -> np.ndarray:
    """Return the first of all rows that agree in their first two columns, in order."""
    if not len(rows):
        return rows
    _, index = np.unique(rows[:, 0] * (rows[:, 1].max() + 1) + rows[:, 1], return_index=True)
    return rows[np.sort(index)]


def _draw_distinct(count: int, draw_rows: Callable[[int], np.ndarray], first: np.ndarray | None = None) -> np.ndarray:
    """Draw `count` rows that differ in their first two columns, those of `first` before others.

    Fewer are returned if eight draws do not suffice: a world that small has no more.
    """
    rows = draw_rows(0) if first is None else _distinct(first)
    for _ in range(8):
        missing = count - len(rows)
        if missing <= 0:
            break
        rows = _distinct(np.concatenate([rows, draw_rows(missing + missing // 4 + 8)]))
    return rows[:count]


def _draw_facts(world: World, count: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Draw `count` public facts as pairs `[n, 2]` (head, tail) per relation, each stated once."""
    kinds, topic_of = world.kinds, world.topic_of_entity
    budget = {relation: round(share * count) for relation, share in _PUBLIC_BUDGET.items()}

    def draw(relation: str, head: str, tail: str, *, symmetric: bool = False) -> np.ndarray:
        def draw_rows(num_rows: int) -> np.ndarray:
            # Head by popularity, tail near the head's topic.
            heads = kinds[head].draw(num_rows, rng)
            rows = np.stack([heads, world.draw_near(tail, topic_of[heads], rng)], axis=1)
            return np.sort(rows, axis=1)[rows[:, 0] != rows[:, 1]] if symmetric else rows

        return _draw_distinct(budget[relation], draw_rows)

    treats = draw("treats", "drug", "diagnosis")
    associated = draw("associated_with", "gene", "diagnosis")
    facts = {
        "treats": treats,
        "associated_with": associated,
        "interacts_with": draw("interacts_with", "drug", "drug", symmetric=True),
        "shares_pathway": draw("shares_pathway", "gene", "gene", symmetric=True),
        "presents_with": draw("presents_with", "diagnosis", "symptom"),
        "managed_by": draw("managed_by", "diagnosis", "procedure"),
    }

    def draw_targets(num_rows: int) -> np.ndarray:
        # A drug's targets follow from what it treats: drug -> diagnosis -> gene.
        drugs, diagnoses = treats[rng.integers(len(treats), size=num_rows)].T
        return np.stack([drugs, world.follow(associated[:, ::-1], diagnoses, "gene", rng)], axis=1)

    facts["targets"] = _draw_distinct(budget["targets"], draw_targets)

    # Contraindications of a topic's drugs lie in one other topic, its rival, so that a model can learn them.
    rival = rng.permutation(world.num_topics)

    def draw_contraindicated(num_rows: int) -> np.ndarray:
        drugs = kinds["drug"].draw(num_rows, rng)
        rows = np.stack([drugs, world.draw_near("diagnosis", rival[topic_of[drugs]], rng)], axis=1)
        # Pack (drug, diagnosis) into one number: a drug is never contraindicated for what it treats.
        treated = np.isin(rows @ [world.num_entities, 1], treats @ [world.num_entities, 1])
        return rows[~treated]

    facts["contraindicated_for"] = _draw_distinct(budget["contraindicated_for"], draw_contraindicated)

    # One class per drug, for as many drugs as the budget allows.
    drug = kinds["drug"]
    drugs = drug.first_id + rng.permutation(drug.num_entities)
    every_drug = np.stack([drugs, world.draw_near("class", topic_of[drugs], rng)], axis=1)
    facts["belongs_to_class"] = _draw_distinct(budget["belongs_to_class"], lambda num_rows: every_drug[:0], every_drug)
    facts["subtype_of"] = _draw_hierarchy(kinds["diagnosis"], budget["subtype_of"], rng)
    return facts


def _draw_hierarchy(kind: Kind, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw `subtype_of` pairs: per topic a tree with three children per node; grandparents if these do not suffice."""
    position = np.arange(kind.num_entities)
    root = kind.topic_bounds[kind.topics]
    # Heap order within a topic: node i has the children 3 i + 1 to 3 i + 3.
    parent = np.where(position > root, root + (position - root - 1) // 3, position)
    grandparent = parent[parent]
    pairs = [
        np.stack([position, ancestor], axis=1)[rng.permutation(kind.num_entities)] for ancestor in (parent, grandparent)
    ]
    rows = np.concatenate(pairs)
    rows = _distinct(rows[rows[:, 0] != rows[:, 1]])
    return kind.first_id + rows[:count]


def _state_facts(
    world: World,
    facts: dict[str, np.ndarray],
    interest: np.ndarray,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Draw the holder of each statement `[n]`, and the triple `[n, 3]` in IDs of the world; `interest` is `[C, areas]`,
    positive.
    """
    num_clients = len(interest)
    # The relation that states the same fact from tail to head; a symmetric relation is its own.
    opposite = {a: b for pair in INVERSE_RELATIONS for a, b in (pair, pair[::-1])} | {r: r for r in SYMMETRIC_RELATIONS}
    rows = np.concatenate([np.insert(pairs, 1, RELATIONS.index(relation), axis=1) for relation, pairs in facts.items()])
    opposite_of = np.array([RELATIONS.index(opposite[r]) if r in opposite else -1 for r in RELATIONS])[rows[:, 1]]
    # A hospital holds facts of the areas that it works in; a second hospital, drawn likewise, holds some of them too.
    weight = interest[:, world.area_of_topic[world.topic_of_entity[rows[:, 0]]]]
    owner = _draw_hospital(weight, rng)
    has_second = rng.random(len(rows)) < (OVERLAP if num_clients > 1 else 0.0)
    weight[owner, np.arange(len(rows))] = 0.0
    second = _draw_hospital(weight[:, has_second], rng)

    direction = rng.random((2, len(rows)))
    reversible = opposite_of >= 0
    twice = reversible & (direction[0] < STATED_TWICE)
    turned = reversible & ~twice & (direction[1] < 0.5)
    reverse = np.stack([rows[:, 2], opposite_of, rows[:, 0]], axis=1)
    stated = np.where(turned[:, None], reverse, rows)
    # Both statements of a fact are at the same hospital, see inverse leakage in `generate_consortium`.
    holders = np.concatenate([owner, owner[twice], second, second[twice[has_second]]])
    triples = np.concatenate([stated, reverse[twice], stated[has_second], reverse[twice & has_second]])
    return holders, triples


def _draw_hospital(weight: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw a hospital for each column of `weight` `[C, n]`, with proportional probability."""
    edges = np.cumsum(weight, axis=0)
    return (edges < rng.random(weight.shape[1]) * edges[-1]).sum(axis=0) if weight.shape[1] else np.zeros(0, np.int64)


def _admit_patients(
    world: World, interest: np.ndarray, patients_at: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw a stay for each patient at home, `patients_at` `[C]`, and another for those who are transferred.

    Returns:
        Patient and hospital of each stay, and the topics of each patient's illnesses, `[2, patients]`.
    """
    num_clients = len(interest)
    home = np.repeat(np.arange(num_clients), patients_at)
    transferred = np.flatnonzero(rng.random(len(home)) < (TRANSFER_SHARE if num_clients > 1 else 0.0))
    # Any hospital except the patient's own.
    elsewhere = (home[transferred] + rng.integers(1, max(num_clients, 2), size=len(transferred))) % num_clients
    # Two topics each: the main illness and another one, both as common as their diagnoses at the hospital.
    diagnosis = world.kinds["diagnosis"]
    weight = np.add.reduceat(diagnosis.popularity, diagnosis.topic_bounds[:-1]) * interest[:, world.area_of_topic]
    # Inverse sampling for all patients in one search: hospital h draws in h..h + 1.
    edges = np.cumsum(weight, axis=1)
    edges = edges / edges[:, -1:] + np.arange(num_clients)[:, None]
    hospitals = np.searchsorted(edges.ravel(), home + rng.random((2, len(home))), side="right")
    topics = np.minimum(hospitals - home * world.num_topics, world.num_topics - 1)
    return np.concatenate([np.arange(len(home)), transferred]), np.concatenate([home, elsewhere]), topics


def _draw_records(
    world: World,
    facts: dict[str, np.ndarray],
    stays: tuple[np.ndarray, np.ndarray, np.ndarray],
    count: int,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Draw holder and about `count` triples of patients, like `_state_facts`; patients are numbered after the world's
    entities.

    Args:
        stays: from `_admit_patients`.
    """
    patient, hospital, topics_of = stays

    def draw_diagnoses(stay: np.ndarray) -> np.ndarray:
        patients = patient[stay]
        topics = topics_of[(rng.random(len(stay)) < COMORBIDITY).astype(np.int64), patients]
        return np.stack([patients, world.draw_near("diagnosis", topics, rng), hospital[stay]], axis=1)

    # Records differ in length as popularities do, but less: exponent halved. Every stay has one diagnosis at least.
    length_edges = np.cumsum((1.0 + rng.permutation(len(patient))) ** (-ZIPF_EXPONENT / 2))

    def draw_stays(num_rows: int) -> np.ndarray:
        return np.searchsorted(length_edges, rng.random(num_rows) * length_edges[-1], side="right")

    budget = {relation: round(share * count) for relation, share in _PATIENT_BUDGET.items()}
    # One diagnosis per stay first, so that every patient has a triple; then more by record length.
    diagnosed = _draw_distinct(
        max(budget["diagnosed_with"], len(patient)),
        lambda num_rows: draw_diagnoses(draw_stays(num_rows)),
        draw_diagnoses(np.arange(len(patient))),
    )

    def draw_from_diagnoses(prior: np.ndarray, kind: str) -> Callable[[int], np.ndarray]:
        def draw_rows(num_rows: int) -> np.ndarray:
            patients, diagnoses, hospitals = diagnosed[rng.integers(len(diagnosed), size=num_rows)].T
            return np.stack([patients, world.follow(prior, diagnoses, kind, rng), hospitals], axis=1)

        return draw_rows

    rows = {"diagnosed_with": diagnosed}
    for relation, anchor, kind in (
        ("prescribed", facts["treats"][:, ::-1], "drug"),
        ("has_symptom", facts["presents_with"], "symptom"),
        ("underwent", facts["managed_by"], "procedure"),
        ("carries_variant", facts["associated_with"][:, ::-1], "gene"),
    ):
        rows[relation] = _draw_distinct(budget[relation], draw_from_diagnoses(anchor, kind))
    triples = [
        np.stack([r[:, 0] + world.num_entities, np.full(len(r), RELATIONS.index(name)), r[:, 1]], axis=1)
        for name, r in rows.items()
    ]
    return np.concatenate([r[:, 2] for r in rows.values()]), np.concatenate(triples)


def _has_twin(triples: np.ndarray) -> np.ndarray:
    """Return whether another triple `[n, 3]` links the same two entities, in either direction, bool `[n]`."""
    # Undirected pairs: an inverse or symmetric statement counts, too.
    low, high = triples[:, [0, 2]].min(axis=1), triples[:, [0, 2]].max(axis=1)
    _, inverse, counts = np.unique(low * (triples.max() + 1) + high, return_inverse=True, return_counts=True)
    return counts[inverse] > 1


def _check(clients: int, size: int, seed: int) -> None:
    for name, value in (("clients", clients), ("size", size), ("seed", seed)):
        checked(name, int, value)
    if clients < 1:
        raise SpecError(f"clients is {clients}, allowed: 1 or more")
    if not SMALLEST_SIZE_PER_CLIENT * clients <= size <= LARGEST_SIZE:
        raise SpecError(
            f"size is {size}, allowed: {SMALLEST_SIZE_PER_CLIENT} per client or more ({clients} clients), and at most "
            f"{LARGEST_SIZE:,}"
        )
    if seed < 0:
        raise SpecError(f"seed is {seed}, allowed: 0 or more")


def generate_consortium(clients: int = 3, size: int = 13_500, seed: int = 0) -> FederatedGraph:
    """Generate a federation of `clients` hospitals with about `size` triples in total, split 8:1:1 at each of them.

    Entities have readable names (`hospital-2/patient-017`, `diagnosis:asthma-012`). Each triple of a patient is at one
    hospital, and nearly all patients are known to one hospital only. Public facts are at the hospitals that work in their
    area. All relations about patients are `sensitive`. Diseases, drugs and other entities belong to topics within areas;
    their popularity follows Zipf's law. Most prescriptions of a patient follow from the diagnoses by `is_treated_by`,
    which another hospital may hold. No client has a triple twice.

    Inverse leakage: if a client has a fact in both directions (`STATED_TWICE`), both are in its train split, as is every
    other triple whose entities are linked twice there. So the client's own train split has neither the inverse pair of a
    test triple nor its pair under another relation (FB15k-237 is cleaned likewise; WN18RR has 35 %). Facts in one
    direction still test inverse and symmetric relations. Across clients, a test triple may be in another client's train
    split as it is, by `OVERLAP` (4 % of all), but never as an inverse or under another relation.

    Args:
        clients: number of hospitals, 1 or more.
        size: number of triples in train, valid and test, met within a few percent; at least `SMALLEST_SIZE_PER_CLIENT`
            per client. 300,000 take a second or two.
        seed: 0 or more; the same arguments give the same graph.

    Raises:
        SpecError: an argument is out of its range.

    Source: none; the design is ours; the parameters above compare it with published graphs.
    """
    _check(clients, size, seed)
    rng = generator(seed, "consortium")

    # From the number of triples to those of patients, entities and topics, by mean degrees.
    num_records = round(size * (1 - PUBLIC_SHARE))
    num_patients = max(clients, round(num_records / PATIENT_TRIPLES))
    num_public = 2 * size / MEAN_DEGREE - num_patients
    world = World(max(1, round(num_public / ENTITIES_PER_TOPIC)), rng)
    hospital_size = np.arange(1.0, clients + 1) ** -SIZE_EXPONENT
    # Each hospital specializes in some areas.
    taste = rng.dirichlet(np.full(world.num_areas, AREA_CONCENTRATION), size=clients)
    interest = np.maximum(taste, 1e-9) * hospital_size[:, None]
    patients_at = 1 + rng.multinomial(num_patients - clients, hospital_size / hospital_size.sum())

    # Facts in both directions or at two hospitals are several triples each.
    reversible = sum(_PUBLIC_BUDGET[relation] for relation in ("treats", *SYMMETRIC_RELATIONS))
    triples_per_fact = (1 + STATED_TWICE * reversible) * (1 + OVERLAP * (clients > 1))
    facts = _draw_facts(world, max(round((size - num_records) / triples_per_fact), len(_PUBLIC_BUDGET) * 2), rng)
    stated = _state_facts(world, facts, interest, rng)
    stays = _admit_patients(world, interest, patients_at, rng)
    records = _draw_records(world, facts, stays, num_records, rng)

    # The vocabulary has only entities that occur in a triple; patients are numbered within their home hospital.
    holder, triples = (np.concatenate(parts) for parts in zip(stated, records, strict=True))
    used, local = np.unique(triples[:, [0, 2]], return_inverse=True)
    triples[:, [0, 2]] = local.reshape(-1, 2)
    names = world.entity_names() + [
        f"hospital-{hospital}/patient-{number:03d}"
        for hospital, count in enumerate(patients_at.tolist(), start=1)
        for number in range(1, count + 1)
    ]
    graphs, warnings = [], []
    for client in range(clients):
        held_triples = triples[holder == client]
        split = split_triples(held_triples, rng=rng, train_only=_has_twin(held_triples))
        graphs.append(ClientGraph.from_global(f"hospital-{client + 1}", split.train, split.valid, split.test))
        warnings.extend(f"hospital-{client + 1}: {warning}" for warning in split.warnings)
    return FederatedGraph(
        name=f"consortium-{clients}",
        entities=tuple(names[index] for index in used.tolist()),
        relations=RELATIONS,
        clients=tuple(graphs),
        sensitive=frozenset(PATIENT_RELATIONS),
        warnings=tuple(warnings),
    )
