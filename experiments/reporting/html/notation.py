"""How a figure is written on a page, where it is not a share: what the report and the viewer have in common, without pandas.

score_text(Estimate(0.3, 0.284, 0.315, 900, "bootstrap"))      # "0.300 [0.284, 0.315]"
"""

from __future__ import annotations

from fkgsec.estimate import Estimate

NONE = "–"  # where there is no value
SAYS_NOT = (
    "Intervals are of this one training: other seeds differ more. Nothing is said of adversaries that were not asked for, and no "
    "figure below its base proves that nothing leaks."
)
"""What nobody must read from a verdict on a run."""


def score_text(figure: Estimate) -> str:
    """A score with its interval, `0.300 [0.284, 0.315]`."""
    if not figure.n:
        return NONE
    digits = 3 if figure.value >= 0.1 else 4
    return f"{figure.value:.{digits}f} [{figure.low:.{digits}f}, {figure.high:.{digits}f}]"


def mebibytes(num_bytes: float) -> str:
    """Bytes in MiB, `258.4`.

    >>> mebibytes(271_000_000), mebibytes(140_000), mebibytes(0)
    ('258.4', '0.13', '0')
    """
    size = num_bytes / 2**20
    return "0" if not size else f"{size:,.1f}" if size >= 10 else f"{size:.2f}" if size >= 0.1 else f"{size:.2g}"


def count(amount: int, noun: str) -> str:
    """`1 run`, `5 runs`."""
    return f"{amount:,} {noun}{'' if amount == 1 else 's'}"
