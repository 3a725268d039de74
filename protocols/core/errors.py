"""The errors of the protocols: one class for each misuse or attack, so that a caller and a test can tell them apart.

    try:
        total = run(server_round(setting), clients).result
    except TooFewParties as error:
        print(error, error.excluded)            # who had been left out before, and why

Every message names the party or the field at fault, its value, and what is allowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType


class ProtocolError(Exception):
    """Base of every error that a protocol raises. After one, the session is over: nobody sends another message.

    Attributes:
        excluded: by party the reason why a message of it had been left out before the session ended.
    """

    excluded: Mapping[str, str] = MappingProxyType({})


def describe(error: ProtocolError) -> str:
    """Return the error as a reason: its class and its message."""
    return f"{type(error).__name__}: {error}"


# What the caller hands over.


class SettingError(ProtocolError):
    """A setting that is not allowed: parties, threshold, graph, vectors, identities."""


class RandomnessError(ProtocolError):
    """A source of randomness that returned a different number of bytes than requested."""


class WrongLength(ProtocolError):
    """A vector, key, signature, share or message part of another length than the setting says."""


class WrongType(ProtocolError):
    """An array of another dtype or dimension, or of other names, than the setting says."""


class OutOfRing(ProtocolError):
    """A value outside the ring, or integers whose sum could wrap around it."""


class NotFinite(ProtocolError):
    """NaN or infinity among the values to encode."""


class StateReused(ProtocolError):
    """A step that a party takes once in a session, taken again or from a stored or forked copy of its state."""


# What arrives.


class MalformedMessage(ProtocolError):
    """Bytes that are not a message."""


class UnexpectedMessage(ProtocolError):
    """A message of a kind that this stage does not take."""


class LateMessage(ProtocolError):
    """A message of a stage that is over. Its sender was dropped and stays so.

    In a deployment, the link drops slow parties first and never delivers such a message.
    """


class ReplayedMessage(ProtocolError):
    """A message of another session or round."""


class UnknownSender(ProtocolError):
    """A message of a party that has no part in this stage."""


class DuplicateSender(ProtocolError):
    """Two messages of one party in one stage."""


class SubstitutedKey(ProtocolError):
    """A public key that its party's pinned identity did not sign, or whose bytes another party sent too."""


class LowOrderPoint(ProtocolError):
    """A public key of small order: the shared secret would be zero whatever the other key is."""


class BadSignature(ProtocolError):
    """A signature that does not verify under the pinned identity."""


class BadCiphertext(ProtocolError):
    """A ciphertext that fails authentication: damaged, or meant for another session, round, source or destination."""


class BadShare(ProtocolError):
    """A share outside the field, of another holder, or missing from a message that must carry it."""


class SplitView(ProtocolError):
    """Clients were told different survivors, keys or settings."""


class BothSharesRequested(ProtocolError):
    """Both kinds of share asked or sent for one party: together they open its upload."""


class TooFewParties(ProtocolError):
    """Fewer parties than the threshold, the quorum or the smallest allowed set of survivors."""


class ReconstructionMismatch(ProtocolError):
    """A reconstructed secret that does not match what its owner advertised."""


class DisconnectedGraph(ProtocolError):
    """Survivors that fall into groups without a mask between them: each group's sum would be opened."""
