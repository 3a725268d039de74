"""Secure aggregation, the server: six functions from a frozen state and the clients' messages to the next state and requests.

    keys, key_lists = collect_advertisements(setting, arrivals)   # what to send, by receiver
    shares, inboxes = collect_shares(keys, arrivals)
    cohort, cohorts = collect_receipts(shares, arrivals)
    uploads, survivors = collect_uploads(cohort, arrivals)
    confirmations, requests = collect_confirmations(uploads, arrivals)
    total = open_sum(confirmations, arrivals)

An arrival is a message or a `Failure` in its place. Each message is checked: session, round, kind, sender, content. One that is
wrong drops its sender, named with the reason (see `intake`); one that is missing drops it too. The session ends for all
only when too few are left, when nothing joins the survivors, or when a secret stays closed.

A server that repeats a step asks clients twice; what protects them is that they take each step once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from fkgsec.protocols.core.errors import (
    BadShare,
    BothSharesRequested,
    TooFewParties,
    UnknownSender,
    WrongLength,
    WrongType,
    describe,
)
from fkgsec.protocols.core.keys import NONCE_BYTES, TAG_BYTES, agree, check_order, loaded, public_key
from fkgsec.protocols.core.masking import add_into, mask_vector
from fkgsec.protocols.core.rounds import SERVER
from fkgsec.protocols.core.shamir import PRIME, SHARE_BYTES
from fkgsec.protocols.secagg.bindings import (
    View,
    adds_pair_mask,
    check_advertisement,
    check_confirmation,
    keys_digest,
    pair_mask_seed,
    self_mask_commitment,
    self_mask_seed,
)
from fkgsec.protocols.secagg.graph import require_connected
from fkgsec.protocols.secagg.intake import Intake, Roll
from fkgsec.protocols.secagg.messages import (
    Advertisement,
    Arrival,
    Cohort,
    Confirmation,
    KeyList,
    MaskedUpload,
    Receipt,
    RevealedShares,
    SealedShares,
    ShareInbox,
    Survivors,
    UnmaskRequest,
)
from fkgsec.protocols.secagg.opening import ClosedSecret, open_secret
from fkgsec.protocols.secagg.setting import Setting, Vector

_SEALED_BYTES = NONCE_BYTES + 2 * SHARE_BYTES + TAG_BYTES


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
class Collected:
    """Memory of the server from stage to stage; what later stages give is empty.

    Attributes:
        roll: whose messages came, and who was left out.
        peers: advertisements by party, from round 0 on.
        sealed: in round 1, what each client sealed for its neighbours, by its name and theirs.
        cohort: who masks with its neighbours, from the end of round 1 on.
        survivors, masked: from round 2 on, whose uploads came, and their sum, still masked.
        asked: after round 3, who is asked for shares.
    """

    roll: Roll
    peers: Mapping[str, Advertisement]
    sealed: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)
    cohort: frozenset[str] = frozenset()
    survivors: frozenset[str] = frozenset()
    masked: Mapping[str, np.ndarray] = field(default_factory=dict)
    asked: frozenset[str] = frozenset()


def collect_advertisements(setting: Setting, arrivals: Iterable[Arrival]) -> tuple[Collected, dict[str, KeyList]]:
    """Round 0. Of two clients with one key the second is dropped: the first cannot have copied it.

    Raises `TooFewParties` for fewer than may survive.
    """
    peers: dict[str, Advertisement] = {}
    owner_of_key: dict[bytes, str] = {}

    def check(key: Advertisement) -> None:
        check_advertisement(setting, key, owner_of_key)
        for public in (key.mask_key, key.share_key):
            check_order(public, peer=key.sender)

    with Intake(Roll(setting)) as intake:
        for key in intake.valid(arrivals, Advertisement, setting.parties, check):
            owner_of_key |= {key.mask_key: key.sender, key.share_key: key.sender}
            peers[key.sender] = key
        peers = {party: peers[party] for party in setting.in_order(peers.keys() - intake.excluded.keys())}
        _require(len(peers), setting.fewest_survivors, "parties advertised keys")
    key_lists = {}
    for party in peers:
        listed = peers if setting.neighbours is None else setting.in_order(setting.around(party) & peers.keys())
        key_lists[party] = KeyList(setting.session, setting.round, SERVER, tuple(peers[peer] for peer in listed))
    return Collected(intake.roll(), peers), key_lists


def collect_shares(state: Collected, arrivals: Iterable[Arrival]) -> tuple[Collected, dict[str, ShareInbox]]:
    """Round 1. Drops a client unless it sealed for each of its neighbours with keys, and for nobody else.

    Raises `TooFewParties` for fewer than may survive.
    """
    setting, sealed = state.roll.setting, {}

    def check(sealing: SealedShares) -> None:
        expected = setting.graph[sealing.sender] & state.peers.keys()
        if sealing.sealed.keys() != expected:
            raise BadShare(f"{sealing.sender} sealed shares for the wrong parties: {expected ^ sealing.sealed.keys()}")
        if any(len(share) != _SEALED_BYTES for share in sealing.sealed.values()):
            raise BadShare(f"{sealing.sender} sealed shares of another length than {_SEALED_BYTES} bytes")

    with Intake(state.roll) as intake:
        for sealing in intake.valid(arrivals, SealedShares, _still_in(state.roll, state.peers), check):
            sealed[sealing.sender] = sealing.sealed
        sealed = {party: sealed[party] for party in setting.in_order(sealed.keys() - intake.excluded.keys())}
        _require(len(sealed), setting.fewest_survivors, "parties shared their secrets")
    inboxes = {
        party: ShareInbox(
            setting.session,
            setting.round,
            SERVER,
            {source: sealed[source][party] for source in setting.in_order(setting.graph[party] & sealed.keys())},
        )
        for party in sealed
    }
    return replace(state, roll=intake.roll(), sealed=sealed), inboxes


def collect_receipts(state: Collected, arrivals: Iterable[Arrival]) -> tuple[Collected, dict[str, Cohort]]:
    """End of round 1: settle who takes part, so that whoever does holds the shares of all its neighbours that do.

    Where a client could not open a neighbour's shares, one of the two is at fault, and nobody can tell which. Of such pairs the
    client that is in most of them is dropped until none is left, the one that sealed before the one that complains: one
    bad client, whatever it seals or says, costs itself and at most one other.

    Raises `TooFewParties` for fewer than may survive.
    """
    setting = state.roll.setting
    complaints: set[tuple[str, str]] = set()
    cohort: set[str] = set()

    def check(receipt: Receipt) -> None:
        strangers = set(receipt.unopened) - (setting.graph[receipt.sender] & state.sealed.keys())
        if strangers:
            raise UnknownSender(f"{receipt.sender} says that it could not open shares of {sorted(strangers)}")

    with Intake(state.roll) as intake:
        for receipt in intake.valid(arrivals, Receipt, _still_in(state.roll, state.sealed), check):
            cohort.add(receipt.sender)
            complaints |= {(receipt.sender, dealer) for dealer in receipt.unopened}
        cohort -= intake.excluded.keys()
        for party, reason in _settle(setting, {pair for pair in complaints if set(pair) <= cohort}).items():
            intake.exclude(party, reason)
        cohort -= intake.excluded.keys()
        _require(len(cohort), setting.fewest_survivors, "parties hold each other's shares")
        while lonely := [party for party in cohort if len(setting.around(party) & cohort) < setting.threshold]:
            for party in lonely:
                intake.exclude(party, f"TooFewParties: fewer than {setting.threshold} around it take part")
            cohort -= set(lonely)
        _require(len(cohort), setting.fewest_survivors, "parties have enough neighbours")
    cohorts = {
        party: Cohort(setting.session, setting.round, SERVER, tuple(setting.in_order(setting.around(party) & cohort)))
        for party in setting.in_order(cohort)
    }
    return replace(state, roll=intake.roll(), sealed={}, cohort=frozenset(cohort)), cohorts


def collect_uploads(state: Collected, arrivals: Iterable[Arrival]) -> tuple[Collected, dict[str, Survivors]]:
    """Round 2. Adds each upload as it comes, so that `arrivals` may be a generator and only one is held at a time.

    A client that sends a second, different upload stays in the sum with its first, and is not heard again.

    Raises `TooFewParties` for fewer than may survive, `DisconnectedGraph` for survivors that no mask joins.
    """
    setting = state.roll.setting
    masked = {vector.name: vector.ring.zeros(vector.length) for vector in setting.vectors}
    survivors = set()

    def check(upload: MaskedUpload) -> None:
        if upload.vectors.keys() != masked.keys():
            raise WrongType(f"upload of {upload.sender}: vectors {sorted(upload.vectors)}; not {sorted(masked)}")
        for vector in setting.vectors:
            _parse_vector(upload, vector)

    with Intake(state.roll) as intake:
        for upload in intake.valid(arrivals, MaskedUpload, state.cohort, check):
            for vector in setting.vectors:
                add_into(masked[vector.name], _parse_vector(upload, vector), vector.ring)
            survivors.add(upload.sender)
        _require(len(survivors), setting.fewest_survivors, "parties uploaded")
        require_connected(setting.graph, survivors)
    uploads = {
        party: Survivors(
            setting.session,
            setting.round,
            SERVER,
            tuple(setting.in_order(setting.around(party) & survivors)),
            len(survivors),
        )
        for party in setting.in_order(survivors - intake.excluded.keys())
    }
    return replace(state, roll=intake.roll(), survivors=frozenset(survivors), masked=masked), uploads


def collect_confirmations(state: Collected, arrivals: Iterable[Arrival]) -> tuple[Collected, dict[str, UnmaskRequest]]:
    """Round 3. Drops a client that signed anything but what it was told.

    Raises `TooFewParties` when fewer than the threshold are left to ask.
    """
    setting = state.roll.setting
    confirmed: dict[str, Confirmation] = {}

    def check(message: Confirmation) -> None:
        around = setting.around(message.sender)
        keys = keys_digest(setting, {peer: state.peers[peer] for peer in around & state.peers.keys()})
        check_confirmation(setting, message, View(message.sender, keys, len(state.survivors), around & state.survivors))

    with Intake(state.roll) as intake:
        for confirmation in intake.valid(arrivals, Confirmation, _still_in(state.roll, state.survivors), check):
            confirmed[confirmation.sender] = confirmation
        confirmed = {party: confirmed[party] for party in setting.in_order(confirmed.keys() - intake.excluded.keys())}
        _require(len(confirmed), setting.threshold, "parties confirmed the survivors")
        requests = {}
        for party in confirmed:
            evidence = tuple(
                confirmed[confirmation] for confirmation in setting.in_order(setting.around(party) & confirmed.keys())
            )
            if len(evidence) < setting.threshold:
                intake.exclude(
                    party, f"TooFewParties: {len(evidence)} around it confirmed; {setting.threshold} are needed"
                )
                continue
            alive, gone = (tuple(setting.in_order(parties)) for parties in _asked_of(state, party))
            requests[party] = UnmaskRequest(setting.session, setting.round, SERVER, evidence, alive, gone)
    return replace(state, roll=intake.roll(), asked=frozenset(requests)), requests


def open_sum(state: Collected, arrivals: Iterable[Arrival]) -> Sum:
    """Round 4: reconstruct b of every survivor and the mask key of every dropped client, and take their masks off.

    Wrong shares are decoded around as far as the others reach (`opening`), and who sent them is named.

    Raises:
        TooFewParties: fewer shares of a secret than the threshold.
        ClosedSecret, a `ReconstructionMismatch`: shares that do not meet in the secret that its owner advertised.

    Source: Bonawitz et al. 2017 Figure 4, round 4. Differs: reconstructed secrets are checked, wrong shares corrected.
    """
    setting = state.roll.setting
    revealed: dict[str, RevealedShares] = {}

    def check(message: RevealedShares) -> None:
        both = message.self_masks.keys() & message.mask_keys.keys()
        if both:
            raise BothSharesRequested(f"{message.sender} revealed both kinds of share of {', '.join(sorted(both))}")
        alive, gone = _asked_of(state, message.sender)
        if message.self_masks.keys() != alive or message.mask_keys.keys() != gone:
            raise BadShare(f"{message.sender} revealed shares of other parties than it was asked for")
        for share in (*message.self_masks.values(), *message.mask_keys.values()):
            if len(share) != SHARE_BYTES or int.from_bytes(share, "little") >= PRIME:
                raise BadShare(f"{message.sender} revealed {len(share)} bytes that are no share")

    with Intake(state.roll) as intake:
        for reveal in intake.valid(arrivals, RevealedShares, _still_in(state.roll, state.asked), check):
            revealed[reveal.sender] = reveal
        for party in revealed.keys() & intake.excluded.keys():
            del revealed[party]
        seeds, keys = _open_secrets(state, revealed, intake)
    opened = {vector.name: _unmask_vector(state, vector, seeds, keys) for vector in setting.vectors}
    return Sum(opened, tuple(setting.in_order(state.survivors)), intake.excluded)


def _open_secrets(
    state: Collected, revealed: Mapping[str, RevealedShares], intake: Intake
) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """b of every survivor, and the mask key of every dropped client that a survivor masked with."""
    setting = intake.setting
    seeds: dict[str, bytes] = {}
    keys: dict[str, bytes] = {}
    for party in setting.in_order(state.cohort):
        key = state.peers[party]
        holders = setting.around(party) & revealed.keys()
        if party in state.survivors:
            what, secrets = f"self mask of {party}", seeds
            shares = {holder: revealed[holder].self_masks[party] for holder in holders}

            def fits(secret: bytes, key: Advertisement = key) -> bool:
                return self_mask_commitment(setting, key.sender, secret) == key.commitment
        elif setting.graph[party] & state.survivors:
            what, secrets = f"mask key of {party}", keys
            shares = {holder: revealed[holder].mask_keys[party] for holder in holders}

            def fits(secret: bytes, key: Advertisement = key) -> bool:
                return public_key(secret) == key.mask_key
        else:
            continue  # its masks are in nobody's upload
        try:
            opened = open_secret(setting, shares, fits, owner=party, what=what)
        except ClosedSecret as error:
            intake.exclude(party, describe(error))
            raise
        for holder in setting.in_order(opened.wrong):
            intake.exclude(
                holder, f"BadShare: the share of the {what} is wrong; {holder} altered it, or {party} dealt it so"
            )
        secrets[party] = opened.secret
    return seeds, keys


def _settle(setting: Setting, complaints: set[tuple[str, str]]) -> dict[str, str]:
    """Whom to drop, with the reason, so that none of the pairs (who complains, who sealed) is left."""
    dropped = {}
    while complaints:
        pairs = Counter(party for pair in complaints for party in pair)
        sealed = Counter(dealer for _, dealer in complaints)
        worst = min(pairs, key=lambda party: (-pairs[party], -sealed[party], setting.point[party]))
        accusers = setting.in_order({accuser for accuser, dealer in complaints if dealer == worst})
        accused = setting.in_order({dealer for accuser, dealer in complaints if accuser == worst})
        reasons = [f"{', '.join(accusers)} could not open its sealed shares"] if accusers else []
        reasons += [f"it says that it could not open the sealed shares of {', '.join(accused)}"] if accused else []
        dropped[worst] = f"BadCiphertext: {'; '.join(reasons)}"
        complaints = {pair for pair in complaints if worst not in pair}
    return dropped


def _unmask_vector(
    state: Collected, vector: Vector, seeds: Mapping[str, bytes], keys: Mapping[str, bytes]
) -> np.ndarray:
    """The sum of one vector without the survivors' own masks and those that they share with dropped clients."""
    setting = state.roll.setting
    plus, minus = [], [self_mask_seed(setting, party, seed, vector.name) for party, seed in seeds.items()]
    for gone, private in keys.items():
        key = loaded(private)
        for peer in setting.in_order(setting.graph[gone] & state.survivors):
            secret = agree(key, state.peers[peer].mask_key, peer=peer)
            seed = pair_mask_seed(setting, state.peers[gone], state.peers[peer], secret, vector.name)
            (minus if adds_pair_mask(setting, peer, gone) else plus).append(seed)
    return mask_vector(state.masked[vector.name], plus, minus, vector.ring, setting.cipher)


def _asked_of(state: Collected, holder: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the parties whose self mask, and those whose mask key, a holder reveals: its surviving and its dropped neighbors."""
    neighbors = state.roll.setting.around(holder) & state.cohort
    return neighbors & state.survivors, neighbors - state.survivors


def _still_in(roll: Roll, parties: Iterable[str]) -> frozenset[str]:
    """Those whose messages are taken: a client that was excluded is not heard again."""
    return frozenset(parties) - roll.excluded.keys()


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


def _require(count: int, least: int, what: str) -> None:
    if count < least:
        raise TooFewParties(f"{count} {what}; {least} are needed")
