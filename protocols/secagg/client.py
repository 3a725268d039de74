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
from fkgsec.protocols.core.one_shot import Steps
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
    """Shares of one party's secrets at one holder: of its self mask's seed b and of its private mask key."""

    self_mask: bytes
    mask_key: bytes


@dataclass(frozen=True)
class Member:
    """A client's secrets throughout a session: its keys, the seed b of its self mask, and the steps that it took."""

    setting: Setting
    party: str
    identity: Ed25519PrivateKey = field(repr=False)
    mask_keys: KeyPair
    share_keys: KeyPair
    self_seed: bytes = field(repr=False)
    steps: Steps = field(repr=False, compare=False)


@dataclass(frozen=True)
class Advertised:
    """After round 0."""

    member: Member
    advertisement: Advertisement


@dataclass(frozen=True)
class Shared:
    """State in round 1.

    Attributes:
        peers: advertisements of the client and its neighbors.
        keys_digest: digest of that list.
        own_shares: the client's shares of its own secrets.
        secrets: X25519 secret with each neighbor, which encrypts shares in both directions.
    """

    member: Member
    peers: Mapping[str, Advertisement]
    keys_digest: bytes
    own_shares: Shares = field(repr=False)
    secrets: Mapping[str, bytes] = field(repr=False)


@dataclass(frozen=True)
class Received:
    """State after round 1: the shares that the client could open by their owner, its own included."""

    member: Member
    peers: Mapping[str, Advertisement]
    keys_digest: bytes
    shares: Mapping[str, Shares] = field(repr=False)


@dataclass(frozen=True)
class Masked(Received):
    """State after round 2. `shares` has only the parties that the client masked with, so only these can be revealed."""


@dataclass(frozen=True)
class Confirmed:
    """State after round 3: the one view that the client signed."""

    member: Member
    shares: Mapping[str, Shares] = field(repr=False)
    view: View


def advertise(
    setting: Setting, party: str, identity: Ed25519PrivateKey, randomness: Randomness
) -> tuple[Advertised, Advertisement]:
    """Round 0, AdvertiseKeys: generate two key pairs and a self mask's seed, and sign the keys and a commitment to the seed.

    Args:
        identity: long-term signing key of `party`.

    Raises:
        SettingError: the setting does not list `party`, or pins another identity.

    Source: Bonawitz et al. 2017 Figure 4, round 0. Differs: the seed b is drawn here and committed to.
    """
    if setting.identities.get(party) != identity.public_key().public_bytes_raw():
        raise SettingError(f"identities: the setting pins another public key for {party!r}, or none")
    # Figure 4, round 0: key pairs c (here `share_keys`, for encrypting shares) and s (here `mask_keys`, for pair masks).
    member = Member(
        setting,
        party,
        identity,
        generate(randomness),
        generate(randomness),
        draw(randomness, KEY_BYTES),
        Steps(party),
    )
    # The commitment lets the server recognize b among wrong shares, and stops a client from changing b afterwards.
    commitment = self_mask_commitment(setting, party, member.self_seed)
    claim = advertised_claim(setting, party, member.mask_keys.public, member.share_keys.public, commitment)
    advertisement = Advertisement(
        session=setting.session,
        round=setting.round,
        sender=party,
        mask_key=member.mask_keys.public,
        share_key=member.share_keys.public,
        commitment=commitment,
        signature=sign(identity, claim),
    )
    return Advertised(member, advertisement), advertisement


def share(state: Advertised, message: Message, randomness: Randomness) -> tuple[Shared, SealedShares]:
    """Round 1, ShareKeys: check the neighbors' keys, then share b and the private mask key among them.

    Args:
        message: the server's `KeyList`.
        randomness: source for polynomials and nonces.

    Raises:
        StateReused: a second call.
        SubstitutedKey: a key that its party's identity did not sign, that two parties share, or a change of this client's key.
        DuplicateSender, UnknownSender, ReplayedMessage, UnexpectedMessage: a list that names the wrong parties.
        TooFewParties: fewer neighbors with keys than the threshold, and on the complete graph than must survive.
        LowOrderPoint: a peer's key of small order.

    Source: Bonawitz et al. 2017 Figure 4, round 1; Bell et al. 2020 for the neighbors. Differs: none.
    """
    member, setting = state.member, state.member.setting
    member.steps.mark("share")
    key_list = _from_server(setting, message, KeyList)
    peers = checked_advertisements(setting, key_list.advertisements, senders=setting.around(member.party))
    if peers.get(member.party) != state.advertisement:
        raise SubstitutedKey(f"the key list holds other keys for {member.party} than it advertised")
    # Figure 4, round 1: assert |U1| >= t, that all public keys differ, and that their signatures are valid.
    least = setting.fewest_survivors if setting.neighbours is None else setting.threshold
    if len(peers) < least:
        where = "parties" if setting.neighbours is None else f"neighbours of {member.party} and itself"
        raise TooFewParties(f"{len(peers)} {where} advertised keys; {least} are needed")
    # Figure 4, round 1: t-out-of-|U1| Shamir shares of b and of the private mask key, one polynomial each.
    shares = {}
    holders = {setting.point[holder]: holder for holder in setting.in_order(peers)}
    by_kind = [
        split(secret, threshold=setting.threshold, holders=tuple(holders), randomness=randomness)
        for secret in (member.self_seed, member.mask_keys.private)
    ]
    for point, holder in holders.items():
        shares[holder] = Shares(*(kind[point] for kind in by_kind))
    key = loaded(member.share_keys.private)
    secrets = {peer: agree(key, peers[peer].share_key, peer=peer) for peer in holders.values() if peer != member.party}
    # Figure 4, round 1: encrypt both shares for each neighbor with the key that c agrees on. The paper puts both names into
    # the plaintext; here they are associated data, with the setting.
    sealed = {
        peer: seal(
            _sealing_key(member, peers[peer], secret, source=member.party, destination=peer),
            shares[peer].self_mask + shares[peer].mask_key,
            associated=_associated(setting, source=member.party, destination=peer),
            randomness=randomness,
        )
        for peer, secret in secrets.items()
    }
    reply = SealedShares(session=setting.session, round=setting.round, sender=member.party, sealed=sealed)
    return Shared(member, peers, keys_digest(setting, peers), shares[member.party], secrets), reply


def receive(state: Shared, message: Message) -> tuple[Received, Receipt]:
    """End of round 1: open the neighbors' shares, and report those that do not open.

    A neighbor whose shares are missing or damaged counts as one that never shared. The client holds no share of it, and `mask`
    refuses a cohort that contains it. Nobody can tell whether the sealing or the reporting client is at fault; see
    `server.collect_receipts`.

    Args:
        message: the server's `ShareInbox`.

    Raises:
        StateReused: a second call.
        UnknownSender: shares of a party that is no neighbor with keys.

    Source: Bonawitz et al. 2017 Figure 4, round 4. Differs: shares are opened before the upload, and a failure is reported
    instead of ending the session.
    """
    member, setting = state.member, state.member.setting
    member.steps.mark("receive")
    inbox = _from_server(setting, message, ShareInbox)
    strangers = inbox.sealed.keys() - (state.peers.keys() - {member.party})
    if strangers:
        raise UnknownSender(f"shares of {sorted(strangers)}, no neighbours of {member.party} with advertised keys")
    shares, unopened = {member.party: state.own_shares}, []
    for source, sealed in inbox.sealed.items():
        key = _sealing_key(member, state.peers[source], state.secrets[source], source=source, destination=member.party)
        associated = _associated(setting, source=source, destination=member.party)
        try:
            shares[source] = _parse_shares(unseal(key, sealed, associated=associated, source=source), source)
        except (BadCiphertext, BadShare):
            unopened.append(source)
    receipt = Receipt(session=setting.session, round=setting.round, sender=member.party, unopened=tuple(unopened))
    return Received(member, state.peers, state.keys_digest, shares), receipt


def mask(state: Received, message: Message, values: Mapping[str, np.ndarray]) -> tuple[Masked, MaskedUpload]:
    """Round 2, MaskedInputCollection: upload every vector under its masks.

    Args:
        message: the server's `Cohort`.
        values: for each vector of the setting its elements, `[length]`, dtype of its ring.

    Raises:
        StateReused: a second call.
        SplitView: a cohort without this client, or with a party whose shares it does not hold.
        TooFewParties: a cohort below `setting.fewest_around`.
        WrongType, WrongLength, OutOfRing: `values` that do not fit the setting.
        LowOrderPoint: a neighbor's mask key of small order.

    Source: Bonawitz et al. 2017 Figure 4, round 2. Differs: the earlier party adds the pair mask, not the later one.
    """
    member, setting = state.member, state.member.setting
    member.steps.mark("mask")
    # The cohort is U2 of Figure 4: the clients that shared their secrets. A client must hold shares of all of them, or
    # their masks could not be removed if they drop out.
    cohort = frozenset(_from_server(setting, message, Cohort).members)
    if member.party not in cohort or not cohort <= state.shares.keys():
        wrong = sorted(cohort - state.shares.keys()) or member.party
        raise SplitView(f"cohort of {member.party}: {wrong}; it holds the shares of {setting.in_order(state.shares)}")
    if len(cohort) < setting.fewest_around:
        raise TooFewParties(f"{member.party} is to mask with {len(cohort)} parties; {setting.fewest_around} are needed")
    if values.keys() != {vector.name for vector in setting.vectors}:
        raise WrongType(
            f"values of {member.party}: {sorted(values)}; the setting has {[vector.name for vector in setting.vectors]}"
        )
    key = loaded(member.mask_keys.private)
    secrets = {
        peer: agree(key, state.peers[peer].mask_key, peer=peer)
        for peer in setting.in_order(cohort)
        if peer != member.party
    }
    # Figure 4, round 2: y = x + PRG(b) + sum of +-PRG(s_uv), modulo R. The seeds are derived anew for every vector, since
    # a keystream that is used twice would reveal the difference of two vectors.
    masked = {}
    for vector in setting.vectors:
        vector.ring.check(values[vector.name], vector.length, f"vector {vector.name!r} of {member.party}")
        plus = [self_mask_seed(setting, member.party, member.self_seed, vector.name)]
        minus = []
        for peer, secret in secrets.items():
            seed = pair_mask_seed(setting, state.peers[member.party], state.peers[peer], secret, vector.name)
            (plus if adds_pair_mask(setting, member.party, peer) else minus).append(seed)
        masked[vector.name] = mask_vector(values[vector.name], plus, minus, vector.ring, setting.cipher).tobytes()
    reply = MaskedUpload(session=setting.session, round=setting.round, sender=member.party, vectors=masked)
    # Forget the shares of all others: with those, round 4 could open clients that this one did not mask with.
    shares = {peer: state.shares[peer] for peer in setting.in_order(cohort)}
    return Masked(member, state.peers, state.keys_digest, shares), reply


def confirm(state: Masked, message: Message) -> tuple[Confirmed, Confirmation]:
    """Round 3, ConsistencyCheck: sign the survivors together with the keys and the setting that this client received.

    Args:
        message: the server's `Survivors`.

    Raises:
        StateReused: a second call, with the same survivors or others.
        TooFewParties: fewer survivors than `setting.fewest_survivors`, or around this client than `setting.fewest_around`.
        UnknownSender, DuplicateSender: a survivor that is no neighbor with keys, or is listed twice.
        SplitView: the list lacks this client, has a party that it did not mask with, or, on the complete graph, does not have
            as many names as the server counts.

    Source: Bonawitz et al. 2017 Figure 4, round 3. Differs: key list and setting are signed too. On a regular graph, a client
    receives and signs the survival of its neighbors. It cannot check the number of all survivors.
    """
    member, setting = state.member, state.member.setting
    member.steps.mark("confirm")
    announced = _from_server(setting, message, Survivors)
    survivors = frozenset(announced.survivors)
    if len(survivors) != len(announced.survivors):
        raise DuplicateSender(f"survivors: a party is named twice in {announced.survivors}")
    # Figure 4, round 3: assert that U3 is a subset of U2 and has at least t members, then sign it.
    if not survivors <= state.peers.keys():
        raise UnknownSender(
            f"survivors: {sorted(survivors - state.peers.keys())} never advertised keys to {member.party}"
        )
    if member.party not in survivors:
        raise SplitView(f"{member.party} uploaded, but the server says that it did not survive")
    strangers = survivors - state.shares.keys()
    if strangers:
        raise SplitView(f"survivors: {sorted(strangers)} sent {member.party} no shares, so their masks do not cancel")
    if announced.num_survivors < len(survivors) or (
        setting.neighbours is None and announced.num_survivors != len(survivors)
    ):
        raise SplitView(
            f"{member.party} is told of {announced.num_survivors} survivors, and of the names of {len(survivors)}"
        )
    if announced.num_survivors < setting.fewest_survivors:
        raise TooFewParties(
            f"{announced.num_survivors} survivors; {setting.fewest_survivors} are needed to open the sum"
        )
    if len(survivors) < setting.fewest_around:
        raise TooFewParties(f"{len(survivors)} survivors around {member.party}; {setting.fewest_around} are needed")
    # The view is what others must have signed too before this client reveals a share (Figure 4, round 4).
    view = View(member.party, state.keys_digest, announced.num_survivors, survivors)
    signed = view.keys, view.num_survivors, survivor_bits(setting, member.party, survivors)
    signature = sign(member.identity, confirmation_claim(setting, member.party, *signed))
    return Confirmed(member, state.shares, view), Confirmation(
        setting.session, setting.round, member.party, *signed, signature
    )


def unmask(state: Confirmed, message: Message) -> RevealedShares:
    """Round 4, Unmasking: reveal one share per neighbor, of b if the neighbor survived and of its mask key if it did not.

    Args:
        message: the server's `UnmaskRequest`, with the confirmations of the neighbors.

    Raises:
        StateReused: a second call.
        BothSharesRequested: a request for both kinds of share of one party.
        SplitView: a confirmation of another view, or a request that does not follow from this client's survivors.
        BadSignature, DuplicateSender, UnknownSender: confirmations that prove nothing.
        TooFewParties: fewer valid confirmations than the threshold.

    Source: Bonawitz et al. 2017 Figure 4, round 4. Differs: the request lists the shares, so that a request for both kinds is
    noticed, and not only refused.
    """
    member, setting, view = state.member, state.member.setting, state.view
    member.steps.mark("unmask")
    request = _from_server(setting, message, UnmaskRequest)
    # With t shares of both kinds, the server could remove the self mask and the pair masks of one client.
    both = set(request.self_masks) & set(request.mask_keys)
    if both:
        raise BothSharesRequested(f"{member.party} is asked for both kinds of share of {', '.join(sorted(both))}")
    # Figure 4, round 4: assert |U4| >= t and that all of them signed the same U3. As t is more than half of the holders,
    # two different survivor sets cannot both get t signatures, unless clients sign twice.
    confirmed = checked_confirmations(setting, request.confirmations, senders=view.survivors, view=view)
    if len(confirmed) < setting.threshold:
        raise TooFewParties(f"{len(confirmed)} parties confirmed the survivors; {setting.threshold} are needed")
    # Figure 4, round 4: shares of b for U3, shares of the mask key for U2 without U3.
    alive, gone = state.shares.keys() & view.survivors, state.shares.keys() - view.survivors
    if set(request.self_masks) != alive or set(request.mask_keys) != gone:
        wrong = (set(request.self_masks) ^ alive) | (set(request.mask_keys) ^ gone)
        raise SplitView(
            f"the request for {sorted(wrong)} does not follow from the survivors that {member.party} signed"
        )
    return RevealedShares(
        session=setting.session,
        round=setting.round,
        sender=member.party,
        self_masks={party: state.shares[party].self_mask for party in setting.in_order(alive)},
        mask_keys={party: state.shares[party].mask_key for party in setting.in_order(gone)},
    )


def _from_server(setting: Setting, message: Message, kind: type[Kind]) -> Kind:
    return check_header(message, kind, session=setting.session, round=setting.round, senders=(SERVER,))


def _sealing_key(holder: Member, peer: Advertisement, secret: bytes, *, source: str, destination: str) -> bytes:
    """Derive the key of one direction between two parties from the X25519 secret of their share keys."""
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
