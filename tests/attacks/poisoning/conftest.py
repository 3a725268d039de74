"""Attacks that train, on the short federations of the attacks' tests, each made once."""

import functools
from collections.abc import Callable

import pytest

from fkgsec.attacks import Figure, KgeAttackOptions, run_attacks
from fkgsec.attacks.figure import STRONGEST
from fkgsec.defenses import make_transport
from fkgsec.federation.loop import run_federation
from fkgsec.kge.result import KgeResult

train = functools.partial(run_federation, make_transport=make_transport)
Found = dict[tuple[str, str], Figure]
Poisoned = Callable[..., Found]


@pytest.fixture(scope="session")
def poisoned(federate: Callable[..., KgeResult]) -> Poisoned:
    """Figures of all victims together, by metric and variant, of one attack under a defense."""

    @functools.cache
    def found(attack: str, defense: str = "", algorithm: str = "fede", size: int = 700, rounds: int = 8) -> Found:
        result = federate(defense, algorithm, rounds, size)
        figures = run_attacks(result, KgeAttackOptions(attack=(attack,)), train=train).figures
        by_victim = [one for one in figures if one.victim == "all"] or [one for one in figures if one.reason]
        return {(one.metric, one.variant or STRONGEST): one for one in by_victim}

    return found
