"""The figures of an audit of forgetting, as those of every other attack.

    >>> [one.estimate for one in forgetting_figures(measured) if one.key == "unlearning.auc"]          # doctest: +SKIP

Forgetting is no entry of `fkgsec.attacks.registry.ATTACKS`. A registered attack sees a `View`: what crossed in one run, cut to
a threat model. This audit holds the models of clients in two or three runs, of which many never crossed, and trains
federations of its own; a view could not give it these without giving them to every attack. So its rows stay its own, and what
a policy limits and tables compare is read off them here, by the names that a policy uses (`unlearning.auc`).
"""

from __future__ import annotations

from fkgsec.attacks.figure import NOT_ATTACKED, Figure
from fkgsec.attacks.forgetting.evaluation import Forgetting

UNLEARNING = "unlearning"
HOLDER = "model"  # the threat model: who holds a client's model, knows how it was trained and has similar data
METRICS = {
    "auc": "max(AUC, 1 - AUC) of forgotten and never-seen triples",
    "ks": "distance of scores, unlearned to re-trained",
    "forget_mrr": "MRR left on the forget set",
}


def forgetting_figures(measured: Forgetting) -> list[Figure]:
    """A figure for each client, model and, of `auc`, membership attack; `variant` names the last two.

    `auc` is of clients that asked and of all others together, the other metrics of clients that asked. The baseline is the same
    figure of the re-trained model; `ks`, the distance to that model, has none.
    """
    figures = []
    for row in measured.membership:
        if row.reason and row.asked:
            figures.append(
                Figure(UNLEARNING, "auc", HOLDER, row.client, NOT_ATTACKED, reason=row.reason, variant=row.model)
            )
        elif row.decisive and not row.reason:
            audited, reference = (row.figures[role].distinguishability for role in ("unlearned", "retrained"))
            variant = f"{row.model}, {row.attack}"
            figures.append(
                Figure(UNLEARNING, "auc", HOLDER, row.client, audited, reference, attainable=1.0, variant=variant)
            )
    for row in measured.distances:
        if row.asked:
            apart = row.figures["unlearned"].distance
            figures.append(Figure(UNLEARNING, "ks", HOLDER, row.client, apart, attainable=1.0, variant=row.model))
    for row in measured.quality:
        if row.asked and row.triples == "forget":
            audited, reference = (row.figures[role]["mrr"] for role in ("unlearned", "retrained"))
            figures.append(
                Figure(
                    UNLEARNING, "forget_mrr", HOLDER, row.client, audited, reference, attainable=1.0, variant=row.model
                )
            )
    return figures
