"""Computations of both sides of secure aggregation: mask seeds, signed claims, and the checks of them.

    seed = self_mask_seed(setting, "client0", self_seed, "rows")        # the client, from its secret
    seed = self_mask_seed(setting, "client0", opened.secret, "rows")    # the server, from the reconstructed secret

Every seed and claim is bound to the session, the round and the digest of the setting.
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
    """Commit to a self mask's seed b with SHA-256, which hides its 256 random bits.

    Args:
        self_seed: b, 32 bytes.
    """
    return digest("secagg self mask commitment", *setting.context, party, self_seed)


def advertised_claim(setting: Setting, party: str, mask_key: bytes, share_key: bytes, commitment: bytes) -> bytes:
    """Encode the claim that a client's identity signs in round 0.

    Args:
        mask_key, share_key: its public keys, 32 bytes each.
        commitment: `self_mask_commitment` of its b.
    """
    return frame("secagg advertisement", *setting.context, party, mask_key, share_key, commitment)


def confirmation_claim(setting: Setting, party: str, keys: bytes, num_survivors: int, bits: bytes) -> bytes:
    """Encode the claim that a client's identity signs in round 3.

    Args:
        keys: `keys_digest` of the key list that the client received.
        bits: `survivor_bits` of the client and its neighbors.
    """
    return frame("secagg confirmation", *setting.context, party, keys, num_survivors, bits)


def keys_digest(setting: Setting, peers: Mapping[str, Advertisement]) -> bytes:
    """Hash a list of advertised keys, in the order of the setting's parties.

    Args:
        peers: advertisements by party.
    """
    listed = [peers[party] for party in setting.in_order(peers.keys())]
    keys = [part for key in listed for part in (key.sender, key.mask_key, key.share_key, key.commitment)]
    return digest("secagg key list", *setting.context, *keys)


def survivor_bits(setting: Setting, party: str, survivors: Container[str]) -> bytes:
    """Encode the survivors among a party and its neighbors.

    Args:
        survivors: names of all survivors.

    Returns:
        One bit per neighbor in the setting's order, the first in the lowest bit, little-endian.
    """
    around = setting.in_order(setting.around(party))
    bits = sum((peer in survivors) << place for place, peer in enumerate(around))
    return bits.to_bytes(-(-len(around) // 8), "little")


class View(NamedTuple):
    """What a party had received when it confirmed.

    Attributes:
        keys: digest of its key list.
        num_survivors: number of all survivors.
        survivors: survivors among itself and its neighbors.
    """

    party: str
    keys: bytes
    num_survivors: int
    survivors: frozenset[str]

    def agrees(self, setting: Setting, other: Confirmation) -> bool:
        """Return whether another client's confirmation is consistent with this view, as far as both see the same parties.

        Args:
            other: the confirmation, whose signature is checked elsewhere.
        """
        ours, theirs = setting.around(self.party), setting.around(other.sender)
        bits = int.from_bytes(other.survivors, "little")
        named = {peer for place, peer in enumerate(setting.in_order(theirs)) if bits >> place & 1}
        # On a regular graph, two neighbors see different parties. They compare the survivors that both see, and the
        # keys only if they see the same parties, since a digest of a part is not known.
        return (
            len(other.survivors) == -(-len(theirs) // 8)
            and bits >> len(theirs) == 0
            and other.num_survivors == self.num_survivors
            and named & ours == self.survivors & theirs
            and (ours != theirs or other.keys == self.keys)
        )


def adds_pair_mask(setting: Setting, party: str, peer: str) -> bool:
    """Return whether `party` adds the pair mask that `peer` subtracts."""
    # Bonawitz et al. 2017 Figure 4, round 2 gives the plus sign to the later party; any antisymmetric rule cancels.
    return setting.point[party] < setting.point[peer]


def self_mask_seed(setting: Setting, party: str, self_seed: bytes, vector: str) -> bytes:
    """Derive the seed of a party's self mask for one vector.

    Args:
        self_seed: b, 32 bytes.
    """
    return derive(self_seed, "secagg self mask", *setting.context, party, vector)


def pair_mask_seed(setting: Setting, first: Advertisement, other: Advertisement, secret: bytes, vector: str) -> bytes:
    """Derive the seed of the mask that two parties share for one vector. Both derive the same one.

    Args:
        first, other: the advertisements of the two, in any order.
        secret: their X25519 secret, 32 bytes.
    """
    # Put both names and keys into the derivation, in an order that both know.
    low, high = sorted((first, other), key=lambda peer: setting.point[peer.sender])
    keys = (low.sender, high.sender, low.mask_key, high.mask_key)
    return derive(secret, "secagg pair mask", *setting.context, *keys, vector)


def check_advertisement(setting: Setting, key: Advertisement, owner_of_key: Mapping[bytes, str]) -> None:
    """Check one client's keys.

    Args:
        owner_of_key: party by public key, of the keys that came before.

    Raises:
        SubstitutedKey: keys not signed by the pinned identity, of another length, or used before.
    """
    claim = advertised_claim(setting, key.sender, key.mask_key, key.share_key, key.commitment)
    try:
        verify(setting.identities[key.sender], key.signature, claim, signer=key.sender)
    except BadSignature as error:
        raise SubstitutedKey(f"the keys of {key.sender} are not signed by its pinned identity") from error
    # Bonawitz et al. 2017 Figure 4, round 1: all public keys must differ.
    for public in (key.mask_key, key.share_key):
        if len(public) != KEY_BYTES or public in owner_of_key or key.mask_key == key.share_key:
            raise SubstitutedKey(
                f"{key.sender} advertises {public.hex()}, of {len(public)} bytes, "
                f"also a key of {owner_of_key.get(public, 'nobody else')}"
            )


def checked_advertisements(
    setting: Setting, advertisements: Iterable[Message], *, senders: Container[str]
) -> dict[str, Advertisement]:
    """Check a list of advertisements as far as possible without secrets.

    Args:
        senders: parties that may be in the list.

    Returns:
        The advertisements by party.

    Raises the errors of `client.share`.
    """
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
    """Check one client's signature of its view against another view.

    Args:
        view: of the party that checks.

    Raises:
        BadSignature: the signature is not valid.
        SplitView: the confirmation does not agree with `view`.
    """
    claim = confirmation_claim(
        setting, confirmation.sender, confirmation.keys, confirmation.num_survivors, confirmation.survivors
    )
    verify(setting.identities[confirmation.sender], confirmation.signature, claim, signer=confirmation.sender)
    if not view.agrees(setting, confirmation):
        raise SplitView(f"{confirmation.sender} signed other survivors, keys or another setting")


def checked_confirmations(
    setting: Setting, confirmations: Iterable[Message], *, senders: Container[str], view: View
) -> dict[str, Confirmation]:
    """Check a list of confirmations.

    Args:
        senders: parties that may be in the list.
        view: of the party that checks; each confirmation must agree with it.

    Returns:
        The confirmations by party.

    Raises the errors of `client.unmask`.
    """
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
