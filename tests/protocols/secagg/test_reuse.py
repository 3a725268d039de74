"""A client takes each step once: whoever asks again, with the same message or another, after a success or an error."""

import copy
import pickle
from dataclasses import replace

import msgspec
import pytest

from protocols.core.errors import ProtocolError, ReplayedMessage, StateReused
from protocols.core.prg import seeded
from protocols.secagg import Stage, client

change = msgspec.structs.replace
STEPS = {
    "share": lambda state, message, _: client.share(state, message, seeded(b"share")),
    "receive": lambda state, message, _: client.receive(state, message),
    "mask": client.mask,
    "confirm": lambda state, message, _: client.confirm(state, message),
    "unmask": lambda state, message, _: client.unmask(state, message),
}


def before(cohort, steps, name: str):
    """A client's state when the step is due, the message for it, and its values."""
    stage = Stage.SHARE if name == "receive" else list(Stage)[1:][("share", "mask", "confirm", "unmask").index(name)]
    session = steps(cohort(7), gone={"client6": Stage.MASK}).reach(Stage(stage + 1) if name == "receive" else stage)
    if name == "receive":
        return session.fresh("client0", session.shared), session.inboxes["client0"], None
    return session.states["client0"], session.due["client0"], session.cohort.inputs["client0"]


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("duplicate", [lambda state: state, copy.copy, replace], ids=["itself", "copy", "replace"])
def test_a_step_is_taken_once(cohort, steps, name: str, duplicate) -> None:
    state, message, values = before(cohort, steps, name)
    other = duplicate(state)
    STEPS[name](state, message, values)
    with pytest.raises(StateReused, match=f"client0: {name} was taken before"):
        STEPS[name](other, message, values)


@pytest.mark.parametrize("name", STEPS)
def test_a_step_is_spent_by_an_error_too(cohort, steps, name: str) -> None:
    state, message, values = before(cohort, steps, name)
    with pytest.raises(ReplayedMessage):
        STEPS[name](state, change(message, round=7), values)
    with pytest.raises(StateReused, match=f"client0: {name} was taken before"):
        STEPS[name](state, message, values)


def test_a_second_confirmation_does_not_give_both_kinds_of_share(cohort, steps) -> None:
    """The attack: client6 survived, and then it did not. Each answer alone is right."""
    session = steps(cohort(7)).reach(Stage.CONSISTENCY)
    state, truth = session.states["client0"], session.due["client0"]
    client.confirm(state, truth)
    with pytest.raises(StateReused):
        client.confirm(state, change(truth, survivors=truth.survivors[:-1], num_survivors=6))


def test_a_second_upload_does_not_show_the_difference_of_two_inputs(cohort, steps) -> None:
    session = steps(cohort(4)).reach(Stage.MASK)
    state, message, values = session.states["client0"], session.due["client0"], session.cohort.inputs["client0"]
    client.mask(state, message, values)
    with pytest.raises(StateReused):
        client.mask(state, message, {name: one + 1 for name, one in values.items()})


def test_a_state_is_not_stored(cohort, steps) -> None:
    session = steps(cohort(3)).reach(Stage.CONSISTENCY)
    with pytest.raises((ProtocolError, TypeError)):  # the identity's key cannot be pickled either
        pickle.dumps(session.states["client0"])
    with pytest.raises(StateReused):
        pickle.dumps(session.states["client0"].own.taken)
