"""Triples in RDF files (N-Triples, Turtle), by rdflib, which is the optional extra `rdf`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, cast

from fkgsec.data.assembly import NamedTriples, build_graph
from fkgsec.data.formats.folders import read_text
from fkgsec.data.graph import KnowledgeGraph
from fkgsec.errors import DataError
from fkgsec.text import printable

if TYPE_CHECKING:
    from rdflib.term import Node

# Base of relative IRIs, so that names do not depend on the file's location.
BASE_IRI = "file:///"
_LONGEST_REASON = 160


def read_rdf(path: Path | str, name: str | None = None) -> KnowledgeGraph:
    """Read the statements between resources of an N-Triples (`.nt`) or Turtle (`.ttl`) file; all go to train.

    Names are whole IRIs; blank nodes are named `_:b0`, `_:b1`, ... by first appearance. Statements whose object is a literal
    are skipped; a warning counts them by predicate.

    Args:
        path: of the file.
        name: of the graph; the file's stem when None.

    Raises:
        DataError: rdflib is not installed, a syntax error (`file:line`), or no statement between resources.
    """
    path = Path(path)
    try:
        import rdflib  # noqa: F401 - an optional extra
    except ImportError as error:
        raise DataError(f"{path}: reading RDF needs rdflib; pip install 'fkgsec[rdf]'") from error
    statements, places = (_parse_turtle if path.suffix.lower() == ".ttl" else _parse_ntriples)(path)
    columns, statement_indices, literals = _resources(statements)
    notes = [f"{path}: {len(statement_indices):,} statements, all in train (RDF has no splits)"]
    if literals:
        common = ", ".join(f"{predicate} ({count:,})" for predicate, count in literals.most_common(3))
        notes.append(f"{path}: {literals.total():,} statements with a literal object left out: {common}")
    if not statement_indices:
        raise DataError(f"{path}: no statement between resources ({literals.total():,} with a literal object)")
    heads, relations, tails = columns
    train = NamedTriples(heads, relations, tails, lambda row: places[statement_indices[row]])
    return build_graph(name or path.stem, {"train": train}, notes=notes)


def _resources(statements: list[tuple[Node, Node, Node]]) -> tuple[list[list[str]], list[int], Counter[str]]:
    """Return head, relation and tail names, the numbers of the statements used, and the skipped ones by predicate."""
    from rdflib import BNode, Literal

    blank_names: dict[Node, str] = {}

    def as_name(node: Node) -> str:
        if isinstance(node, BNode):
            return blank_names.setdefault(node, f"_:b{len(blank_names)}")
        return str(node)

    columns: list[list[str]] = [[], [], []]
    statement_indices: list[int] = []
    literals: Counter[str] = Counter()
    for number, statement in enumerate(statements):
        # Literals are no entities: they have no triples of their own.
        if isinstance(statement[2], Literal):
            literals[str(statement[1])] += 1
            continue
        statement_indices.append(number)
        for column, node in zip(columns, statement, strict=True):
            column.append(as_name(node))
    return columns, statement_indices, literals


def _parse_ntriples(path: Path) -> tuple[list[tuple[Node, Node, Node]], list[str]]:
    """Parse statements in file order, with their locations. Line by line, because rdflib's own errors give no line."""
    from rdflib.plugins.parsers.ntriples import W3CNTriplesParser

    recorder = _Recorder()
    parser = W3CNTriplesParser(recorder)  # pyright: ignore[reportArgumentType] - any object with `triple` is a sink
    places: list[str] = []
    for line, text in enumerate(read_text(path).split("\n"), start=1):
        parser.line = text
        try:
            parser.parseline()
        except Exception as error:  # rdflib's parsers fail on some texts by whatever error they come to
            raise DataError(f"{path}:{line}: not an N-Triples statement ({_one_line(error)})") from error
        if len(recorder) > len(places):
            places.append(f"{path}:{line}")
    return recorder, places


def _parse_turtle(path: Path) -> tuple[list[tuple[Node, Node, Node]], list[str]]:
    """Parse statements in file order, duplicates included, with their locations."""
    import rdflib
    from rdflib.plugins.parsers.notation3 import BadSyntax

    recorder = _Recorder()

    class RecordingGraph(rdflib.Graph):
        """Graph that keeps the order of the file, which rdflib's graph (a set) would lose."""

        def add(self, triple: tuple[Node, Node, Node]) -> RecordingGraph:
            recorder.triple(*triple)
            return self

    try:
        RecordingGraph().parse(data=read_text(path), format="turtle", publicID=BASE_IRI)
    except BadSyntax as error:
        reason = str(error).partition("Bad syntax (")[2].partition(") at ^")[0]
        raise DataError(f"{path}:{error.lines + 1}: not Turtle ({printable(reason, _LONGEST_REASON)})") from error
    except RecursionError as error:
        raise DataError(f"{path}: not Turtle that can be read (nested too deeply)") from error
    except Exception as error:  # as above: assertions, overflows, plain exceptions
        raise DataError(f"{path}: not Turtle ({_one_line(error)})") from error
    return recorder, [f"{path} statement {number + 1}" for number in range(len(recorder))]


class _Recorder(list["tuple[Node, Node, Node]"]):
    """Sink for rdflib's parsers that keeps statements in file order."""

    def triple(self, *statement: Node) -> None:
        """Record a statement: subject, predicate and object."""
        self.append(cast("tuple[Node, Node, Node]", statement))


def _one_line(error: Exception) -> str:
    return printable(" ".join(str(error).split()) or type(error).__name__, _LONGEST_REASON)
