"""Size of CEFGL's messages relative to those of FedAvg and FedStar: the paper's factor of 18.58, measured.

`python -m benchmarks.graph_bytes --data MUTAG,BZR,COX2,PTC_MR,AIDS,NCI1` runs two rounds of each algorithm and counts the bytes
of every serialized message (levels, steps, names, headers). It multiplies them by the number of exchanges in a run: all rounds,
or for CEFGL those in which its coin decides so. The size does not depend on the data, so `--data motifs` gives the same except
for the lengths of names.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from benchmarks.rounds import print_table
from fkgsec.experiments.cli.console import expected_errors
from fkgsec.federation.loop import run_federation
from fkgsec.federation.options import replace
from fkgsec.gnn.options import GnnOptions
from fkgsec.graphs.collection import load_federation
from fkgsec.graphs.sets import FederatedGraphs

VARIANTS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "fedavg, 2 layers": ("fedavg", 2, {}),
    "fedstar, 2 layers": ("fedstar", 2, {}),
    "fedstar, 3 layers (its code)": ("fedstar", 3, {}),
    "cefgl": ("cefgl", 2, {}),
    "cefgl, upload=both": ("cefgl", 2, {"upload": "both"}),
    "cefgl, bits=4": ("cefgl", 2, {"bits": 4, "rounding": "nearest"}),
    "cefgl as printed (scale=l2, bits=4, upload=both)": ("cefgl", 2, {"upload": "both", "scale": "l2", "bits": 4}),
    "cefgl, singular_threshold=1": ("cefgl", 2, {"singular_threshold": 1.0}),
    "cefgl, bits=32": ("cefgl", 2, {"bits": 32}),
}
FEDSTAR = "fedstar, 3 layers (its code)"


def weigh(graphs: FederatedGraphs, name: str, rounds: int, seed: int = 0) -> tuple[int, int, int, int]:
    """Measure the messages of a variant in the second round, since a broadcast may be longer in the first.

    Args:
        graphs: the clients' graphs.
        name: key of `VARIANTS`.
        rounds: of the run.
        seed: of the run.

    Returns:
        Bytes of all clients up and down per exchange, number of exchanges, bytes of the whole run.
    """
    algorithm, layers, settings = VARIANTS[name]
    options = GnnOptions(algorithm=algorithm, layers=layers, rounds=rounds, settings=settings, seed=seed, device="cpu")
    exchanges = sum(map(options.exchanges, range(1, rounds + 1)))
    # Exchange in both measured rounds; the coin only enters the number of exchanges.
    always = {"exchange": 1.0} if algorithm == "cefgl" else {}
    transcript = run_federation(graphs, replace(options, rounds=2, settings=settings | always)).transcript
    # Alignment and the initial broadcast count once.
    first = transcript.num_bytes("up", 0) + transcript.num_bytes("down", 0)
    up, down = transcript.num_bytes("up", 2), transcript.num_bytes("down", 2)
    return up, down, exchanges, first + exchanges * (up + down)


def main(
    data: Annotated[str, typer.Option(help="as of `fkgsec train`")] = "motifs",
    rounds: Annotated[int, typer.Option(help="of the run that is weighed")] = 200,
) -> None:
    """Print a table in Markdown."""
    graphs = load_federation(data, seed=0)
    weighed = {name: weigh(graphs, name, rounds) for name in VARIANTS}
    print_table(
        f"{len(graphs.clients)} clients, {rounds} rounds",
        ("", "up", "down", "rounds that cross", "total, MB", "FedStar over it"),
        [
            (name, f"{up:,}", f"{down:,}", str(number), f"{total / 1e6:.2f}", f"{weighed[FEDSTAR][-1] / total:.2f}")
            for name, (up, down, number, total) in weighed.items()
        ],
    )


if __name__ == "__main__":
    typer.run(expected_errors(main))
