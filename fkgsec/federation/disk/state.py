"""Where a run stands, on disk: its federation's state as a checkpoint, and what its best round left.

save_state(path, federation, progress)
progress = restore_state(federation, path)               # a federation of the same data, options and adversary
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from fkgsec.errors import RunError
from fkgsec.exchange import Observed
from fkgsec.federation import checkpoint, packing
from fkgsec.federation.checkpoint import Progress
from fkgsec.federation.options import run_identities
from fkgsec.federation.recipes import Table
from fkgsec.federation.result import Kept

if TYPE_CHECKING:
    from fkgsec.federation.loop import Federation


@dataclass(frozen=True, kw_only=True)
class Best(Kept):
    """What the best round leaves: the task's models before and after its broadcast, and what crossed in it."""

    trained: dict[str, Tensor]
    final: dict[str, Tensor]

    @classmethod
    def of(cls, federation: Federation, trained: dict[str, Tensor], started: packing.ByParty) -> Best:
        """Of the round that has just ended."""
        exchange = federation.exchange
        return cls(
            trained=trained,
            final=federation.task.snapshot(),
            started=started,
            inputs={table: exchange.inputs.get(table, {}) for table in exchange.server},
            known={table: _cloned(exchange.known.get(table, {})) for table in exchange.server},
            carried=exchange.carried(),
            observed={
                table: {party: Observed(*map(Tensor.clone, one)) for party, one in exchange.observed(table).items()}
                for table in exchange.server
            },
        )

    def tree(self, parties: Sequence[str]) -> dict[str, packing.Tree]:
        """As it stands in a checkpoint."""
        return {**super().tree(parties), "trained": self.trained, "final": self.final}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], tables: Sequence[Table], parties: Sequence[str]) -> Best:
        """Undo `tree`, packed."""
        trained, final = (packing.below(f"{kind}.", tensors) for kind in ("trained", "final"))
        return cls(trained=trained, final=final, **Kept.read(tensors, tables, parties))


def _cloned(own: dict[str, Tensor]) -> dict[str, Tensor]:
    return {party: rows.clone() for party, rows in own.items()}


def save_state(path: Path, federation: Federation, progress: Progress) -> None:
    """Write where a run stands."""
    best = federation.best
    transcript, adversary = federation.channel.transcript, federation.adversary
    progress.entries = transcript.entries
    tree: dict[str, packing.Tree] = {
        "now": federation.task.snapshot(),
        "best": best.tree(federation.parties) if best else {},
        "exchange": federation.exchange.tensors(),
        "trainer": federation.task.trainer_state(),
        "adversary": adversary.tensors() if adversary else {},
    }
    checkpoint.save(path, packing.leaves(tree), progress, {"frame": transcript.frames, "note": transcript.notes})


def restore_state(federation: Federation, path: Path, *, honest: bool = False) -> Progress:
    """Put a checkpoint's state back; returns where the run stands.

    Args:
        honest: it is of the run without the adversary, which has not begun.

    Raises:
        RunError: it is damaged or of another run.
    """
    adversary = None if honest else federation.adversary
    tensors, progress = checkpoint.load(path, run_identities(federation.graph, federation.options, adversary))
    federation.task.restore(packing.below("now.", tensors))
    transcript = federation.channel.transcript
    transcript.entries = list(progress.entries)
    transcript.frames = packing.frames_of(packing.view_below("frame.", tensors))
    transcript.notes = packing.frames_of(packing.below("note.", tensors))
    shared, parties = federation.recipe.shared, federation.parties
    try:
        federation.exchange.restore(
            {table: federation.holdings(table) for table in shared}, packing.below("exchange.", tensors)
        )
    except RunError as error:
        raise RunError(f"{path}: {error}") from error
    for table in shared:
        federation.orders.broadcast(0, table)
    federation.task.load_trainer_state(packing.below("trainer.", tensors))
    if adversary:
        adversary.load(packing.below("adversary.", tensors))
    found = packing.view_below("best.", tensors)
    federation.best = Best.from_tensors(found, shared, parties) if found else None
    return progress
