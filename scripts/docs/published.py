"""Recompute the figures of docs/published-numbers.md from the published files and the papers' printed tables.

    FKGSEC_DATA=data python -m scripts.docs.published                # every section
    python -m scripts.docs.published memory fedlu cefgl              # the sections that need no data

Printed figures are those of `experiments/specs`, which a test compares with the papers' texts. Nothing is trained.
"""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binom

from fkgsec.data.catalogue import load_dataset, locate
from fkgsec.data.graph import SPLITS, FederatedGraph, KnowledgeGraph
from fkgsec.data.partition import partition
from fkgsec.data.split_leaks import find_split_leaks
from fkgsec.experiments.papers.spec import Experiment, find_experiment, read_experiment
from fkgsec.experiments.runs.record import read_record
from scripts.docs.threat_pictures import ADVERSARY, HONEST, LINE, STYLE, TEXT

FILES = (3, 5, 10, 15, 20)
"""Numbers of clients of the released DDB14 files."""
COLUMNS = (5, 10, 15, 20)
"""Of these, the columns of FedR's Table 2."""
TENTHS = 10
DENOMINATOR = 128
_RECORDS = Path(__file__).parents[2] / "results/tables/kge"
_SIZE, _LEFT = 420, 60


def printed(table: str, row: str, column: str, metric: Any = "mrr") -> float:
    """Return a figure as a paper prints it.

    Args:
        table: name of the spec of the paper's table.
        row, column: of the cell.
        metric: of the figure.

    Raises:
        LookupError: the table has no such figure.
    """
    for cell in _experiment(table).cells:
        if (cell.row, cell.column) == (row, column) and (figure := cell.figures.get(metric)) is not None:
            return figure
    raise LookupError(f"{table} has no {metric} of {row}, {column}")


@functools.cache
def _experiment(table: str) -> Experiment:
    return read_experiment(find_experiment(table))


def released(clients: int) -> FederatedGraph:
    """Load a DDB14 division as released with FedR.

    Args:
        clients: number of clients.
    """
    graph = load_dataset(f"DDB14-Fed{clients}")
    assert isinstance(graph, FederatedGraph)
    return graph


def released_rows(clients: int) -> np.ndarray:
    """Return all triples of a released file, client by client and split by split, int `[n, 3]` in the file's global
    IDs.

    Args:
        clients: number of clients.
    """
    graph = released(clients)
    rows = np.concatenate([client.to_global(getattr(client, split)) for client in graph.clients for split in SPLITS])
    # Names are the file's global IDs as text, see `read_fede_pickle`.
    entities, relations = (np.array([int(name) for name in names]) for names in (graph.entities, graph.relations))
    return np.stack([entities[rows[:, 0]], relations[rows[:, 1]], entities[rows[:, 2]]], axis=1)


def original_rows() -> np.ndarray:
    """Return DDB14 in the order of PathCon's files, int `[n, 3]` in the IDs of PathCon's dictionaries, as in the
    released files.
    """
    folder = locate("DDB14")
    entities, relations = (
        {name: int(number) for number, name in (line.split("\t") for line in file.read_text().splitlines())}
        for file in (folder / "entities.dict", folder / "relations.dict")
    )
    lines = [line.split("\t") for split in SPLITS for line in (folder / f"{split}.txt").read_text().splitlines()]
    return np.array([(entities[head], relations[relation], entities[tail]) for head, relation, tail in lines])


def shuffled_as_views(rows: np.ndarray, seed: int) -> np.ndarray:
    """Copy rows and apply Python's `random.shuffle`, which exchanges `x[i], x[j] = x[j], x[i]`.

    A row of a two-dimensional array is a view. The first assignment overwrites the row that the second one reads, so
    one row is
    copied over the other and nothing is exchanged.

    Args:
        rows: int `[n, 3]`.
        seed: of `random`.
    """
    copied = rows.copy()
    random.Random(seed).shuffle(copied)  # type: ignore[arg-type] (an array is the point)
    return copied


def multiplicities(original: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Count the copies of each original triple, int `[n]`.

    Args:
        original: int `[n, 3]`, distinct.
        rows: int `[m, 3]`, to count in.
    """
    # Above every ID, so that packed triples are unique.
    base = int(max(original.max(), rows.max())) + 1
    # Pack a triple into one number, so that one search counts all of them.
    keys, row_keys = (triples @ np.array([base * base, base, 1]) for triples in (original, rows))
    distinct, counts = np.unique(row_keys, return_counts=True)
    # Clip: a key beyond the last would index out of range.
    places = np.searchsorted(distinct, keys).clip(max=len(distinct) - 1)
    return np.where(distinct[places] == keys, counts[places], 0)


def by_tenth(counts: np.ndarray) -> list[float]:
    """Return the mean over each tenth of the positions.

    Args:
        counts: float `[n]`.
    """
    return [float(part.mean()) for part in np.array_split(counts, TENTHS)]


def expected_by_tenth(n: int) -> list[float]:
    """Return the expected multiplicity ln(n / v) of the triple at position v, as a mean over each tenth of the
    positions 1 to n.

    Args:
        n: number of triples.
    """
    return by_tenth(np.log(n / np.arange(1, n + 1)))


@functools.cache
def leak_shares() -> dict[int, float]:
    """Return the share of test triples that are in their own client's train split, by number of clients, from committed
    records.
    """
    shares = {}
    for clients in COLUMNS:
        # Utility by leak counts the test triples of each kind.
        parts = read_record(_RECORDS / f"fedr-table2-transe-fedr-ddb14-c{clients}-seed0.json").utility_by_leak
        shares[clients] = parts["leaked"]["mrr"].n / sum(part["mrr"].n for part in parts.values())
    return shares


def fedr_cells() -> list[tuple[str, int, float]]:
    """Return model, number of clients and printed MRR of every FedR cell on DDB14."""
    rows = [
        row for row in dict.fromkeys(cell.row for cell in _experiment("zhang2022_fedr_table2").cells) if "FedR" in row
    ]
    return [
        (row.removesuffix(" FedR"), clients, printed("zhang2022_fedr_table2", row, f"DDB14 C{clients}"))
        for row in rows
        for clients in COLUMNS
    ]


def overlaps(seed: int) -> list[float]:
    """Return the shares of the entities of clients 2 and 3 that client 1 has, for a random division of FB15k-237.

    Args:
        seed: of the division.
    """
    # FedR's Table 1 attacks clients 2 and 3 from client 1's entities.
    first, *others = (set(client.entity_ids.tolist()) for client in divided("FB15k-237", 3, seed).clients)
    return [len(first & other) / len(other) for other in others]


def divided(data: str, clients: int, seed: int = 0) -> FederatedGraph:
    """Divide a data set at random, without repeats: a triple goes to one client and one split.

    Args:
        data: name of the data set.
        clients: number of clients.
        seed: of the division.
    """
    graph = load_dataset(data)
    assert isinstance(graph, KnowledgeGraph)
    return partition(graph, "triples", clients, seed)


def mean_entities(graph: FederatedGraph) -> float:
    """Return the mean number of entities over clients.

    Args:
        graph: the federation.
    """
    return float(np.mean([client.num_entities for client in graph.clients]))


def multiples(table: str, denominator: int = DENOMINATOR) -> tuple[list[tuple[str, str, float]], int]:
    """Return the printed accuracies that are multiples of 1/denominator to four digits, and the number of printed ones.

    Args:
        table: name of the spec of the paper's table.
        denominator: of the fraction.
    """
    figures = [
        (cell.row, cell.column, figure)
        for cell in _experiment(table).cells
        if (figure := cell.figures.get("accuracy")) is not None
    ]
    return [entry for entry in figures if _is_multiple(entry[2], denominator)], len(figures)


def chance_of_multiples(count: int, figures: int, denominator: int = DENOMINATOR) -> tuple[float, float]:
    """Return the expected number of multiples among independent figures of four uniform digits, and the probability of
    `count`.

    Args:
        count: number of multiples; the probability is that of as many or more.
        figures: number of figures.
        denominator: of the fraction.
    """
    # Share of all four-digit figures that are multiples: the probability of one by chance.
    share = sum(_is_multiple(number / 10_000, denominator) for number in range(10_000)) / 10_000
    return share * figures, float(binom.sf(count - 1, figures, share))


def _is_multiple(figure: float, denominator: int) -> bool:
    """Return whether a figure is a multiple to four digits, with either rounding of a five."""
    return abs(figure - round(figure * denominator) / denominator) <= 0.5e-4 + 1e-9


def _leak_lines() -> list[str]:
    lines = ["file          triples  distinct  test   in own train   in another's alone   in none"]
    for clients in FILES:
        graph = released(clients)
        (_, leaks), num_own, elsewhere = find_split_leaks(graph), 0, 0
        for index in range(len(graph.clients)):
            mine, others = (leaks[index, "test", f"exact_{whose}"] for whose in ("own", "other"))
            num_own, elsewhere = num_own + int(mine.sum()), elsewhere + int((others & ~mine).sum())
        rows, test = released_rows(clients), sum(len(client.test) for client in graph.clients)
        lines.append(
            f"DDB14-Fed{clients:<4} {len(rows):>7,} {len(np.unique(rows, axis=0)):>9,} {test:>5,} "
            f"{num_own:>6,} ({num_own / test:.4f}) {elsewhere:>9,} ({elsewhere / test:.4f}) {test - num_own - elsewhere:>8,} "
            f"({1 - (num_own + elsewhere) / test:.4f})"
        )
    return lines


def _cause_lines() -> list[str]:
    original = original_rows()
    # One simulated shuffle shows that the observed counts are typical, not only their mean.
    n, simulated = len(original), multiplicities(original, shuffled_as_views(original, seed=0))
    released_counts = [multiplicities(original, released_rows(clients)) for clients in FILES]
    # If all files repeat the same triples, they come from one shuffle.
    alike = all((counts == released_counts[0]).all() for counts in released_counts)
    shown = {
        "expected ln(n / v)": expected_by_tenth(n),
        "one shuffle, seed 0": by_tenth(simulated),
        "released files": by_tenth(released_counts[0]),
    }
    return [
        f"{n:,} triples, all distinct; expected after the shuffle {n / 2:,.0f}, seed 0 {np.count_nonzero(simulated):,}, "
        f"released {np.count_nonzero(released_counts[0]):,}",
        f"the {len(FILES)} files {'repeat the same triples as often' if alike else 'differ in what they repeat'}",
        "copies of a triple by tenth of its position in PathCon's files:",
        *(f"  {name:<20}" + " ".join(f"{value:.2f}" for value in values) for name, values in shown.items()),
    ]


def _memory_lines() -> list[str]:
    shares, cells = leak_shares(), fedr_cells()
    # A model that memorized the leaked triples ranks them first: its MRR is at least their share.
    above = [figure - shares[clients] for _, clients, figure in cells]
    lines = [
        f"{model:<12} C{clients:<3} {figure:.4f} = {shares[clients]:.4f} + {figure - shares[clients]:.4f}"
        for model, clients, figure in cells
    ]
    return [*lines, f"{len(cells)} cells: printed MRR less leak share is {min(above):.4f} to {max(above):.4f}"]


def _sizes_lines() -> list[str]:
    lines = ["entities of a client   paper     released file   a division without repeats"]
    for clients in COLUMNS:
        # The printed mean, that of the released file, and that of a division without repeats.
        paper = printed("zhang2022_fedr_table5", "TransE Local", f"DDB14 C{clients}", "entities")
        file, clean = (mean_entities(division) for division in (released(clients), divided("DDB14", clients)))
        lines.append(f"DDB14 C{clients:<14} {paper:>9.2f} {file:>12.2f} {clean:>16.2f}")
    for data in ("WN18RR", "FB15k-237"):
        for clients in COLUMNS:
            paper = printed("zhang2022_fedr_table5", "TransE Local", f"{data} C{clients}", "entities")
            lines.append(
                f"{f'{data} C{clients}':<21} {paper:>9.2f} {'-':>12} {mean_entities(divided(data, clients)):>16.2f}"
            )
    return lines


def _err_lines() -> list[str]:
    # Three divisions show how much the overlap varies.
    shares = [share for seed in range(3) for share in overlaps(seed)]
    lines = ["leak   overlap times leak, three divisions   paper C2   paper C3"]
    for leak, column in ((0.3, "LR 30%"), (0.5, "LR 50%"), (1.0, "LR 100%")):
        # The printed ERR, for comparison with overlap times leak.
        paper = [printed("zhang2022_fedr_table1", row, column, "err") for row in ("C2", "C3")]
        lines.append(
            f"{leak:.1f}    {leak * min(shares):.4f} to {leak * max(shares):.4f} {paper[0]:>27.4f} {paper[1]:>10.4f}"
        )
    return lines


def _fedlu_lines() -> list[str]:
    lines = ["Hits@1, C3     Independent, Table 1   the same on 99 % of the triples, Table 2"]
    for model in ("TransE", "ComplEx", "RotatE"):
        # Training on 1 % fewer triples should hardly change a figure.
        whole = printed("zhu2023_fedlu_table1", f"{model} Independent", "C3", "hits@1")
        less = printed("zhu2023_fedlu_table2", f"{model} re-trained", "local test", "hits@1")
        lines.append(f"{model:<14} {whole:>20.4f} {less:>38.4f}   {less - whole:+.4f}")
    return lines


def _cefgl_lines() -> list[str]:
    lines = []
    for table in ("liu2024_cefgl_table1", "liu2024_cefgl_table2"):
        matches, figures = multiples(table)
        expected, chance = chance_of_multiples(len(matches), figures)
        lines.append(
            f"{table}: {len(matches)} of {figures} accuracies are multiples of 1/{DENOMINATOR}; expected {expected:.1f}, "
            f"probability of as many {chance:.1g}"
        )
        lines += [
            f"  {row}, {column}: {figure:.4f} = {round(figure * DENOMINATOR)}/{DENOMINATOR}"
            for row, column, figure in matches
        ]
    return lines


SECTIONS = {
    "leak": _leak_lines, "cause": _cause_lines, "memory": _memory_lines, "sizes": _sizes_lines, "err": _err_lines,
    "fedlu": _fedlu_lines, "cefgl": _cefgl_lines,
}  # fmt: skip


def draw() -> str:
    """Draw the printed MRR of FedR on DDB14 over the leak share, as SVG: a point per model and column, and the
    diagonal.
    """
    shares, top, most = leak_shares(), 20, 0.5

    def place(share: float, figure: float) -> tuple[float, float]:
        """Return the pixel position of a point."""
        return round(_LEFT + _SIZE * share / most, 1), round(top + _SIZE * (1 - figure / most), 1)

    (left, bottom), (right, high) = place(0, 0), place(most, most)
    parts = [f'<path d="M{left} {high}V{bottom}H{right}" fill="none" stroke="{LINE}"/>']
    parts.append(f'<path d="M{left} {bottom}L{right} {high}" stroke="{HONEST}" stroke-dasharray="6 4"/>')
    for tick in (0.1, 0.2, 0.3, 0.4, 0.5):
        x, y = place(tick, tick)
        parts.append(f'<text x="{x}" y="{bottom + 18}" text-anchor="middle" fill="{TEXT}">{tick}</text>')
        parts.append(f'<text x="{left - 8}" y="{y + 4}" text-anchor="end" fill="{TEXT}">{tick}</text>')
    for model, clients, figure in fedr_cells():
        x, y = place(shares[clients], figure)
        label = escape(f"{model}, {clients} clients: {figure:.4f}")
        parts.append(
            f'<circle cx="{x}" cy="{y}" r="4" fill="{ADVERSARY}" fill-opacity="0.7"><title>{label}</title></circle>'
        )
    for clients, share in shares.items():
        x, y = place(share, share)
        parts.append(f'<text x="{x + 8}" y="{y + 16}" fill="{TEXT}">{clients} clients</text>')
    words = "share of test triples in their own client's train split"
    parts.append(f'<text x="{(left + right) / 2}" y="{bottom + 38}" text-anchor="middle" fill="{TEXT}">{words}</text>')
    parts.append(
        f'<text x="{left + 8}" y="{top + 4}" fill="{TEXT}">MRR of FedR that Table 2 prints, DDB14; dashed: MRR = share</text>'
    )
    title = "FedR on DDB14: printed MRR over the share of leaked test triples"
    width, height = _LEFT + _SIZE + 60, top + _SIZE + 50
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" style="{STYLE}">'
        f"<title>{title}</title>{''.join(parts)}</svg>"
    )


def main(names: Sequence[str]) -> None:
    """Print sections.

    Args:
        names: keys of `SECTIONS`; empty: all.
    """
    for name in names or SECTIONS:
        print("\n".join([f"## {name}", "", *SECTIONS[name](), ""]))


if __name__ == "__main__":
    main(sys.argv[1:])
