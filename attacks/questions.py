"""Questions that a verdict answers. Each metric of an attack answers one of them (`fkgsec.attacks.registry.Attack.questions`).

>>> QUESTIONS[MEMBERSHIP]
'Was a triple trained on?'
"""

from __future__ import annotations

ENTITIES, TRIPLES, MEMBERSHIP, LINKS, UPLOADS, INTEGRITY, GRAPHS, GRAPH_MEMBERSHIP, OTHER = (
    "entities", "triples", "membership", "links", "uploads", "integrity", "graphs", "graph membership", "other",
)  # fmt: skip
QUESTIONS = {
    ENTITIES: "Which entities are held?",
    TRIPLES: "Which training triples?",
    MEMBERSHIP: "Was a triple trained on?",
    GRAPHS: "Which training graphs?",
    GRAPH_MEMBERSHIP: "Was a graph trained on?",
    LINKS: "Which links, properties?",
    INTEGRITY: "Can training be altered?",
    UPLOADS: "What did a client send?",
    OTHER: "What else is inferred?",
}
"""Questions in the order of a verdict. A plug-in attack without a question answers `OTHER`."""
LEAK_WORDS = {INTEGRITY: "SUCCEEDS"}
"""Printed word for LEAKS, for attacks that alter training and leak nothing."""
