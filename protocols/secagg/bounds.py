"""Probability that a k-regular graph of masks fails, for colluders and dropouts that do not depend on its order.

    >>> risk = regular_risk(1000, 20, threshold=15, colluders=50, dropout=0.01)
    >>> risk.exposure < MOST_EXPOSURE, risk.failure < MOST_FAILURE
    (True, True)

Both are upper bounds for one session, computed directly: hypergeometric and binomial tails, and a union over the clients.
"""

from __future__ import annotations

from math import comb, exp, lgamma, log, log1p, log2
from typing import NamedTuple

from fkgsec.protocols.core.errors import SettingError
from fkgsec.protocols.secagg.setting import safe_threshold

MOST_EXPOSURE = 2.0**-40
MOST_FAILURE = 0.01


class Risk(NamedTuple):
    """Risks of one session over a k-regular graph.

    Attributes:
        exposure: probability that the server and its colluders learn more than the sum over the honest survivors.
        failure: probability that the sum cannot be opened.
    """

    exposure: float
    failure: float

    def describe(self) -> str:
        """Describe the risks of one session in words.

        >>> Risk(2.0**-41, 0.001).describe()
        'exposes an upload with probability at most 2^-41 and fails with at most 0.001'
        """
        exposure = f"2^{log2(self.exposure):.0f}" if self.exposure else "0"
        return f"exposes an upload with probability at most {exposure} and fails with at most {self.failure:.2g}"


def regular_risk(num_parties: int, neighbours: int, *, threshold: int, colluders: int, dropout: float) -> Risk:
    """Bound the risks of `fkgsec.protocols.secagg.graph.regular_graph` against a server that follows the protocol.

    Args:
        neighbours: degree of the graph.
        threshold: shares that open a secret.
        colluders: clients that share all they know with the server; chosen without knowledge of the graph's order.
        dropout: probability in [0, 1) that a client falls silent at some stage, independently of the others.

    Raises `SettingError` for values out of range.
    Source: Bell et al. 2020, section 3.2 (the three conditions of a good graph). Differs: exact tails for this graph, where
    the paper bounds them.
    """
    if not 0 <= colluders < num_parties:
        raise SettingError(f"colluders: {colluders}; it must lie in 0..{num_parties - 1} for {num_parties} parties")
    if not 0 <= dropout < 1:
        raise SettingError(f"dropout: {dropout}; it must lie in [0, 1)")
    honest = num_parties - colluders
    # Condition 1: an input is exposed if at least a threshold of its owner's neighbors collude.
    captured = sum(
        _hypergeometric(num_parties - 1, colluders, neighbours, number) for number in range(threshold, neighbours + 1)
    )
    # Condition 2: the honest survivors must stay connected. On the ring of a Harary graph, a cut takes two separate runs
    # of k/2 (rounded down) positions without an honest survivor. The bound is a union over the pairs of runs.
    places = 2 * (neighbours // 2)
    empty = sum(
        _hypergeometric(num_parties, colluders, places, number) * dropout ** (places - number)
        for number in range(places + 1)
    )
    parted = comb(num_parties, 2) * empty
    # Condition 3: every client must keep a threshold of surviving neighbors, and `safe_threshold` clients must stay in all.
    lonely = _fewer_stay(neighbours, threshold, dropout)
    too_few = _fewer_stay(num_parties, safe_threshold(num_parties), dropout)
    return Risk(min(1.0, honest * captured + parted), min(1.0, num_parties * lonely + too_few))


def require_small_risk(num_parties: int, neighbours: int, *, threshold: int, colluders: int, dropout: float) -> Risk:
    """Return the risks, and reject a graph for which one of them is too large.

    Args:
        num_parties, neighbours, threshold, colluders, dropout: as in `regular_risk`.

    Raises:
        SettingError: exposure above `MOST_EXPOSURE` or failure above `MOST_FAILURE`.
    """
    risk = regular_risk(num_parties, neighbours, threshold=threshold, colluders=colluders, dropout=dropout)
    if risk.exposure > MOST_EXPOSURE or risk.failure > MOST_FAILURE:
        raise SettingError(
            f"neighbours: {neighbours} of {num_parties} clients, threshold {threshold}, {colluders} colluders, dropout "
            f"{dropout:g}: a session {risk.describe()}; allowed are 2^{log2(MOST_EXPOSURE):.0f} and {MOST_FAILURE:g}"
        )
    return risk


def _hypergeometric(population: int, marked: int, drawn: int, number: int) -> float:
    """Probability of `number` marked ones among the drawn."""
    return comb(marked, number) * comb(population - marked, drawn - number) / comb(population, drawn)


def _fewer_stay(number: int, least: int, dropout: float) -> float:
    """Probability that fewer than `least` of `number` clients stay, if each leaves independently."""
    if dropout == 0:
        return float(number < least)
    # A sum of binomial probabilities, in logarithms: the binomial coefficients overflow float64 for many clients.
    return sum(
        exp(
            lgamma(number + 1)
            - lgamma(stay + 1)
            - lgamma(number - stay + 1)
            + stay * log1p(-dropout)
            + (number - stay) * log(dropout)
        )
        for stay in range(min(least, number + 1))
    )
