"""Result of a run: measurements, messages and protection; a task adds its models and their metrics.

result = run_federation(graph, options)                   # a `KgeResult`, for the options of knowledge graphs
print(result.summary())                                   # one line per figure
result.to_frame()                                         # pandas: one row per round
result.utility_frame()                                    # one row per client and metric, with its interval
result.save(Path("run.safetensors"))
KgeResult.load(Path("run.safetensors"), graph, options)
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fkgsec.errors import RunError
from fkgsec.estimate import Estimate
from fkgsec.exchange.parts import LazyTensors, Observed
from fkgsec.federation import packing
from fkgsec.federation.checkpoint import RoundEntry, save_tensors
from fkgsec.federation.disk.condensed import LINES, PLAIN_LINES, entries_of, lines_of
from fkgsec.federation.messages import Entry, Transcript, client_party
from fkgsec.federation.protection import NOTHING, Protection, Withstands
from fkgsec.federation.recipes import RECIPES, Table
from fkgsec.frames import INTERVAL, block, interval, tidy
from fkgsec.protocols.noise.guarantee import Guarantee

if TYPE_CHECKING:
    import pandas as pd

METADATA = "result"


@dataclass(frozen=True, kw_only=True)
class Kept:
    """State of one round besides its messages, for attacks and for runs that continue from it.

    Attributes:
        started: by table and party, the shared rows before the round's training, in the client's order.
        inputs: by table and party, the client's input to the exchange if a protocol hid it (which a colluder would reveal):
            float64 `[n, width]` over all rows of the shared table, noise included. Built at each access; changes are lost.
        known: by table and party, the values of its summand that the server knew in advance: float64 `[n, width]`, in each row
            of the shared table that the client holds. Empty unless something is wrong: the client returned the server's
            broadcast, or received rows that the clip cuts to a value the server can predict.
        carried: state of the exchange for the next round.
        observed: by table and party, the client's rows as the server assembled them from several uploads.
    """

    started: packing.ByParty = field(default_factory=dict)
    inputs: packing.Inputs = field(default_factory=dict)
    known: packing.ByParty = field(default_factory=dict)
    carried: dict[str, Tensor] = field(default_factory=dict)
    observed: packing.Seen = field(default_factory=dict)

    def tree(self, parties: Sequence[str]) -> dict[str, packing.Tree]:
        """Return the tensors to store, with client indices for party names.

        Args:
            parties: all party names.
        """
        kinds = ("started", "inputs", "known", "observed")
        return {**{kind: packing.by_place(getattr(self, kind), parties) for kind in kinds}, "carried": self.carried}

    @staticmethod
    def read(tensors: Mapping[str, Tensor], tables: Sequence[Table], parties: Sequence[str]) -> dict[str, Any]:
        """Undo `tree`, packed: the attributes by name.

        Args:
            tensors: packed, by name.
            tables: shared tables.
            parties: all party names.
        """
        parts: dict[str, Any] = {"carried": packing.below("carried.", tensors)}
        for kind in ("started", "known"):
            rows = packing.below(f"{kind}.", tensors)
            parts[kind] = packing.by_party(rows, tables, parties, rows.__getitem__)
        # Filled rows stay as they are: whole tables of hundreds of clients would not fit in memory.
        inputs, seen = packing.view_below("inputs.", tensors), packing.below("observed.", tensors)
        filled = packing.by_party(inputs, tables, parties, lambda name: packing.filled(inputs, name))
        parts["inputs"] = {table: LazyTensors(rows) for table, rows in filled.items()}
        parts["observed"] = packing.by_party(
            seen, tables, parties, lambda name: Observed(*(seen[f"{name}.{field}"] for field in Observed._fields))
        )
        return parts


@dataclass(frozen=True, repr=False, kw_only=True)
class RunResult(Kept):
    """Result of a run at its best round. A task extends it.

    Attributes:
        graph: the clients' data: it has a name, `clients` with names, and a `hash` of all that training reads.
        options: of the run.
        rounds: figures of each round, round 0 first.
        best_round: round with the best validation (the last without validation).
        metric: name of the validation metric, such as "mrr".
        transcript: transmitted messages. Those of round 0, of the best and of the last round are retained, and the broadcasts
            before these.
        protection: of the exchange, with guarantees over all messages of the run; empty in plaintext.
        row_names: names of the rows of each shared table, in the server's order.
    """

    graph: Any
    options: Any
    rounds: list[RoundEntry]
    best_round: int
    transcript: Transcript
    metric: str = "mrr"
    protection: Protection = NOTHING
    row_names: dict[Table, list[str]] = field(default_factory=dict)

    # Overridden by tasks.
    def headline(self) -> str:
        """Return a description of the trained model."""
        return self.options.algorithm

    def reached(self) -> list[str]:
        """Return the metrics of the best models, one line each."""
        return [] if self.valid is None else [f"validation {self.metric}: {self.valid:.4f}"]

    def utility(self) -> tuple[dict[str, Estimate], dict[str, dict[str, Estimate]]]:
        """Return test metrics of the best models, over all clients and by client; empty if the task has none."""
        return {}, {}

    def outcome_tree(self) -> dict[str, packing.Tree]:
        """Return the task's fields to store."""
        return {}

    @classmethod
    def read_outcome(cls, tensors: Mapping[str, Tensor], num_clients: int) -> dict[str, Any]:
        """Undo `outcome_tree`.

        Args:
            tensors: packed, by name.
            num_clients: of the run.
        """
        return {}

    # Common to all tasks.
    @property
    def valid(self) -> float | None:
        """Validation metric of the best round; None without validation items."""
        return next((entry.valid for entry in self.rounds if entry.round == self.best_round), None)

    @property
    def validation(self) -> Estimate | None:
        """Estimate of the validation metric if validation is sampled; None if it is full."""
        return None

    def __repr__(self) -> str:
        run = f"{self.headline()}, {len(self.graph.clients)} clients of {self.graph.name}"
        best = f"round {self.best_round} of {self.rounds[-1].round if self.rounds else 0}"
        valid = "" if self.valid is None else f", validation {self.metric} {self.valid:.4f}"
        return f"{type(self).__name__}({run}: {best}{valid})"

    def summary(self) -> str:
        """Return a summary: model, rounds, utility with intervals, bytes, protection; one line each."""
        lines = [
            f"{self.headline()}, {self.options.defense or 'no defense'}",
            f"{len(self.graph.clients)} clients of {self.graph.name}; kept at round {self.best_round} of {self.rounds[-1].round}",
        ]
        up, down = (self.transcript.num_bytes(direction) for direction in ("up", "down"))
        sent = f"bytes: {up:,} to the server, {down:,} back"
        return "\n".join([*lines, *self.reached(), sent, *self.protection.lines()])

    def _repr_html_(self) -> str:
        title, *lines = self.summary().split("\n")
        rows = [(client, metric, figure) for client, figures in self._by_client() for metric, figure in figures.items()]
        return block(title, lines, heads=("client", "metric", "test figure"), rows=rows)

    def _by_client(self) -> list[tuple[str, dict[str, Estimate]]]:
        of_all, by_client = self.utility()
        return [*by_client.items(), ("all", of_all)]

    def utility_frame(self) -> pd.DataFrame:
        """Return the test metrics of the best models: one row per client and metric, and per metric over all clients.

        Returns:
            Columns `client`, `metric`, `value`, `low`, `high` (95 % interval), `n` (items), `method` (of the interval).
        """
        rows = [
            {"client": client, "metric": metric, **interval(figure)}
            for client, figures in self._by_client()
            for metric, figure in figures.items()
        ]
        return tidy(rows, ("client", "metric", *INTERVAL))

    def to_frame(self) -> pd.DataFrame:
        """Return one row per round: loss, validation, bytes, seconds, survivors. `utility_frame` has test metrics."""
        import pandas as pd  # optional on machines that only train

        return pd.DataFrame([msgspec.structs.asdict(entry) for entry in self.rounds]).set_index("round")

    def tensors(self) -> dict[str, Tensor]:
        """Return all arrays by name, with party indices for party names."""
        tree = {**self.outcome_tree(), **self.tree([client_party(client.name) for client in self.graph.clients])}
        tree["frame"] = packing.frames_by_round(self.transcript.frames)
        tree["note"] = packing.frames_by_round(self.transcript.notes)
        return packing.pack(tree)

    def save(self, path: Path | str) -> None:
        """Write the run as one safetensors file, atomically.

        Args:
            path: of the file.

        Raises:
            RunError: the file cannot be written.
        """
        # Long transcripts do not fit the JSON header, see `lines_of`.
        lines, names = lines_of(self.transcript.entries) if len(self.transcript.entries) > PLAIN_LINES else (None, [])
        document = _Document(
            self.rounds,
            self.best_round,
            self.transcript.entries if lines is None else [],
            self.protection.remarks,
            dict(self.protection.guarantees),
            self.protection.withstands,
            self.row_names,
            self.metric,
            names,
        )
        tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in self.tensors().items()}
        if lines is not None:
            tensors[LINES] = lines
        path = Path(path)
        part = path.with_name(path.name + ".part")
        try:
            save_tensors(part, tensors, {METADATA: msgspec.json.encode(document).decode()})
            part.replace(path)
        except (OSError, SafetensorError) as error:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            raise RunError(f"{path}: cannot be written ({error})") from error

    @classmethod
    def load(cls, path: Path | str, graph: Any, options: Any) -> Self:
        """Read a file that `save` wrote.

        Args:
            path: of the file.
            graph, options: of the run.

        Raises:
            RunError: the file is damaged, or has tensors that such a run does not have.
        """
        try:
            with safe_open(path, framework="pt") as handle:
                document = msgspec.json.decode((handle.metadata() or {})[METADATA], type=_Document)
                tensors = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118 (not a dict)
            lines = tensors.pop(LINES, None)
            entries = document.entries if lines is None else entries_of(lines, document.names)
        except (
            RunError,
            OSError,
            SafetensorError,
            msgspec.MsgspecError,
            KeyError,
            UnicodeDecodeError,
            RecursionError,
        ) as error:
            raise RunError(f"{path}: damaged ({error}); make it again") from error
        frames, notes = (packing.frames_of(packing.below(f"{kind}.", tensors)) for kind in ("frame", "note"))
        parties = [client_party(client.name) for client in graph.clients]
        result = cls(
            graph=graph,
            options=options,
            rounds=document.rounds,
            best_round=document.best_round,
            metric=document.metric,
            transcript=Transcript(entries, frames, notes),
            protection=Protection(document.remarks, document.guarantees, document.withstands),
            row_names=document.row_names,
            **Kept.read(tensors, RECIPES[options.algorithm].shared, parties),
            **cls.read_outcome(tensors, len(parties)),
        )
        # A file of other options would load partially, without an error.
        if unread := sorted(set(tensors) - set(result.tensors())):
            raise RunError(f"{path}: has {unread[0]}, which a run of {options.algorithm} does not have")
        return result


class _Document(msgspec.Struct, frozen=True):
    """Contents of a saved run besides its tensors. A long transcript has `names`, see `lines_of`, a short one `entries`."""

    rounds: list[RoundEntry]
    best_round: int
    entries: list[Entry]
    remarks: tuple[str, ...]
    guarantees: dict[str, Guarantee]
    withstands: tuple[Withstands, ...]
    row_names: dict[Table, list[str]]
    metric: str = "mrr"
    names: list[str] = []
