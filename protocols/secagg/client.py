"""Secure aggregation, the client: six functions, each from a frozen state and a message to the next state and message.

    advertised, message = advertise(setting, "client0", identity, randomness)   # to the server, whose answer is `keys`
    shared, message = share(advertised, keys, randomness)
    opened, message = receive(shared, inbox)
    masked, message = mask(opened, cohort, {"rows": rows})
    confirmed, message = confirm(masked, survivors)
    message = unmask(confirmed, request)

The rounds of Bonawitz et al. 2017 Figure 4, and `receive`, which tells the server whose shares did not open. A client takes
each step once (`fkgsec.protocols.core.one_shot`): run twice on one state, `confirm` and `unmask` would reveal both kinds of
share of one party, `mask` the difference of two inputs, `share` two sharings under one key. A step is spent before its message
is read: after an error the client sends nothing more in this session.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fkgsec.protocols.core.errors import (
    BadCiphertext,
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
from fkgsec.protocols.core.keys import KEY_BYTES, KeyPair, agree, generate, loaded, seal, sign, unseal
from fkgsec.protocols.core.masking import mask_vector
from fkgsec.protocols.core.one_shot import Taken
from fkgsec.protocols.core.prg import Randomness, derive, draw, frame
from fkgsec.protocols.core.rounds import SERVER
from fkgsec.protocols.core.shamir import PRIME, SHARE_BYTES, split
from fkgsec.protocols.secagg.bindings import (
    View,
    adds_pair_mask,
    advertised_claim,
    checked_advertisements,
    checked_confirmations,
    confirmation_claim,
    keys_digest,
    pair_mask_seed,
    self_mask_commitment,
    self_mask_seed,
    survivor_bits,
)
from fkgsec.protocols.secagg.messages import (
    Advertisement,
    Cohort,
    Confirmation,
    KeyList,
    Kind,
    MaskedUpload,
    Message,
    Receipt,
    RevealedShares,
    SealedShares,
    ShareInbox,
    Survivors,
    UnmaskRequest,
    check_header,
)
from fkgsec.protocols.secagg.setting import Setting


class Shares(NamedTuple):
    """The shares that one holder has of one party's secrets: the seed of its self mask and its private mask key."""

    self_mask: bytes
    mask_key: bytes


@dataclass(frozen=True)
class Own:
    """A client's secrets throughout a session: its keys and the seed b of its self mask; and the steps that it took."""

    setting: Setting
    party: str
    identity: Ed25519PrivateKey = field(repr=False)
    mask_keys: KeyPair
    share_keys: KeyPair
    self_seed: bytes = field(repr=False)
    taken: Taken = field(repr=False, compare=False)


@dataclass(frozen=True)
class Advertised:
    """After round 0."""

    own: Own
    advertisement: Advertisement


@dataclass(frozen=True)
class Shared:
    """In round 1: the neighbours' keys and its own, the digest of their list, the client's shares of its own secrets, and the
    secret that it has with each neighbour, under which shares go both ways."""

    own: Own
    peers: Mapping[str, Advertisement]
    keys_digest: bytes
    own_shares: Shares = field(repr=False)
    secrets: Mapping[str, bytes] = field(repr=False)


@dataclass(frozen=True)
class Received:
    """After round 1: the shares that the client could open, by their owner, its own included."""

    own: Own
    peers: Mapping[str, Advertisement]
    keys_digest: bytes
    shares: Mapping[str, Shares] = field(repr=False)


@dataclass(frozen=True)
class Masked(Received):
    """After round 2: the shares of the parties that the client masked with, its own included; none but these are revealed."""


@dataclass(frozen=True)
class Confirmed:
    """After round 3: the one view that the client signed."""

    own: Own
    shares: Mapping[str, Shares] = field(repr=False)
    view: View


def advertise(
    setting: Setting, party: str, identity: Ed25519PrivateKey, randomness: Randomness
) -> tuple[Advertised, Advertisement]:
    """Round 0, AdvertiseKeys: two fresh key pairs and a commitment to a fresh self mask, signed.

    Raises `SettingError` when `party` or its `identity` is not the one that the setting pins.
    Source: Bonawitz et al. 2017 Figure 4, round 0. Differs: the seed b is drawn here and committed to.
    """
    if setting.identities.get(party) != identity.public_key().public_bytes_raw():
        raise SettingError(f"identities: the setting pins another public key for {party!r}, or none")
    party_state = Own(
        setting,
        party,
        identity,
        generate(randomness),
        generate(randomness),
        draw(randomness, KEY_BYTES),
        Taken(party),
    )
    commitment = self_mask_commitment(setting, party, party_state.self_seed)
    claim = advertised_claim(setting, party, party_state.mask_keys.public, party_state.share_keys.public, commitment)
    advertisement = Advertisement(
        session=setting.session,
        round=setting.round,
        sender=party,
        mask_key=party_state.mask_keys.public,
        share_key=party_state.share_keys.public,
        commitment=commitment,
        signature=sign(identity, claim),
    )
    return Advertised(party_state, advertisement), advertisement


def share(state: Advertised, message: Message, randomness: Randomness) -> tuple[Shared, SealedShares]:
    """Round 1, ShareKeys: check the neighbours' keys, then share b and the mask key among them.

    Raises:
        StateReused: a second call.
        SubstitutedKey: a key that its party's identity did not sign, that two parties share, or a changed own one.
        DuplicateSender, UnknownSender, ReplayedMessage, UnexpectedMessage: a list that names the wrong parties.
        TooFewParties: fewer neighbours with keys than the threshold, and on the complete graph than must survive.
        LowOrderPoint: a peer's key of small order.

    Source: Bonawitz et al. 2017 Figure 4, round 1; Bell et al. 2020 for the neighbours. Differs: none.
    """
    own, setting = state.own, state.own.setting
    own.taken.mark("share")
    key_list = _from_server(setting, message, KeyList)
    peers = checked_advertisements(setting, key_list.advertisements, senders=setting.around(own.party))
    if peers.get(own.party) != state.advertisement:
        raise SubstitutedKey(f"the key list holds other keys for {own.party} than it advertised")
    least = setting.fewest_survivors if setting.neighbours is None else setting.threshold
    if len(peers) < least:
        where = "parties" if setting.neighbours is None else f"neighbours of {own.party} and itself"
        raise TooFewParties(f"{len(peers)} {where} advertised keys; {least} are needed")
    shares = {}
    holders = {setting.point[holder]: holder for holder in setting.in_order(peers)}
    by_kind = [
        split(secret, threshold=setting.threshold, holders=tuple(holders), randomness=randomness)
        for secret in (own.self_seed, own.mask_keys.private)
    ]
    for point, holder in holders.items():
        shares[holder] = Shares(*(kind[point] for kind in by_kind))
    key = loaded(own.share_keys.private)
    secrets = {peer: agree(key, peers[peer].share_key, peer=peer) for peer in holders.values() if peer != own.party}
    sealed = {
        peer: seal(
            _sealing_key(own, peers[peer], secret, source=own.party, destination=peer),
            shares[peer].self_mask + shares[peer].mask_key,
            associated=_associated(setting, source=own.party, destination=peer),
            randomness=randomness,
        )
        for peer, secret in secrets.items()
    }
    reply = SealedShares(session=setting.session, round=setting.round, sender=own.party, sealed=sealed)
    return Shared(own, peers, keys_digest(setting, peers), shares[own.party], secrets), reply


def receive(state: Shared, message: Message) -> tuple[Received, Receipt]:
    """End of round 1: open the neighbours' shares, and tell the server whose do not open.

    A neighbour whose shares are damaged or none is as one that never shared: the client holds nothing of it, and masks with
    it only if the server says so, which `mask` then refuses. Who is at fault, the one that sealed or the one that says it
    could not open them, nobody can tell; see `server.collect_receipts`.

    Raises:
        StateReused: a second call.
        UnknownSender: shares of a party that is no neighbour with keys.

    Source: Bonawitz et al. 2017 Figure 4, round 4, opens them. Differs: here, before anything is uploaded, and not the end.
    """
    own, setting = state.own, state.own.setting
    own.taken.mark("receive")
    inbox = _from_server(setting, message, ShareInbox)
    strangers = inbox.sealed.keys() - (state.peers.keys() - {own.party})
    if strangers:
        raise UnknownSender(f"shares of {sorted(strangers)}, no neighbours of {own.party} with advertised keys")
    shares, unopened = {own.party: state.own_shares}, []
    for source, sealed in inbox.sealed.items():
        key = _sealing_key(own, state.peers[source], state.secrets[source], source=source, destination=own.party)
        associated = _associated(setting, source=source, destination=own.party)
        try:
            shares[source] = _parse_shares(unseal(key, sealed, associated=associated, source=source), source)
        except (BadCiphertext, BadShare):
            unopened.append(source)
    receipt = Receipt(session=setting.session, round=setting.round, sender=own.party, unopened=tuple(unopened))
    return Received(own, state.peers, state.keys_digest, shares), receipt


def mask(state: Received, message: Message, values: Mapping[str, np.ndarray]) -> tuple[Masked, MaskedUpload]:
    """Round 2, MaskedInputCollection: upload every vector under its masks.

    Args:
        values: for each vector of the setting its elements, `[length]`, dtype of its ring.

    Raises:
        StateReused: a second call.
        SplitView: a cohort without this client, or with a party whose shares it does not hold.
        TooFewParties: a cohort below `setting.fewest_around`.
        WrongType, WrongLength, OutOfRing: `values` that do not fit the setting.
        LowOrderPoint: a neighbour's mask key of small order.

    Source: Bonawitz et al. 2017 Figure 4, round 2. Differs: none.
    """
    own, setting = state.own, state.own.setting
    own.taken.mark("mask")
    cohort = frozenset(_from_server(setting, message, Cohort).members)
    if own.party not in cohort or not cohort <= state.shares.keys():
        wrong = sorted(cohort - state.shares.keys()) or own.party
        raise SplitView(f"cohort of {own.party}: {wrong}; it holds the shares of {setting.in_order(state.shares)}")
    if len(cohort) < setting.fewest_around:
        raise TooFewParties(f"{own.party} is to mask with {len(cohort)} parties; {setting.fewest_around} are needed")
    if values.keys() != {vector.name for vector in setting.vectors}:
        raise WrongType(
            f"values of {own.party}: {sorted(values)}; the setting has {[vector.name for vector in setting.vectors]}"
        )
    key = loaded(own.mask_keys.private)
    secrets = {
        peer: agree(key, state.peers[peer].mask_key, peer=peer)
        for peer in setting.in_order(cohort)
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
    shares = {peer: state.shares[peer] for peer in setting.in_order(cohort)}
    return Masked(own, state.peers, state.keys_digest, shares), reply


def confirm(state: Masked, message: Message) -> tuple[Confirmed, Confirmation]:
    """Round 3, ConsistencyCheck: sign the survivors together with the keys and the setting that this client saw.

    Raises:
        StateReused: a second call, with the same survivors or others.
        TooFewParties: fewer survivors than `setting.fewest_survivors`, or around this client than `setting.fewest_around`.
        UnknownSender, DuplicateSender: a survivor that is no neighbour with keys, or twice in the list.
        SplitView: this client is not among them although it uploaded, one that it did not mask with is, or, on the complete
            graph, their number is another.

    Source: Bonawitz et al. 2017 Figure 4, round 3. Differs: key list and setting are signed too. On a regular graph a
    client is told of its neighbours and signs that; of the others it has only their number, which it cannot check.
    """
    own, setting = state.own, state.own.setting
    own.taken.mark("confirm")
    announced = _from_server(setting, message, Survivors)
    survivors = frozenset(announced.survivors)
    if len(survivors) != len(announced.survivors):
        raise DuplicateSender(f"survivors: a party is named twice in {announced.survivors}")
    if not survivors <= state.peers.keys():
        raise UnknownSender(f"survivors: {sorted(survivors - state.peers.keys())} never advertised keys to {own.party}")
    if own.party not in survivors:
        raise SplitView(f"{own.party} uploaded, and is told that it did not survive")
    strangers = survivors - state.shares.keys()
    if strangers:
        raise SplitView(f"survivors: {sorted(strangers)} sent {own.party} no shares, so their masks do not cancel")
    if announced.num_survivors < len(survivors) or (
        setting.neighbours is None and announced.num_survivors != len(survivors)
    ):
        raise SplitView(
            f"{own.party} is told of {announced.num_survivors} survivors, and of the names of {len(survivors)}"
        )
    if announced.num_survivors < setting.fewest_survivors:
        raise TooFewParties(
            f"{announced.num_survivors} survivors; {setting.fewest_survivors} are needed to open the sum"
        )
    if len(survivors) < setting.fewest_around:
        raise TooFewParties(f"{len(survivors)} survivors around {own.party}; {setting.fewest_around} are needed")
    view = View(own.party, state.keys_digest, announced.num_survivors, survivors)
    signed = view.keys, view.num_survivors, survivor_bits(setting, own.party, survivors)
    signature = sign(own.identity, confirmation_claim(setting, own.party, *signed))
    return Confirmed(own, state.shares, view), Confirmation(
        setting.session, setting.round, own.party, *signed, signature
    )


def unmask(state: Confirmed, message: Message) -> RevealedShares:
    """Round 4, Unmasking: for each neighbour one share, of b when it survived and of its mask key when it did not.

    Raises:
        StateReused: a second call.
        BothSharesRequested: a party for which both kinds are asked.
        SplitView: a confirmation of another view, or a request that does not follow from this client's survivors.
        BadSignature, DuplicateSender, UnknownSender: confirmations that prove nothing.
        TooFewParties: fewer valid confirmations than the threshold.

    Source: Bonawitz et al. 2017 Figure 4, round 4. Differs: the server says what it asks for, so that a request for
    both kinds is seen and not only prevented.
    """
    own, setting, view = state.own, state.own.setting, state.view
    own.taken.mark("unmask")
    request = _from_server(setting, message, UnmaskRequest)
    both = set(request.self_masks) & set(request.mask_keys)
    if both:
        raise BothSharesRequested(f"{own.party} is asked for both kinds of share of {', '.join(sorted(both))}")
    confirmed = checked_confirmations(setting, request.confirmations, senders=view.survivors, view=view)
    if len(confirmed) < setting.threshold:
        raise TooFewParties(f"{len(confirmed)} parties confirmed the survivors; {setting.threshold} are needed")
    alive, gone = state.shares.keys() & view.survivors, state.shares.keys() - view.survivors
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


def _sealing_key(holder: Own, peer: Advertisement, secret: bytes, *, source: str, destination: str) -> bytes:
    """The key of one direction between two parties, from what the second key pair of each agrees on."""
    keys = (
        (holder.share_keys.public, peer.share_key)
        if source == holder.party
        else (peer.share_key, holder.share_keys.public)
    )
    return derive(secret, "secagg share encryption", *holder.setting.context, source, destination, *keys)


def _associated(setting: Setting, *, source: str, destination: str) -> bytes:
    return frame("secagg sealed shares", *setting.context, source, destination)


def _parse_shares(plaintext: bytes, source: str) -> Shares:
    shares = Shares(plaintext[:SHARE_BYTES], plaintext[SHARE_BYTES:])
    if any(len(part) != SHARE_BYTES or int.from_bytes(part, "little") >= PRIME for part in shares):
        raise BadShare(f"{source} sealed {len(plaintext)} bytes that are no two shares")
    return shares
