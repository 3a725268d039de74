"""Secure aggregation, the server: six functions from a frozen state and the clients' messages to the next state and requests.

    keys, key_lists = collect_advertisements(setting, arrivals)   # messages to send, by receiver
    shares, inboxes = collect_shares(keys, arrivals)
    cohort, cohorts = collect_receipts(shares, arrivals)
    uploads, survivors = collect_uploads(cohort, arrivals)
    confirmations, requests = collect_confirmations(uploads, arrivals)
    total = open_sum(confirmations, arrivals)

An arrival is a message or a `Failure` in its place. The server checks session, round, kind, sender and content of each message.
A wrong or missing message drops its sender, and `intake` records the reason. The session ends for all only if too few are left,
if no mask joins the survivors, or if a secret stays closed.

A server that repeats a step asks clients twice. Clients are protected because they take each step once.
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
    """Outcome of a session.

    Attributes:
        vectors: the sum of each vector over the survivors, `[length]` in its ring.
        survivors: clients whose uploads are in the sum.
        excluded: by party the reason why a message of it was left out; a survivor may be among them.
    """

    vectors: dict[str, np.ndarray]
    survivors: tuple[str, ...]
    excluded: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Collected:
    """Memory of the server from stage to stage. Fields of later stages are empty.

    Attributes:
        roll: received messages and excluded clients.
        peers: advertisements by party, from round 0 on.
        sealed: in round 1, sealed shares by sender and receiver.
        cohort: clients that mask with their neighbors, from the end of round 1 on.
        survivors: clients whose uploads arrived, from round 2 on.
        masked: sum of their uploads, still masked.
        unmaskers: clients that are asked for shares, from round 3 on.
    """

    roll: Roll
    peers: Mapping[str, Advertisement]
    sealed: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)
    cohort: frozenset[str] = frozenset()
    survivors: frozenset[str] = frozenset()
    masked: Mapping[str, np.ndarray] = field(default_factory=dict)
    unmaskers: frozenset[str] = frozenset()


def collect_advertisements(setting: Setting, arrivals: Iterable[Arrival]) -> tuple[Collected, dict[str, KeyList]]:
    """Round 0: check the keys, and send each client those of its neighbors.

    Args:
        arrivals: `Advertisement` of each client.

    Returns:
        The next state, and by client the key list to send.

    Raises:
        TooFewParties: fewer clients than must survive.

    Source: Bonawitz et al. 2017 Figure 4, round 0. Differs: the server checks signatures and orders of points too.
    """
    peers: dict[str, Advertisement] = {}
    owner_of_key: dict[bytes, str] = {}

    def check(key: Advertisement) -> None:
        """Reject keys that are badly signed, copied or of small order."""
        check_advertisement(setting, key, owner_of_key)
        for public in (key.mask_key, key.share_key):
            check_order(public, peer=key.sender)

    with Intake(Roll(setting)) as intake:
        for key in intake.valid(arrivals, Advertisement, setting.parties, check):
            # Of two clients with one key, only the second is dropped: the first cannot have copied it.
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
    """Round 1: forward the sealed shares to their holders.

    Args:
        arrivals: `SealedShares` of each client.

    Returns:
        The next state, and by client the sealed shares to send.

    Raises:
        TooFewParties: fewer clients than must survive.

    Source: Bonawitz et al. 2017 Figure 4, round 1. Differs: none.
    """
    setting, sealed = state.roll.setting, {}

    def check(sealing: SealedShares) -> None:
        """Reject shares that are not for exactly the neighbors with keys, or have another length."""
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
    """End of round 1: choose a cohort in which all neighbors hold each other's shares.

    Args:
        arrivals: `Receipt` of each client.

    Returns:
        The next state, and by client the members of the cohort around it.

    Raises:
        TooFewParties: fewer clients than must survive.
    """
    setting = state.roll.setting
    complaints: set[tuple[str, str]] = set()
    cohort: set[str] = set()

    def check(receipt: Receipt) -> None:
        """Reject complaints about clients whose shares were not forwarded to the sender."""
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
        # Dropping a client may leave a neighbor with too few holders of its shares, so repeat until nobody is dropped.
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
    """Round 2: add up the masked vectors.

    Args:
        arrivals: `MaskedUpload` of each client; may be a generator, so that one upload is in memory at a time.

    Returns:
        The next state, and by survivor the survivors around it.

    Raises:
        TooFewParties: fewer clients than must survive.
        DisconnectedGraph: survivors that no mask joins.

    Source: Bonawitz et al. 2017 Figure 4, round 2. Differs: none.
    """
    setting = state.roll.setting
    masked = {vector.name: vector.ring.zeros(vector.length) for vector in setting.vectors}
    survivors = set()

    def check(upload: MaskedUpload) -> None:
        """Reject an upload with other vectors, lengths or elements than the setting allows."""
        if upload.vectors.keys() != masked.keys():
            raise WrongType(f"upload of {upload.sender}: vectors {sorted(upload.vectors)}; not {sorted(masked)}")
        for vector in setting.vectors:
            _parse_vector(upload, vector)

    with Intake(state.roll) as intake:
        for upload in intake.valid(arrivals, MaskedUpload, state.cohort, check):
            for vector in setting.vectors:
                # A client that sends a second, different upload stays in the sum with its first, and is excluded from the rest.
                add_into(masked[vector.name], _parse_vector(upload, vector), vector.ring)
            survivors.add(upload.sender)
        _require(len(survivors), setting.fewest_survivors, "parties uploaded")
        # Pair masks cancel within each component of the graph, so two components would expose two partial sums.
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
    """Round 3: forward the signed survivor sets, and request the shares.

    Args:
        arrivals: `Confirmation` of each survivor. A client that signed another view is dropped.

    Returns:
        The next state, and by client the request for shares.

    Raises:
        TooFewParties: fewer clients than the threshold are left.

    Source: Bonawitz et al. 2017 Figure 4, round 3. Differs: each client gets the confirmations of its neighbors only.
    """
    setting = state.roll.setting
    confirmed: dict[str, Confirmation] = {}

    def check(message: Confirmation) -> None:
        """Reject a confirmation of another view than this client was sent."""
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
            alive, gone = (tuple(setting.in_order(parties)) for parties in _owners_of_shares(state, party))
            requests[party] = UnmaskRequest(setting.session, setting.round, SERVER, evidence, alive, gone)
    return replace(state, roll=intake.roll(), unmaskers=frozenset(requests)), requests


def open_sum(state: Collected, arrivals: Iterable[Arrival]) -> Sum:
    """Round 4: reconstruct b of every survivor and the mask key of every dropped client, and remove their masks.

    Wrong shares are decoded around as far as the others suffice (`opening`), and their senders are named.

    Args:
        arrivals: `RevealedShares` of each client.

    Raises:
        TooFewParties: fewer shares of a secret than the threshold.
        ClosedSecret, a `ReconstructionMismatch`: shares that do not give the secret that its owner advertised.

    Source: Bonawitz et al. 2017 Figure 4, round 4. Differs: reconstructed secrets are checked, wrong shares corrected.
    """
    setting = state.roll.setting
    revealed: dict[str, RevealedShares] = {}

    def check(message: RevealedShares) -> None:
        """Reject shares that were not requested, both kinds of one party, and bytes that are not shares."""
        both = message.self_masks.keys() & message.mask_keys.keys()
        if both:
            raise BothSharesRequested(f"{message.sender} revealed both kinds of share of {', '.join(sorted(both))}")
        alive, gone = _owners_of_shares(state, message.sender)
        if message.self_masks.keys() != alive or message.mask_keys.keys() != gone:
            raise BadShare(f"{message.sender} revealed shares of parties that the server did not request")
        for share in (*message.self_masks.values(), *message.mask_keys.values()):
            if len(share) != SHARE_BYTES or int.from_bytes(share, "little") >= PRIME:
                raise BadShare(f"{message.sender} revealed {len(share)} bytes that are no share")

    with Intake(state.roll) as intake:
        for reveal in intake.valid(arrivals, RevealedShares, _still_in(state.roll, state.unmaskers), check):
            revealed[reveal.sender] = reveal
        for party in revealed.keys() & intake.excluded.keys():
            del revealed[party]
        seeds, keys = _open_secrets(state, revealed, intake)
    opened = {vector.name: _unmask_vector(state, vector, seeds, keys) for vector in setting.vectors}
    return Sum(opened, tuple(setting.in_order(state.survivors)), intake.excluded)


def _open_secrets(
    state: Collected, revealed: Mapping[str, RevealedShares], intake: Intake
) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Reconstruct b of every survivor, and the mask key of every dropped client that a survivor masked with."""
    setting = intake.setting
    seeds: dict[str, bytes] = {}
    keys: dict[str, bytes] = {}
    for party in setting.in_order(state.cohort):
        key = state.peers[party]
        holders = setting.around(party) & revealed.keys()
        # Figure 4, round 4: for U3 reconstruct b; for U2 without U3 reconstruct the private mask key. Never both of one party.
        if party in state.survivors:
            what, secrets = f"self mask of {party}", seeds
            shares = {holder: revealed[holder].self_masks[party] for holder in holders}

            def fits(secret: bytes, key: Advertisement = key) -> bool:
                """Return whether the owner committed to this b in round 0."""
                return self_mask_commitment(setting, key.sender, secret) == key.commitment
        elif setting.graph[party] & state.survivors:
            what, secrets = f"mask key of {party}", keys
            shares = {holder: revealed[holder].mask_keys[party] for holder in holders}

            def fits(secret: bytes, key: Advertisement = key) -> bool:
                """Return whether the owner advertised the public key of this private key."""
                return public_key(secret) == key.mask_key
        else:
            # No survivor masked with this client, so its masks are in no upload.
            continue
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
    """Choose the clients to drop, with the reason, so that no pair (complaining client, sealing client) is left."""
    dropped = {}
    while complaints:
        # If a client could not open a neighbor's shares, one of the two is at fault, and nobody can tell which. Drop the client
        # in most pairs first, in a tie the sealing one. One bad client then costs itself and at most one other.
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
    """Remove the survivors' self masks and the pair masks that they share with dropped clients from one sum."""
    setting = state.roll.setting
    # Figure 4, round 4: z = sum of y - sum over U3 of PRG(b_u) + sum over dropped v of +-PRG(s_uv).
    plus, minus = [], [self_mask_seed(setting, party, seed, vector.name) for party, seed in seeds.items()]
    for gone, private in keys.items():
        key = loaded(private)
        for peer in setting.in_order(setting.graph[gone] & state.survivors):
            secret = agree(key, state.peers[peer].mask_key, peer=peer)
            seed = pair_mask_seed(setting, state.peers[gone], state.peers[peer], secret, vector.name)
            # A survivor that added the mask gets it subtracted. Masks between two survivors cancel in the sum already.
            (minus if adds_pair_mask(setting, peer, gone) else plus).append(seed)
    return mask_vector(state.masked[vector.name], plus, minus, vector.ring, setting.cipher)


def _owners_of_shares(state: Collected, holder: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the parties whose self mask, and those whose mask key, a holder reveals: its surviving and its dropped neighbors."""
    neighbors = state.roll.setting.around(holder) & state.cohort
    return neighbors & state.survivors, neighbors - state.survivors


def _still_in(roll: Roll, parties: Iterable[str]) -> frozenset[str]:
    """Return the parties that have not been excluded; excluded clients are ignored from then on."""
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
