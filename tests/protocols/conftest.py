"""Cohorts for secure aggregation, a wire that records and tampers, and published test vectors."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import CodeType, FunctionType, ModuleType
from typing import Any

import cryptography_vectors
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fkgsec.protocols.core import one_shot
from fkgsec.protocols.core.prg import Randomness, Ring, derive, seeded
from fkgsec.protocols.secagg import (
    Message,
    Setting,
    Stage,
    Sum,
    Vector,
    client,
    decode,
    encode,
    safe_threshold,
    server,
)
from tests.protocols.sessions import aggregate


@dataclass(frozen=True)
class Cohort:
    """A setting, its parties' private identities and inputs, and the seed of their randomness."""

    setting: Setting
    identities: Mapping[str, Ed25519PrivateKey]
    inputs: Mapping[str, Mapping[str, np.ndarray]]
    seed: bytes

    def source(self, party: str) -> Randomness:
        return seeded(derive(self.seed, "test cohort", party))

    def run(self, **options: Any) -> Sum:
        randomness = {party: self.source(party) for party in self.setting.parties}
        return aggregate(self.setting, self.inputs, self.identities, randomness=randomness, **options)

    def clear_sum(self, name: str, parties: tuple[str, ...]) -> list[int]:
        """The sum in Python's integers: an independent reference."""
        ring = next(vector.ring for vector in self.setting.vectors if vector.name == name)
        rows = [self.inputs[party][name].tolist() for party in parties]
        return [sum(column) % ring.modulus for column in zip(*rows, strict=True)]

    def but(self, **changes: Any) -> Cohort:
        """The same parties in a changed setting."""
        return replace(self, setting=replace(self.setting, **changes))


def build_cohort(
    num_parties: int,
    *,
    length: int = 6,
    rings: tuple[Ring, ...] = (Ring.UINT32,),
    seed: bytes = b"cohort",
    session: bytes = b"session",
    round: int = 1,
    threshold: int | None = None,
    **options: Any,
) -> Cohort:
    parties = tuple(f"client{number}" for number in range(num_parties))
    identities = {party: Ed25519PrivateKey.from_private_bytes(derive(b"identity", party)) for party in parties}
    vectors = tuple(Vector(f"v{place}", length, ring) for place, ring in enumerate(rings))
    setting = Setting(
        session=session,
        round=round,
        parties=parties,
        threshold=threshold or safe_threshold(num_parties),
        vectors=vectors,
        identities={party: identity.public_key().public_bytes_raw() for party, identity in identities.items()},
        **options,
    )
    rng = np.random.default_rng(list(seed))
    inputs = {
        party: {
            vector.name: rng.integers(0, vector.ring.modulus, length, dtype=vector.ring.dtype, endpoint=False)
            for vector in vectors
        }
        for party in parties
    }
    return Cohort(setting, identities, inputs, seed)


@dataclass
class Wire:
    """Delivery through bytes. Records what the receiver got; `change` may alter it on the way."""

    change: Callable[[str, str, Any], Message] = lambda sender, receiver, message: message
    log: list[tuple[str, str, Any]] = field(default_factory=list)
    num_bytes: int = 0

    def __call__(self, sender: str, receiver: str, message: Message) -> Message:
        frame = encode(self.change(sender, receiver, message))
        self.num_bytes += len(frame)
        received = decode(frame)
        self.log.append((sender, receiver, received))
        return received

    def of_kind(self, kind: type) -> list[Any]:
        return [message for _, _, message in self.log if isinstance(message, kind)]


@dataclass
class Steps:
    """A session that stops wherever a test wants to interfere: every state and message so far, by party.

    `reach(stage)` runs the server up to what it sends before `stage`; parties in `gone` send nothing from theirs on.
    """

    cohort: Cohort
    gone: Mapping[str, Stage] = field(default_factory=dict)
    states: dict[str, Any] = field(default_factory=dict)
    before: dict[Stage, dict[str, Any]] = field(default_factory=dict)  # a party's state when the stage begins
    sent: dict[Stage, dict[str, Any]] = field(default_factory=dict)
    due: dict[str, Any] = field(default_factory=dict)
    collected: set[Stage] = field(default_factory=set)
    server: Any = None
    shared: dict[str, Any] = field(default_factory=dict)  # a party's state when its inbox comes, within SHARE
    inboxes: dict[str, Any] = field(default_factory=dict)
    receipts: dict[str, Any] = field(default_factory=dict)
    excluded: Mapping[str, str] = field(default_factory=dict)

    def alive(self, stage: Stage) -> Iterator[str]:
        known = self.cohort.setting.parties if stage is Stage.ADVERTISE else self.due
        return (party for party in known if self.gone.get(party, len(Stage)) > stage)

    def answer(self, stage: Stage, party: str) -> Any:
        """What the party does in this stage: (state, message)."""
        source = seeded(derive(self.cohort.seed, "steps", int(stage), party))
        match stage:
            case Stage.ADVERTISE:
                return client.advertise(self.cohort.setting, party, self.cohort.identities[party], source)
            case Stage.SHARE:
                return client.share(self.states[party], self.due[party], source)
            case Stage.MASK:
                return client.mask(self.states[party], self.due[party], self.cohort.inputs[party])
            case Stage.CONSISTENCY:
                return client.confirm(self.states[party], self.due[party])
            case Stage.UNMASK:
                return None, client.unmask(self.states[party], self.due[party])

    def reach(self, stage: Stage) -> Steps:
        """Run what is left of every stage before `stage`: `due` then holds what the server has sent for it."""
        for one in Stage:
            if one < stage and one not in self.sent:
                self.perform(one)
            if one < stage and one not in self.collected:
                self.collect(one)
        return self

    def fresh(self, party: str, states: Mapping[str, Any] | None = None) -> Any:
        """A party's state with no step taken: what a client must not do, so that a test can try several messages on it."""
        state = (self.states if states is None else states)[party]
        return replace(state, member=replace(state.member, steps=one_shot.Steps(party)))

    def collect(self, stage: Stage) -> None:
        """The server's part of a stage, from the messages in `sent`."""
        collect = (
            server.collect_advertisements,
            server.collect_shares,
            server.collect_uploads,
            server.collect_confirmations,
        )[stage]
        before = self.cohort.setting if stage is Stage.ADVERTISE else self.server
        self.server, self.due = collect(before, list(self.sent[stage].values()))
        if stage is Stage.SHARE:
            self.open_inboxes()
            self.server, self.due = server.collect_receipts(self.server, list(self.receipts.values()))
        self.excluded = self.server.roll.excluded
        self.collected.add(stage)

    def open_inboxes(self) -> None:
        """The clients' second part of SHARE: what the server has sent them, and what they say to it."""
        self.shared, self.inboxes = dict(self.states), self.due
        for party in self.alive(Stage.SHARE):
            self.states[party], self.receipts[party] = client.receive(self.states[party], self.due[party])

    def perform(self, stage: Stage) -> dict[str, Any]:
        """The clients' part of a stage: their messages, by party."""
        self.before[stage] = dict(self.states)
        answers = {party: self.answer(stage, party) for party in self.alive(stage)}
        self.states.update({party: state for party, (state, _) in answers.items()})
        self.sent[stage] = {party: message for party, (_, message) in answers.items()}
        return self.sent[stage]


def reachable_from(root: object) -> list[Any]:
    """Every object that leads on from `root` by references: the variables of a suspended generator, closures, containers, fields.

    Types, modules and the globals of functions are code, not state, and are not followed.
    """
    seen: dict[int, Any] = {id(root): root}
    waiting = [root]
    while waiting:
        one = waiting.pop()
        following = gc.get_referents(one)
        if isinstance(one, FunctionType):
            following = [one.__closure__, one.__defaults__, one.__kwdefaults__]
        for other in following:
            if id(other) not in seen and not isinstance(other, type | ModuleType | CodeType):
                seen[id(other)] = other
                waiting.append(other)
    return list(seen.values())


def read_nist_vectors(path: str) -> list[dict[str, str]]:
    """Records of `NAME = value` lines, each begun by COUNT; names in lower case."""
    records: list[dict[str, str]] = []
    with cryptography_vectors.open_vector_file(path, "r") as file:
        for line in file:
            name, equals, value = line.partition("=")
            if not equals or line.startswith("#"):
                continue
            if name.strip() == "COUNT":
                records.append({})
            else:
                records[-1][name.strip().lower()] = value.strip()
    return records


@pytest.fixture(scope="session")
def cohort() -> Callable[..., Cohort]:
    return build_cohort


@pytest.fixture(scope="session")
def wire() -> type[Wire]:
    return Wire


@pytest.fixture(scope="session")
def steps() -> type[Steps]:
    return Steps


@pytest.fixture(scope="session")
def nist_vectors() -> Callable[[str], list[dict[str, str]]]:
    return read_nist_vectors


@pytest.fixture(scope="session")
def reachable() -> Callable[[object], list[Any]]:
    return reachable_from
