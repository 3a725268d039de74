"""What active attacks on secure sums have in common: the run is trained once more for a few rounds, which may end early."""

from __future__ import annotations

from fkgsec.attacks.kge.view import KgeView
from fkgsec.attacks.laboratory import Laboratory
from fkgsec.attacks.view import NotAttacked
from fkgsec.errors import FkgsecError
from fkgsec.federation.adversary import Adversary

NO_SUM = "uploads cross one by one, or none does: there is no sum to take apart"


def check_sums(view: KgeView, laboratory: Laboratory) -> None:
    """Raise `NotAttacked` if there is no sum to take apart, or the run cannot be trained once more for its sums."""
    if not view.secure:
        raise NotAttacked(NO_SUM)
    laboratory.check_repeatable()


def train_first(view: KgeView, laboratory: Laboratory, adversary: Adversary | None, last: int) -> KgeView:
    """Train the first rounds with the adversary in them. Raises `NotAttacked`, also where a client refuses."""
    check_sums(view, laboratory)
    try:
        return laboratory.train(adversary, last=last)
    except NotAttacked:
        raise
    except FkgsecError as error:
        raise NotAttacked(f"the run ended with the attack in it: {error}") from error
