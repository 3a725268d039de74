"""What protocols draw: from a View and a record nothing of it can be recomputed, and a run that goes on draws it again."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fkgsec.attacks.options import KGE, threat_models
from fkgsec.attacks.registry import build_view
from fkgsec.data.graph import FederatedGraph
from fkgsec.defenses.terms import Entropy, PartyEntropy
from fkgsec.defenses.transport import make_transport
from fkgsec.exchange import Transport
from fkgsec.experiments.runs.run import execute
from fkgsec.experiments.runs.spec import Spec
from fkgsec.experiments.runs.stored import encode_stored
from fkgsec.federation import checkpoint
from fkgsec.federation.checkpoint import RoundEntry
from fkgsec.federation.loop import CHECKPOINT, Observer, run_federation, run_identity
from fkgsec.federation.messages import AnyMessage, Channel, ProtocolMessage, Rows, encode
from fkgsec.kge.options import KgeOptions
from fkgsec.kge.result import KgeResult
from fkgsec.protocols import psu
from fkgsec.protocols.core.keys import generate
from fkgsec.protocols.core.prg import Randomness, digest, seeded
from fkgsec.protocols.noise.sampling import gaussian
from fkgsec.protocols.secagg.messages import Advertisement
from fkgsec.randomness import generator
from tests.pictures import sketched  # noqa: F401

SEED = 1234
SMALL = {
    "size": 240, "clients": 3, "dim": 4, "batch_size": 128, "num_negatives": 7, "local_epochs": 1, "rounds": 1,
    "eval_every": 1, "patience": 0, "seed": SEED, "device": "cpu", "attack": ("update-recovery",),
}  # fmt: skip
Source = Callable[..., Randomness]
Identity = Callable[[int], bytes]


def leaves(value: Any, seen: set[int] | None = None) -> Iterator[int | bytes]:
    """Every number and every string of bytes that can be reached from a value."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, int | bytes):
        yield value
    elif isinstance(value, str):
        yield value.encode()
        if len(value) % 2 == 0 and set(value) <= set("0123456789abcdef"):
            yield bytes.fromhex(value)
        if value.isdecimal():
            yield int(value)
    elif isinstance(value, torch.Tensor | np.ndarray):
        content = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value
        if content.dtype == object:
            yield from leaves(content.tolist(), seen)
        else:
            yield content.tobytes()
            if np.issubdtype(content.dtype, np.integer):
                yield from (int(one) for one in np.unique(content))
    elif isinstance(value, dict):
        yield from leaves([*value.keys(), *value.values()], seen)
    elif isinstance(value, list | tuple | set | frozenset):
        for one in value:
            yield from leaves(one, seen)
    elif isinstance(value, msgspec.Struct):
        yield from leaves(msgspec.structs.asdict(value), seen)
    elif dataclasses.is_dataclass(value) or hasattr(value, "__dict__"):
        yield from leaves(vars(value), seen)


def _raw(own: PartyEntropy) -> bytes:
    return own.identity.private_bytes_raw()


def _drawn_by(entropy: Entropy, purpose: str, table: Any, round: int, place: int) -> Randomness:
    return entropy.of(place).randomness(purpose, table, round)


def sources(candidate: int | bytes, run: str) -> list[tuple[Source, Identity]]:
    """What the exchange would draw if the candidate were what it draws from."""
    if isinstance(candidate, bytes):
        entropies = [candidate] if len(candidate) == 32 else []
    else:
        entropies = [digest("fixed entropy of an exchange", candidate)] if 0 <= candidate < 2**63 else []
    found: list[tuple[Source, Identity]] = []
    for entropy in entropies:
        whole = Entropy(entropy, run)
        found.append((partial(_drawn_by, whole), lambda place, whole=whole: _raw(whole.of(place))))
        if isinstance(candidate, bytes):  # or what one party alone draws from
            own = PartyEntropy(entropy, entropy, run)
            found.append((lambda *where, own=own: own.randomness(*where[:3]), lambda _, own=own: _raw(own)))
    if isinstance(candidate, int):
        found.append(
            (
                lambda *where: seeded(generator(candidate, "protocol", run, *where).bytes(32)),
                lambda place: generator(candidate, "identity", run, place).bytes(32),
            )
        )
    return found


def opened_by(candidate: int | bytes, result: KgeResult) -> set[str]:
    """What of the run's secrets the candidate gives: keys of masks, identities, local noise."""
    graph, options = result.graph, result.options
    run, given = run_identity(graph, options), set()
    messages = [message for number in (0, 1) for message in result.transcript.messages(number)]
    advertised = [
        message
        for message in messages
        if isinstance(message, ProtocolMessage) and message.step == "secagg-advertisement" and message.round == 1
    ]
    uploads = [message for message in messages if isinstance(message, Rows) and message.round == 1]
    received = {
        message.receiver: message.unpack().double().numpy()
        for message in messages
        if isinstance(message, Rows) and message.round == 0
    }
    parties = [f"client/{client.name}" for client in graph.clients]
    for source, identity in sources(candidate, run):
        for message in advertised:
            place, told = parties.index(message.sender), psu.decode_message(message.content)
            assert isinstance(told, Advertisement)
            if generate(source("rows", "entities", 1, place)).public == told.mask_key:
                given.add("mask keys")
            if _signed(told, identity(place)):
                given.add("identities")
        for message in uploads:
            if message.sender == "server":
                continue
            place, rows = parties.index(message.sender), message.unpack().double().numpy()
            change = rows - received[message.sender][: len(rows)]
            noise = gaussian(rows.size, 1.0, source("local noise", "entities", 1, place))
            if np.corrcoef(noise, change.ravel())[0, 1] > 0.5:
                given.add("noise")
    return given


def _signed(told: Advertisement, private: bytes) -> bool:
    """Whether this key would have made the signature; Ed25519 is deterministic, so the claim is signed again."""
    key = Ed25519PrivateKey.from_private_bytes(private)
    try:
        key.public_key().verify(told.signature, CLAIMS[told.sender])
    except (InvalidSignature, KeyError):
        return False
    return True


CLAIMS: dict[str, bytes] = {}


@pytest.fixture(autouse=True)
def claims(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what clients sign in round 1, which verifiers rebuild from public values."""
    from fkgsec.protocols.secagg import client as secagg_client

    made = secagg_client.advertised_claim

    def kept(setting: Any, party: str, *parts: Any) -> bytes:
        claim = made(setting, party, *parts)
        if setting.round == 1:
            CLAIMS[party] = claim
        return claim

    CLAIMS.clear()
    monkeypatch.setattr(secagg_client, "advertised_claim", kept)


def audited(folder: Path, **fields: Any) -> tuple[KgeResult, set[int | bytes]]:
    """A run, and every number and string of bytes in its record and in the view of each threat model."""
    spec = Spec(**(SMALL | fields))
    graph = spec.load_graph()
    finished = execute(spec, graph, folder, attack=True)
    result = run_federation(graph, spec.federation_options(), folder, make_transport=make_transport)
    views = [
        build_view(result, threat, colluder=graph.clients[0].name, leak=1.0, seed=spec.attack_options().seed)
        for threat in threat_models(KGE).values()
    ]
    record = json.loads(encode_stored(finished.record))
    texts = [path.read_text() for path in folder.glob("*.json")]
    return result, {*leaves(record), *leaves(views), *leaves([json.loads(text) for text in texts])}


@pytest.mark.parametrize("defense", ["psu,secagg,dp:clip=0.1,epsilon=8", "dp:clip=0.1,epsilon=8"])
def test_from_a_view_and_a_record_no_secret_of_a_protocol_can_be_recomputed(defense: str, tmp_path: Path) -> None:
    """Not from the seed, which the record states, nor from anything else: keys, identities and noise have another source."""
    result, candidates = audited(tmp_path, defense=defense)
    assert SEED in candidates, "the record states the seed, so the test must try it"
    for candidate in candidates:
        assert opened_by(candidate, result) == set(), f"{candidate!r} opens the run"
    entropy = entropy_of(tmp_path, result)
    expected = {"mask keys", "identities"} if "secagg" in defense else {"noise"}
    assert opened_by(entropy, result) == expected, "the derivations that were tried must be those of the run"
    assert entropy not in candidates


def entropy_of(folder: Path, result: KgeResult) -> bytes:
    tensors, _ = checkpoint.load(folder / CHECKPOINT, run_identity(result.graph, result.options))
    return tensors["exchange.entropy"].numpy().tobytes()


def test_a_record_says_when_the_protocols_randomness_was_fixed(tmp_path: Path) -> None:
    """Then its number, which the record states like every option, opens the run."""
    result, candidates = audited(tmp_path, defense="secagg", protocol_seed=77)
    assert {found for found in candidates if opened_by(found, result)} == {77}
    line = "protocol randomness: fixed for tests; anyone who knows protocol_seed can open every upload"
    assert line in json.loads((tmp_path / "record.json").read_text())["protection"]


class Killed(Exception):
    pass


class KilledAfter(Observer):
    """Kills a run once a round's messages have crossed, before a checkpoint of it is written."""

    def __init__(self, round: int) -> None:
        self._round = round

    def round_done(self, entry: RoundEntry) -> None:
        if entry.round == self._round:
            raise Killed


class Tapped:
    """The channels of a run and of the one that goes on from it, and what crossed each to the server in round 2."""

    def __init__(self) -> None:
        self.channels: list[Channel] = []
        self.sent: list[dict[tuple[str, str], bytes]] = []

    def __call__(self, channel: Channel, *others: Any) -> Transport:
        sent, send = {}, channel.send

        def keep(message: AnyMessage) -> AnyMessage:
            if message.receiver == "server" and message.round == 2:
                sent[message.sender, getattr(message, "step", "rows")] = encode(message)
            return send(message)

        channel.send = keep
        self.channels.append(channel)
        self.sent.append(sent)
        return make_transport(channel, *others)


@pytest.mark.parametrize(
    ("defense", "every_s"),
    [("psu,secagg", 0.0), ("secagg,dp:clip=0.1,epsilon=8", 1e9), ("dp:clip=0.1,epsilon=8", 0.0)],
    ids=["sums after a checkpoint", "noise in sums before any but the first", "noise after a checkpoint"],
)
def test_a_round_that_is_done_again_after_a_kill_has_the_same_noise_under_fresh_masks(
    defense: str, every_s: float, graph: Callable[[int], FederatedGraph], options: KgeOptions, tmp_path: Path
) -> None:
    """Else the server gets both kinds of share of one secret, or two draws of noise over one upload."""
    options = msgspec.structs.replace(options, defense=defense, protocol_seed=None, rounds=2, patience=0)
    tapped = Tapped()
    with pytest.raises(Killed):
        run_federation(graph(3), options, tmp_path, KilledAfter(2), every_s, tapped)
    opened = tapped.channels[0].transcript.opened(2)
    run_federation(graph(3), options, tmp_path, make_transport=tapped)
    assert opened == tapped.channels[1].transcript.opened(2)  # the sums, with their noise
    before, after = tapped.sent
    assert before.keys() == after.keys()
    fresh = {step for sender, step in before if before[sender, step] != after[sender, step]}
    expected = {"secagg-advertisement", "secagg-masked-upload"} if "secagg" in defense else set()
    assert fresh & {"rows", "secagg-advertisement", "secagg-masked-upload"} == expected
