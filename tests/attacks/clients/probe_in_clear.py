"""What the displacement probe tells under a clip: by moves of one round and of five, and beside moves so short in clear.

    python -m tests.attacks.clients.probe_in_clear                # under a minute

Each run of the matrix under `robust:rule=clip` is trained with the probe's client in it, and the same run without a defense, with
moves in the same directions of the length that the clip cut them to. Where these two AUC (trained triples among random pairs, the
mean over victims) are equal, the clip takes all that a client gains by moving rows further than an honest one does in a round.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import msgspec
import numpy as np
import torch

from fkgsec.attacks.clients.active import Plan, ask
from fkgsec.attacks.kge.view import KgeView
from fkgsec.attacks.laboratory import Laboratory
from fkgsec.attacks.registry import Truth
from fkgsec.defenses import robust
from fkgsec.experiments.runs.record import Record
from tests.attacks.clients.probe_null import auc, rows_of, trained
from tests.experiments.test_matrix_results import CLIP, FOLDER, cases

ROUNDS = 5


Trained = tuple[Laboratory[KgeView], Truth, Plan]


def probe(run: Trained, **changes: Any) -> tuple[float, int]:
    """The AUC, and the round of the probe."""
    laboratory, truth, plan = run
    found = ask(replace(plan, **changes), laboratory)
    return float(np.mean([auc(found, rows_of(truth, plan, victim)) for victim in truth.victims])), found.round


def watched(record: Record) -> tuple[Trained, list[float]]:
    """The run without the probe, and the clip's bound of each round."""
    bounds: list[float] = []
    clip = robust._clip

    def bounded(uploads: Any, previous: torch.Tensor, c: float) -> Any:
        usual = [robust._usual(one.rows - previous[one.places]) for one in uploads.values()]
        bounds.append(c * float(torch.stack(usual).median()))
        return clip(uploads, previous, c)

    with mock.patch.object(robust, "_clip", bounded):
        return trained(record), bounds


def main() -> None:
    print("| data | seed | length of moves | cut to | clip | clip, five rounds | in clear, moves of that length |")
    print("|---" * 7 + "|")
    for data in ("hospitals", "umls"):
        rows = []
        for path in sorted(FOLDER.glob(f"{data}-seed*.json")):
            record = cases(path.stem)[CLIP]
            run, bounds = watched(record)
            clipped, round = probe(run)
            repeated, _ = probe(run, rounds=ROUNDS)
            length, bound = float(run[2].moves.norm(dim=1).mean()), bounds[round - 1]
            clear = trained(msgspec.structs.replace(record, spec=msgspec.structs.replace(record.spec, defense="")))
            short, _ = probe(clear, moves=clear[2].moves * (bound / length))
            rows.append((length, bound, clipped, repeated, short))
            print(line(data, path.stem[-1], rows[-1]), flush=True)
        print(line(data, "all", np.mean(rows, axis=0)), flush=True)


def line(data: str, seed: str, row: Any) -> str:
    length, bound, *found = row
    return f"| {data} | {seed} | {length:.2f} | {bound:.2f} | {' | '.join(f'{one:.3f}' for one in found)} |"


if __name__ == "__main__":
    main()
