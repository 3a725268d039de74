"""What parties apart read under input that nobody thought of (`tests.faults.damage`): files, requests, replies, parcels.

A party answers whatever it is sent; a server ends with a record or a refusal, whatever one of its parties says.
"""

from __future__ import annotations

import functools
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from fkgsec.experiments.deploy.agreement import SECRET, Agreement, read_secret
from fkgsec.experiments.deploy.certificates import Authority, node_key, public_pem
from fkgsec.experiments.deploy.core.conversation import Journal
from fkgsec.experiments.deploy.core.messages import Reply, decode
from fkgsec.experiments.deploy.data import read_party_data
from fkgsec.experiments.deploy.flower.inside.fkgsec_relay import wire
from fkgsec.experiments.deploy.keys import PublicKeys
from fkgsec.experiments.deploy.layout import NodeSettings, ServerSettings, encode_settings, read_settings
from fkgsec.experiments.deploy.party import STATE, Party
from fkgsec.experiments.deploy.policy import PartySettings, Policy
from fkgsec.experiments.deploy.server import Server, serve
from fkgsec.federation.loop import CHECKPOINT
from fkgsec.protocols.core.rounds import Silence
from tests.deploy.conftest import Consortium
from tests.faults.damage import MANY, QUICK, Target, tried

LIAR, RUNS = "hospital-1", 40
STAGES = {"hello": "round 0: alignment", "upload": "round 1: upload", "measured": "round 1: measure"}


class Kept:
    """A consortium of which everything was kept: its folders before the run and after it, and what its first party was sent."""

    def __init__(self) -> None:
        self.made = Consortium(Path(tempfile.mkdtemp()) / "made", rounds=1)
        self.before = self.made.root.with_name("before")
        shutil.copytree(self.made.root, self.before)
        self.requests, self.replies = dict[str, bytes](), dict[str, bytes]()
        serve(self.made.spec, self.made.terms, self.ask, self.made.root / "server")

    def ask(self, stage: str, requests: Mapping[str, bytes]) -> Iterator[tuple[str, bytes | Silence]]:
        for party, reply in self.made.ask(stage, requests):
            if party == f"client/{LIAR}" and isinstance(reply, bytes):
                self.requests[stage], self.replies[stage] = requests[party], reply
            yield party, reply

    def party(self, root: Path, name: str) -> Party:
        return Party(root / name, name, self.made.terms, read_party_data(root / "data" / name, name))


@functools.cache
def kept() -> Kept:
    return Kept()


def answered(file: Path) -> object:
    """A fresh party's reply to a request, which is one whatever it was sent."""
    with tempfile.TemporaryDirectory() as folder:
        root = shutil.copytree(kept().before, Path(folder) / "root")
        party = kept().party(root, LIAR)
        party.answer(kept().requests[STAGES["hello"]])
        return decode(party.answer(file.read_bytes()), Reply)


def told(what: str) -> Callable[[Path], object]:
    """The run of a server to which one party says this in place of one of its replies."""

    def read(file: Path) -> object:
        with tempfile.TemporaryDirectory() as folder:
            root = shutil.copytree(kept().before, Path(folder) / "root")
            parties = {name: kept().party(root, name) for name in kept().made.names}

            def ask(stage: str, requests: Mapping[str, bytes]) -> Iterator[tuple[str, bytes | Silence]]:
                for address, request in requests.items():
                    name = address.removeprefix("client/")
                    reply = parties[name].answer(request)
                    yield address, file.read_bytes() if (name, stage) == (LIAR, STAGES[what]) else reply

            return serve(kept().made.spec, kept().made.terms, ask, root / "server")

    return read


def received(file: Path) -> object:
    """A parcel of a Flower process."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.settimeout(5)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**22)
        ours.sendall(file.read_bytes())
        ours.close()
        return wire.receive(theirs)


def parcel(folder: Path) -> bytes:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        wire.send(ours, {"id": "7f3a-1", "stage": "round 1: upload"}, b"frame" * 20)
        ours.close()
        with theirs.makefile("rb") as pipe:
            return pipe.read()


def journal(folder: Path) -> bytes:
    one = Journal(folder / "made")
    for serial in (1, 2):
        one.write(serial, {"client/a": b"reply" * 20, "client/b": Silence("timeout")})
    return (folder / "made").read_bytes()


def restored(file: Path) -> object:
    """A server that goes on from a checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        return Server(kept().made.terms, kept().made.ask, Path(folder)).restore(file)


def state_of(file: Path) -> object:
    """A party that goes on from its state."""
    with tempfile.TemporaryDirectory() as folder:
        root = shutil.copytree(kept().made.root, Path(folder) / "root")
        shutil.copy(file, root / LIAR / STATE)
        return kept().party(root, LIAR)


def settings(folder: Path) -> bytes:
    return encode_settings(PartySettings(name=LIAR, data="data", policy=Policy.exactly(kept().made.terms)))


def public(folder: Path) -> bytes:
    line = node_key("north")[1].decode()
    return encode_settings(PublicKeys(party="north", run=kept().made.terms.run, node=line, identity="ab" * 32))


@functools.cache
def authority() -> tuple[bytes, bytes]:
    return Authority.new("consortium").encoded()


FILES = (
    Target("agreement", "agreement.json", lambda folder: _written(kept().made.terms, folder), Agreement.read),
    Target("party settings", "party.json", settings,
           lambda path: read_settings(path, PartySettings, "party").policy.check(kept().made.terms)),
    Target("node settings", "node.json", lambda folder: encode_settings(NodeSettings(server="127.0.0.1:8443", port=9094)),
           lambda path: read_settings(path, NodeSettings, "party")),
    Target("server settings", "server.json",
           lambda folder: encode_settings(ServerSettings(listen="0.0.0.0", port=8443, superlink_port=8000)),
           lambda path: read_settings(path, ServerSettings, "server")),
    Target("public keys", "public.json", public,
           lambda path: public_pem(read_settings(path, PublicKeys, "party").node.encode())),
    Target("node key", "key.pub", lambda folder: node_key("north")[1], lambda path: public_pem(path.read_bytes())),
    Target("certificate", "ca.crt", lambda folder: authority()[0],
           lambda path: Authority.read(authority()[1], path.read_bytes())),
    Target("authority key", "ca.key", lambda folder: authority()[1],
           lambda path: Authority.read(path.read_bytes(), authority()[0])),
    Target("secret", SECRET, lambda folder: b"s" * 32, lambda path: read_secret(path.parent)),
    Target("journal", "journal.bin", journal, Journal),
    Target("address", "party.address", lambda folder: b'{"socket": "party.sock", "token": "abcd"}', wire.connect,
           refusals=(wire.WireError,)),
    Target("parcel", "parcel", parcel, received, refusals=(wire.WireError,)),
)  # fmt: skip
RUNNING = (
    Target("first request", "frame", lambda folder: kept().requests[STAGES["hello"]], answered),
    Target("request", "frame", lambda folder: kept().requests[STAGES["upload"]], answered),
    *(Target(f"{what} reply", "frame", lambda folder, stage=stage: kept().replies[stage], told(what))
      for what, stage in STAGES.items()),
    Target("party state", "state", lambda folder: (kept().made.root / LIAR / STATE).read_bytes(), state_of),
    Target("server checkpoint", "state", lambda folder: (kept().made.root / "server" / CHECKPOINT).read_bytes(), restored),
)  # fmt: skip


def _written(terms: Agreement, folder: Path) -> bytes:
    terms.write(folder / "made")
    return (folder / "made").read_bytes()


@pytest.mark.parametrize("target", [FILES[0], FILES[9], RUNNING[1]], ids=lambda target: target.name)
def test_a_few_damaged_inputs(target: Target, tmp_path: Path) -> None:
    assert tried(target, tmp_path, QUICK) >= QUICK


@pytest.mark.slow
@pytest.mark.parametrize("target", FILES, ids=lambda target: target.name)
def test_many_damaged_files(target: Target, tmp_path: Path) -> None:
    assert tried(target, tmp_path, MANY) >= min(MANY, RUNS)


@pytest.mark.slow
@pytest.mark.parametrize("target", RUNNING, ids=lambda target: target.name)
def test_damaged_messages_in_a_run(target: Target, tmp_path: Path) -> None:
    assert tried(target, tmp_path, RUNS) >= RUNS


@pytest.mark.parametrize("what", STAGES)
def test_what_is_not_damaged_is_taken(what: str, tmp_path: Path) -> None:
    (tmp_path / "frame").write_bytes(kept().replies[STAGES[what]])
    told(what)(tmp_path / "frame")
    assert not decode(kept().replies[STAGES[what]], Reply).error
