"""A client of a k-regular session downloads and verifies what its neighbours need, however many others there are."""

from collections import Counter

import msgspec
import pytest

from fkgsec.protocols.core import keys as keys_module
from fkgsec.protocols.core.errors import SplitView, TooFewParties
from fkgsec.protocols.secagg import SERVER, Stage, bindings, client
from fkgsec.protocols.secagg.messages import Confirmation, KeyList, Survivors, UnmaskRequest

change = msgspec.structs.replace


def downloaded(wire, receiver: str) -> list:
    return [message for sender, to, message in wire.log if sender == SERVER and to == receiver]


def test_a_client_is_told_of_its_neighbours_alone(cohort, wire) -> None:
    made, recorded = cohort(24, neighbours=6, threshold=4), wire()
    made.run(deliver=recorded, dropouts={"client5": Stage.MASK})
    for party in made.setting.parties:
        around = made.setting.around(party)
        for message in downloaded(recorded, party):
            match message:
                case KeyList():
                    assert {one.sender for one in message.advertisements} == around
                case Survivors():
                    assert set(message.survivors) == around - {"client5"}
                    assert message.num_survivors == 23
                case UnmaskRequest():
                    assert {one.sender for one in message.confirmations} == around - {"client5"}


def test_what_all_clients_verify_grows_with_their_number_and_not_its_square(cohort, wire, monkeypatch) -> None:
    """Signatures that anybody checks: of each client's neighbours and itself twice, and once more at the server."""
    counted = Counter()

    def counting(identity, signature, message, *, signer):
        counted["signatures"] += 1
        return keys_module.verify(identity, signature, message, signer=signer)

    monkeypatch.setattr(bindings, "verify", counting)
    cohort(40, neighbours=6, threshold=4).run(deliver=wire())
    assert counted["signatures"] == 40 * (2 * 7 + 2)


@pytest.mark.parametrize("neighbours", [None, 6])
def test_clients_compare_what_both_were_told(cohort, steps, neighbours: int | None) -> None:
    """A neighbour that was told of another survivor around both, or of another number of all."""
    made = cohort(16, neighbours=neighbours, threshold=11 if neighbours is None else 5)
    setting = made.setting
    party = "client0"
    peer = setting.in_order(setting.graph[party])[0]
    both = setting.in_order(setting.graph[party] & setting.graph[peer])
    assert both
    session = steps(made).reach(Stage.CONSISTENCY)
    truth = session.due[peer]
    lies = [
        change(truth, survivors=tuple(one for one in truth.survivors if one != both[0]), num_survivors=15),
        change(truth, survivors=tuple(one for one in truth.survivors if one != both[0])),
        change(truth, num_survivors=15),
    ]
    lied_to = {}
    for number, lie in enumerate(lies):
        if neighbours is None and len(lie.survivors) != lie.num_survivors:
            with pytest.raises(SplitView, match="is told of"):
                client.confirm(session.fresh(peer), lie)
            continue
        _, lied_to[number] = client.confirm(session.fresh(peer), lie)
    session.reach(Stage.UNMASK)
    request = session.due[party]
    for confirmation in lied_to.values():
        forwarded = tuple(confirmation if one.sender == peer else one for one in request.confirmations)
        with pytest.raises(SplitView, match=f"{peer} signed other survivors"):
            client.unmask(session.fresh(party), change(request, confirmations=forwarded))
    client.unmask(session.states[party], request)


def test_bits_of_survivors_must_be_those_of_the_neighbourhood(cohort, steps) -> None:
    session = steps(cohort(12, neighbours=4, threshold=3)).reach(Stage.UNMASK)
    setting, view = session.cohort.setting, session.states["client0"].view
    one = next(each for each in session.due["client0"].confirmations if each.sender != "client0")
    assert view.agrees(setting, one)
    assert isinstance(one, Confirmation)
    for bits in (b"", one.survivors + b"\x00", b"\xff", bytes(1)):
        assert not view.agrees(setting, change(one, survivors=bits))


def test_a_client_reveals_nothing_unless_a_threshold_around_it_confirmed(cohort, steps) -> None:
    """Whom too few confirm is not asked, by the server; and refuses, should it be asked."""
    made = cohort(12, neighbours=4, threshold=4)
    around = made.setting.in_order(made.setting.graph["client0"])
    session = steps(made, gone=dict.fromkeys(around[:2], Stage.CONSISTENCY)).reach(Stage.UNMASK)
    assert "client0" not in session.due
    assert session.excluded["client0"] == "TooFewParties: 3 around it confirmed; 4 are needed"
    session = steps(made).reach(Stage.UNMASK)
    request = session.due["client0"]
    with pytest.raises(TooFewParties, match="3 parties confirmed the survivors; 4 are needed"):
        client.unmask(session.states["client0"], change(request, confirmations=request.confirmations[:3]))
