"""Damage by an active adversary: lost utility compared with the same run without it, and honest rows that a defense cut.

    figures = damage(truth, {"plain": attacked}, ["hospital-1"])

Both runs have one seed. They differ only by the adversary, and by noise that a defense draws from the operating system (`dp`),
which the interval does not cover. `mrr-drop`: lost mean reciprocal rank of each honest client's test triples, and of all
together; the interval is over triples, by pairs. `rows-cut`: where a server's screen counts them, the share of honest clients'
uploaded rows that it cut, over all rounds. Its baseline is the same share in the clean run, the cost of the defense without an
attack.

If the adversary shares no row with another client, as where data are divided by relations and only these are shared, its
uploads reach nobody. The loss is then zero by construction, and a remark says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from fkgsec import estimate
from fkgsec.attacks.figure import Figure
from fkgsec.attacks.registry import Truth
from fkgsec.attacks.view import ALL
from fkgsec.estimate import Estimate, exact
from fkgsec.federation.messages import client_party
from fkgsec.federation.recipes import RECIPES
from fkgsec.kge.result import KgeResult
from fkgsec.randomness import generator

MRR_DROP, ROWS_CUT = "mrr-drop", "rows-cut"
METRICS = {
    MRR_DROP: "test MRR of honest clients, lost against the same run without the adversary",
    ROWS_CUT: "share of honest clients' uploaded rows that the defense cut",
}
ITEMS = {MRR_DROP: "test triples", ROWS_CUT: "uploaded rows"}


def damage(
    truth: Truth, attacked: Mapping[str, KgeResult], adversaries: Sequence[str], remark: str | None = None
) -> list[Figure]:
    """Compute the figures of the runs with the adversary, by variant.

    Args:
        attacked: run with the adversary, by variant.
        adversaries: names of the malicious clients; empty if the server is the adversary.
        remark: note on the figures.
    """
    clean: KgeResult = truth.result
    remark = "; ".join(filter(None, (remark, _reaches_nobody(clean, adversaries)))) or None
    # The adversary's own loss is no damage.
    names = [client.name for client in clean.graph.clients]
    places = [place for place, name in enumerate(names) if name not in adversaries]
    reciprocal = {way: [(1 / ranks).mean(axis=1) for ranks in run.test_ranks] for way, run in attacked.items()}
    before = [(1 / ranks).mean(axis=1) for ranks in clean.test_ranks]
    figures = []
    for name, chosen in (*((names[place], [place]) for place in places), (ALL, places)):
        # Reciprocal ranks in the clean run, the upper bound of the loss.
        base = np.concatenate([before[place] for place in chosen])
        if not len(base):
            figures.append(truth.figure(MRR_DROP, name, reason="it has no test triple"))
            continue
        # Paired by test triple: both runs rank the same triples.
        lost = {way: base - np.concatenate([after[place] for place in chosen]) for way, after in reciprocal.items()}
        measures = {
            way: partial(_mean, values, generator(truth.seed, MRR_DROP, name, way)) for way, values in lost.items()
        }
        figures += truth.figures(
            MRR_DROP, name, measures, {"chance": exact(0.0, len(base))},
            attainable=float(base.mean()), num_attacked=len(chosen), remark=remark,
        )  # fmt: skip
    cut = _share_cut(clean, adversaries)
    for way, run in attacked.items():
        if (share := _share_cut(run, adversaries)) is not None:
            figures.append(truth.figure(ROWS_CUT, ALL, share, baseline=cut, attainable=1.0, variant=way))
    return figures


def _reaches_nobody(clean: KgeResult, adversaries: Sequence[str]) -> str | None:
    """State that the adversaries share no row with another client; None if they do, or if the server is the adversary."""
    for table in RECIPES[clean.options.algorithm].shared if adversaries else ():
        attackers, others = set[int](), set[int]()
        for client in clean.graph.clients:
            ids, count = (
                (client.entity_ids, client.num_trained_entities)
                if table == "entities"
                else (client.relation_ids, client.num_trained_relations)
            )
            (attackers if client.name in adversaries else others).update(ids[:count].tolist())
        if attackers & others:
            return None
    whose = " and ".join(adversaries)
    return f"no other client has a row of {whose}'s: what it uploads reaches nobody" if adversaries else None


def _mean(values: np.ndarray, rng: np.random.Generator, compared: int = 1) -> Estimate:
    return estimate.at_level(estimate.mean(values, rng), compared)


def _share_cut(result: KgeResult, adversaries: Sequence[str]) -> Estimate | None:
    """Return the share of honest clients' rows that a screen cut, counted and not sampled; None if no screen counts rows."""
    left_out = {client_party(name) for name in adversaries}
    counts = [rows for entry in result.rounds for party, rows in entry.cut_rows.items() if party not in left_out]
    total = sum(of for _, of in counts)
    return exact(sum(cut for cut, _ in counts) / total, total) if total else None
