"""A finished run: what it trained and measured, what crossed, what was protected.

result = run_federation(graph, options)
print(result.summary())                                   # a line for each figure
result.to_frame()                                         # pandas: a row for each round
result.save(Path("run.safetensors"))
FederationResult.load(Path("run.safetensors"), graph, options)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pandas as pd
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fkgsec.data.graph import FederatedGraph
from fkgsec.errors import RunError
from fkgsec.exchange import Observed
from fkgsec.federation import packing
from fkgsec.federation.checkpoint import RoundEntry
from fkgsec.federation.messages import Entry, Transcript, client_party
from fkgsec.federation.options import FederationOptions
from fkgsec.federation.protection import NOTHING, Protection, StatedGuarantee, Withstands
from fkgsec.federation.recipes import RECIPES, Table

if TYPE_CHECKING:
    from fkgsec.kge.local.evaluation import ClientTables

METADATA = "result"


@dataclass(frozen=True, repr=False, kw_only=True)
class FederationResult:
    """A finished run, at its best validation.

    Attributes:
        rounds: what each round did, round 0 first.
        best_round: the round whose models are kept, the one with the best validation (the last without validation).
        tables: each client's embeddings after the broadcast of that round.
        trained: each client's embeddings before it (what a colluder would hand over): as its own training left them, or for a
            client that sat the round out as the last broadcast did.
        test_ranks: ranks of each client's test triples, float64 `[n, sides]`, by `trained` or by `tables`, as the recipe's
            models are judged.
        transcript: what crossed; the messages of round 0, of the best and of the last round are retained whole, and the
            broadcasts before these.
        inputs: what each party (by table) put into the exchange of that round when a protocol hid it (what a colluder
            would hand over): float64 `[n, width]` over all rows of the shared table, its noise included.
        protection: what the exchange protected, its guarantees over all that ever crossed; nothing in clear.
        row_names: the names of the rows of each shared table, in the server's order.
        observed: by table and party, what the server had put together of the client's uploads by that round, where no
            single message holds it.
        private: each client's embeddings of the model that it keeps to itself, where the recipe has one; `test_ranks` are
            its ranks, and `shared_test_ranks` those of the shared model.
        started: by table and party, the shared rows that its training of that round started from, in its own order.
        known: by table and party, what the server knew beforehand of its part of that round's sum: float64 `[n, width]`, the
            part's value in each row of the shared table, where the client holds it. Empty unless something is wrong: clients
            that send the server's broadcast back, or that were sent what the clip cuts to a value the server can tell.
        carried: what the exchange goes on from in a round after that one.
    """

    graph: FederatedGraph
    options: FederationOptions
    rounds: list[RoundEntry]
    best_round: int
    tables: list[ClientTables]
    trained: list[ClientTables]
    test_ranks: list[np.ndarray]
    transcript: Transcript
    inputs: dict[Table, dict[str, Tensor]] = field(default_factory=dict)
    protection: Protection = NOTHING
    row_names: dict[Table, list[str]] = field(default_factory=dict)
    observed: dict[Table, dict[str, Observed]] = field(default_factory=dict)
    private: list[ClientTables] = field(default_factory=list)
    shared_test_ranks: list[np.ndarray] = field(default_factory=list)
    started: dict[Table, dict[str, Tensor]] = field(default_factory=dict)
    known: dict[Table, dict[str, Tensor]] = field(default_factory=dict)
    carried: dict[str, Tensor] = field(default_factory=dict)

    def __repr__(self) -> str:
        run = f"{self.options.algorithm}, {self.options.model}, {len(self.graph.clients)} clients of {self.graph.name}"
        return f"FederationResult({run}: round {self.best_round} of {self.rounds[-1].round if self.rounds else 0}{self._mrr})"

    @property
    def _mrr(self) -> str:
        ranks = np.concatenate([ranks.ravel() for ranks in self.test_ranks]) if self.test_ranks else np.empty(0)
        return f", test MRR {(1 / ranks).mean():.4f}" if len(ranks) else ""

    def summary(self) -> str:
        """What the run was and reached: model, rounds, utility with intervals, bytes, protection; a line each."""
        from fkgsec.kge.local.evaluation import utility  # which imports the options, as this module's users do

        options = self.options
        lines = [
            f"{options.algorithm}, {options.model}, dimension {options.dim}, {options.defense or 'no defense'}",
            f"{len(self.graph.clients)} clients of {self.graph.name}; kept at round {self.best_round} of {self.rounds[-1].round}",
        ]
        if any(len(ranks) for ranks in self.test_ranks):
            figures = utility(np.concatenate(self.test_ranks), options.seed)
            lines += [f"test {name}: {figure}" for name, figure in figures.items()]
        up, down = (self.transcript.num_bytes(direction) for direction in ("up", "down"))
        return "\n".join([*lines, f"bytes: {up:,} to the server, {down:,} back", *self.protection.lines()])

    def to_frame(self) -> pd.DataFrame:
        """A row for each round: loss, validation, bytes, seconds, survivors."""
        return pd.DataFrame([msgspec.structs.asdict(entry) for entry in self.rounds]).set_index("round")

    def tensors(self) -> dict[str, Tensor]:
        """Everything that is an array, by name; parties by their place among them."""
        parties = _parties(self)
        tree: dict[str, packing.Tree] = {
            kind: {
                str(place): {"entities": one.entities, "relations": one.relations}
                for place, one in enumerate(getattr(self, kind))
            }
            for kind in ("tables", "trained", "private")
        }
        for kind in ("test_ranks", "shared_test_ranks"):
            tree[kind] = {str(place): torch.from_numpy(ranks) for place, ranks in enumerate(getattr(self, kind))}
        tree |= {kind: packing.by_place(getattr(self, kind), parties) for kind in ("inputs", "started", "known")}
        tree["observed"] = packing.seen_by_place(self.observed, parties)
        tree["carried"] = self.carried
        tree["frame"] = packing.frames_by_round(self.transcript.frames)
        tree["note"] = packing.frames_by_round(self.transcript.notes)
        return packing.pack(tree)

    def save(self, path: Path) -> None:
        """Write the run as one safetensors file, whole or not at all. Raises `RunError` where it cannot be written."""
        document = _Document(
            self.rounds,
            self.best_round,
            self.transcript.entries,
            self.protection.remarks,
            dict(self.protection.guarantees),
            self.protection.withstands,
            self.row_names,
        )
        tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in self.tensors().items()}
        part = path.with_name(path.name + ".part")
        try:
            save_file(tensors, part, {METADATA: msgspec.json.encode(document).decode()})
            part.replace(path)
        except (OSError, SafetensorError) as error:
            part.unlink(missing_ok=True)
            raise RunError(f"{path}: cannot be written ({error})") from error

    @classmethod
    def load(
        cls, path: Path, graph: FederatedGraph, options: FederationOptions, *, guarantee: type = StatedGuarantee
    ) -> FederationResult:
        """Read what `save` wrote of a run of these options on this graph.

        Args:
            guarantee: what its guarantees are read as, such as `protocols.noise.guarantee.Guarantee`.

        Raises:
            RunError: it cannot be read, or has something that such a run has not.
        """
        try:
            with safe_open(path, framework="pt") as handle:
                document = msgspec.json.decode((handle.metadata() or {})[METADATA], type=_Document)
                tensors = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118 (not a dict)
            guarantees = msgspec.convert(document.guarantees, dict[str, guarantee])
        except (OSError, SafetensorError, msgspec.MsgspecError, KeyError, UnicodeDecodeError) as error:
            raise RunError(f"{path}: damaged ({error}); make it again") from error
        protection = Protection(document.remarks, guarantees, document.withstands)
        result = cls._of(graph, options, document, tensors, protection)
        if unread := sorted(set(tensors) - set(result.tensors())):
            raise RunError(f"{path}: has {unread[0]}, which a run of {options.algorithm} does not have")
        return result

    @classmethod
    def _of(
        cls,
        graph: FederatedGraph,
        options: FederationOptions,
        document: _Document,
        tensors: Mapping[str, Tensor],
        protection: Protection,
    ) -> FederationResult:
        from fkgsec.kge.local.evaluation import ClientTables

        shared = RECIPES[options.algorithm].shared
        parties = [client_party(client.name) for client in graph.clients]

        def tables(kind: str) -> list[ClientTables]:
            found = packing.below(f"{kind}.", tensors)
            return [
                ClientTables(found[f"{place}.entities"], found[f"{place}.relations"])
                for place in range(len(graph.clients))
                if f"{place}.entities" in found and f"{place}.relations" in found
            ]

        def ranks(kind: str) -> list[np.ndarray]:
            names = [f"{kind}.{place}" for place in range(len(graph.clients))]
            return [tensors[name].numpy() for name in names if name in tensors]

        def own(kind: str) -> packing.ByParty:
            return packing.by_party(packing.below(f"{kind}.", tensors), shared, parties)

        frames, notes = (packing.frames_of(packing.below(f"{kind}.", tensors)) for kind in ("frame", "note"))
        return cls(
            graph=graph,
            options=options,
            rounds=document.rounds,
            best_round=document.best_round,
            tables=tables("tables"),
            trained=tables("trained"),
            test_ranks=ranks("test_ranks"),
            transcript=Transcript(document.entries, frames, notes),
            inputs=own("inputs"),
            protection=protection,
            row_names=document.row_names,
            observed=packing.seen_by_party(packing.below("observed.", tensors), shared, parties),
            private=tables("private"),
            shared_test_ranks=ranks("shared_test_ranks"),
            started=own("started"),
            known=own("known"),
            carried=packing.below("carried.", tensors),
        )


class _Document(msgspec.Struct, frozen=True):
    """What a saved run says beside its tensors."""

    rounds: list[RoundEntry]
    best_round: int
    entries: list[Entry]
    remarks: tuple[str, ...]
    guarantees: dict[str, Any]
    withstands: tuple[Withstands, ...]
    row_names: dict[Table, list[str]]


def _parties(result: FederationResult) -> list[str]:
    return [client_party(client.name) for client in result.graph.clients]
