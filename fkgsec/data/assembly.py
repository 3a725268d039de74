"""From triples by name, as files list them, to numbered graphs with counted warnings. Every reader ends here.

A reader hands over `NamedTriples` per split: three lists of names and a function that says where a row stands, so that
an error or a warning can name file and line without a string per row.
"""

from __future__ import annotations

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
    """The triples of one split by name, in file order, and `place(row)`: where a row stands (`path:line`)."""

    heads: list[str]
    relations: list[str]
    tails: list[str]
    place: Place


@dataclass(frozen=True)
class NameList:
    """A vocabulary that a file fixes: `names` by id, and the file that lists them."""

    source: str
    names: tuple[str, ...]


class Findings:
    """Counts what is odd but not wrong; over many clients one line per kind, with the first place of it."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, str], list[tuple[int, str]]] = {}

    def add(self, split: str, count: int, singular: str, plural: str, first: str) -> None:
        """Note `count` findings of a kind (named for one and for many of it); nothing is noted when it is 0."""
        if count:
            self._found.setdefault((split, singular, plural), []).append((count, first))

    def lines(self, num_clients: int = 1) -> tuple[str, ...]:
        lines = []
        for (split, singular, plural), findings in self._found.items():
            total = sum(count for count, _ in findings)
            among = f" in {len(findings)} of {num_clients} clients" if num_clients > 1 else ""
            lines.append(f"{split}: {total:,} {singular if total == 1 else plural}{among}, first at {findings[0][1]}")
        return tuple(lines)


def inspect_splits(
    findings: Findings, splits: Mapping[str, np.ndarray], place: Callable[[str, int], str], empty: str
) -> None:
    """Count empty splits, duplicates within a split, and what valid and test hold that train does not.

    Args:
        splits: split -> int64 `[n, 3]` ids, in the order train, valid, test.
        place: where row `i` of a split stands.
        empty: how to name the place of an empty split, with `{split}` in it.

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
    """Number the names of `splits` and count what is odd.

    Ids follow `entities` / `relations` where given, else the order of first appearance (head before tail). A split that
    is not a key (data that nobody has split yet) is empty without a warning.

    Args:
        empty: how to name the place of an empty split, with `{split}` in it.
        notes: warnings of the reader itself, put first.

    Raises:
        DataError: an empty train split, or a name that the given list lacks (with the place).
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
    """Do the same as `build_graph`, over one vocabulary for all `clients` (name -> split -> triples, in the clients' order)."""
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
    """The entity and relation names of a graph and their ids."""

    def __init__(
        self,
        parts: Iterable[NamedTriples],
        entities: NameList | None,
        relations: NameList | None,
        findings: Findings,
    ) -> None:
        parts = list(parts)
        self._listed = (entities, relations)
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
        """Split -> int64 `[n, 3]` ids for all three splits, after `inspect_splits` of those given."""
        numbered = {split: self._number(splits[split]) for split in SPLITS if split in splits}
        inspect_splits(findings, numbered, lambda split, row: splits[split].place(row), empty)
        return {split: numbered.get(split, np.empty((0, 3), dtype=np.int64)) for split in SPLITS}

    def _number(self, triples: NamedTriples) -> np.ndarray:
        """Int64 `[n, 3]` ids. Raises `DataError` with the place of the first name that a given list lacks."""
        columns = (triples.heads, triples.relations, triples.tails)
        indexes = (self._entity_ids, self._relation_ids, self._entity_ids)
        try:
            ids = [
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
    """The first name that UTF-8 cannot hold, or that holds the NUL which separates names where they are hashed."""
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
    """Sort key under which client 10 comes after client 9, with digits before letters.

    >>> sorted(["10", "9", "b2", "b10"], key=natural_order)
    ['9', '10', 'b2', 'b10']
    """
    pieces = []
    digits = ""
    for letter in [*name, ""]:
        if letter.isascii() and letter.isdigit():
            digits += letter
            continue
        if digits:
            pieces.append((0, int(digits), digits))
            digits = ""
        if letter:
            pieces.append((1, 0, letter))
    return tuple(pieces)


def _repeated(triples: np.ndarray) -> np.ndarray:
    """Rows of `[n, 3]` that repeat an earlier one, in ascending order."""
    spans = [int(column.max(initial=0)) + 1 for column in triples.T]
    if spans[0] * spans[1] * spans[2] < 2**63:  # one number for each row: sorts several times as fast as three
        keys = (triples[:, 0] * spans[1] + triples[:, 1]) * spans[2] + triples[:, 2]
        order = np.argsort(keys, kind="stable")
        same = np.diff(keys[order]) == 0
    else:
        order = np.lexsort(triples.T)
        same = (np.diff(triples[order], axis=0) == 0).all(axis=1)
    return np.sort(order[1:][same])
