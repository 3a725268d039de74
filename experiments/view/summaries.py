"""Runs and audits below a folder, as a list of many needs them: read without torch, in a fraction of a second.

    library = Library(Path("runs"))
    for run in library.runs():
        print(run.name, run.broken or run.summary.leaks)

What is read here is checked for its types, its version and figures outside their own intervals. Whoever opens or compares runs
reads their records whole (`Library.record`), with every check; a record that fails them is listed as broken from then on.
"""

from __future__ import annotations

import functools
import hashlib
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from attacks.figure import Figure, leading
from experiments.reporting.html.notation import count, score_text
from fkgsec.errors import FkgsecError, RunError
from fkgsec.estimate import Estimate
from fkgsec.text import printable

if TYPE_CHECKING:
    from experiments.runs.record import Record

RECORD_FILE, AUDIT_FILE, ATTACKS = "record.json", "verification.json", "attacks"
SCHEMA, EARLIER, AUDIT_SCHEMA = "fkgsec/record/2", "fkgsec/record/1", "fkgsec/verification/1"
LEADING = Path(__file__).with_name("leading.json")
"""The leading metrics of every attack, written by `python -m experiments.cli.surface`."""
MOST_LETTERS = 300  # of a line that says why a record is broken
Kind = TypeVar("Kind")


class _Data(msgspec.Struct, frozen=True):
    name: str
    hash: str
    clients: dict[str, dict[str, int]]


class _Environment(msgspec.Struct, frozen=True):
    commit: str | None
    dirty: bool | None
    command: str


class _Bytes(msgspec.Struct, frozen=True):
    up: int
    down: int


class _Round(msgspec.Struct, frozen=True):
    round: int
    seconds: float


class Summary(msgspec.Struct, frozen=True, dict=True):
    """What a list shows of a record; fields are those of `experiments.runs.record.Record`, `spec` as the file has it."""

    schema: str
    spec: dict[str, Any]
    seed: int
    data: _Data
    environment: _Environment
    utility: dict[str, Estimate]
    bytes: _Bytes
    rounds: list[_Round]
    best_round: int
    figures: list[Figure] = []
    metric: str = "mrr"
    protection: list[str] = []

    @property
    def algorithm(self) -> str:
        return str(self.spec["algorithm"])

    @property
    def defense(self) -> str:
        return str(self.spec.get("defense") or "none")

    @property
    def model(self) -> str:
        return str(self.spec.get("model", ""))

    @property
    def reached(self) -> Estimate:
        """Test utility by the task's metric."""
        return self.utility[self.metric]

    @property
    def seconds(self) -> float:
        return sum(one.seconds for one in self.rounds)

    @property
    def num_bytes(self) -> int:
        return self.bytes.up + self.bytes.down

    @functools.cached_property
    def leading(self) -> list[Figure]:
        """The figures that stand for each attack: those that leak first, then those that are exposed, each by what it adds."""
        order = {name: number for number, name in enumerate(leads())}
        found = leading(self.figures, leads())
        places = sorted(
            found, key=lambda one: (order.get(one[0], len(order)), *map(str, one))
        )  # equals as the matrix has them
        return sorted(
            (found[place] for place in places),
            key=lambda one: (bool(one.reason), not one.beyond, one.by_protocol, -one.advantage),
        )

    @property
    def leaks(self) -> str:
        """What attacks found, in a few words."""
        asked = [one for one in self.leading if not one.reason]
        if not asked:
            return "nothing to attack" if self.figures else "not attacked"
        beyond = [one for one in asked if one.beyond and not one.given]
        leaking = sum(not one.by_protocol for one in beyond)
        if beyond and not leaking:
            return f"exposed: {len(beyond)} of {count(len(asked), 'figure')}"
        return f"{leaking} of {count(len(asked), 'figure')}" if leaking else "none shown"

    @property
    def worst(self) -> Figure | None:
        """The figure that adds most to its baseline, first of those that leak; None where none beats its baseline."""
        return next((one for one in self.leading if one.beyond and not one.given), None)

    @property
    def worst_words(self) -> str:
        """That figure with its interval and base, empty where there is none."""
        one = self.worst
        if one is None:
            return ""
        base = "" if one.baseline is None else f", base {one.baseline.value:.3f}"
        return f"{one.attack}.{one.label} {score_text(one.estimate)}{base}"


class _Verdict(msgspec.Struct, frozen=True):
    outcome: str
    reasons: list[str]


class _Method(msgspec.Struct, frozen=True):
    method: str


class _Unlearning(msgspec.Struct, frozen=True):
    options: _Method
    asked: dict[str, int]


class AuditSummary(msgspec.Struct, frozen=True):
    """What a list shows of a verification; see `experiments.unlearning.verification.Verification`."""

    schema: str
    verdict: _Verdict
    unlearning: _Unlearning

    @property
    def asked(self) -> str:
        """Whose triples were to be forgotten."""
        return ", ".join(f"{client}: {count(number, 'triple')}" for client, number in self.unlearning.asked.items())


@dataclass(frozen=True)
class Viewed:
    """A run in the list. `identity` names it in addresses; `broken` says in a line why there is no summary."""

    identity: str
    name: str
    file: Path
    summary: Summary | None = None
    broken: str = ""

    @property
    def whole(self) -> Summary:
        """The summary of a run that is not broken. Raises `RunError`."""
        if self.summary is None:
            raise RunError(self.broken)
        return self.summary

    @property
    def trained(self) -> Path:
        """The folder with the checkpoint: of a further attack that of the run, two folders above."""
        folder = self.file.parent
        return folder.parent.parent if folder.parent.name == ATTACKS else folder


@dataclass(frozen=True)
class Audit:
    """An audit of an unlearning in the list."""

    identity: str
    name: str
    file: Path
    summary: AuditSummary | None = None
    broken: str = ""


class Stamp(NamedTuple):
    """What tells whether a file is as it was read."""

    inode: int
    size: int
    changed_ns: int


class Library:
    """The runs below a folder. Each call looks what is there now; a file that is as it was is not read again."""

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise RunError(f"{root}: no such folder; fkgsec view takes a folder with runs in it")
        self.root = root
        self._read: dict[Path, tuple[Stamp, Viewed | Audit]] = {}
        self._lock = threading.Lock()

    def runs(self) -> list[Viewed]:
        """Every record below the folder, by name; the broken ones, too."""
        return [one for one in self._all() if isinstance(one, Viewed)]

    def audits(self) -> list[Audit]:
        """Every verification of an unlearning."""
        return [one for one in self._all() if isinstance(one, Audit)]

    def run(self, identity: str) -> Viewed:
        """The run of that identity. Raises `RunError`."""
        return _named(identity, self.runs())

    def audit(self, identity: str) -> Audit:
        """The same of an audit."""
        return _named(identity, self.audits())

    def record(self, run: Viewed) -> Record:
        """The whole record, checked. Raises `RunError`; the run is listed as broken then, until its file changes."""
        from experiments.runs.record import read_record  # with torch

        try:
            return read_record(run.file)
        except FkgsecError as error:
            line = self._line(run.file, str(error))
            with self._lock:
                if run.file in self._read:
                    self._read[run.file] = (self._read[run.file][0], replace(run, summary=None, broken=line))
            raise RunError(line) from error

    def _all(self) -> list[Viewed | Audit]:
        with self._lock:
            found = {file: self._one(file) for file in _files(self.root)}
            self._read = {file: one for file, one in found.items() if one is not None}
            return [one for _, one in self._read.values()]

    def _one(self, file: Path) -> tuple[Stamp, Viewed | Audit] | None:
        try:
            status = file.stat()
        except OSError:
            return None  # removed since, or a link that leads nowhere
        stamp = Stamp(status.st_ino, status.st_size, status.st_mtime_ns)
        known = self._read.get(file)
        return known if known and known[0] == stamp else (stamp, self._fresh(file))

    def _fresh(self, file: Path) -> Viewed | Audit:
        below = file.parent.relative_to(self.root)
        name = below.as_posix() if below.parts else self.root.resolve().name
        kind = Audit if file.name == AUDIT_FILE else Viewed
        one = kind(hashlib.sha256(os.fsencode(below)).hexdigest()[:16], printable(name), file)
        try:
            summary = _read_audit(file) if isinstance(one, Audit) else _read_summary(file)
        except FkgsecError as error:
            return replace(one, broken=self._line(file, str(error)))
        return replace(one, summary=summary)

    def _line(self, file: Path, said: str) -> str:
        """An error without the folder's path, which the page's reader knows."""
        return printable(said.removeprefix(f"{file}: "), MOST_LETTERS)


def _files(root: Path) -> Iterator[Path]:
    for folder, below, files in os.walk(root):
        below.sort()
        yield from (Path(folder, name) for name in (RECORD_FILE, AUDIT_FILE) if name in files)


Entry = TypeVar("Entry", Viewed, Audit)


def _named(identity: str, entries: Sequence[Entry]) -> Entry:
    for one in entries:
        if one.identity == identity:
            return one
    raise RunError("there is no such run in this folder (any more)")


def _read_summary(file: Path) -> Summary:
    """Raises `RunError` where a record is damaged or of another version."""
    content = _content(file)
    found = _decoded(content, Summary)
    if found.schema == EARLIER:  # it had rows of its own for what attacks found
        from experiments.runs.record import encode_record, read_record

        found = _decoded(encode_record(read_record(file)), Summary)
    if found.schema != SCHEMA:
        raise RunError(f"not a record of schema {SCHEMA} but of {found.schema!r}")
    for name in ("algorithm", "model", "defense"):
        if not isinstance(found.spec.get(name, ""), str) or (name == "algorithm" and not found.spec.get(name)):
            raise RunError(f"spec.{name}: must be a word; got {found.spec.get(name)!r}")
    if found.metric not in found.utility:
        raise RunError(f"utility: has no {found.metric!r}, which metric names")
    named = [*found.utility.items(), *((one.key, one.estimate) for one in found.figures)]
    for key, one in named:
        if not one.low <= one.value <= one.high:
            raise RunError(f"{key}: {one.value:g} is not inside its own interval [{one.low:g}, {one.high:g}]")
    return found


def _read_audit(file: Path) -> AuditSummary:
    found = _decoded(_content(file), AuditSummary)
    if found.schema != AUDIT_SCHEMA:
        raise RunError(f"not a verification of schema {AUDIT_SCHEMA} but of {found.schema!r}")
    return found


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise RunError(f"cannot be read ({error.strerror})") from error


def _decoded(content: bytes, kind: type[Kind]) -> Kind:
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise RunError(f"cannot be read ({' '.join(str(error).split())})") from error


@functools.cache
def leads() -> Mapping[str, Sequence[str]]:
    """By attack the metrics that stand for it."""
    if entry_points(group="fkgsec.attacks"):  # of other packages, which the file does not know
        from attacks.registry import ATTACKS as registered

        return {name: attack.leading for name, attack in registered.items()}
    return msgspec.json.decode(LEADING.read_bytes(), type=dict[str, list[str]])
