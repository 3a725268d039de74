"""Opening a shared secret although some holders lie: its owner has committed to it, so that the right one is recognised.

    opened = open_secret(setting, {"client1": share, ...}, fits, owner="client0", what="self mask of client0")
    opened.secret, opened.wrong                                         # and whose shares were wrong

With n shares and a threshold t, up to (n - t) / 2 wrong ones are corrected at once (`shamir.correct`), and up to n - t by
leaving out subsets in turn, as far as `MOST_SUBSETS` goes. Whether the holder that revealed a wrong share altered it or its owner
dealt it so, nobody can tell: shares are sealed for their holders, and are not verifiable when dealt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations, islice
from typing import NamedTuple

from fkgsec.protocols.core.errors import BadShare, ReconstructionMismatch, TooFewParties
from fkgsec.protocols.core.shamir import correct, reconstruct
from fkgsec.protocols.secagg.setting import Setting

MOST_SUBSETS = 1000


class Opened(NamedTuple):
    """A secret that its owner's commitment confirms, and the holders whose shares of it were wrong."""

    secret: bytes
    wrong: frozenset[str]


class ClosedSecret(ReconstructionMismatch):
    """A secret that its shares do not open: its owner dealt wrong ones, or more were altered than can be decoded around.

    Attributes:
        owner: the party whose secret it is.
        spare: shares beyond the threshold. With none, one holder that altered its share is enough, and the owner may be honest.
    """

    def __init__(self, message: str, owner: str, spare: int) -> None:
        super().__init__(message)
        self.owner, self.spare = owner, spare


def open_secret(
    setting: Setting, shares: Mapping[str, bytes], fits: Callable[[bytes], bool], *, owner: str, what: str
) -> Opened:
    """The secret of `owner` from the shares by holder.

    Args:
        fits: whether a secret is the one that the owner advertised.
        what: names the secret in errors.

    Raises:
        TooFewParties: fewer shares than the threshold.
        ClosedSecret: shares that meet in no secret, or in another than its owner advertised.
    """
    threshold, spare = setting.threshold, len(shares) - setting.threshold
    if spare < 0:
        raise TooFewParties(f"{what}: {len(shares)} shares; the threshold is {threshold}")
    at = {setting.point[holder]: share for holder, share in shares.items()}
    party_at = {setting.point[holder]: holder for holder in shares}
    came_from = ", ".join(setting.in_order(shares))
    try:
        secret = reconstruct(at, threshold=threshold)
    except (ReconstructionMismatch, BadShare):
        pass
    else:
        if fits(secret):
            return Opened(secret, frozenset())
        if spare:  # on one polynomial, by all holders: the one who dealt them chose another secret
            raise ClosedSecret(f"{what}: the shares of {came_from} give another than {owner} advertised", owner, spare)
    for wrong, secret in _guesses(at, threshold):
        if fits(secret):
            return Opened(secret, frozenset(party_at[place] for place in wrong))
    raise ClosedSecret(
        f"{what}: the shares of {came_from} do not give what {owner} advertised (threshold {threshold}); {owner} dealt wrong "
        "ones, or too many of the others altered theirs",
        owner,
        spare,
    )


def _guesses(at: Mapping[int, bytes], threshold: int):
    """Sets of wrong shares with the secret that the others give, the likeliest first."""
    try:
        secret, wrong = correct(at, threshold=threshold)
        yield wrong, secret
    except ReconstructionMismatch:
        pass
    surplus = len(at) - threshold
    subsets = (left_out for number in range(1, surplus + 1) for left_out in combinations(sorted(at), number))
    for left_out in islice(subsets, MOST_SUBSETS):
        try:
            secret = reconstruct(
                {place: share for place, share in at.items() if place not in left_out}, threshold=threshold
            )
        except ReconstructionMismatch:
            continue
        yield frozenset(left_out), secret
