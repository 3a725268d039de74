"""What both sides of secure aggregation compute: the seeds of masks, what is signed, and the checks of what was.

The client derives from its own secrets, the server from the reconstructed ones. Everything is bound to the session,
the round and the digest of the setting.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from protocols.errors import BadSignature, DuplicateSender, SplitView, SubstitutedKey
from protocols.keys import KEY_BYTES, verify
from protocols.prg import derive, digest, frame
from protocols.secagg_messages import Advertisement, Confirmation, Message, check_header
from protocols.secagg_setting import Setting


def self_mask_commitment(setting: Setting, party: str, self_seed: bytes) -> bytes:
    """SHA-256 that binds a party to its b. It hides b, which has 256 bits of its own."""
    return digest("secagg self mask commitment", *setting.context, party, self_seed)


def advertised_claim(setting: Setting, party: str, mask_key: bytes, share_key: bytes, commitment: bytes) -> bytes:
    """What an identity signs in round 0."""
    return frame("secagg advertisement", *setting.context, party, mask_key, share_key, commitment)


def confirmation_claim(setting: Setting, party: str, view: bytes) -> bytes:
    """What an identity signs in round 3."""
    return frame("secagg confirmation", *setting.context, party, view)


def keys_digest(setting: Setting, peers: Mapping[str, Advertisement]) -> bytes:
    """Digest of all advertised keys, in the order of the setting's parties."""
    listed = [peers[party] for party in setting.in_order(peers.keys())]
    keys = [part for key in listed for part in (key.sender, key.mask_key, key.share_key, key.commitment)]
    return digest("secagg key list", *setting.context, *keys)


def view_digest(setting: Setting, keys: bytes, survivors: Iterable[str]) -> bytes:
    """Digest of what a client believes: setting, key list and survivors."""
    return digest("secagg view", *setting.context, keys, *setting.in_order(survivors))


def adds_pair_mask(setting: Setting, party: str, peer: str) -> bool:
    """Whether `party` adds the mask that it shares with `peer`, who then subtracts it."""
    return setting.point[party] < setting.point[peer]


def self_mask_seed(setting: Setting, party: str, self_seed: bytes, vector: str) -> bytes:
    """The seed of a party's own mask of one vector."""
    return derive(self_seed, "secagg self mask", *setting.context, party, vector)


def pair_mask_seed(setting: Setting, one: Advertisement, other: Advertisement, secret: bytes, vector: str) -> bytes:
    """The seed of the mask that two parties share, of one vector, from their X25519 secret; the same for both."""
    low, high = sorted((one, other), key=lambda peer: setting.point[peer.sender])
    keys = (low.sender, high.sender, low.mask_key, high.mask_key)
    return derive(secret, "secagg pair mask", *setting.context, *keys, vector)


def checked_advertisements(setting: Setting, advertisements: Iterable[Message]) -> dict[str, Advertisement]:
    """The advertisements by party, after every check that needs no secret. Raises as `share` does."""
    peers: dict[str, Advertisement] = {}
    owner_of_key: dict[bytes, str] = {}
    for message in advertisements:
        key = check_header(
            message, Advertisement, session=setting.session, round=setting.round, senders=setting.parties
        )
        if key.sender in peers:
            raise DuplicateSender(f"two advertisements of {key.sender}")
        claim = advertised_claim(setting, key.sender, key.mask_key, key.share_key, key.commitment)
        try:
            verify(setting.identities[key.sender], key.signature, claim, signer=key.sender)
        except BadSignature as error:
            raise SubstitutedKey(f"the keys of {key.sender} are not signed by its pinned identity") from error
        for public in (key.mask_key, key.share_key):
            if len(public) != KEY_BYTES or public in owner_of_key:
                raise SubstitutedKey(
                    f"{key.sender} advertises {public.hex()}, of {len(public)} bytes, "
                    f"also a key of {owner_of_key.get(public, 'nobody')}"
                )
            owner_of_key[public] = key.sender
        peers[key.sender] = key
    return peers


def checked_confirmations(
    setting: Setting, confirmations: Iterable[Message], *, senders: frozenset[str], view: bytes
) -> dict[str, Confirmation]:
    """The confirmations by party, each valid and of that view. Raises as `unmask` does."""
    confirmed: dict[str, Confirmation] = {}
    for message in confirmations:
        one = check_header(message, Confirmation, session=setting.session, round=setting.round, senders=senders)
        if one.sender in confirmed:
            raise DuplicateSender(f"two confirmations of {one.sender}")
        claim = confirmation_claim(setting, one.sender, one.view)
        verify(setting.identities[one.sender], one.signature, claim, signer=one.sender)
        if one.view != view:
            raise SplitView(f"{one.sender} signed other survivors, keys or another setting")
        confirmed[one.sender] = one
    return confirmed
