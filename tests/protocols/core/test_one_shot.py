"""A step is taken once, whatever copy of a state it is taken from."""

import copy
import multiprocessing
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import pytest

from fkgsec.protocols.core.errors import ProtocolError, StateReused
from fkgsec.protocols.core.one_shot import Steps


@dataclass(frozen=True)
class State:
    secret: int
    steps: Steps = field(repr=False, compare=False)


@pytest.fixture
def state() -> State:
    return State(3, Steps("client0"))


@pytest.mark.parametrize(
    "duplicate",
    [
        lambda state: state,
        copy.copy,
        copy.deepcopy,
        lambda state: replace(state, secret=4),
        lambda state: State(state.secret, state.steps),
    ],
    ids=["itself", "copy", "deepcopy", "replace", "built anew"],
)
def test_every_copy_of_a_state_shares_what_was_taken(state: State, duplicate) -> None:
    other = duplicate(state)
    state.steps.mark("confirm")
    with pytest.raises(StateReused, match="client0: confirm was taken before"):
        other.steps.mark("confirm")
    other.steps.mark("unmask")
    with pytest.raises(StateReused, match="client0: unmask"):
        state.steps.mark("unmask")


def test_a_state_is_not_stored(state: State) -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(ProtocolError, match="client0: a state of a session cannot be stored"):
            pickle.dumps(state, protocol)


def test_one_of_many_threads_takes_a_step(state: State) -> None:
    def mark(_: int) -> bool:
        try:
            state.steps.mark("confirm")
        except StateReused:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(mark, range(200))) == 1


def _mark_elsewhere(state: State, told) -> None:
    try:
        state.steps.mark("confirm")
        told.send("taken")
    except StateReused as error:
        told.send(str(error))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_takes_no_step(state: State) -> None:
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("this system does not fork")
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    child = context.Process(target=_mark_elsewhere, args=(state, there))
    child.start()
    assert here.poll(60)
    child.join()
    assert here.recv() == "client0: confirm in a copy of the process; the session goes on where it began"
    state.steps.mark("confirm")


def test_two_parties_do_not_share_what_was_taken(state: State) -> None:
    Steps("client1").mark("confirm")
    state.steps.mark("confirm")
