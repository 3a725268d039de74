"""One bad client does not end a session: it is left out and named, and the sum is that of the others."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fkgsec.protocols.core.errors import (
    ReconstructionMismatch,
    SplitView,
    SubstitutedKey,
    TooFewParties,
)
from fkgsec.protocols.core.keys import sign
from fkgsec.protocols.core.prg import Ring, seeded
from fkgsec.protocols.secagg import Failure, Stage, client, decode, encode, server
from fkgsec.protocols.secagg.bindings import advertised_claim
from fkgsec.protocols.secagg.messages import (
    Advertisement,
    Confirmation,
    KeyList,
    MaskedUpload,
    Receipt,
    RevealedShares,
    SealedShares,
    Survivors,
)
from tests.protocols.sessions import aggregate

change = msgspec.structs.replace
COLLECT = {
    Stage.ADVERTISE: server.collect_advertisements,
    Stage.SHARE: server.collect_shares,
    Stage.MASK: server.collect_uploads,
    Stage.CONSISTENCY: server.collect_confirmations,
    Stage.UNMASK: server.open_sum,
}
KIND = dict(zip(Stage, (Advertisement, SealedShares, MaskedUpload, Confirmation, RevealedShares), strict=True))
BAD = "client2"


def flip(data: bytes, place: int = -1) -> bytes:
    place %= len(data)
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def left_out(session, stage: Stage, arrivals: list) -> dict:
    """Whom the server excludes when these messages arrive."""
    before = session.cohort.setting if stage is Stage.ADVERTISE else session.server
    result = COLLECT[stage](before, arrivals)
    return dict(result.excluded if stage is Stage.UNMASK else result[0].roll.excluded)


def check_sum(cohort, result) -> None:
    for vector in cohort.setting.vectors:
        assert result.vectors[vector.name].tolist() == cohort.clear_sum(vector.name, result.survivors)


def never_both_kinds(recorded) -> None:
    """The good clients revealed shares of one kind of each party, and all of the same."""
    kinds: dict = {}
    for message in recorded.of_kind(RevealedShares):
        if message.sender == BAD:
            continue
        for kind in ("self_masks", "mask_keys"):
            for party in getattr(message, kind):
                kinds.setdefault(party, {"self_masks": 0, "mask_keys": 0})[kind] += 1
    assert all(min(count.values()) == 0 for count in kinds.values()), kinds


# Repeated, late and misdirected messages.


@pytest.mark.parametrize("stage", Stage)
def test_the_same_bytes_again_are_ignored(cohort, steps, stage: Stage) -> None:
    session = steps(cohort(4)).reach(stage)
    sent = list(session.perform(stage).values())
    assert left_out(session, stage, [*sent, sent[2], sent[2]]) == {}
    earlier = [message for before in range(stage) for message in session.sent[Stage(before)].values()]
    assert left_out(session, stage, [*earlier, *sent]) == {}


@pytest.mark.parametrize("stage", Stage)
def test_two_different_messages_drop_their_sender(cohort, steps, stage: Stage) -> None:
    session = steps(cohort(4)).reach(stage)
    sent = list(session.perform(stage).values())
    other = {
        Stage.ADVERTISE: lambda one: client.advertise(
            session.cohort.setting, BAD, session.cohort.identities[BAD], seeded(b"again")
        )[1],
        Stage.SHARE: lambda one: change(one, sealed={peer: flip(sealed) for peer, sealed in one.sealed.items()}),
        Stage.MASK: lambda one: change(one, vectors={"v0": flip(one.vectors["v0"])}),
        Stage.CONSISTENCY: lambda one: change(one, signature=flip(one.signature)),
        Stage.UNMASK: lambda one: change(one, self_masks={peer: bytes(33) for peer in one.self_masks}),
    }[stage](sent[2])
    assert left_out(session, stage, [*sent, other]) == {
        BAD: f"DuplicateSender: two messages {KIND[stage].__name__} of {BAD}"
    }


def test_shares_of_a_client_that_sent_two_different_reveals_do_not_count(cohort, steps) -> None:
    """Five of seven reach the threshold; without the client that contradicts itself they are four."""
    session = steps(cohort(7)).reach(Stage.UNMASK)
    sent = list(session.perform(Stage.UNMASK).values())[:5]
    check_sum(session.cohort, server.open_sum(session.server, sent))
    other = change(sent[2], self_masks={peer: bytes(33) for peer in sent[2].self_masks})
    with pytest.raises(TooFewParties) as caught:
        server.open_sum(session.server, [*sent, other])
    assert caught.value.excluded.keys() == {BAD}


@pytest.mark.parametrize(
    ("reached", "skipped"),
    [(Stage.SHARE, Stage.MASK), (Stage.MASK, Stage.CONSISTENCY), (Stage.CONSISTENCY, Stage.UNMASK)],
)
def test_a_server_that_skips_a_stage_hears_nobody(cohort, steps, reached: Stage, skipped: Stage) -> None:
    """One class holds the server's memory of all stages: what the skipped stage gives is empty, so nothing is opened."""
    session = steps(cohort(7)).reach(reached)
    early = session.server
    messages = list(session.reach(skipped).perform(skipped).values())
    with pytest.raises(TooFewParties) as caught:
        COLLECT[skipped](early, messages)
    assert [reason.partition(":")[0] for reason in caught.value.excluded.values()] == ["UnknownSender"] * 7


def test_a_second_upload_leaves_the_first_in_the_sum(cohort, steps) -> None:
    """It was added already; its sender is not heard again, and its self mask is opened by the others."""
    session = steps(cohort(7)).reach(Stage.MASK)
    sent = session.perform(Stage.MASK)
    session.sent[Stage.MASK] = {**sent, "again": change(sent[BAD], vectors={"v0": bytes(24)})}
    session.reach(Stage.CONSISTENCY)
    assert BAD in session.server.survivors
    assert BAD not in session.due
    session.reach(Stage.UNMASK)
    total = server.open_sum(session.server, list(session.perform(Stage.UNMASK).values()))
    assert total.excluded.keys() == {BAD}
    check_sum(session.cohort, total)


@pytest.mark.parametrize("stage", Stage)
@pytest.mark.parametrize("changes", [{"round": 2}, {"session": b"other"}])
def test_a_replay_drops_its_sender(cohort, steps, stage: Stage, changes: dict) -> None:
    session = steps(cohort(4)).reach(stage)
    sent = session.perform(stage)
    excluded = left_out(session, stage, [*list(sent.values())[1:], change(sent["client0"], **changes)])
    assert excluded.keys() == {"client0"}
    assert excluded["client0"].startswith(f"ReplayedMessage: {KIND[stage].__name__} of client0 belongs to session")


@pytest.mark.parametrize("stage", Stage)
def test_strangers_are_not_heard(cohort, steps, stage: Stage) -> None:
    session = steps(cohort(4)).reach(stage)
    sent = list(session.perform(stage).values())
    excluded = left_out(session, stage, [change(sent[2], sender="mallory"), *sent])
    assert excluded.keys() == {"mallory"}
    assert excluded["mallory"].startswith("UnknownSender")


@pytest.mark.parametrize("stage", list(Stage)[1:])
def test_a_client_that_was_given_up_is_not_heard(cohort, steps, stage: Stage) -> None:
    """It missed the stage before and comes back with a message of this one."""
    session = steps(cohort(7), gone={"client0": Stage(stage - 1)}).reach(stage)
    sent = list(session.perform(stage).values())
    excluded = left_out(session, stage, [change(sent[1], sender="client0"), *sent])
    assert excluded.keys() == {"client0"}
    assert excluded["client0"].startswith("UnknownSender")


@pytest.mark.parametrize("stage", list(Stage)[1:])
def test_a_late_message_drops_its_sender(cohort, steps, stage: Stage) -> None:
    session = steps(cohort(7), gone={"client0": Stage(stage - 1)}).reach(Stage(stage - 1))
    before = steps(session.cohort).reach(stage).sent[Stage(stage - 1)]["client0"]  # as it would have been
    session.reach(stage)
    sent = list(session.perform(stage).values())
    excluded = left_out(session, stage, [*sent, before])
    assert excluded.keys() == {"client0"}
    assert excluded["client0"].startswith("LateMessage") or stage is Stage.MASK
    # And of one that is still taking part, when it is none that was taken: another than it sent in its time.
    forged = change(session.sent[Stage(stage - 1)]["client1"], **({"sender": "client1"} | other_content(stage)))
    excluded = left_out(session, stage, [forged, *sent])
    assert excluded["client1"].startswith("LateMessage: ")


def other_content(stage: Stage) -> dict:
    return {
        Stage.SHARE: {"signature": bytes(64)},
        Stage.MASK: {"sealed": {}},
        Stage.CONSISTENCY: {"vectors": {}},
        Stage.UNMASK: {"signature": bytes(64)},
    }[stage]


# One bad client of ten, message by message.

MISTAKES = {
    "badly signed keys": (Advertisement, lambda one: change(one, signature=flip(one.signature)), "SubstitutedKey"),
    "a key of small order": (Advertisement, None, "LowOrderPoint"),
    "shares for too few": (SealedShares, lambda one: change(one, sealed={"client0": bytes(94)}), "BadShare"),
    "shares of another length": (
        SealedShares, lambda one: change(one, sealed=dict.fromkeys(one.sealed, b"")), "BadShare",
    ),
    "one damaged share": (
        SealedShares, lambda one: change(one, sealed={**one.sealed, "client7": flip(one.sealed["client7"])}), "BadCiphertext",
    ),
    "all shares damaged": (
        SealedShares, lambda one: change(one, sealed={peer: flip(sealed) for peer, sealed in one.sealed.items()}),
        "BadCiphertext",
    ),
    "four shares damaged": (
        SealedShares,
        lambda one: change(one, sealed={peer: flip(data) if peer > "client5" else data for peer, data in one.sealed.items()}),
        "BadCiphertext",
    ),
    "complains of all": (
        Receipt, lambda one: change(one, unopened=tuple(f"client{n}" for n in range(10) if n != 2)), "BadCiphertext",
    ),
    "complains of itself": (Receipt, lambda one: change(one, unopened=(BAD,)), "UnknownSender"),
    "a short upload": (MaskedUpload, lambda one: change(one, vectors={"v0": b"123"}), "WrongLength"),
    "an upload of other vectors": (MaskedUpload, lambda one: change(one, vectors={"w": b""}), "WrongType"),
    "a badly signed confirmation": (Confirmation, lambda one: change(one, signature=bytes(64)), "BadSignature"),
    "another number of survivors": (Confirmation, lambda one: change(one, num_survivors=3), "BadSignature"),
    "both kinds of share": (
        RevealedShares, lambda one: change(one, mask_keys={"client0": bytes(33)}), "BothSharesRequested",
    ),
    "shares left out": (RevealedShares, lambda one: change(one, self_masks={}), "BadShare"),
    "shares outside the field": (
        RevealedShares, lambda one: change(one, self_masks=dict.fromkeys(one.self_masks, b"\xff" * 33)), "BadShare",
    ),
    "one wrong share": (
        RevealedShares,
        lambda one: change(one, self_masks={**one.self_masks, "client3": flip(one.self_masks["client3"], 0)}), "BadShare",
    ),
    "all shares wrong": (
        RevealedShares, lambda one: change(one, self_masks={peer: flip(x, 0) for peer, x in one.self_masks.items()}),
        "BadShare",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_one_bad_client_of_ten_is_named_and_the_others_have_their_sum(cohort, wire, mistake: str) -> None:
    kind, alter, reason = MISTAKES[mistake]
    if alter is None:
        alter = lambda one: weak_key(made, one)  # noqa: E731
    made = cohort(10, rings=(Ring.UINT32, Ring.MERSENNE61)) if "upload" not in mistake else cohort(10)
    recorded = wire(lambda sender, _, message: alter(message) if (sender, type(message)) == (BAD, kind) else message)
    result = made.run(deliver=recorded, dropouts={"client8": Stage.MASK})
    assert set(result.excluded) == {BAD}
    assert result.excluded[BAD].startswith(f"{reason}: ")
    expected = {*made.setting.parties} - {"client8"} - ({BAD} if kind not in (Confirmation, RevealedShares) else set())
    assert set(result.survivors) == expected
    check_sum(made, result)
    never_both_kinds(recorded)


def weak_key(made, one: Advertisement) -> Advertisement:
    claim = advertised_claim(made.setting, one.sender, bytes(32), one.share_key, one.commitment)
    return change(one, mask_key=bytes(32), signature=sign(made.identities[one.sender], claim))


def test_of_a_single_bad_pair_the_dealer_is_dropped_and_of_many_the_one_in_most(cohort, steps) -> None:
    """Nobody can tell who of a pair lies; a bad client costs at most one other."""
    session = steps(cohort(7)).reach(Stage.SHARE)
    session.perform(Stage.SHARE)
    shares, inboxes = server.collect_shares(session.server, list(session.sent[Stage.SHARE].values()))
    receipts = {party: client.receive(session.states[party], inboxes[party])[1] for party in inboxes}
    for complaints, dropped in (
        ({}, set()),
        ({"client1": ("client4",)}, {"client4"}),
        ({"client1": ("client4",), "client5": ("client4",)}, {"client4"}),
        ({"client1": ("client4", "client5")}, {"client1"}),
        ({"client1": ("client4",), "client4": ("client1",)}, {"client1"}),
        ({"client1": ("client4",), "client2": ("client5",)}, {"client4", "client5"}),
    ):
        told = {party: change(one, unopened=complaints.get(party, ())) for party, one in receipts.items()}
        settled, cohorts = server.collect_receipts(shares, list(told.values()))
        assert settled.roll.excluded.keys() == dropped
        assert cohorts.keys() == set(told) - dropped
        assert all(set(one.members) == set(told) - dropped for one in cohorts.values())


def test_too_few_good_clients_still_end_the_session(cohort, wire) -> None:
    """And the error names those who were left out."""
    made = cohort(7)  # threshold 5
    bad = ("client0", "client1", "client2")
    shorten = wire(lambda sender, _, one: change(one, vectors={}) if sender in bad and hasattr(one, "vectors") else one)
    with pytest.raises(
        TooFewParties, match=r"4 parties uploaded; 5 are needed; left out: client0 \(WrongType"
    ) as caught:
        made.run(deliver=shorten)
    assert set(caught.value.excluded) == set(bad)
    assert not shorten.of_kind(RevealedShares)


def test_what_a_client_sees_of_a_lying_server_still_ends_the_session(cohort, wire) -> None:
    def other_survivors(sender, receiver, message):
        if receiver == "client0" and isinstance(message, Survivors):
            return change(message, survivors=message.survivors[1:])
        return message

    def other_keys(sender, receiver, message):
        if receiver == "client0" and isinstance(message, KeyList):
            return change(
                message, advertisements=tuple(change(one, mask_key=bytes(32)) for one in message.advertisements)
            )
        return message

    for lie, error in ((other_survivors, SplitView), (other_keys, SubstitutedKey)):
        recorded = wire(lie)
        with pytest.raises(error):
            cohort(7).run(deliver=recorded)
        assert not recorded.of_kind(RevealedShares)


def test_split_survivors_open_nothing(cohort, steps) -> None:
    """A server whose clients signed two sets, neither by a threshold of them, has nobody to ask."""
    session = steps(cohort(7)).reach(Stage.CONSISTENCY)
    truth = session.due["client0"]
    for party in ("client0", "client1", "client3"):
        session.due[party] = change(truth, survivors=truth.survivors[:-1], num_survivors=6)
    session.perform(Stage.CONSISTENCY)
    with pytest.raises(TooFewParties, match="4 parties confirmed the survivors; 5 are needed") as caught:
        session.collect(Stage.CONSISTENCY)
    assert set(caught.value.excluded) == {"client0", "client1", "client3"}
    assert all(reason.startswith("SplitView") for reason in caught.value.excluded.values())


def test_one_client_that_signed_other_survivors_is_left_out(cohort, steps) -> None:
    session = steps(cohort(7)).reach(Stage.CONSISTENCY)
    session.due["client0"] = change(
        session.due["client0"], survivors=session.due["client0"].survivors[:-1], num_survivors=6
    )
    session.reach(Stage.UNMASK)
    assert session.excluded == {"client0": "SplitView: client0 signed other survivors, keys or another setting"}
    assert "client0" not in session.due
    check_sum(session.cohort, server.open_sum(session.server, list(session.perform(Stage.UNMASK).values())))


# Wrong shares.


@pytest.mark.parametrize("num_liars", [1, 2, 3, 4])
def test_wrong_shares_are_decoded_around_and_the_liars_named(cohort, steps, num_liars: int) -> None:
    """Eleven holders of a threshold of seven: two liars are corrected at once, four by leaving sets of holders out."""
    session = steps(cohort(12, threshold=7), gone={"client11": Stage.MASK}).reach(Stage.UNMASK)
    sent = session.perform(Stage.UNMASK)
    liars = [f"client{2 * number}" for number in range(num_liars)]
    for liar in liars:
        sent[liar] = change(
            sent[liar],
            self_masks={**sent[liar].self_masks, "client3": flip(sent[liar].self_masks["client3"], 0)},
            mask_keys={"client11": flip(sent[liar].mask_keys["client11"], 5)},
        )
    total = server.open_sum(session.server, list(sent.values()))
    assert set(total.excluded) == set(liars)
    for liar, reason in total.excluded.items():  # who is at fault, the holder or the dealer, nobody can tell
        of = "the share of the self mask of client3 is wrong"
        assert reason == f"BadShare: {of}; {liar} altered it, or client3 dealt it so"
    check_sum(session.cohort, total)


def test_more_liars_than_surplus_shares_open_nothing(cohort, steps) -> None:
    session = steps(cohort(7)).reach(Stage.UNMASK)
    sent = session.perform(Stage.UNMASK)
    for liar in ("client0", "client1", "client2"):
        sent[liar] = change(sent[liar], self_masks={peer: flip(one, 0) for peer, one in sent[liar].self_masks.items()})
    with pytest.raises(
        ReconstructionMismatch,
        match=r"self mask of client0: the shares of client0, .* client0 dealt wrong ones, or too many",
    ) as ended:
        server.open_sum(session.server, list(sent.values()))
    assert "client0" in ended.value.excluded


@settings(max_examples=15, deadline=None)
@given(data=st.data(), seed=st.binary(min_size=1, max_size=4))
def test_any_message_of_one_client_may_be_garbage(cohort, wire, data, seed: bytes) -> None:
    """On either graph, any bytes that still are a message: the sum is that of the survivors, or nobody's."""
    neighbours = data.draw(st.sampled_from([None, 6]), label="neighbours")
    made = cohort(12, seed=seed, neighbours=neighbours, threshold=None if neighbours is None else 4)
    kind = data.draw(st.sampled_from([*KIND.values(), Receipt]), label="kind")

    def deliver(sender, receiver, message):
        if sender == BAD and isinstance(message, kind):
            frame = bytearray(encode(message))
            place = data.draw(st.integers(0, len(frame) - 1), label="place")
            frame[place] ^= data.draw(st.integers(1, 255), label="bits")
            return decode(bytes(frame))
        return recorded(sender, receiver, message)

    recorded = wire()
    result = made.run(deliver=deliver)
    assert set(result.excluded) <= {*made.setting.parties}
    if kind is not MaskedUpload:  # a changed upload is a client's other input
        check_sum(made, result)
    never_both_kinds(recorded)


def test_a_failure_in_place_of_a_message_names_its_sender(cohort, steps) -> None:
    session = steps(cohort(4)).reach(Stage.MASK)
    sent = session.perform(Stage.MASK)
    del sent[BAD]
    assert left_out(session, Stage.MASK, [Failure(BAD, "timed out"), *sent.values()]) == {BAD: "timed out"}


def test_an_input_that_does_not_fit_is_the_callers_mistake(cohort) -> None:
    made = cohort(4)
    wrong = {**made.inputs, "client1": {}}
    sources = {party: made.source(party) for party in made.setting.parties}
    with pytest.raises(Exception, match="values of client1"):
        aggregate(made.setting, wrong, made.identities, randomness=sources)
