"""`python -m experiments.bench.gpu.plan`: write `cells.json`, the cells of the papers' tables in order of worth, from the specs.

A machine that is lent for half an hour has neither pandas nor scipy, which reading a spec loads.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from experiments.bench.gpu.cells import PLAN, Cell
from experiments.papers.runner import run_name
from experiments.papers.spec import find_experiment, read_experiment
from experiments.tasks.kge import Spec
from fkgsec.federation.options import flat
from fkgsec.kge.device.fused import FUSED_MODELS
from fkgsec.kge.options import KgeOptions

TABLES = (
    "zhang2024_feds_table2",
    "zhu2023_fedlu_table1",
    "zhang2024_pfedeg_table1",
    "zhang2022_fedr_table2",
    "zhang2024_feds_table3",
    "zhang2024_pfedeg_table2",
    "zhu2023_fedlu_table4",
    "zhang2024_feds_table4",
    "zhang2024_pfedeg_table3",
)
"""The tables, most worth first: what the papers claim, before ablations and costs."""


def make_plan() -> list[Cell]:
    """TransE's cells before the other models' and, within a model, the tables in turn, so that each has figures early.

    Clusters of relations need packages that a lent machine may lack, and come last of all.
    """
    ranked: list[tuple[tuple[object, ...], Cell]] = []
    seen: set[str] = set()
    for number, table in enumerate(TABLES):
        experiment = read_experiment(find_experiment(table))
        place = 0
        for cell in experiment.cells:
            for spec in cell.candidates:
                assert isinstance(spec, Spec)
                if spec.model not in FUSED_MODELS:
                    continue
                made = _cell(table, run_name(cell, spec.replace(seed=experiment.seeds[0])), spec)
                same = repr((made.options, made.data, made.clients, made.partition))
                if same not in seen:
                    seen.add(same)
                    worth = (made.partition == "clusters", FUSED_MODELS.index(spec.model), place // 6, number, place)
                    ranked.append((worth, made))
                    place += 1
    return [cell for _, cell in sorted(ranked, key=lambda pair: pair[0])]  # type: ignore[arg-type, return-value]


def _cell(table: str, name: str, spec: Spec) -> Cell:
    options = msgspec.structs.replace(spec.federation_options(), draws="philox")
    plain = flat(msgspec.to_builtins(KgeOptions()))
    given = {name: value for name, value in msgspec.to_builtins(options).items() if name != "settings"}
    changed = {name: value for name, value in given.items() if value != plain[name]} | options.settings.given()
    return Cell(table, name, changed, spec.data, spec.clients, spec.partition, spec.split_seed)


def main() -> None:
    """Write the file."""
    cells = make_plan()
    lines = ",\n".join(msgspec.json.encode(cell).decode() for cell in cells)
    path = Path(__file__).with_name(PLAN)
    path.write_text(f"[\n{lines}\n]\n")
    print(f"Written {path}: {len(cells)} cells")


if __name__ == "__main__":
    main()
