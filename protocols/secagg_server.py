"""Secure aggregation, the server: five pure functions, each from a frozen state and the clients' messages to the next.

`collect_advertisements` -> `collect_shares` -> `collect_uploads` -> `collect_confirmations` -> `open_sum`. Each checks
every message (session, round, kind, sender, once each) and returns what to send, by receiver. A client whose message
is missing is given up: its later messages are refused.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from protocols.errors import (
    BadShare,
    BothSharesRequested,
    DuplicateSender,
    ReconstructionMismatch,
    TooFewParties,
    WrongLength,
    WrongType,
)
from protocols.keys import agree, public_key
from protocols.masking import add_into, mask_vector
from protocols.secagg_bindings import (
    adds_pair_mask,
    checked_advertisements,
    checked_confirmations,
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
from protocols.secagg_setting import Setting, Vector
from protocols.shamir import reconstruct


class Sum(NamedTuple):
    """The outcome.

    Attributes:
        vectors: the sum of each vector over the survivors, `[length]` in its ring.
        survivors: whose uploads are in the sum.
        excluded: by party the reason why a message of it was left out; a survivor may be among them.
    """

    vectors: dict[str, np.ndarray]
    survivors: tuple[str, ...]
    excluded: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class KeysCollected:
    """After round 0."""

    setting: Setting
    peers: Mapping[str, Advertisement]


@dataclass(frozen=True)
class SharesCollected:
    """After round 1: who shared, and therefore masks."""

    setting: Setting
    peers: Mapping[str, Advertisement]
    sharers: frozenset[str]


@dataclass(frozen=True)
class UploadsCollected:
    """After round 2: the sum of the survivors' uploads, still masked."""

    setting: Setting
    peers: Mapping[str, Advertisement]
    sharers: frozenset[str]
    survivors: frozenset[str]
    masked: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class ConfirmationsCollected:
    """After round 3: who confirmed and is asked for shares."""

    uploads: UploadsCollected
    confirmed: frozenset[str]


def collect_advertisements(setting: Setting, messages: Iterable[Message]) -> tuple[KeysCollected, dict[str, KeyList]]:
    """Round 0. Raises as `secagg_client.share` does, `TooFewParties` for fewer than may survive."""
    peers = checked_advertisements(setting, messages)
    _require(len(peers), max(setting.fewest_survivors, setting.quorum), "parties advertised keys")
    listed = tuple(peers[party] for party in setting.in_order(peers))
    key_list = KeyList(session=setting.session, round=setting.round, sender=SERVER, advertisements=listed)
    return KeysCollected(setting, peers), dict.fromkeys(setting.in_order(peers), key_list)


def collect_shares(state: KeysCollected, messages: Iterable[Message]) -> tuple[SharesCollected, dict[str, ShareInbox]]:
    """Round 1. Raises `BadShare` unless a client sealed for each of its neighbours with keys, and for nobody else."""
    setting, sealed = state.setting, {}
    for sealing in _each_once(setting, messages, SealedShares, state.peers):
        expected = setting.graph[sealing.sender] & state.peers.keys()
        if sealing.sealed.keys() != expected:
            raise BadShare(f"{sealing.sender} sealed shares for the wrong parties: {expected ^ sealing.sealed.keys()}")
        sealed[sealing.sender] = sealing.sealed
    _require(len(sealed), max(setting.fewest_survivors, setting.quorum), "parties shared their secrets")
    inboxes = {
        party: ShareInbox(
            session=setting.session,
            round=setting.round,
            sender=SERVER,
            sealed={source: sealed[source][party] for source in setting.in_order(setting.graph[party] & sealed.keys())},
        )
        for party in setting.in_order(sealed)
    }
    return SharesCollected(setting, state.peers, frozenset(sealed)), inboxes


def collect_uploads(
    state: SharesCollected, messages: Iterable[Message]
) -> tuple[UploadsCollected, dict[str, Survivors]]:
    """Round 2. Adds each upload as it comes, so that `messages` may be a generator and only one is held at a time.

    Raises `WrongType`, `WrongLength`, `OutOfRing` for an upload that does not fit the setting, `DisconnectedGraph` for
    survivors that no mask joins.
    """
    setting = state.setting
    masked = {vector.name: vector.ring.zeros(vector.length) for vector in setting.vectors}
    survivors = set()
    for upload in _each_once(setting, messages, MaskedUpload, state.sharers):
        if upload.vectors.keys() != masked.keys():
            raise WrongType(f"upload of {upload.sender}: vectors {sorted(upload.vectors)}; not {sorted(masked)}")
        values = {vector.name: _parse_vector(upload, vector) for vector in setting.vectors}
        for vector in setting.vectors:
            add_into(masked[vector.name], values[vector.name], vector.ring)
        survivors.add(upload.sender)
    _require(len(survivors), setting.fewest_survivors, "parties uploaded")
    require_connected(setting.graph, survivors)
    told = Survivors(
        session=setting.session, round=setting.round, sender=SERVER, survivors=tuple(setting.in_order(survivors))
    )
    collected = UploadsCollected(setting, state.peers, state.sharers, frozenset(survivors), masked)
    return collected, dict.fromkeys(told.survivors, told)


def collect_confirmations(
    state: UploadsCollected, messages: Iterable[Message]
) -> tuple[ConfirmationsCollected, dict[str, UnmaskRequest]]:
    """Round 3. Raises `SplitView` or `BadSignature` as `secagg_client.unmask` would at each client."""
    setting = state.setting
    view = view_digest(setting, keys_digest(setting, state.peers), state.survivors)
    confirmed = checked_confirmations(setting, messages, senders=state.survivors, view=view)
    _require(len(confirmed), setting.quorum, "parties confirmed the survivors")
    evidence = tuple(confirmed[party] for party in setting.in_order(confirmed))
    requests = {}
    for party in setting.in_order(confirmed):
        alive, gone = _asked_of(state, party)
        requests[party] = UnmaskRequest(
            session=setting.session,
            round=setting.round,
            sender=SERVER,
            confirmations=evidence,
            self_masks=tuple(setting.in_order(alive)),
            mask_keys=tuple(setting.in_order(gone)),
        )
    return ConfirmationsCollected(state, frozenset(confirmed)), requests


def open_sum(state: ConfirmationsCollected, messages: Iterable[Message]) -> Sum:
    """Round 4: reconstruct b of every survivor and the mask key of every dropped client, and take their masks off.

    Raises:
        BothSharesRequested: a client that revealed both kinds of share of one party.
        BadShare: shares of other parties than were asked for, or no elements of the field.
        TooFewParties: fewer shares of a secret than the threshold.
        ReconstructionMismatch: shares that do not meet in the secret that its owner advertised.

    Source: Bonawitz et al. 2017 Figure 4, round 4. Differs: reconstructed secrets are checked.
    """
    uploads, setting = state.uploads, state.uploads.setting
    self_shares: dict[str, dict[str, bytes]] = {party: {} for party in uploads.survivors}
    key_shares: dict[str, dict[str, bytes]] = {party: {} for party in uploads.sharers - uploads.survivors}
    for revealed in _each_once(setting, messages, RevealedShares, state.confirmed):
        both = revealed.self_masks.keys() & revealed.mask_keys.keys()
        if both:
            raise BothSharesRequested(f"{revealed.sender} revealed both kinds of share of {', '.join(sorted(both))}")
        alive, gone = _asked_of(uploads, revealed.sender)
        if revealed.self_masks.keys() != alive or revealed.mask_keys.keys() != gone:
            raise BadShare(f"{revealed.sender} revealed shares of other parties than it was asked for")
        for party, one in revealed.self_masks.items():
            self_shares[party][revealed.sender] = one
        for party, one in revealed.mask_keys.items():
            key_shares[party][revealed.sender] = one

    seeds = {party: _self_seed(uploads, party, self_shares[party]) for party in setting.in_order(self_shares)}
    keys = {
        party: _mask_key(uploads, party, key_shares[party])
        for party in setting.in_order(key_shares)
        if setting.graph[party] & uploads.survivors  # else its masks are in nobody's upload
    }
    opened = {vector.name: _unmask_vector(uploads, vector, seeds, keys) for vector in setting.vectors}
    return Sum(opened, tuple(setting.in_order(uploads.survivors)))


def _unmask_vector(
    state: UploadsCollected, vector: Vector, seeds: Mapping[str, bytes], keys: Mapping[str, bytes]
) -> np.ndarray:
    """The sum of one vector without the survivors' own masks and those that they share with dropped clients."""
    setting = state.setting
    plus, minus = [], [self_mask_seed(setting, party, seed, vector.name) for party, seed in seeds.items()]
    for gone, private in keys.items():
        for peer in setting.in_order(setting.graph[gone] & state.survivors):
            secret = agree(private, state.peers[peer].mask_key, peer=peer)
            seed = pair_mask_seed(setting, state.peers[gone], state.peers[peer], secret, vector.name)
            (minus if adds_pair_mask(setting, peer, gone) else plus).append(seed)
    return mask_vector(state.masked[vector.name], plus, minus, vector.ring, setting.cipher)


def _asked_of(state: UploadsCollected, holder: str) -> tuple[frozenset[str], frozenset[str]]:
    """Whose self mask and whose mask key a holder is asked for: its surviving and its dropped neighbours, and itself."""
    known = (state.setting.graph[holder] | {holder}) & state.sharers
    return known & state.survivors, known - state.survivors


def _self_seed(state: UploadsCollected, party: str, shares: Mapping[str, bytes]) -> bytes:
    seed = _reconstruct(state.setting, shares, f"self mask of {party}")
    if self_mask_commitment(state.setting, party, seed) != state.peers[party].commitment:
        raise ReconstructionMismatch(f"self mask of {party}: the shares give another seed than it committed to")
    return seed


def _mask_key(state: UploadsCollected, party: str, shares: Mapping[str, bytes]) -> bytes:
    private = _reconstruct(state.setting, shares, f"mask key of {party}")
    if public_key(private) != state.peers[party].mask_key:
        raise ReconstructionMismatch(f"mask key of {party}: the shares give another key than it advertised")
    return private


def _reconstruct(setting: Setting, shares: Mapping[str, bytes], what: str) -> bytes:
    """The secret; errors name the secret, and Shamir's holder numbers are the parties' places from 1."""
    try:
        return reconstruct({setting.point[holder]: one for holder, one in shares.items()}, threshold=setting.threshold)
    except (TooFewParties, BadShare, ReconstructionMismatch) as error:
        raise type(error)(f"{what}: {error}; shares came from {', '.join(setting.in_order(shares))}") from error


def _parse_vector(upload: MaskedUpload, vector: Vector) -> np.ndarray:
    data = upload.vectors[vector.name]
    if len(data) != vector.length * vector.ring.dtype.itemsize:
        raise WrongLength(
            f"upload of {upload.sender}, vector {vector.name!r}: {len(data)} bytes; "
            f"{vector.length} of {vector.ring.dtype} are due"
        )
    values = np.frombuffer(data, dtype=vector.ring.dtype)
    vector.ring.check(values, vector.length, f"vector {vector.name!r} of {upload.sender}")
    return values


def _each_once(
    setting: Setting, messages: Iterable[Message], kind: type[Kind], senders: Container[str]
) -> Iterable[Kind]:
    seen = set()
    for message in messages:
        checked = check_header(message, kind, session=setting.session, round=setting.round, senders=senders)
        if checked.sender in seen:
            raise DuplicateSender(f"two messages {kind.__name__} of {checked.sender}")
        seen.add(checked.sender)
        yield checked


def _require(count: int, least: int, what: str) -> None:
    if count < least:
        raise TooFewParties(f"{count} {what}; {least} are needed")
