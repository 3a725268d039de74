"""Attacks that a party scores against its own truth, so that the server's record has their figures and the truth stays.

    figures = audited(("membership", "edges"), result, seed=0)        # at the party, of its own messages and models

The party plays the adversary against itself: the server, which has what this party sent and received, or whoever holds its
models. Adversaries that have something of another client (colluders) cannot be played by one party alone, and no sum that hides
the others' parts; what is left out is refused by name when terms are agreed on. Figures are shares and correlations with
intervals and the counts behind them.

Differs from the laboratory: controls of a membership audit are triples that this client never saw, but another one may have; and
nothing is pooled over clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from fkgsec.attacks.figure import Figure
from fkgsec.attacks.kge.task import attack_under
from fkgsec.attacks.options import THREAT_MODELS, KgeAttackOptions
from fkgsec.attacks.registry import ATTACKS
from fkgsec.attacks.view import ALL
from fkgsec.errors import RunError, SpecError
from fkgsec.experiments.runs.stored import decode_stored, encode_stored
from fkgsec.kge.result import KgeResult

AUDITS = {"membership": "models", "edges": "server", "degrees": "server", "server-aux": "server+triples"}
"""The attacks that parties can score, and the adversary that each is of."""
OF_MODELS = tuple(name for name, model in AUDITS.items() if THREAT_MODELS[model].models)
"""Those that need nothing of what crossed."""


def check_settings(spec: Any) -> None:
    """Raises `SpecError` for settings of attacks: parties score those of the agreement as they come, and nobody would see them.

    Args:
        spec: an `fkgsec.experiments.tasks.kge.Spec`.
    """
    given, plain = spec.attack_options(), KgeAttackOptions(attack=spec.attack)
    names = [name for name in plain.__struct_fields__ if name not in ("attack", "seed")]
    other = [name for name in names if getattr(given, name) != getattr(plain, name)]
    if other := [*other, *(["attack_seed"] if spec.attack_seed is not None else [])]:
        raise SpecError(
            f"{', '.join(other)}: not supported with parties apart, who score attacks as they come; leave it out"
        )


class Audited(msgspec.Struct, frozen=True):
    """What a party found."""

    figures: list[Figure]


def audited(names: Sequence[str], result: KgeResult, seed: int) -> list[Figure]:
    """Figures of these attacks on the one client of a result.

    Args:
        result: its data, its kept models, and a transcript of its own messages. seed: of what attacks draw.
    """
    found: list[Figure] = []
    for name in names:
        options = KgeAttackOptions(attack=(name,), seed=seed)
        figures, _ = attack_under(ATTACKS[name], result, THREAT_MODELS[AUDITS[name]], options, ("",), 1.0)
        found += [one for one in figures if one.victim != ALL]
    return found


def check_audited(said: Audited, names: Sequence[str], victim: str, round: int) -> None:
    """Raises `RunError` for figures of another attack, adversary, victim or round than were asked for, or that no record has."""
    try:
        decode_stored(encode_stored(said), Audited)
    except msgspec.MsgspecError as error:
        raise RunError(f"figures that no record has: {error}") from error
    for one in said.figures:
        expected = (one.attack in names, AUDITS.get(one.attack), victim, round)
        if (True, one.threat_model, one.victim, one.round) != expected or one.metric not in ATTACKS[one.attack].metrics:
            raise RunError(
                f"a figure {one.metric!r} of {one.attack!r} on {one.victim!r} under {one.threat_model!r} in round {one.round}; "
                f"figures of {', '.join(names)} on {victim!r} in round {round} were asked for"
            )
