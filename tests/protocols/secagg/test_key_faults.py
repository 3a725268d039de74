"""What clients and server refuse of keys and of shares on their way, with an error of its own for each attack."""

from dataclasses import replace

import msgspec
import pytest

from fkgsec.protocols.core.errors import (
    LowOrderPoint,
    RandomnessError,
    SettingError,
    SplitView,
    SubstitutedKey,
    TooFewParties,
    UnknownSender,
)
from fkgsec.protocols.core.keys import agree, generate, seal, sign
from fkgsec.protocols.core.prg import derive, frame, seeded
from fkgsec.protocols.core.shamir import PRIME, SHARE_BYTES
from fkgsec.protocols.secagg import Stage, bindings, client, server
from fkgsec.protocols.secagg.messages import (
    Advertisement,
    KeyList,
    ShareInbox,
)

change = msgspec.structs.replace
LOW_ORDER = [point.to_bytes(32, "little") for point in (0, 1, 2**255 - 20)]


def flip(data: bytes, place: int = -1) -> bytes:
    place %= len(data)
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def advertise_again(cohort, party: str, **keys: bytes) -> Advertisement:
    """Keys that the party itself signed, with some of them chosen: a malicious client, not a substitution."""
    _, honest = client.advertise(cohort.setting, party, cohort.identities[party], seeded(b"again"))
    forged = change(honest, **keys)
    claim = bindings.advertised_claim(cohort.setting, party, forged.mask_key, forged.share_key, forged.commitment)
    return change(forged, signature=sign(cohort.identities[party], claim))


def with_key(key_list: KeyList, advertisement: Advertisement) -> KeyList:
    listed = [advertisement if one.sender == advertisement.sender else one for one in key_list.advertisements]
    return change(key_list, advertisements=tuple(listed))


# Keys.


@pytest.mark.parametrize("field", ["mask_key", "share_key", "commitment", "signature"])
def test_a_substituted_key_is_refused_by_clients_and_server(cohort, steps, field: str) -> None:
    session = steps(cohort(4)).reach(Stage.SHARE)
    forged = {"signature": bytes(64)}.get(field, generate(seeded(b"attacker")).public)
    swapped = change(session.due["client1"].advertisements[0], **{field: forged})
    with pytest.raises(SubstitutedKey, match="client0 are not signed"):
        client.share(session.fresh("client1"), with_key(session.due["client1"], swapped), seeded(b""))
    sent = [swapped, *list(session.sent[Stage.ADVERTISE].values())[1:]]
    kept, _ = server.collect_advertisements(session.cohort.setting, sent)
    assert kept.roll.excluded == {
        "client0": "SubstitutedKey: the keys of client0 are not signed by its pinned identity"
    }
    assert "client0" not in kept.peers


def test_keys_signed_by_another_identity_are_refused(cohort, steps) -> None:
    session = steps(cohort(4)).reach(Stage.SHARE)
    stranger = change(advertise_again(session.cohort, "client3"), sender="client0")
    with pytest.raises(SubstitutedKey, match="client0"):
        client.share(session.fresh("client1"), with_key(session.due["client1"], stranger), seeded(b""))


def test_a_client_notices_that_its_own_keys_were_exchanged(cohort, steps) -> None:
    session = steps(cohort(4)).reach(Stage.SHARE)
    older = advertise_again(session.cohort, "client1")
    with pytest.raises(SubstitutedKey, match="other keys for client1"):
        client.share(session.fresh("client1"), with_key(session.due["client1"], older), seeded(b""))
    without = tuple(one for one in session.due["client1"].advertisements if one.sender != "client1")
    with pytest.raises(SubstitutedKey, match="other keys for client1"):
        client.share(session.fresh("client1"), change(session.due["client1"], advertisements=without), seeded(b""))


@pytest.mark.parametrize("field", ["mask_key", "share_key"])
def test_a_copied_key_is_refused(cohort, steps, field: str) -> None:
    session = steps(cohort(4)).reach(Stage.SHARE)
    victim = session.due["client1"].advertisements[2]
    copied = advertise_again(session.cohort, "client3", **{field: victim.mask_key})
    with pytest.raises(SubstitutedKey, match=r"client3 advertises .* also a key of client2"):
        client.share(session.fresh("client1"), with_key(session.due["client1"], copied), seeded(b""))


def test_a_signed_key_of_another_length_is_refused(cohort, steps) -> None:
    made = cohort(4)
    sent = list(steps(made).perform(Stage.ADVERTISE).values())
    kept, _ = server.collect_advertisements(
        made.setting, [advertise_again(made, "client0", mask_key=bytes(31)), *sent[1:]]
    )
    assert "of 31 bytes" in kept.roll.excluded["client0"]


@pytest.mark.parametrize("point", LOW_ORDER)
def test_a_low_order_share_key_of_a_malicious_client_is_refused(cohort, steps, point: bytes) -> None:
    session = steps(cohort(4)).reach(Stage.SHARE)
    weak = advertise_again(session.cohort, "client0", share_key=point)
    with pytest.raises(LowOrderPoint, match="client0 has small order"):
        client.share(session.fresh("client1"), with_key(session.due["client1"], weak), seeded(b""))


@pytest.mark.parametrize("point", LOW_ORDER)
def test_a_low_order_mask_key_of_a_malicious_client_is_refused(cohort, steps, point: bytes) -> None:
    """By the server, which drops it; and by a client, should the server let it pass."""
    session = steps(cohort(4))
    honest = session.perform(Stage.ADVERTISE)["client0"]
    claim = bindings.advertised_claim(session.cohort.setting, "client0", point, honest.share_key, honest.commitment)
    weak = change(honest, mask_key=point, signature=sign(session.cohort.identities["client0"], claim))
    session.sent[Stage.ADVERTISE]["client0"] = weak
    session.collect(Stage.ADVERTISE)
    assert session.excluded["client0"].startswith("LowOrderPoint: the public key of client0 has small order")
    session = steps(cohort(4)).reach(Stage.MASK)
    state = session.states["client1"]
    state = replace(state, peers={**state.peers, "client0": weak})
    with pytest.raises(LowOrderPoint, match="client0 has small order"):
        client.mask(state, session.due["client1"], session.cohort.inputs["client1"])


def test_an_identity_that_is_not_pinned_cannot_advertise(cohort) -> None:
    made = cohort(3)
    with pytest.raises(SettingError, match="'client0'"):
        client.advertise(made.setting, "client0", made.identities["client1"], seeded(b""))
    with pytest.raises(SettingError, match="'stranger'"):
        client.advertise(made.setting, "stranger", made.identities["client1"], seeded(b""))


def test_short_randomness_stops_a_client_before_it_speaks(cohort, steps) -> None:
    made = cohort(3)
    with pytest.raises(RandomnessError):
        client.advertise(made.setting, "client0", made.identities["client0"], lambda num_bytes: bytes(num_bytes - 1))
    session = steps(made).reach(Stage.SHARE)
    with pytest.raises(RandomnessError):
        client.share(session.fresh("client0"), session.due["client0"], lambda num_bytes: b"")


# Shares on their way.


def seal_as(run, source: str, destination: str, plaintext: bytes, **context: object) -> bytes:
    """What a malicious client may seal, derived here from the documented key schedule and not by the client's code."""
    setting = replace(run.cohort.setting, **context)
    peers = run.server.peers
    secret = agree(run.states[source].member.share_keys.private, peers[destination].share_key, peer=destination)
    keys = (peers[source].share_key, peers[destination].share_key)
    named = (setting.session, setting.round, setting.digest, source, destination)
    return seal(
        derive(secret, "secagg share encryption", *named, *keys),
        plaintext,
        associated=frame("secagg sealed shares", *named),
        randomness=seeded(b"nonce"),
    )


def with_sealed(inbox: ShareInbox, source: str, sealed: bytes) -> ShareInbox:
    return change(inbox, sealed={**inbox.sealed, source: sealed})


def unopened(session, inbox: ShareInbox) -> tuple[str, ...]:
    """What client1 says of an inbox."""
    state, receipt = client.receive(session.fresh("client1", session.shared), inbox)
    assert not state.shares.keys() & set(receipt.unopened)
    return receipt.unopened


def test_a_tampered_ciphertext_does_not_open_wherever_it_was_touched(cohort, steps) -> None:
    session = steps(cohort(4)).reach(Stage.MASK)
    inbox = session.inboxes["client1"]
    sealed = inbox.sealed["client2"]
    for place in range(len(sealed)):
        assert unopened(session, with_sealed(inbox, "client2", flip(sealed, place))) == ("client2",)
    assert unopened(session, with_sealed(inbox, "client2", b"")) == ("client2",)
    assert unopened(session, inbox) == ()


@pytest.mark.parametrize(
    ("source", "destination"), [("client2", "client3"), ("client1", "client2"), ("client3", "client1")]
)
def test_a_sealed_share_cannot_be_sent_elsewhere(cohort, steps, source: str, destination: str) -> None:
    """Another receiver's share, the client's own reflected, and another source's: each offered as that of client2."""
    session = steps(cohort(4)).reach(Stage.MASK)
    moved = session.sent[Stage.SHARE][source].sealed[destination]
    assert unopened(session, with_sealed(session.inboxes["client1"], "client2", moved)) == ("client2",)


@pytest.mark.parametrize("changes", [{"round": 2}, {"session": b"other"}])
def test_a_sealed_share_cannot_be_replayed(cohort, steps, changes: dict) -> None:
    """Even under the same key pairs."""
    session = steps(cohort(4)).reach(Stage.MASK)
    shares = bytes(2 * SHARE_BYTES)
    accepted = with_sealed(session.inboxes["client1"], "client2", seal_as(session, "client2", "client1", shares))
    assert unopened(session, accepted) == ()
    replayed = with_sealed(accepted, "client2", seal_as(session, "client2", "client1", shares, **changes))
    assert unopened(session, replayed) == ("client2",)


@pytest.mark.parametrize(
    "plaintext",
    [
        b"",
        bytes(SHARE_BYTES),
        bytes(2 * SHARE_BYTES - 1),
        bytes(2 * SHARE_BYTES + 1),
        PRIME.to_bytes(SHARE_BYTES, "little") + bytes(SHARE_BYTES),
        bytes(SHARE_BYTES) + b"\xff" * SHARE_BYTES,
    ],
)
def test_what_a_malicious_client_seals_must_be_shares(cohort, steps, plaintext: bytes) -> None:
    session = steps(cohort(4)).reach(Stage.MASK)
    inbox = with_sealed(session.inboxes["client1"], "client2", seal_as(session, "client2", "client1", plaintext))
    assert unopened(session, inbox) == ("client2",)


def test_a_share_of_no_neighbour_is_refused(cohort, steps) -> None:
    session = steps(cohort(8, neighbours=2, threshold=2)).reach(Stage.MASK)
    inbox = session.inboxes["client0"]
    stranger = next(party for party in session.cohort.setting.parties[1:] if party not in inbox.sealed)
    for source in (stranger, "nobody", "client0"):
        with pytest.raises(UnknownSender, match=source):
            client.receive(session.fresh("client0", session.shared), with_sealed(inbox, source, bytes(94)))


def test_a_client_masks_with_nobody_whose_shares_it_lacks(cohort, steps) -> None:
    """Should the server keep a dealer whose shares did not open, or leave the client itself out."""
    session = steps(cohort(5)).reach(Stage.MASK)
    whole, values = session.due["client1"], session.cohort.inputs["client1"]
    damaged = with_sealed(session.inboxes["client1"], "client2", bytes(94))
    for members in (whole.members, ("client0", "client2", "client3", "client4"), (*whole.members, "mallory")):
        state, _ = client.receive(session.fresh("client1", session.shared), damaged)
        with pytest.raises(SplitView, match="cohort of client1"):
            client.mask(state, change(whole, members=members), values)
    with pytest.raises(TooFewParties, match="client1 is to mask with 3 parties; 4 are needed"):
        client.mask(session.fresh("client1"), change(whole, members=whole.members[:3]), values)
    state, _ = client.receive(session.fresh("client1", session.shared), damaged)
    rest = tuple(party for party in whole.members if party != "client2")
    masked, _ = client.mask(state, change(whole, members=rest), values)
    assert masked.shares.keys() == set(rest)
