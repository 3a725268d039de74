"""Number of items in which each attack is known to find a planted signal. Verdicts say NO EVIDENCE of as many items or more only.

>>> PLANTED_ITEMS["client-passive"]
{'auc': 12}

The numbers are those of the marks `planted` of tests in tests/attacks; tests/contracts compares them. A plug-in
adds those of its attack: `PLANTED_ITEMS["shapes"] = {"auc": 60}`. Without it, no verdict says NO EVIDENCE of its figures.
"""

from __future__ import annotations

from collections.abc import Mapping

PLANTED_ITEMS: dict[str, Mapping[str, int]] = {
    "reconstruction": {"err": 36, "trr": 30},
    "update-recovery": {"cosine": 106, "cosine_relations": 16},
    "membership": {"auc": 82, "auc_shared": 120},
    "edges": {"auc": 7140},
    "edges-rounds": {"auc": 1770},
    "degrees": {"degree": 70, "volume": 16},
    "patterns": {"degree": 70},
    "server-aux": {"auc": 12},
    "server-aux-rounds": {"auc": 40},
    "attributes": {"mrr": 30},
    "structure": {"err": 60},
    "client-passive": {"auc": 12},
    "client-active": {"auc": 10},
    "client-guess": {"found": 5},
    "client-poison": {"hits@10": 20},
    "server-poison": {"hits@10": 40},
    "client-spoil": {"mrr-drop": 13},
    "server-active": {"cosine": 70},
    "disaggregation": {"cosine": 60},
    "server-order": {"cosine": 70},
    "dropout-difference": {"holders": 107},
    "count-lies": {"rare_rows": 11},
    "graph-membership": {"auc": 32},
    "degree-support": {"columns": 16},
    "property-inference": {"class_share": 3},
    "client-kinship": {"same_data": 28},
    "gradient-inversion": {"exact": 3},
    "backdoor": {"success": 2},
}
"""By attack and metric. Most signals are strong: an attack may miss weaker ones in as many items."""
