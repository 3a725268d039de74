"""Coverage of the intervals of ERR and TRR over draws of the leaked entities.

`python -m benchmarks.intervals --data UMLS` trains a federation in plaintext and one with psu,secagg. It attacks each under 20
draws of the colluder's leaked entities, and prints one row per leak and figure. `--trainings 4` adds the variation over other
trainings of the same federation, which the interval of a single training does not cover.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
import numpy as np
import typer

from benchmarks.rounds import print_table
from fkgsec.attacks.figure import headline
from fkgsec.attacks.options import KgeAttackOptions
from fkgsec.attacks.registry import RECONSTRUCTION, run_attacks
from fkgsec.attacks.view import ALL
from fkgsec.defenses.transport import make_transport
from fkgsec.estimate import Estimate
from fkgsec.experiments.cli.console import expected_errors
from fkgsec.experiments.runs.spec import CONSORTIUM, Spec
from fkgsec.federation.loop import run_federation
from fkgsec.kge.result import KgeResult

DRAWS = 20


def figures_of(result: KgeResult, leak: float, seed: int) -> dict[str, Estimate]:
    """Return ERR and TRR over all victims under collusion, by the strongest inference.

    Args:
        result: of the run.
        leak: share of leaked entities.
        seed: of the draw.
    """
    options = KgeAttackOptions(
        attack=(RECONSTRUCTION,), threat=("collusion",), leak=(leak,), unlinked_heads=0, seed=seed
    )
    return {
        entry.metric: entry.estimate for entry in headline(run_attacks(result, options).figures) if entry.victim == ALL
    }


def train(spec: Spec, seed: int) -> KgeResult:
    """Train the same division of the same data with another seed.

    Args:
        spec: of the run.
        seed: of the training.
    """
    options = msgspec.structs.replace(spec, seed=seed).federation_options()
    return run_federation(spec.load_graph(), options, make_transport=make_transport)


def main(
    data: Annotated[str, typer.Option(help="as of `fkgsec train`")] = CONSORTIUM,
    rounds: Annotated[int, typer.Option()] = 20,
    trainings: Annotated[int, typer.Option(help="further trainings whose scatter is printed")] = 0,
) -> None:
    """Print a table in Markdown."""
    rows = []
    for defense in ("", "psu,secagg"):
        spec = Spec(
            data=data, defense=defense, device="cpu", rounds=rounds, dim=32, num_negatives=64, learning_rate=0.01
        )
        results = [train(spec, seed) for seed in range(1 + trainings)]
        for leak in (0.3, 0.5):
            # One training, many draws of leaked entities: the variation that the interval claims to cover.
            drawn = [figures_of(results[0], leak, seed) for seed in range(DRAWS)]
            others = [figures_of(result, leak, 0) for result in results[1:]]
            for name in ("err", "trr"):
                figures = [estimates[name] for estimates in drawn]
                # Coverage is judged by the mean over all draws.
                values = np.array([figure.value for figure in figures])
                mean, half = values.mean(), np.mean([figure.high - figure.low for figure in figures]) / 2
                # An interval covers if it includes the mean over all draws.
                covered = sum(figure.low <= mean <= figure.high for figure in figures)
                scatter = (
                    np.std([figures[0].value, *(estimates[name].value for estimates in others)], ddof=1)
                    if others
                    else None
                )
                written = (f"{mean:.4f}", f"{values.std(ddof=1):.4f}", f"{half:.4f}", covered)
                last = "" if scatter is None else f"{scatter:.4f}"
                rows.append((data, defense or "none", f"{leak:g}", name.upper(), *written, last))
    heads = ["data", "defense", "leak", "figure", "mean", "sd over draws", "half width", f"covered of {DRAWS}"]
    print_table("Intervals", [*heads, "sd over trainings"], rows)


if __name__ == "__main__":
    typer.run(expected_errors(main))
