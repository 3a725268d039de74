"""How fast and at what cost a run converged, from its record alone.

    convergence(record).num_bytes                            # P@CG, with the round R@CG and the validation there
    relative_cost(record, baseline, 0.98)                    # P@98

Source: feds.txt IV-B: R@CG, P@CG, P@98, P@99. Differs: bytes as they were serialised stand for parameters; the figure is
the validation's, the only one of every check; the converged round is the one with the best of them.
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
    """R@CG, P@CG and the validation they are of."""
    return Convergence(
        record.best_round, _bytes_until(record, record.best_round), record.rounds[record.best_round].valid
    )


def round_reaching(record: Record, wanted: float) -> int | None:
    """The round whose validation first reached this; None when none did.

    Source: fedr.txt Figure 3, with 0.2 and 0.4.
    """
    return next((entry.round for entry in record.rounds if entry.valid is not None and entry.valid >= wanted), None)


def bytes_to_reach(record: Record, wanted: float) -> int | None:
    """Bytes both ways until validation first reached this; None when it never did.

    P@98 is this for 98 % of a baseline's validation at the round it converged, over the baseline's own.
    """
    reached = round_reaching(record, wanted)
    return None if reached is None else _bytes_until(record, reached)


def relative_cost(record: Record, baseline: Record, share: float) -> float | None:
    """P@98 (share 0.98) and the like: bytes to that share of the baseline's MRR@CG, over the bytes that the baseline took.

    None when either never reached it, nothing was validated, or the baseline sent nothing.
    """
    reached = convergence(baseline).valid
    if reached is None:
        return None
    own, other = bytes_to_reach(record, share * reached), bytes_to_reach(baseline, share * reached)
    return own / other if own is not None and other else None


def _bytes_until(record: Record, round: int) -> int:
    return sum(entry.bytes_up + entry.bytes_down for entry in record.rounds if entry.round <= round)
