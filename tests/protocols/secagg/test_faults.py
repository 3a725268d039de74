"""What clients and server refuse, with an error of its own for each attack: headers, inputs, survivors, confirmations, shares.

Keys are in `test_key_faults`, what costs one client its part in `test_exclusion`.
"""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from fkgsec.protocols.core.errors import (
    BadSignature,
    BothSharesRequested,
    DisconnectedGraph,
    DuplicateSender,
    MalformedMessage,
    OutOfRing,
    ProtocolError,
    ReconstructionMismatch,
    ReplayedMessage,
    SplitView,
    TooFewParties,
    UnexpectedMessage,
    UnknownSender,
    WrongLength,
    WrongType,
)
from fkgsec.protocols.core.keys import sign
from fkgsec.protocols.core.prg import Ring, seeded
from fkgsec.protocols.secagg import Stage, bindings, client, decode, encode, server
from fkgsec.protocols.secagg.messages import (
    Confirmation,
    KeyList,
    MaskedUpload,
    Survivors,
    UnmaskRequest,
)

change = msgspec.structs.replace


COLLECT = {
    Stage.ADVERTISE: server.collect_advertisements,
    Stage.SHARE: server.collect_shares,
    Stage.MASK: server.collect_uploads,
    Stage.CONSISTENCY: server.collect_confirmations,
    Stage.UNMASK: server.open_sum,
}


def flip(data: bytes, place: int = -1) -> bytes:
    place %= len(data)
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


# Headers: replay, duplicates, strangers, order.


@pytest.mark.parametrize("stage", list(Stage)[1:])
@pytest.mark.parametrize("changes", [{"round": 2}, {"session": b"other"}])
def test_clients_refuse_replays(cohort, steps, stage: Stage, changes: dict) -> None:
    session = steps(cohort(4)).reach(stage)
    session.due["client0"] = change(session.due["client0"], **changes)
    with pytest.raises(ReplayedMessage, match="server belongs to session"):
        session.answer(stage, "client0")


def test_replayed_keys_with_a_rewritten_header_fail_their_signature(cohort, steps) -> None:
    old = steps(cohort(4, round=1)).perform(Stage.ADVERTISE)["client0"]
    made = cohort(4, round=2)
    sent = list(steps(made).perform(Stage.ADVERTISE).values())
    kept, _ = server.collect_advertisements(made.setting, [change(old, round=2), *sent[1:]])
    assert kept.roll.excluded["client0"].startswith("SubstitutedKey: the keys of client0 are not signed")


def test_messages_of_the_wrong_kind_are_refused(cohort, steps) -> None:
    session = steps(cohort(4)).reach(Stage.SHARE)
    sent = session.perform(Stage.SHARE)
    early = [sent["client0"], *list(session.sent[Stage.ADVERTISE].values())[1:]]
    kept, _ = server.collect_advertisements(session.cohort.setting, early)
    assert kept.roll.excluded["client0"] == "UnexpectedMessage: SealedShares of client0: Advertisement is due"
    with pytest.raises(UnexpectedMessage, match="KeyList is due"):
        client.share(session.fresh("client0", session.before[Stage.SHARE]), sent["client1"], seeded(b""))


@pytest.mark.parametrize("stage", list(Stage)[1:])
def test_clients_listen_to_the_server_alone(cohort, steps, stage: Stage) -> None:
    session = steps(cohort(4)).reach(stage)
    session.due["client0"] = change(session.due["client0"], sender="client1")
    with pytest.raises(UnknownSender, match="client1"):
        session.answer(stage, "client0")


def test_key_lists_with_strangers_and_duplicates_are_refused(cohort, steps) -> None:
    session = steps(cohort(4)).reach(Stage.SHARE)
    key_list = session.due["client1"]
    listed = key_list.advertisements
    for changed, error in (
        ((*listed, listed[0]), DuplicateSender),
        ((*listed, change(listed[0], sender="mallory")), UnknownSender),
        ((change(listed[0], round=2), *listed[1:]), ReplayedMessage),
        (listed[:2], TooFewParties),
    ):
        with pytest.raises(error):
            client.share(session.fresh("client1"), change(key_list, advertisements=changed), seeded(b""))


def test_a_client_wants_as_many_keys_as_survivors(cohort, steps) -> None:
    """Before it shares anything, also where the threshold would be met; on a regular graph it counts its neighbours."""
    for options, least, who in (
        ({"threshold": 4, "min_survivors": 6}, 6, "parties"),
        ({"threshold": 4, "neighbours": 4}, 4, "neighbours of client1 and itself"),
    ):
        session = steps(cohort(6, **options)).reach(Stage.SHARE)
        key_list = session.due["client1"]
        others = [one for one in key_list.advertisements if one.sender != "client1"]
        own = next(one for one in key_list.advertisements if one.sender == "client1")
        for number in (least - 2, least - 3):
            fewer = (own, *others[:number])
            with pytest.raises(TooFewParties, match=f"{number + 1} {who} advertised keys; {least} are needed"):
                client.share(session.fresh("client1"), change(key_list, advertisements=fewer), seeded(b""))


@pytest.mark.parametrize(
    "frame_bytes",
    [
        b"",
        b"\xc1",
        b"nonsense",
        b"\x80",
        b"\x81\xa4kind\xb3\xf3ecagg-confirmation",
        encode(Survivors(b"s", 1, "server", (), 0))[:-1],
    ],
)
def test_bytes_that_are_no_message_are_refused(frame_bytes: bytes) -> None:
    with pytest.raises(MalformedMessage, match="cannot be read as a message"):
        decode(frame_bytes)


def test_a_field_of_another_type_is_refused() -> None:
    wrong = msgspec.msgpack.encode(
        {"kind": "secagg-masked-upload", "session": b"s", "round": 1, "sender": "a", "vectors": {"v0": 3}}
    )
    with pytest.raises(MalformedMessage, match="vectors"):
        decode(wrong)


# Inputs and uploads.


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"v0": np.zeros(5, dtype=np.uint32)}, WrongLength),
        ({"v0": np.zeros(6, dtype=np.int32)}, WrongType),
        ({"v0": np.zeros(6, dtype=np.float32)}, WrongType),
        ({"v0": np.zeros(6, dtype=np.uint64)}, WrongType),
        ({"v0": np.zeros((6, 1), dtype=np.uint32)}, WrongType),
        ({}, WrongType),
        ({"v0": np.zeros(6, dtype=np.uint32), "v1": np.zeros(6, dtype=np.uint32)}, WrongType),
    ],
)
def test_inputs_that_do_not_fit_are_refused(cohort, steps, values: dict, error: type) -> None:
    session = steps(cohort(4)).reach(Stage.MASK)
    with pytest.raises(error, match="client0"):
        client.mask(session.fresh("client0"), session.due["client0"], values)


def test_an_input_outside_the_field_is_refused(cohort, steps) -> None:
    session = steps(cohort(4, rings=(Ring.MERSENNE61,))).reach(Stage.MASK)
    values = {"v0": np.full(6, 2**61 - 1, dtype=np.uint64)}
    with pytest.raises(OutOfRing, match="client0"):
        client.mask(session.fresh("client0"), session.due["client0"], values)


# Survivors and confirmations.


@pytest.mark.parametrize(
    ("survivors", "error", "named"),
    [
        (("client0", "client1", "client2"), TooFewParties, "3 survivors; 5"),
        (("client1", "client2", "client3", "client4", "client5"), SplitView, "client0 uploaded"),
        (("client0", "client1", "client2", "client3", "client4", "client4"), DuplicateSender, "twice"),
        (("client0", "client1", "client2", "client3", "mallory"), UnknownSender, "mallory"),
        (("client0", "client1", "client2", "client3", "client6"), SplitView, "client6.* no shares"),
    ],
)
def test_survivors_that_cannot_be_are_not_confirmed(cohort, steps, survivors, error: type, named: str) -> None:
    session = steps(cohort(7), gone={"client6": Stage.SHARE}).reach(Stage.CONSISTENCY)
    told = change(session.due["client0"], survivors=survivors, num_survivors=len(survivors))
    with pytest.raises(error, match=named):
        client.confirm(session.fresh("client0"), told)


def split_views(cohort, steps):
    """A server that tells client0 of other survivors than the rest, both sets above the threshold."""
    session = steps(cohort(7)).reach(Stage.CONSISTENCY)
    truth = session.due["client0"].survivors
    session.due["client0"] = change(session.due["client0"], survivors=truth[:-1], num_survivors=6)
    session.perform(Stage.CONSISTENCY)
    return session


def test_clients_notice_split_views_before_they_reveal_anything(cohort, steps) -> None:
    session = split_views(cohort, steps)
    sent = session.sent[Stage.CONSISTENCY]
    others = tuple(sent[party] for party in sent if party != "client0")
    for party, self_masks in (("client0", tuple(sent)[:-1]), ("client1", tuple(sent))):
        request = UnmaskRequest(
            session=b"session",
            round=1,
            sender="server",
            confirmations=(sent["client0"], *others),
            self_masks=self_masks,
            mask_keys=tuple(sent)[len(self_masks) :],
        )
        with pytest.raises(SplitView, match="signed other survivors"):
            client.unmask(session.fresh(party), request)
    alone = change(request, confirmations=(sent["client0"],), self_masks=tuple(sent)[:-1], mask_keys=tuple(sent)[-1:])
    with pytest.raises(TooFewParties, match="1 parties confirmed"):
        client.unmask(session.fresh("client0"), alone)


@pytest.mark.parametrize("changes", [{"threshold": 6}, {"cipher": "chacha20"}, {"min_survivors": 6}])
def test_clients_that_were_told_different_settings_notice_it(cohort, changes: dict) -> None:
    made = cohort(7)
    other = made.but(**changes)
    sent = [
        client.advertise(one.setting, party, one.identities[party], one.source(party))[1]
        for party, one in zip(made.setting.parties, [other, *[made] * 6], strict=True)
    ]
    kept, _ = server.collect_advertisements(made.setting, sent)
    assert kept.roll.excluded["client0"].startswith("SubstitutedKey: the keys of client0 are not signed")


def test_clients_that_were_told_different_keys_notice_it(cohort, steps) -> None:
    """client0 is told that client6 never advertised; all other lists name it."""
    session = steps(cohort(7)).reach(Stage.SHARE)
    listed = session.due["client0"].advertisements
    session.due["client0"] = change(session.due["client0"], advertisements=listed[:-1])
    told = session.cohort.setting.parties[:6]
    views = {}
    for party in ("client0", "client1"):
        state, _ = session.answer(Stage.SHARE, party)
        views[party] = bindings.View(party, state.keys_digest, 6, frozenset(told))
    signed = [
        Confirmation(
            b"session", 1, party, view.keys, 6, bindings.survivor_bits(session.cohort.setting, party, told), b""
        )
        for party, view in views.items()
    ]
    for party, view in views.items():
        agreed = [view.agrees(session.cohort.setting, one) for one in signed]
        assert agreed == [party == "client0", party == "client1"]


def test_forged_missing_and_padded_confirmations_are_refused(cohort, steps) -> None:
    session = steps(cohort(7), gone={"client6": Stage.MASK}).reach(Stage.CONSISTENCY)
    collected = session.server
    session.reach(Stage.UNMASK)
    request = session.due["client0"]
    good = request.confirmations
    stranger = sign(session.cohort.identities["client6"], b"")
    for confirmations, error in (
        ((change(good[0], signature=flip(good[0].signature)), *good[1:]), BadSignature),
        ((change(good[0], sender="client1"), *good[2:]), BadSignature),
        ((change(good[0], keys=flip(good[0].keys)), *good[1:]), BadSignature),
        ((change(good[0], survivors=flip(good[0].survivors)), *good[1:]), BadSignature),
        ((change(good[0], num_survivors=7), *good[1:]), BadSignature),
        ((*good[:4], good[3]), DuplicateSender),
        ((*good[:4], change(good[4], sender="client6", signature=stranger)), UnknownSender),
        ((change(good[0], round=0), *good[1:]), ReplayedMessage),
        (good[:4], TooFewParties),
        ((), TooFewParties),
    ):
        with pytest.raises(error):
            client.unmask(session.fresh("client0"), change(request, confirmations=confirmations))
    forged = change(good[0], signature=bytes(64))
    kept, requests = server.collect_confirmations(collected, [forged, *good[1:]])
    assert kept.roll.excluded["client0"].startswith("BadSignature: the signature of client0")
    assert requests.keys() == {one.sender for one in good[1:]}
    enough = client.unmask(session.fresh("client0"), change(request, confirmations=good[:5]))
    assert enough.self_masks.keys() == session.states["client0"].view.survivors


def test_a_client_never_gives_both_kinds_of_share_of_one_peer(cohort, steps) -> None:
    session = steps(cohort(7), gone={"client6": Stage.MASK}).reach(Stage.UNMASK)
    request = session.due["client0"]
    assert (request.self_masks, request.mask_keys) == (session.cohort.setting.parties[:6], ("client6",))
    for extra in ({"mask_keys": ("client6", "client3")}, {"self_masks": (*request.self_masks, "client6")}):
        with pytest.raises(BothSharesRequested, match=r"both kinds of share of client[36]"):
            client.unmask(session.fresh("client0"), change(request, **extra))
    revealed = client.unmask(session.fresh("client0"), request)
    assert not revealed.self_masks.keys() & revealed.mask_keys.keys()


def test_a_client_gives_only_what_follows_from_the_survivors_it_signed(cohort, steps) -> None:
    session = steps(cohort(7), gone={"client6": Stage.MASK}).reach(Stage.UNMASK)
    request = session.due["client0"]
    alive = request.self_masks
    for changes, named in (
        ({"self_masks": alive[:5], "mask_keys": ("client5", "client6")}, "client5"),
        ({"self_masks": (*alive, "client6"), "mask_keys": ()}, "client6"),
        ({"self_masks": alive[1:]}, "client0"),
        ({"mask_keys": ()}, "client6"),
        ({"self_masks": (*alive, "mallory")}, "mallory"),
    ):
        with pytest.raises(SplitView, match=named):
            client.unmask(session.fresh("client0"), change(request, **changes))


# Revealed shares.


def revealed_session(cohort, steps):
    session = steps(cohort(7), gone={"client6": Stage.MASK}).reach(Stage.UNMASK)
    return session, session.perform(Stage.UNMASK)


def test_colluding_liars_of_exactly_a_threshold_meet_the_commitment(cohort, steps) -> None:
    """Shares that lie on a polynomial, but on another one: the advertised key and commitment tell."""
    session, sent = revealed_session(cohort, steps)
    enough = list(sent.values())[:5]
    liars = [change(one, self_masks={**one.self_masks, "client3": one.self_masks["client2"]}) for one in enough]
    with pytest.raises(ReconstructionMismatch, match=r"self mask of client3: .* do not give what client3 advertised"):
        server.open_sum(session.server, liars)
    liars = [change(one, mask_keys={"client6": one.self_masks["client2"]}) for one in enough]
    with pytest.raises(ReconstructionMismatch, match=r"mask key of client6: .* do not give what client6 advertised"):
        server.open_sum(session.server, liars)


def test_a_dealer_whose_shares_open_something_else_is_named(cohort, steps) -> None:
    session = steps(cohort(4)).reach(Stage.SHARE)
    honest = session.states["client0"]
    session.states["client0"] = replace(honest, member=replace(honest.member, self_seed=flip(honest.member.self_seed)))
    session.reach(Stage.UNMASK)
    with pytest.raises(ReconstructionMismatch, match="self mask of client0") as caught:
        server.open_sum(session.server, list(session.perform(Stage.UNMASK).values()))
    assert "give another than client0 advertised" in caught.value.excluded["client0"]


def test_fewer_revealed_shares_than_the_threshold_open_nothing(cohort, steps) -> None:
    session, sent = revealed_session(cohort, steps)
    with pytest.raises(TooFewParties, match="self mask of client0: 4 shares; the threshold is 5"):
        server.open_sum(session.server, list(sent.values())[:4])


# The regular graph.


def test_survivors_without_a_mask_between_them_are_refused(cohort, steps) -> None:
    """On a ring of eight, two opposite dropouts leave two groups whose sums would show separately."""
    made = cohort(8, neighbours=2, threshold=2, min_survivors=2)
    ring = [made.setting.parties[0]]
    while len(ring) < 8:
        ring.append(next(p for p in made.setting.in_order(made.setting.graph[ring[-1]]) if p not in ring))
    session = steps(made, gone={ring[2]: Stage.MASK, ring[6]: Stage.MASK}).reach(Stage.MASK)
    session.perform(Stage.MASK)
    with pytest.raises(DisconnectedGraph, match="6 survivors fall into 2 groups"):
        session.collect(Stage.MASK)
    told = Survivors(b"session", 1, "server", (ring[1],), 6)  # a client sees that too few around it are left
    with pytest.raises(TooFewParties, match=f"1 survivors around {ring[1]}; 2 are needed"):
        client.confirm(session.states[ring[1]], told)


def test_a_client_with_too_few_neighbours_drops_out_before_it_uploads(cohort, steps, wire) -> None:
    made = cohort(12, neighbours=4, threshold=4)
    around = made.setting.in_order(made.setting.graph["client0"])
    session = steps(made, gone=dict.fromkeys(around[:2], Stage.ADVERTISE)).reach(Stage.SHARE)
    with pytest.raises(TooFewParties, match="3 neighbours of client0 and itself"):
        session.answer(Stage.SHARE, "client0")
    recorded = wire()
    made = cohort(12, neighbours=4, threshold=3, min_survivors=4)
    result = made.run(deliver=recorded, dropouts=dict.fromkeys(around[:3], Stage.SHARE))
    assert "client0" not in [one.sender for one in recorded.of_kind(MaskedUpload)]
    assert result.excluded["client0"] == "TooFewParties: fewer than 3 around it take part"
    assert result.vectors["v0"].tolist() == made.clear_sum("v0", result.survivors)


@pytest.mark.parametrize("hidden", [False, True])
def test_clients_that_believe_different_settings_are_in_no_sum_together(cohort, hidden: bool) -> None:
    """`hidden`: the server rewrites the header of every message, so that only signatures and masks tell."""
    group = cohort(5)
    target, *others = group.setting.parties
    sessions = {target: b"one", **dict.fromkeys(others, b"other")}
    believed = {party: replace(group.setting, session=session) for party, session in sessions.items()}

    def deliver(sender: str, receiver: str, message):
        if not hidden:
            return message
        message = change(message, session=sessions.get(receiver, group.setting.session))
        if isinstance(message, KeyList):
            listed = tuple(change(one, session=message.session) for one in message.advertisements)
            message = change(message, advertisements=listed)
        return message

    try:
        total = group.run(believed=believed, deliver=deliver)
    except ProtocolError:
        return
    assert target not in total.survivors
