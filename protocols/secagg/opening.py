"""Opening a shared secret although some holders send wrong shares. The owner committed to the secret, which identifies it.

    opened = open_secret(setting, {"client1": share, ...}, fits, owner="client0", what="self mask of client0")
    opened.secret, opened.wrong                                         # and the holders of wrong shares

With n shares and a threshold t, `shamir.correct` corrects up to (n - t) / 2 wrong ones at once. Leaving out subsets in turn
corrects up to n - t, within `MOST_SUBSETS`. Nobody can tell whether the holder altered a wrong share or its owner dealt it so:
shares are sealed for their holders, and are not verifiable when dealt.
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
    """Reconstruct the secret of `owner`, decoding around wrong shares.

    Args:
        shares: by holder.
        fits: whether a secret matches the owner's commitment or public key.
        what: names the secret in errors.

    Raises:
        TooFewParties: fewer shares than the threshold.
        ClosedSecret: the shares give no secret, or another than the owner advertised.
    """
    threshold, spare = setting.threshold, len(shares) - setting.threshold
    if spare < 0:
        raise TooFewParties(f"{what}: {len(shares)} shares; the threshold is {threshold}")
    at = {setting.point[holder]: share for holder, share in shares.items()}
    party_at = {setting.point[holder]: holder for holder in shares}
    came_from = ", ".join(setting.in_order(shares))
    try:
        # The usual case: all shares are right, and lie on one polynomial.
        secret = reconstruct(at, threshold=threshold)
    except (ReconstructionMismatch, BadShare):
        pass  # some shares are wrong: the guesses below leave them out, and the commitment tells which guess is right
    else:
        if fits(secret):
            return Opened(secret, frozenset())
        # All shares, more than the threshold, lie on one polynomial: its dealer chose another secret than it advertised.
        if spare:
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
    """Yield sets of wrong shares with the secret that the others give, the most likely first."""
    try:
        # Reed-Solomon decoding finds up to (n - t) / 2 wrong shares without a search.
        secret, wrong = correct(at, threshold=threshold)
        yield wrong, secret
    except ReconstructionMismatch:
        pass  # more wrong shares than this decoding corrects: leave out subsets instead
    # Beyond that, leave out each subset of holders in turn, small ones first. The commitment tells which guess is right.
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
