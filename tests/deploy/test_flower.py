"""Flower itself: SuperLink, gate and five SuperNodes as processes on the loopback interface, over TLS.

Needs Flower's commands (`pip install flwr`, see `fkgsec.experiments.deploy.flower.installed`). The parties answer in this
process, behind the addresses that their ClientApps find; `test_page` runs them as processes, with the commands of
docs/deployment.md."""

import contextlib
import os
import secrets
import signal
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from fkgsec.errors import RunError
from fkgsec.experiments.deploy.certificates import Authority
from fkgsec.experiments.deploy.consortium import Plan, make_consortium, write_node_key
from fkgsec.experiments.deploy.flower.installed import command
from fkgsec.experiments.deploy.flower.link import FlowerLink
from fkgsec.experiments.deploy.flower.local import Answer, Door, attend
from fkgsec.experiments.deploy.flower.processes import Registry, Supervised, entrance, superlink, supernode
from fkgsec.experiments.deploy.layout import PartyFolder, ServerFolder
from fkgsec.experiments.deploy.server import serve
from fkgsec.experiments.runs.record import Record, make_record
from fkgsec.experiments.tasks.kge import Spec
from fkgsec.federation.loop import run_federation
from fkgsec.protocols.core.rounds import Silence

try:
    command("flower-superlink")
except RunError as error:
    pytest.skip(str(error), allow_module_level=True)

pytestmark = pytest.mark.slow
NAMES = ("hospital-1", "hospital-2", "hospital-3", "hospital-4", "hospital-5")
SPEC = Spec(clients=5, size=300, dim=8, rounds=1)
WAIT_S, TIMEOUT_S = 600.0, 900.0


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Running:
    """A consortium whose Flower processes run; `answers` says by name what each party makes of a request."""

    def __init__(self, place: Path, stack: contextlib.ExitStack) -> None:
        self.place, self.stack, self.said = place, stack, list[str]()
        ports = (free_port(), free_port(), free_port())
        plan = Plan(
            parties=dict.fromkeys(NAMES, ""),
            server=f"127.0.0.1:{ports[0]}",
            superlink_port=ports[1],
            node_port=ports[2],
        )
        make_consortium(place, SPEC, plan)
        self.server = ServerFolder(place / "server")
        self.answers: dict[str, Answer] = {}
        self.programs = {"superlink": superlink(self.server), "gate": entrance(self.server)}
        self.programs |= {name: supernode(PartyFolder(place / "parties" / name)) for name in NAMES}
        self.kept: dict[str, Supervised] = {}

    def start(self) -> None:
        for name in ("superlink", "gate"):
            self.keep(name)
        registry = Registry(self.server, self.said.append)
        wait(lambda: registry.complete, registry.look)
        for name in NAMES:
            self.keep(name)
            door = self.stack.enter_context(Door(PartyFolder(self.place / "parties" / name).address))
            threading.Thread(target=self._attend, args=(name, door), daemon=True).start()

    def keep(self, name: str) -> None:
        program = self.programs[name]._replace(log=self.place / f"{name}.log")
        self.kept[name] = self.stack.enter_context(Supervised(program, self.said.append))

    def _attend(self, name: str, door: Door) -> None:
        with contextlib.suppress(OSError):
            attend(door, lambda frame: self.answers[name](frame), self.said.append)

    def kill(self, name: str) -> None:
        """As the machine would."""
        process = self.kept[name]._process
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        process.wait()

    def again(self, name: str, met: Callable[[], bool]) -> None:
        """Keep what was killed running, as its command does, until it is there."""
        wait(met, self.kept[name].look)
        assert met()


def wait(met: Callable[[], bool], meanwhile: Callable[[], None] = lambda: None, limit_s: float = WAIT_S) -> None:
    deadline = time.monotonic() + limit_s
    while not met() and time.monotonic() < deadline:
        meanwhile()
        time.sleep(0.2)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with contextlib.ExitStack() as stack:
        made = Running(tmp_path_factory.mktemp("flower") / "consortium", stack)
        made.start()
        yield made


@pytest.fixture(scope="module")
def link(running: Running) -> Iterator[FlowerLink]:
    with FlowerLink(running.server.path, timeout_s=TIMEOUT_S, say=running.said.append) as opened:
        opened.wait_for([f"client/{name}" for name in NAMES])
        yield opened


def post(port: int, path: str, authority: Path, length: int = 0) -> int:
    context = ssl.create_default_context(cafile=str(authority))
    request = urllib.request.Request(
        f"https://127.0.0.1:{port}{path}",
        data=b"",
        method="POST",
        headers={"Content-Type": "application/protobuf", "Content-Length": str(length)},
    )
    try:
        with urllib.request.urlopen(request, context=context, timeout=60) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def test_frames_cross_bit_for_bit(running: Running, link: FlowerLink) -> None:
    running.answers = {name: lambda frame: Silence("asleep") if frame == b"hush" else frame[::-1] for name in NAMES}
    large = secrets.token_bytes(6 << 20)  # more than one of Flower's chunks
    sent = dict(zip((f"client/{name}" for name in NAMES[:3]), (large, b"", b"hush"), strict=True))
    assert list(link.ask("echo", sent)) == [
        ("client/hospital-1", large[::-1]),
        ("client/hospital-2", b""),
        ("client/hospital-3", Silence("asleep")),
    ]


def test_the_gate_lets_supernodes_through_and_nothing_else(running: Running) -> None:
    settings, trusted = running.server.read_settings(), running.server.tls / "ca.crt"
    for path in (
        "/v1/control/list-nodes",
        "/v1/control/start-run",
        "/v1/runtime/acquire-task",
        "/v1/fleet/register-node",
    ):
        assert post(settings.port, path, trusted) == 403
    assert post(settings.port, "/v1/fleet/pull-messages", trusted) == 401  # the SuperLink's: nobody has signed it
    assert post(settings.port, "/v1/fleet/push-object", trusted, 17 << 20) == 413
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((_own_address(), settings.superlink_port), 5)


def _own_address() -> str:
    """Of this machine, where it has another than the loopback interface's; a second one of that otherwise."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stream, contextlib.suppress(OSError):
        stream.connect(("192.0.2.1", 9))
        return stream.getsockname()[0]
    return "127.0.0.2"


def stranger(running: Running, tmp_path: Path) -> tuple[PartyFolder, Path, dict[str, Any]]:
    folder, log = PartyFolder(tmp_path / "party"), tmp_path / "log"
    for made in (folder.node, folder.address.parent):
        made.mkdir(parents=True)
    server = f"127.0.0.1:{running.server.read_settings().port}"
    (folder.node / "node.json").write_text(f'{{"server": "{server}", "port": {free_port()}}}')
    folder.authority.write_bytes((running.server.tls / "ca.crt").read_bytes())
    write_node_key(folder, "stranger")
    return folder, log, {}


def test_an_unregistered_supernode_is_refused(running: Running, tmp_path: Path) -> None:
    folder, log, _ = stranger(running, tmp_path)
    with Supervised(supernode(folder)._replace(log=log), running.said.append) as kept:
        assert kept._process is not None
        kept._process.wait(WAIT_S)
        assert kept._process.returncode != 0
    assert "Failed to initialize the connection to the SuperLink" in log.read_text()
    assert "2004" in log.read_text()


def test_a_supernode_refuses_a_server_with_a_wrong_certificate(running: Running, tmp_path: Path) -> None:
    folder, log, _ = stranger(running, tmp_path)
    folder.key.write_bytes((running.place / "parties" / NAMES[0] / "node" / "key").read_bytes())  # a good key, even
    folder.authority.write_bytes(Authority.new("another").encoded()[0])
    gate = (running.place / "superlink.log").read_text().count("Activated node_id")
    with Supervised(supernode(folder)._replace(log=log), running.said.append):
        wait(lambda: log.exists() and "Connection attempt failed" in log.read_text())
        assert "Connection attempt failed" in log.read_text()
    assert (running.place / "superlink.log").read_text().count("Activated node_id") == gate


def over_flower(running: Running, link: FlowerLink, apart: Any, ask: Any = None) -> Record:
    """A run whose frames cross Flower; of a fault in between, see `ask`."""
    running.answers = {name: (lambda frame, name=name: apart.parties[name].answer(frame)) for name in NAMES}
    return serve(apart.spec, apart.terms, ask or link.ask, apart.root / "server")


@pytest.mark.parametrize(("algorithm", "defense"), [("feds", ""), ("fede", "psu,secagg")])
def test_a_run_over_flower_is_that_of_one_process(
    algorithm: str,
    defense: str,
    running: Running,
    link: FlowerLink,
    consortium: Callable[..., Any],
    plain: Callable[[Record], dict[str, Any]],
    same_embeddings: Callable[..., bool],
) -> None:
    from fkgsec.defenses.transport import make_transport

    apart = consortium(algorithm=algorithm, defense=defense, rounds=2, clients=len(NAMES))
    together = run_federation(apart.graph, apart.terms.options, make_transport=make_transport)
    assert plain(over_flower(running, link, apart)) == plain(make_record(apart.spec, together))
    assert same_embeddings(apart, together)  # under secure sums, too: sums of fixed point numbers are exact


def test_a_supernode_killed_before_unmasking_is_a_dropout_and_comes_back(
    running: Running, link: FlowerLink, consortium: Callable[..., Any]
) -> None:
    apart = consortium(defense="secagg:threshold=2", rounds=2, eval_every=2)
    silent: list[tuple[str, str]] = []
    stages: list[str] = []

    def ask(stage: str, requests: Mapping[str, bytes]) -> Iterator[tuple[str, bytes | Silence]]:
        if stage == "round 1: unmask" and stage not in stages:  # its masked rows are there, its shares are not
            running.kill(NAMES[1])
        if stage.startswith("round 2") and not any(one.startswith("round 2") for one in stages):
            running.again(NAMES[1], lambda: f"client/{NAMES[1]}" in link._nodes())
        stages.append(stage)
        for party, reply in link.ask(stage, requests):
            if isinstance(reply, Silence):
                silent.append((stage, party))
            yield party, reply

    record = over_flower(running, link, apart, ask)
    assert ("round 1: unmask", "client/hospital-2") in silent
    assert {party for _, party in silent} == {"client/hospital-2"}
    assert not [stage for stage, _ in silent if stage.startswith("round 2")]
    assert [entry.num_survivors for entry in record.rounds[1:]] == [3, 3]


def test_a_superlink_killed_in_a_run_and_started_again_changes_nothing(
    running: Running, link: FlowerLink, consortium: Callable[..., Any], plain: Callable[[Record], dict[str, Any]]
) -> None:
    apart = consortium(rounds=3)
    port, stages = running.server.read_settings().superlink_port, list[str]()

    def listens() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        return False

    def ask(stage: str, requests: Mapping[str, bytes]) -> Iterator[tuple[str, bytes | Silence]]:
        stages.append(stage)
        replies = link.ask(stage, requests)
        if stage.startswith("round 2") and stages.count(stage) == 1:
            running.kill("superlink")
            running.again("superlink", listens)
        return replies

    together = run_federation(apart.graph, apart.terms.options)
    assert plain(over_flower(running, link, apart, ask)) == plain(make_record(apart.spec, together))
    assert any("went away" in line for line in running.said)
