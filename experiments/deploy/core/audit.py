"""Attacks that a party scores against its own data: the server's record gets the figures, and the data stay.

    figures = score_attacks(("membership", "edges"), result, seed=0)        # at the party, of its messages and models

The party plays the adversary against itself: the server, with this party's messages, or a holder of its models. It cannot play a
colluder with data of another client, nor attack a secure sum; such attacks are refused when terms are agreed on.

Differs from one process: controls of a membership audit are triples that this client never saw, but another may have; and nothing
is pooled over clients.
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
"""The attacks that parties can score, and the threat model of each."""
OF_MODELS = tuple(name for name, model in AUDITS.items() if THREAT_MODELS[model].models)
"""Attacks that need no messages."""


def check_settings(spec: Any) -> None:
    """Check that a spec has no settings of attacks: parties score attacks with default settings.

    Args:
        spec: `kge.Spec`.

    Raises:
        SpecError: names the changed settings.
    """
    chosen, defaults = spec.attack_options(), KgeAttackOptions(attack=spec.attack)
    names = [name for name in defaults.__struct_fields__ if name not in ("attack", "seed")]
    changed = [name for name in names if getattr(chosen, name) != getattr(defaults, name)]
    if changed := [*changed, *(["attack_seed"] if spec.attack_seed is not None else [])]:
        raise SpecError(f"{', '.join(changed)}: attacks of parties apart have no settings; leave it out")


def score_attacks(names: Sequence[str], result: KgeResult, seed: int) -> list[Figure]:
    """Score attacks on the only client of a result.

    Args:
        names: of `AUDITS`.
        result: the client's data, its models of the best round, and a transcript of its messages.
        seed: of the attacks.
    """
    scored: list[Figure] = []
    for name in names:
        options = KgeAttackOptions(attack=(name,), seed=seed)
        # The party plays the adversary of the attack's threat model against itself.
        figures, _ = attack_under(ATTACKS[name], result, THREAT_MODELS[AUDITS[name]], options, ("",), 1.0)
        scored += [figure for figure in figures if figure.victim != ALL]
    return scored


def check_figures(figures: list[Figure], names: Sequence[str], victim: str, round: int) -> None:
    """Check the figures of a party, at the server.

    Args:
        names: agreed attacks. victim: the party. round: the best round.

    Raises:
        RunError: another attack, adversary, victim or round, or invalid figures.
    """
    try:
        # A figure that the record's schema rejects would make the whole record unreadable.
        decode_stored(encode_stored(figures), list[Figure])
    except msgspec.MsgspecError as error:
        raise RunError(f"figures that no record has: {error}") from error
    for figure in figures:
        place = figure.threat_model, figure.victim, figure.round
        valid = figure.attack in names and figure.metric in ATTACKS[figure.attack].metrics
        if not valid or place != (AUDITS[figure.attack], victim, round):
            raise RunError(
                f"a figure {figure.metric!r} of {figure.attack!r} on {figure.victim!r} under {figure.threat_model!r} in round "
                f"{figure.round}; figures of {', '.join(names)} on {victim!r} in round {round} were asked for"
            )
