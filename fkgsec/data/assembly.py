"""Build numbered graphs, with warnings, from triples by name. Every reader uses this module.

A reader passes `NamedTriples` per split: three lists of names and a function that locates a row. Errors and warnings can then
give file and line without storing a string per row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np

from fkgsec.data.graph import SPLITS, ClientGraph, FederatedGraph, KnowledgeGraph
from fkgsec.data.normalise import respelled
from fkgsec.errors import DataError
from fkgsec.text import shown

Place = Callable[[int], str]
_RESPELLED = "name that is another but for its Unicode form, and counted apart from it"


class NamedTriples(NamedTuple):
    """Triples of one split by name, in file order; `place(row)` locates a row (`path:line`)."""

    heads: list[str]
    relations: list[str]
    tails: list[str]
    place: Place


@dataclass(frozen=True)
class NameList:
    """Vocabulary from a file: `names` by ID, and the file that lists them."""

    source: str
    names: tuple[str, ...]


class Findings:
    """Counter of irregularities that are no errors; over many clients one line per kind, with its first location."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, str], list[tuple[int, str]]] = {}

    def add(self, split: str, count: int, singular: str, plural: str, first: str) -> None:
        """Record findings of a kind; 0 findings are not recorded.

        Args:
            split: where they occur.
            count: number of findings.
            singular, plural: names of one and of several findings.
            first: location of the first.
        """
        if count:
            self._found.setdefault((split, singular, plural), []).append((count, first))

    def lines(self, num_clients: int = 1) -> tuple[str, ...]:
        """Return one warning per kind and split.

        Args:
            num_clients: of the federation; above 1, warnings count the affected clients.
        """
        lines = []
        for (split, singular, plural), findings in self._found.items():
            total = sum(count for count, _ in findings)
            # Over many clients one line per kind, or warnings would hide each other.
            among = f" in {len(findings)} of {num_clients} clients" if num_clients > 1 else ""
            lines.append(f"{split}: {total:,} {singular if total == 1 else plural}{among}, first at {findings[0][1]}")
        return tuple(lines)


def inspect_splits(
    findings: Findings, splits: Mapping[str, np.ndarray], place: Callable[[str, int], str], empty: str
) -> None:
    """Count empty splits, duplicates within a split, and names in valid and test that train lacks.

    Args:
        findings: extended in place.
        splits: int64 `[n, 3]` IDs by split, in the order train, valid, test.
        place: locates a row of a split.
        empty: location of an empty split, with `{split}` in it.

    Raises:
        DataError: the train split is empty.
    """
    train = splits["train"]
    if not len(train):
        raise DataError(f"{empty.replace('{split}', 'train')}: the train split is empty")
    for split, triples in splits.items():
        if not len(triples):
            findings.add(split, 1, "empty split", "empty splits", empty.replace("{split}", split))
            continue
        rows = _repeated(triples)
        findings.add(
            split, len(rows), "duplicate triple", "duplicate triples", place(split, rows[0]) if len(rows) else ""
        )
        if split == "train":
            continue
        for columns, singular, plural in (([0, 2], "entity", "entities"), ([1], "relation", "relations")):
            # An entity without training triples has a random embedding, so its rank is meaningless.
            unseen = ~np.isin(triples[:, columns], train[:, columns])
            rows = np.flatnonzero(unseen.any(axis=1))
            count = len(np.unique(triples[:, columns][unseen]))
            first = place(split, rows[0]) if len(rows) else ""
            findings.add(split, count, f"{singular} that train lacks", f"{plural} that train lacks", first)


def build_graph(
    name: str,
    splits: Mapping[str, NamedTriples],
    *,
    entities: NameList | None = None,
    relations: NameList | None = None,
    empty: str = "{split}",
    notes: Iterable[str] = (),
) -> KnowledgeGraph:
    """Number the names of `splits` and count irregularities.

    IDs follow `entities` and `relations` if the caller names them, else the order of first appearance (head before tail). A
    missing split (data that were not split yet) is empty without a warning.

    Args:
        name: of the graph.
        splits: triples by split.
        entities, relations: vocabularies from files, or None.
        empty: location of an empty split, with `{split}` in it.
        notes: warnings of the reader itself, put first.

    Raises:
        DataError: the train split is empty, or a given list lacks a name (with its location).
    """
    findings = Findings()
    vocabularies = _Vocabularies(splits.values(), entities, relations, findings)
    arrays = vocabularies.number_splits(splits, findings, empty)
    return KnowledgeGraph(
        name,
        vocabularies.entities,
        vocabularies.relations,
        arrays["train"],
        arrays["valid"],
        arrays["test"],
        warnings=(*notes, *findings.lines()),
    )


def build_federation(
    name: str,
    clients: Mapping[str, Mapping[str, NamedTriples]],
    *,
    entities: NameList | None = None,
    relations: NameList | None = None,
    empty: str = "client {client} {split}",
    notes: Iterable[str] = (),
) -> FederatedGraph:
    """Number the names of all clients in one vocabulary, and count irregularities.

    Args:
        name: of the federation.
        clients: triples by client and split, in the clients' order.
        entities, relations, notes: as in `build_graph`.
        empty: location of an empty split, with `{client}` and `{split}` in it.

    Raises:
        DataError: as in `build_graph`.
    """
    findings = Findings()
    parts = [triples for splits in clients.values() for triples in splits.values()]
    vocabularies = _Vocabularies(parts, entities, relations, findings)
    graphs = tuple(
        ClientGraph.from_global(
            client, **vocabularies.number_splits(splits, findings, empty.replace("{client}", client))
        )
        for client, splits in clients.items()
    )
    warnings = (*notes, *findings.lines(len(graphs)))
    return FederatedGraph(name, vocabularies.entities, vocabularies.relations, graphs, warnings=warnings)


class _Vocabularies:
    """Entity and relation names of a graph and their IDs."""

    def __init__(
        self,
        parts: Iterable[NamedTriples],
        entities: NameList | None,
        relations: NameList | None,
        findings: Findings,
    ) -> None:
        parts = list(parts)
        self._listed = (entities, relations)
        # dict keys keep the order of first appearance: head before tail, row by row.
        used_entities = dict.fromkeys(
            chain.from_iterable(chain.from_iterable(zip(p.heads, p.tails, strict=True)) for p in parts)
        )
        used_relations = dict.fromkeys(chain.from_iterable(p.relations for p in parts))
        for what, used in (("entities", used_entities), ("relations", used_relations)):
            if (wrong := _not_text(used)) is not None:
                raise DataError(
                    f"{_first_place(parts, what, wrong)}: {shown(wrong)} is no text (a NUL or half a character)"
                )
        self.entities = entities.names if entities else tuple(used_entities)
        self.relations = relations.names if relations else tuple(used_relations)
        self._entity_ids = {name: id_ for id_, name in enumerate(self.entities)}
        self._relation_ids = {name: id_ for id_, name in enumerate(self.relations)}

        for listed, used in ((entities, used_entities), (relations, used_relations)):
            if listed:
                unused = [name for name in listed.names if name not in used]
                first = f"{listed.source} ({shown(unused[0])})" if unused else ""
                findings.add("names", len(unused), "listed name in no triple", "listed names in no triple", first)
        for what, used in (("entities", used_entities), ("relations", used_relations)):
            # " aspirin" and "aspirin" would be two entities.
            padded = [name for name in used if name != name.strip()]
            if padded:
                first = f"{_first_place(parts, what, padded[0])} ({shown(padded[0])})"
                findings.add(what, len(padded), "name with outer spaces", "names with outer spaces", first)
            if twice := respelled(used):
                first = f"{_first_place(parts, what, twice[0])} ({shown(twice[0])}); --normalise nfc makes one of them"
                findings.add(what, len(twice), _RESPELLED, _RESPELLED.replace("name that is", "names that are"), first)

    def number_splits(
        self, splits: Mapping[str, NamedTriples], findings: Findings, empty: str
    ) -> dict[str, np.ndarray]:
        """Return int64 `[n, 3]` IDs for all three splits, after `inspect_splits` of the given ones.

        Args:
            splits: triples by split.
            findings: extended in place.
            empty: location of an empty split.
        """
        numbered = {split: self._number(splits[split]) for split in SPLITS if split in splits}
        inspect_splits(findings, numbered, lambda split, row: splits[split].place(row), empty)
        return {split: numbered.get(split, np.empty((0, 3), dtype=np.int64)) for split in SPLITS}

    def _number(self, triples: NamedTriples) -> np.ndarray:
        """Return int64 `[n, 3]` IDs. Raises `DataError` with the location of the first name that a given list lacks."""
        columns = (triples.heads, triples.relations, triples.tails)
        indexes = (self._entity_ids, self._relation_ids, self._entity_ids)
        try:
            ids = [
                # map over a bound method: no Python frame per name.
                np.fromiter(map(index.__getitem__, names), dtype=np.int64, count=len(names))
                for index, names in zip(indexes, columns, strict=True)
            ]
        except KeyError:
            raise self._unlisted(triples) from None
        return np.stack(ids, axis=1)

    def _unlisted(self, triples: NamedTriples) -> DataError:
        entities, relations = self._listed
        for row, (head, relation, tail) in enumerate(zip(*triples[:3], strict=True)):
            for name, what, index, listed in (
                (head, "entity", self._entity_ids, entities),
                (relation, "relation", self._relation_ids, relations),
                (tail, "entity", self._entity_ids, entities),
            ):
                if listed and name not in index:
                    return DataError(f"{triples.place(row)}: {what} {shown(name)} is not listed in {listed.source}")
        raise AssertionError("called without an unlisted name")


def _not_text(names: Iterable[str]) -> str | None:
    """Return the first name that UTF-8 cannot encode, or that contains the NUL which separates names in hashes."""
    try:
        if b"\0" not in "".join(names).encode():
            return None
    except UnicodeEncodeError:
        pass
    return next(name for name in names if "\0" in name or any("\ud800" <= letter <= "\udfff" for letter in name))


def _first_place(parts: Iterable[NamedTriples], what: str, name: str) -> str:
    for part in parts:
        columns: Iterator[list[str]] = iter((part.heads, part.tails) if what == "entities" else (part.relations,))
        rows = [column.index(name) for column in columns if name in column]
        if rows:
            return part.place(min(rows))
    raise AssertionError(f"{name!r} is in no part")


def natural_order(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key that puts client 10 after client 9, and digits before letters.

    Args:
        name: to sort.

    >>> sorted(["10", "9", "b2", "b10"], key=natural_order)
    ['9', '10', 'b2', 'b10']
    """
    pieces = re.findall(r"[0-9]+|[^0-9]", name)
    return tuple((0, int(piece), piece) if piece.isascii() and piece.isdigit() else (1, 0, piece) for piece in pieces)


def _repeated(triples: np.ndarray) -> np.ndarray:
    """Return the rows of `[n, 3]` that repeat an earlier one, in ascending order."""
    spans = [int(column.max(initial=0)) + 1 for column in triples.T]
    # One number per row sorts several times as fast as three.
    if spans[0] * spans[1] * spans[2] < 2**63:
        keys = (triples[:, 0] * spans[1] + triples[:, 1]) * spans[2] + triples[:, 2]
        order = np.argsort(keys, kind="stable")
        same = np.diff(keys[order]) == 0
    else:
        order = np.lexsort(triples.T)
        same = (np.diff(triples[order], axis=0) == 0).all(axis=1)
    return np.sort(order[1:][same])
