"""Which local training has fused steps on a GPU, and how they are made; the rest goes by torch operations, and says so.

reason = why_not_fused(options, rule, device, plain=True)      # "" where the kernels of `fkgsec.kge.device` serve
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fkgsec.federation.recipes import RECIPES, Table
from fkgsec.kge.device import where
from fkgsec.kge.local.objectives import OBJECTIVES
from fkgsec.kge.local.rule import LocalRule, WeightedObjective
from fkgsec.kge.local.stack import ClientStack
from fkgsec.kge.options import KgeOptions

if TYPE_CHECKING:
    from fkgsec.kge.device.epoch import FusedTrainer

FUSED_MODELS = ("transe", "rotate", "distmult", "complex")
HOOKS = ("begin_epoch", "take", "end_round")


class Subset(NamedTuple):
    """What a client trains on, in its own ids: `rows` `[m]` of `triples` `[n, 3]`, and `pool`, the entities it corrupts with."""

    triples: np.ndarray
    rows: np.ndarray
    pool: np.ndarray


def why_not_fused(options: KgeOptions, rule: LocalRule, device: torch.device, *, plain: bool) -> str:
    """Why local training has no fused steps, in words; empty where it has. `plain`: steps are those of `LocalTrainer`."""
    if device.type not in where.DEVICES:
        return f"they are for {', '.join(where.DEVICES)}, and this is {device.type}"
    if not where.triton_is_there():
        return "triton is not installed (the extra gpu)"
    if options.draws != "philox":
        return f"they need the option draws=philox, and it is {options.draws}"
    if options.model not in FUSED_MODELS:
        return f"they know the models {', '.join(FUSED_MODELS)}, and this is {options.model}"
    hooks = [name for name in HOOKS if getattr(type(rule), name) is not getattr(LocalRule, name)]
    if not plain or hooks:
        return f"{options.algorithm} has steps of its own here"
    if RECIPES[options.algorithm].private != "none" and rule.distillation() is None:
        return f"{options.algorithm} has two models, and its rule does not name the formula by which they learn"
    pull = rule.objective()
    if pull and not objective_name(pull):
        return f"{options.algorithm} has an objective of its own"
    if pull and type(rule).begin_round is not LocalRule.begin_round:
        return f"{options.algorithm} has an objective that may be another in every round"
    return ""


def objective_name(pull: WeightedObjective) -> str:
    """The name by which an objective is shipped; empty for one that is not."""
    return next((name for name, one in OBJECTIVES.items() if one is pull.objective), "")


def make_fused(
    stacks: Sequence[tuple[ClientStack, Sequence[Table]]],
    subsets: Sequence[Subset],
    options: KgeOptions,
    rule: LocalRule,
    received: Mapping[Table, Tensor],
    previous: Mapping[Table, Tensor],
) -> FusedTrainer:
    """The fused training of these stacks, the shared one first, each with the tables that its model trains."""
    from fkgsec.kge.device.batches import Batches
    from fkgsec.kge.device.epoch import FusedTrainer, Pull
    from fkgsec.kge.device.learner import FusedLearner

    batches = Batches(stacks[0][0], subsets, options)
    learners = [FusedLearner(stack, trained, batches, options.learning_rate) for stack, trained in stacks]
    objective = rule.objective()
    pull = Pull(objective, objective_name(objective), received, previous) if objective else None
    return FusedTrainer(learners, batches, options, pull, where.how)
