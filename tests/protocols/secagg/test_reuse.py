"""A client takes each step once: whoever asks again, with the same message or another, after a success or an error."""

import copy
from dataclasses import replace

import msgspec
import pytest

from fkgsec.protocols.core.errors import ReplayedMessage, StateReused
from fkgsec.protocols.core.prg import seeded
from fkgsec.protocols.secagg import Stage, client

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
