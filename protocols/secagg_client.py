"""Secure aggregation, the client: five pure functions, each from a frozen state and a message to the next of both.

`advertise` -> `share` -> `mask` -> `confirm` -> `unmask`, the rounds of Bonawitz et al. 2017 Figure 4. A state is used
once: running a function twice on one state with different messages is what an attacker would want of a client.
Every function raises before it answers; after an error the client sends nothing more in this session.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocols.errors import (
    BadShare,
    BothSharesRequested,
    DuplicateSender,
    SettingError,
    SplitView,
    SubstitutedKey,
    TooFewParties,
    UnknownSender,
    WrongType,
)
from protocols.keys import KEY_BYTES, KeyPair, agree, generate, seal, sign, unseal
from protocols.masking import mask_vector
from protocols.prg import Randomness, derive, draw, frame
from protocols.secagg_bindings import (
    adds_pair_mask,
    advertised_claim,
    checked_advertisements,
    checked_confirmations,
    confirmation_claim,
    keys_digest,
    pair_mask_seed,
    self_mask_commitment,
    self_mask_seed,
    view_digest,
)
from protocols.secagg_graph import require_connected
from protocols.secagg_messages import (
    SERVER,
    Advertisement,
    Confirmation,
    KeyList,
    Kind,
    MaskedUpload,
    Message,
    RevealedShares,
    SealedShares,
    ShareInbox,
    Survivors,
    UnmaskRequest,
    check_header,
)
from protocols.secagg_setting import Setting
from protocols.shamir import PRIME, SHARE_BYTES, split


class Shares(NamedTuple):
    """What one holder has of one party: a share of its self mask's seed, and one of its private mask key."""

    self_mask: bytes
    mask_key: bytes


@dataclass(frozen=True)
class Own:
    """What a client keeps to itself throughout: its keys and the seed b of its self mask."""

    setting: Setting
    party: str
    identity: Ed25519PrivateKey = field(repr=False)
    mask_keys: KeyPair
    share_keys: KeyPair
    self_seed: bytes = field(repr=False)


@dataclass(frozen=True)
class Advertised:
    """After round 0."""

    own: Own
    advertisement: Advertisement


@dataclass(frozen=True)
class Shared:
    """After round 1: the peers' keys, the digest of their list, and the client's shares of its own secrets."""

    own: Own
    peers: Mapping[str, Advertisement]
    keys_digest: bytes
    own_shares: Shares = field(repr=False)


@dataclass(frozen=True)
class Masked:
    """After round 2: the shares that the client holds, by their owner, its own included."""

    own: Own
    peers: Mapping[str, Advertisement]
    keys_digest: bytes
    shares: Mapping[str, Shares] = field(repr=False)


@dataclass(frozen=True)
class Confirmed:
    """After round 3: the one set of survivors that the client signed, and the digest that it signed for it."""

    own: Own
    shares: Mapping[str, Shares] = field(repr=False)
    survivors: frozenset[str]
    view: bytes


def advertise(
    setting: Setting, party: str, identity: Ed25519PrivateKey, randomness: Randomness
) -> tuple[Advertised, Advertisement]:
    """Round 0, AdvertiseKeys: two fresh key pairs and a commitment to a fresh self mask, signed.

    Raises `SettingError` when `party` or its `identity` is not the one that the setting pins.
    Source: Bonawitz et al. 2017 Figure 4, round 0. Differs: the seed b is drawn here and committed to.
    """
    if setting.identities.get(party) != identity.public_key().public_bytes_raw():
        raise SettingError(f"identities: the setting pins another public key for {party!r}, or none")
    own = Own(setting, party, identity, generate(randomness), generate(randomness), draw(randomness, KEY_BYTES))
    commitment = self_mask_commitment(setting, party, own.self_seed)
    claim = advertised_claim(setting, party, own.mask_keys.public, own.share_keys.public, commitment)
    advertisement = Advertisement(
        session=setting.session,
        round=setting.round,
        sender=party,
        mask_key=own.mask_keys.public,
        share_key=own.share_keys.public,
        commitment=commitment,
        signature=sign(identity, claim),
    )
    return Advertised(own, advertisement), advertisement


def share(state: Advertised, message: Message, randomness: Randomness) -> tuple[Shared, SealedShares]:
    """Round 1, ShareKeys: check everybody's keys, then share b and the mask key among the neighbours.

    Raises:
        SubstitutedKey: a key that its party's identity did not sign, that two parties share, or a changed own one.
        DuplicateSender, UnknownSender, ReplayedMessage, UnexpectedMessage: a list that names the wrong parties.
        TooFewParties: fewer keys than survivors are needed, or fewer neighbours than the threshold.
        LowOrderPoint: a peer's key of small order.

    Source: Bonawitz et al. 2017 Figure 4, round 1; Bell et al. 2020 for the neighbours. Differs: none.
    """
    own, setting = state.own, state.own.setting
    key_list = _from_server(setting, message, KeyList)
    peers = checked_advertisements(setting, key_list.advertisements)
    if peers.get(own.party) != state.advertisement:
        raise SubstitutedKey(f"the key list holds other keys for {own.party} than it advertised")
    if len(peers) < max(setting.fewest_survivors, setting.quorum):
        raise TooFewParties(
            f"{len(peers)} parties advertised keys; {max(setting.fewest_survivors, setting.quorum)} are needed"
        )
    neighbours = setting.in_order(setting.graph[own.party] & peers.keys())
    if len(neighbours) + 1 < setting.threshold:
        raise TooFewParties(f"{own.party} has {len(neighbours)} neighbours with keys; threshold {setting.threshold}")
    shares = {}
    holders = {setting.point[holder]: holder for holder in (own.party, *neighbours)}
    by_kind = [
        split(secret, threshold=setting.threshold, holders=tuple(holders), randomness=randomness)
        for secret in (own.self_seed, own.mask_keys.private)
    ]
    for point, holder in holders.items():
        shares[holder] = Shares(*(kind[point] for kind in by_kind))
    sealed = {
        peer: seal(
            _sealing_key(own, peers[peer], source=own.party, destination=peer),
            shares[peer].self_mask + shares[peer].mask_key,
            associated=_associated(setting, source=own.party, destination=peer),
            randomness=randomness,
        )
        for peer in neighbours
    }
    reply = SealedShares(session=setting.session, round=setting.round, sender=own.party, sealed=sealed)
    return Shared(own, peers, keys_digest(setting, peers), shares[own.party]), reply


def mask(state: Shared, message: Message, values: Mapping[str, np.ndarray]) -> tuple[Masked, MaskedUpload]:
    """Round 2, MaskedInputCollection: open the shares of the neighbours, then upload every vector under its masks.

    Args:
        values: for each vector of the setting its elements, `[length]`, dtype of its ring.

    Raises:
        BadCiphertext, BadShare: a neighbour's shares were changed on the way, or are none; the message names it.
        UnknownSender: shares of a party that is no neighbour with keys.
        TooFewParties: fewer shares than the threshold.
        WrongType, WrongLength, OutOfRing: `values` that do not fit the setting.
        LowOrderPoint: a neighbour's mask key of small order.

    Source: Bonawitz et al. 2017 Figure 4, round 2. Differs: shares are opened here and not in round 4, so that a
    damaged one ends the session before anything was uploaded.
    """
    own, setting = state.own, state.own.setting
    inbox = _from_server(setting, message, ShareInbox)
    shares = {own.party: state.own_shares}
    for source, sealed in inbox.sealed.items():
        if source not in setting.graph[own.party] or source not in state.peers:
            raise UnknownSender(f"shares of {source!r}, which is no neighbour of {own.party} with advertised keys")
        key = _sealing_key(own, state.peers[source], source=source, destination=own.party)
        associated = _associated(setting, source=source, destination=own.party)
        shares[source] = _parse_shares(unseal(key, sealed, associated=associated, source=source), source)
    if len(shares) < setting.threshold:
        raise TooFewParties(f"{own.party} holds the shares of {len(shares)} parties; threshold {setting.threshold}")
    if values.keys() != {vector.name for vector in setting.vectors}:
        raise WrongType(
            f"values of {own.party}: {sorted(values)}; the setting has {[vector.name for vector in setting.vectors]}"
        )
    secrets = {
        peer: agree(own.mask_keys.private, state.peers[peer].mask_key, peer=peer)
        for peer in shares
        if peer != own.party
    }
    masked = {}
    for vector in setting.vectors:
        vector.ring.check(values[vector.name], vector.length, f"vector {vector.name!r} of {own.party}")
        plus = [self_mask_seed(setting, own.party, own.self_seed, vector.name)]
        minus = []
        for peer, secret in secrets.items():
            seed = pair_mask_seed(setting, state.peers[own.party], state.peers[peer], secret, vector.name)
            (plus if adds_pair_mask(setting, own.party, peer) else minus).append(seed)
        masked[vector.name] = mask_vector(values[vector.name], plus, minus, vector.ring, setting.cipher).tobytes()
    reply = MaskedUpload(session=setting.session, round=setting.round, sender=own.party, vectors=masked)
    return Masked(own, state.peers, state.keys_digest, shares), reply


def confirm(state: Masked, message: Message) -> tuple[Confirmed, Confirmation]:
    """Round 3, ConsistencyCheck: sign the survivors together with the keys and the setting that this client saw.

    Raises:
        TooFewParties: fewer survivors than `setting.fewest_survivors`.
        UnknownSender, DuplicateSender: a survivor without keys, or twice in the list.
        SplitView: this client is not among them although it uploaded, or a neighbour that never shared is.
        DisconnectedGraph: survivors that no mask joins.

    Source: Bonawitz et al. 2017 Figure 4, round 3. Differs: key list and setting are signed too; connectivity.
    """
    own, setting = state.own, state.own.setting
    told = _from_server(setting, message, Survivors).survivors
    survivors = frozenset(told)
    if len(survivors) != len(told):
        raise DuplicateSender(f"survivors: a party is named twice in {told}")
    if not survivors <= state.peers.keys():
        raise UnknownSender(f"survivors: {sorted(survivors - state.peers.keys())} never advertised keys")
    if own.party not in survivors:
        raise SplitView(f"{own.party} uploaded, and is told that it did not survive")
    strangers = (survivors & setting.graph[own.party]) - state.shares.keys()
    if strangers:
        raise SplitView(f"survivors: {sorted(strangers)} sent {own.party} no shares, so their masks do not cancel")
    if len(survivors) < setting.fewest_survivors:
        raise TooFewParties(f"{len(survivors)} survivors; {setting.fewest_survivors} are needed to open the sum")
    require_connected(setting.graph, survivors)
    view = view_digest(setting, state.keys_digest, survivors)
    reply = Confirmation(
        session=setting.session,
        round=setting.round,
        sender=own.party,
        view=view,
        signature=sign(own.identity, confirmation_claim(setting, own.party, view)),
    )
    return Confirmed(own, state.shares, survivors, view), reply


def unmask(state: Confirmed, message: Message) -> RevealedShares:
    """Round 4, Unmasking: for each neighbour one share, of b when it survived and of its mask key when it did not.

    Raises:
        BothSharesRequested: a party for which both kinds are asked.
        SplitView: a confirmation of another view, or a request that does not follow from this client's survivors.
        BadSignature, DuplicateSender, UnknownSender: confirmations that prove nothing.
        TooFewParties: fewer valid confirmations than `setting.quorum`.

    Source: Bonawitz et al. 2017 Figure 4, round 4. Differs: the server says what it asks for, so that a request for
    both kinds is seen and not only prevented.
    """
    own, setting = state.own, state.own.setting
    request = _from_server(setting, message, UnmaskRequest)
    both = set(request.self_masks) & set(request.mask_keys)
    if both:
        raise BothSharesRequested(f"{own.party} is asked for both kinds of share of {', '.join(sorted(both))}")
    confirmed = checked_confirmations(setting, request.confirmations, senders=state.survivors, view=state.view)
    if len(confirmed) < setting.quorum:
        raise TooFewParties(f"{len(confirmed)} parties confirmed the survivors; {setting.quorum} are needed")
    alive, gone = state.shares.keys() & state.survivors, state.shares.keys() - state.survivors
    if set(request.self_masks) != alive or set(request.mask_keys) != gone:
        wrong = (set(request.self_masks) ^ alive) | (set(request.mask_keys) ^ gone)
        raise SplitView(f"the request for {sorted(wrong)} does not follow from the survivors that {own.party} signed")
    return RevealedShares(
        session=setting.session,
        round=setting.round,
        sender=own.party,
        self_masks={party: state.shares[party].self_mask for party in setting.in_order(alive)},
        mask_keys={party: state.shares[party].mask_key for party in setting.in_order(gone)},
    )


def _from_server(setting: Setting, message: Message, kind: type[Kind]) -> Kind:
    return check_header(message, kind, session=setting.session, round=setting.round, senders=(SERVER,))


def _sealing_key(own: Own, peer: Advertisement, *, source: str, destination: str) -> bytes:
    """The key of one direction between two parties, from the second key pair of each."""
    secret = agree(own.share_keys.private, peer.share_key, peer=peer.sender)
    keys = (own.share_keys.public, peer.share_key) if source == own.party else (peer.share_key, own.share_keys.public)
    return derive(secret, "secagg share encryption", *own.setting.context, source, destination, *keys)


def _associated(setting: Setting, *, source: str, destination: str) -> bytes:
    return frame("secagg sealed shares", *setting.context, source, destination)


def _parse_shares(plaintext: bytes, source: str) -> Shares:
    shares = Shares(plaintext[:SHARE_BYTES], plaintext[SHARE_BYTES:])
    if any(len(one) != SHARE_BYTES or int.from_bytes(one, "little") >= PRIME for one in shares):
        raise BadShare(f"{source} sealed {len(plaintext)} bytes that are no two shares")
    return shares
