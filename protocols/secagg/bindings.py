"""Computations of both sides of secure aggregation: the seeds of masks, what is signed, and the checks of what was signed.

    seed = self_mask_seed(setting, "client0", own_secret, "rows")       # the client, from its own secret
    seed = self_mask_seed(setting, "client0", opened.secret, "rows")    # the server, from the reconstructed one

Everything is bound to the session, the round and the digest of the setting.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import NamedTuple

from fkgsec.protocols.core.errors import BadSignature, DuplicateSender, SplitView, SubstitutedKey
from fkgsec.protocols.core.keys import KEY_BYTES, verify
from fkgsec.protocols.core.prg import derive, digest, frame
from fkgsec.protocols.secagg.messages import Advertisement, Confirmation, Message, check_header
from fkgsec.protocols.secagg.setting import Setting


def self_mask_commitment(setting: Setting, party: str, self_seed: bytes) -> bytes:
    """SHA-256 that binds a party to its b. It hides b, which has 256 bits of its own."""
    return digest("secagg self mask commitment", *setting.context, party, self_seed)


def advertised_claim(setting: Setting, party: str, mask_key: bytes, share_key: bytes, commitment: bytes) -> bytes:
    """Return what an identity signs in round 0."""
    return frame("secagg advertisement", *setting.context, party, mask_key, share_key, commitment)


def confirmation_claim(setting: Setting, party: str, keys: bytes, num_survivors: int, bits: bytes) -> bytes:
    """Return what an identity signs in round 3."""
    return frame("secagg confirmation", *setting.context, party, keys, num_survivors, bits)


def keys_digest(setting: Setting, peers: Mapping[str, Advertisement]) -> bytes:
    """Digest of a list of advertised keys, in the order of the setting's parties."""
    listed = [peers[party] for party in setting.in_order(peers.keys())]
    keys = [part for key in listed for part in (key.sender, key.mask_key, key.share_key, key.commitment)]
    return digest("secagg key list", *setting.context, *keys)


def survivor_bits(setting: Setting, party: str, survivors: Container[str]) -> bytes:
    """Who survived of a party and its neighbours: a bit each in the setting's order, the first the lowest, little-endian."""
    around = setting.in_order(setting.around(party))
    bits = sum((peer in survivors) << place for place, peer in enumerate(around))
    return bits.to_bytes(-(-len(around) // 8), "little")


class View(NamedTuple):
    """State that a party was told when it confirms.

    Attributes:
        keys: digest of its key list.
        num_survivors: of all parties.
        survivors: of itself and its neighbours.
    """

    party: str
    keys: bytes
    num_survivors: int
    survivors: frozenset[str]

    def agrees(self, setting: Setting, other: Confirmation) -> bool:
        """Return whether the other was told the same, as far as both were told it: the keys where both see the same parties."""
        ours, theirs = setting.around(self.party), setting.around(other.sender)
        bits = int.from_bytes(other.survivors, "little")
        named = {peer for place, peer in enumerate(setting.in_order(theirs)) if bits >> place & 1}
        return (
            len(other.survivors) == -(-len(theirs) // 8)
            and bits >> len(theirs) == 0
            and other.num_survivors == self.num_survivors
            and named & ours == self.survivors & theirs
            and (ours != theirs or other.keys == self.keys)
        )


def adds_pair_mask(setting: Setting, party: str, peer: str) -> bool:
    """Return whether `party` adds the mask that it shares with `peer`, who then subtracts it."""
    return setting.point[party] < setting.point[peer]


def self_mask_seed(setting: Setting, party: str, self_seed: bytes, vector: str) -> bytes:
    """The seed of a party's own mask of one vector."""
    return derive(self_seed, "secagg self mask", *setting.context, party, vector)


def pair_mask_seed(setting: Setting, first: Advertisement, other: Advertisement, secret: bytes, vector: str) -> bytes:
    """The seed of the mask that two parties share, of one vector, from their X25519 secret; the same for both."""
    low, high = sorted((first, other), key=lambda peer: setting.point[peer.sender])
    keys = (low.sender, high.sender, low.mask_key, high.mask_key)
    return derive(secret, "secagg pair mask", *setting.context, *keys, vector)


def check_advertisement(setting: Setting, key: Advertisement, owner_of_key: Mapping[bytes, str]) -> None:
    """Raises `SubstitutedKey` for keys that the pinned identity did not sign, of another length, or of `owner_of_key`."""
    claim = advertised_claim(setting, key.sender, key.mask_key, key.share_key, key.commitment)
    try:
        verify(setting.identities[key.sender], key.signature, claim, signer=key.sender)
    except BadSignature as error:
        raise SubstitutedKey(f"the keys of {key.sender} are not signed by its pinned identity") from error
    for public in (key.mask_key, key.share_key):
        if len(public) != KEY_BYTES or public in owner_of_key or key.mask_key == key.share_key:
            raise SubstitutedKey(
                f"{key.sender} advertises {public.hex()}, of {len(public)} bytes, "
                f"also a key of {owner_of_key.get(public, 'nobody else')}"
            )


def checked_advertisements(
    setting: Setting, advertisements: Iterable[Message], *, senders: Container[str]
) -> dict[str, Advertisement]:
    """The advertisements by party, after every check that needs no secret. Raises as `share` does."""
    peers: dict[str, Advertisement] = {}
    owner_of_key: dict[bytes, str] = {}
    for message in advertisements:
        key = check_header(message, Advertisement, session=setting.session, round=setting.round, senders=senders)
        if key.sender in peers:
            raise DuplicateSender(f"two advertisements of {key.sender}")
        check_advertisement(setting, key, owner_of_key)
        owner_of_key |= {key.mask_key: key.sender, key.share_key: key.sender}
        peers[key.sender] = key
    return peers


def check_confirmation(setting: Setting, confirmation: Confirmation, view: View) -> None:
    """Raises `BadSignature`, or `SplitView` for a confirmation that does not agree with the view."""
    claim = confirmation_claim(
        setting, confirmation.sender, confirmation.keys, confirmation.num_survivors, confirmation.survivors
    )
    verify(setting.identities[confirmation.sender], confirmation.signature, claim, signer=confirmation.sender)
    if not view.agrees(setting, confirmation):
        raise SplitView(f"{confirmation.sender} signed other survivors, keys or another setting")


def checked_confirmations(
    setting: Setting, confirmations: Iterable[Message], *, senders: Container[str], view: View
) -> dict[str, Confirmation]:
    """The confirmations by party, each valid and in agreement with the view. Raises as `unmask` does."""
    confirmed: dict[str, Confirmation] = {}
    for message in confirmations:
        confirmation = check_header(
            message, Confirmation, session=setting.session, round=setting.round, senders=senders
        )
        if confirmation.sender in confirmed:
            raise DuplicateSender(f"two confirmations of {confirmation.sender}")
        check_confirmation(setting, confirmation, view)
        confirmed[confirmation.sender] = confirmation
    return confirmed
