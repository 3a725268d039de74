"""ERR and TRR from what was counted of each victim, and the strongest of several ways to infer relations.

>>> from fkgsec.estimate import exact, proportion
>>> def trr(variant, right):
...     guesses = {"majority": exact(0.2, 100), "prior": exact(0.1, 100)}
...     return Figure("reconstruction", "trr", "collusion", "b", proportion(right, 100), guesses["majority"],
...                   variant=variant, guesses=guesses)
>>> best = strongest([trr("cosine", 15), trr("score", 45)])
>>> best.variant, best.by, best.compared, str(best.estimate)
('strongest', 'score', 4, '0.4500 [0.3323, 0.5735]')
>>> strongest([trr("cosine", 15)]).by, strongest([trr("cosine", 15)]).estimate.value
('majority', 0.2)

Source: ours. fedr.txt 3.1 infers by cosine alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from fkgsec import estimate
from fkgsec.attacks.figure import STRONGEST, Figure
from fkgsec.attacks.options import Inference
from fkgsec.attacks.outcomes import Outcomes, of_mean
from fkgsec.attacks.reconstruction.leakage import PUBLISHED, UNLINKED
from fkgsec.attacks.reconstruction.relation_guesses import LEARNED_WAYS
from fkgsec.attacks.reconstruction.unlinked import Unlinked
from fkgsec.attacks.registry import Measure, Truth
from fkgsec.attacks.residual import count_sources
from fkgsec.attacks.view import ALL
from fkgsec.estimate import Estimate, at_level


class Counts(msgspec.Struct):
    """Correct guesses, expectations and upper bounds of one victim; `entities` and `triples` are by inference method."""

    victim: str
    num_entities: int
    num_triples: int
    entities: dict[str, float] = {}
    entities_baseline: float = 0
    entities_attainable: float = 0
    entities_exposed: float = 0
    triples: dict[str, float] = {}
    triples_baseline: float = 0
    triples_prior: float = 0
    triples_attainable: float = 0
    triples_exposed: float = 0
    remark: str | None = None
    unlinked: list[Unlinked] = []
    reason: str | None = None
    sources: np.ndarray = msgspec.field(default_factory=lambda: np.empty(0, dtype=np.int64))
    items: pd.DataFrame = msgspec.field(default_factory=pd.DataFrame)


def figures_of(
    truth: Truth, inferences: Sequence[Inference], counts: list[Counts], note: str | None, *, published: bool
) -> list[Figure]:
    """Compute ERR and TRR by each inference method and by the strongest, for each victim, and for all if there are several.

    Args:
        inferences: inference methods.
        counts: counts of each victim.
        note: remark on the learned methods.
        published: True if counted as in FedR's notebooks, where there is only one method.
    """
    # Each victim alone, then all together.
    groups = [(count.victim, [count]) for count in counts] + ([(ALL, counts)] if len(counts) > 1 else [])
    by_inference = [
        [_err_and_trr(truth, by, *group, note, published=published) for group in groups] for by in inferences
    ]
    figures = [figure for pairs in by_inference for pair in pairs for figure in pair]
    if published:
        return figures
    for (victim, group), pairs in zip(groups, zip(*by_inference, strict=True), strict=True):
        for variants in zip(*pairs, strict=True):
            best = strongest(variants)
            figures.append(msgspec.structs.replace(best, outcomes=_outcomes(best, group)))
        unlinked = group[0].unlinked if len(group) == 1 else []
        for metric in UNLINKED if unlinked else ():
            ways: dict[str, Measure] = {
                measured_without.inference: partial(at_level, getattr(measured_without, metric), least=0.0)
                for measured_without in unlinked
            }
            chance = {"chance": getattr(unlinked[0], f"{metric}_baseline")}
            pairs_of = {"heads": unlinked[0].num_heads, "pairs": unlinked[0].num_pairs}
            figures += truth.figures(metric, victim, ways, chance, counts=pairs_of)
    return figures


def strongest(variants: Sequence[Figure]) -> Figure:
    """Return the best of several variants of a figure and of its baselines, which an adversary may use instead.

    Named baselines (`Figure.guesses`) are among the alternatives. An unnamed one's expectation is known without sampling, and
    variants with the same count are then one alternative. Intervals are Wilson's at the level 1 - 0.05 / m (Bonferroni) for m
    alternatives, so that all hold simultaneously. Ties go to the first.

    Args:
        variants: figures of one question, at least one.
    """
    first = variants[0]
    if first.reason:
        return msgspec.structs.replace(first, variant=STRONGEST)
    values = {variant.variant: variant.estimate.value for variant in variants}
    if first.guesses:
        values |= {name: guess.value for name, guess in first.guesses.items()}
        by = max(values, key=lambda name: values[name])
        # Bonferroni over all methods and named baselines.
        estimate_of = _share(values[by], first, len(values))
        return msgspec.structs.replace(first, variant=STRONGEST, estimate=estimate_of, by=by, compared=len(values))
    ways = set(values.values())
    estimate_of = first.estimate if len(ways) == 1 else _share(max(ways), first, len(ways))
    by = "attack"
    if first.baseline is not None and first.baseline.value > estimate_of.value:
        estimate_of, by = _share(first.baseline.value, first, 1), "baseline"
    return msgspec.structs.replace(first, variant=STRONGEST, estimate=estimate_of, by=by, compared=len(ways))


def _outcomes(figure: Figure, counts: Sequence[Counts]) -> Outcomes | None:
    """Return whether the strongest method is correct for each entity or triple; None if a victim could not be attacked."""
    if any(count.reason for count in counts):
        return None
    item = "triple" if figure.metric == "trr" else "entity"
    parts = [count.items.loc[count.items["item"] == item] for count in counts]
    items = pd.concat([part[["head", "tail"] if item == "triple" else ["head"]] for part in parts])
    chosen = [part[f"right_{figure.by}" if f"right_{figure.by}" in part else "right"] for part in parts]
    names = np.unique(items.to_numpy().astype(str), return_inverse=True)[1].reshape(items.shape)
    return of_mean(np.concatenate([right.to_numpy(dtype=bool) for right in chosen]), names)


def _share(value: float, figure: Figure, compared: int) -> Estimate:
    """Return a share with an interval within the figure's upper bound."""
    n, most = figure.estimate.n, 1.0 if figure.attainable is None else figure.attainable
    share = estimate.proportion(min(value * n, n), n, compared=compared, attainable=most)
    return msgspec.structs.replace(share, value=value, low=min(value, share.low), high=max(value, share.high))


def _err_and_trr(
    truth: Truth,
    inference: Inference,
    victim: str,
    counts: Sequence[Counts],
    note: str | None,
    *,
    published: bool,
) -> tuple[Figure, Figure]:
    """Compute ERR and TRR by one inference method, for one victim or for several together; arguments as in `figures_of`."""
    entities, triples = (sum(getattr(count, name) for count in counts) for name in ("num_entities", "num_triples"))
    attacked = [count for count in counts if not count.reason]
    reason = None if attacked else _joined(count.reason for count in counts)
    counts = attacked or counts

    def share(kind: str, name: str) -> Estimate:
        """Return an expected share over all victims of the group."""
        num = entities if kind == "entities" else triples
        return estimate.exact(sum(getattr(count, f"{kind}_{name}") for count in counts) / num, num)

    def measured(kind: str) -> dict[str, Any]:
        """Return the share with its interval and upper bound; an unmeasured figure is 0 with the interval [0, 1]."""
        num = entities if kind == "entities" else triples
        if reason:
            return {"estimate": Estimate(0.0, 0.0, 1.0, num, "not attacked")}
        right = sum(getattr(count, kind).get(inference, 0.0) for count in counts)
        # FedR's notebooks divide a number of entities by a number of triples: the ratio can exceed 1.
        if published:
            value = estimate.exact(right / num, num) if right > num else estimate.proportion(right, num)
            return {"estimate": value}
        most = share(kind, "attainable").value
        value = estimate.exact(right / num, num) if right > num else estimate.proportion(right, num, attainable=most)
        return {"estimate": value, "attainable": most, "exposed": share(kind, "exposed")}

    guesses = {"majority": share("triples", "baseline"), "prior": share("triples", "prior")}
    both = {
        "variant": PUBLISHED if published else inference, "num_attacked": len(attacked), "reason": reason,
    }  # fmt: skip
    err = truth.figure(
        "err",
        victim,
        **measured("entities"),
        baseline=share("entities", "baseline"),
        counts=count_sources([count.sources for count in counts]),
        **both,
    )
    rebuilt = measured("triples")
    remarks = [_joined(count.remark for count in counts) if rebuilt.get("attainable") == 0 else None]
    if note and inference in LEARNED_WAYS and not reason:
        remarks.append(f"{inference}: {note}")
    trr = truth.figure(
        "trr",
        victim,
        **rebuilt,
        baseline=max(guesses.values(), key=lambda guess: guess.value),
        guesses=guesses,
        remark="; ".join(filter(None, remarks)) if any(remarks) or rebuilt.get("attainable") == 0 else None,
        **both,
    )
    return err, trr


def _joined(reasons: Iterable[str | None]) -> str:
    return "; ".join(sorted({reason for reason in reasons if reason}))
