"""What a party may be asked, and when: the steps of the rounds that were agreed on, each once.

    check_turn(item, place, num_parties, options, memory.turns)     # a `RunError` where the step is not due
    ...                                                             # the step
    mark_turn(item, memory.turns)                                   # once it is done

A server that follows the protocol never meets a refusal. One that does not could else send table after table and read the sum of
validation ranks of each, from which single ranks follow; have uploads of more rounds than the noise of `dp` is for; or have two
sessions of secure sums draw the same secrets.
"""

from __future__ import annotations

from experiments.deploy.core.messages import Item
from fkgsec.errors import RunError
from fkgsec.federation.options import RunOptions

BEFORE = ("hello", "alignment", "union", "place")
"""Steps before the first round."""
ASCENDING = ("place", "broadcast", "validate")
"""Steps that come once for each table and round, in ascending order; `train` and `upload` have a count of their own."""
AT_THE_END = ("measure", "audit")


def check_turn(item: Item, place: int, num_parties: int, options: RunOptions, turns: dict[str, int]) -> None:
    """Raises `RunError` for a round that the run has not, a step that is not of the round, and one that was taken already.

    Args:
        place: of the party among `num_parties`. turns: by step and table the last round in which it was taken.
    """
    step, round = item.step, item.round
    if step in AT_THE_END:
        return  # their reply is kept, whatever round is asked of
    first = 0 if step in (*BEFORE, "broadcast") else 1
    last = 0 if step in BEFORE else options.rounds
    if not first <= round <= last:
        raise RunError(f"{step} in round {round}; allowed: {first}..{last}")
    if step in ("broadcast", "upload", "listen") and round and not options.exchanges(round):
        raise RunError(f"{step} in round {round}, in which nothing is exchanged")
    if step in ("train", "upload") and place not in options.participants(num_parties, round):
        raise RunError(f"{step} in round {round}, in which this party does not take part")
    if step == "validate" and not options.is_checked(round):
        raise RunError(f"validate in round {round}, which is not validated")
    if step in ASCENDING and round <= turns.get(_turn(item), -1):
        raise RunError(f"{' '.join(_turn(item).split())} in round {round} was taken already")


def mark_turn(item: Item, turns: dict[str, int]) -> None:
    """The step was taken."""
    if item.step in ASCENDING:
        turns[_turn(item)] = item.round


def mark_union(table: str, turns: dict[str, int]) -> bool:
    """The private union of a table is entered; returns whether it was before, by this process or by one that was killed.

    Two unions of other parties would differ by what those hold who are in one of them alone.
    """
    entered = f"union {table}" in turns
    turns[f"union {table}"] = 0
    return entered


def _turn(item: Item) -> str:
    return f"{item.step} {item.table if item.step != 'validate' else ''}"
