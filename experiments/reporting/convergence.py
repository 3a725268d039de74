"""Convergence of a run and its cost, from its record alone.

    convergence(record).num_bytes                            # P@CG, with the round R@CG and the validation there
    relative_cost(record, baseline, 0.98)                    # P@98

Source: feds.txt IV-B: R@CG, P@CG, P@98, P@99. Differs: it counts serialized bytes instead of parameters, and uses the
validation metric, which every check measures. The converged round is the one with the best validation.
"""

from __future__ import annotations

import msgspec

from fkgsec.experiments.runs.record import Record


class Convergence(msgspec.Struct, frozen=True):
    """Cost of a run up to its best validation.

    Attributes:
        round: R@CG, the rounds until then. num_bytes: P@CG, bytes both ways until then, alignment included.
        valid: what validation measured there, such as the MRR; None when nothing was validated.
    """

    round: int
    num_bytes: int
    valid: float | None


def convergence(record: Record) -> Convergence:
    """Return R@CG, P@CG and the validation metric at that round."""
    return Convergence(
        record.best_round, _bytes_until(record, record.best_round), record.rounds[record.best_round].valid
    )


def round_reaching(record: Record, wanted: float) -> int | None:
    """Return the first round whose validation reached a value; None if none did.

    Args:
        wanted: value of the validation metric, such as MRR 0.2.

    Source: fedr.txt Figure 3, with 0.2 and 0.4.
    """
    return next((entry.round for entry in record.rounds if entry.valid is not None and entry.valid >= wanted), None)


def bytes_to_reach(record: Record, wanted: float) -> int | None:
    """Return the bytes sent in both directions until validation first reached a value; None if it never did.

    Args:
        wanted: value of the validation metric. P@98 uses 98 % of a baseline's value at its convergence.
    """
    reached = round_reaching(record, wanted)
    return None if reached is None else _bytes_until(record, reached)


def relative_cost(record: Record, baseline: Record, share: float) -> float | None:
    """Return P@98 (share 0.98) and the like: bytes to reach a share of the baseline's MRR@CG, relative to the
    baseline's bytes.

    Args:
        baseline: the run whose converged validation sets the target.
        share: share of that validation to reach, in (0, 1].

    Returns:
        None if either run never reached it, nothing was validated, or the baseline sent nothing.
    """
    reached = convergence(baseline).valid
    # Runs without validation have no round of convergence.
    if reached is None:
        return None
    ours, other = bytes_to_reach(record, share * reached), bytes_to_reach(baseline, share * reached)
    return ours / other if ours is not None and other else None


def _bytes_until(record: Record, round: int) -> int:
    return sum(entry.bytes_up + entry.bytes_down for entry in record.rounds if entry.round <= round)
