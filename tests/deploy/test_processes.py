"""Parties and a server as processes of the operating system, joined by sockets and killed without warning."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from fkgsec.experiments.deploy.server import serve
from fkgsec.experiments.runs.record import Record, make_record, read_record
from fkgsec.experiments.tasks.kge import Spec
from fkgsec.federation.loop import run_federation
from fkgsec.protocols.core.rounds import Silence

PARTY = """
import contextlib, socket, sys
from pathlib import Path
from fkgsec.experiments.deploy.agreement import Agreement
from fkgsec.experiments.deploy.data import read_party_data
from fkgsec.experiments.deploy.party import Party
root, name = Path(sys.argv[1]), sys.argv[2]
party = Party(root / name, name, Agreement.read(root / "agreement.json"), read_party_data(root / "data" / name, name))
with socket.socket(socket.AF_UNIX) as door:
    door.bind(str(root / f"{name}.sock"))
    door.listen()
    while True:
        stream, _ = door.accept()
        with contextlib.suppress(OSError), stream, stream.makefile("rwb") as pipe:  # a killed server hangs up
            reply = party.answer(pipe.read(int.from_bytes(pipe.read(8), "big")))
            pipe.write(reply)
"""
SERVER = """
import sys
from pathlib import Path
sys.path.insert(0, str(Path(sys.argv[2]).parent))
import test_processes as here
here.serve_processes(Path(sys.argv[1]))
"""


def ask_processes(root: Path) -> Callable[[str, Mapping[str, bytes]], Iterator[tuple[str, bytes | Silence]]]:
    """A network of sockets: a party that cannot be reached, or dies while it answers, is silent."""

    def ask(stage: str, requests: Mapping[str, bytes]) -> Iterator[tuple[str, bytes | Silence]]:
        with (root / "stages").open("a") as log:
            log.write(f"{stage}\n")
        for address, request in requests.items():
            yield address, reply_of(root / f"{address.removeprefix('client/')}.sock", request)

    return ask


def reply_of(path: Path, request: bytes) -> bytes | Silence:
    try:
        with socket.socket(socket.AF_UNIX) as stream:
            stream.connect(str(path))
            stream.sendall(len(request).to_bytes(8, "big") + request)
            stream.shutdown(socket.SHUT_WR)
            with stream.makefile("rb") as pipe:
                reply = pipe.read()
    except OSError as error:
        return Silence(f"not reached ({error.strerror})")
    return reply or Silence("it closed the connection")


def serve_processes(root: Path) -> None:
    """What a server's process does."""
    from fkgsec.experiments.deploy.agreement import Agreement

    spec = json.loads((root / "spec.json").read_text())
    from fkgsec.experiments.runs.spec import make_spec

    made: Spec = make_spec(None, spec)
    serve(made, Agreement.read(root / "agreement.json"), ask_processes(root), root / "server", checkpoint_every_s=0)


class Processes:
    """The processes of a consortium."""

    def __init__(self, apart: Any, options: dict[str, Any]) -> None:
        self.apart, self.root = apart, apart.root
        apart.terms.write(self.root / "agreement.json")
        (self.root / "spec.json").write_text(json.dumps(options))
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        (self.root / "stages").touch()

    def start(self, name: str) -> None:
        code = SERVER if name == "server" else PARTY
        (self.root / f"{name}.sock").unlink(missing_ok=True)
        environment = os.environ | {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
        arguments = [sys.executable, "-W", "ignore", "-c", code, str(self.root), name if code is PARTY else __file__]
        self.running[name] = subprocess.Popen(arguments, env=environment, cwd=Path(__file__).parents[2])
        if code is PARTY:
            self.wait(lambda: (self.root / f"{name}.sock").exists())

    def kill(self, name: str) -> None:
        self.running[name].send_signal(signal.SIGKILL)
        self.running[name].wait()

    def wait(self, arrived: Callable[[], bool], seconds: float = 300) -> None:
        end = time.monotonic() + seconds
        while not arrived():
            assert time.monotonic() < end, (self.root / "stages").read_text()
            time.sleep(0.005)

    def reached(self, stage: str) -> bool:
        return stage in (self.root / "stages").read_text().splitlines()

    def close(self) -> None:
        for one in self.running.values():
            one.kill()
            one.wait()


@pytest.mark.slow
def test_a_server_killed_in_every_round_and_a_party_killed_in_a_session(
    consortium: Callable[..., Any], plain: Callable[[Record], dict[str, Any]]
) -> None:
    options = {"size": 300, "dim": 16, "batch_size": 64, "num_negatives": 8, "rounds": 4, "eval_every": 1}
    options |= {"learning_rate": 0.01, "device": "cpu", "defense": "psu,secagg:threshold=2"}
    apart = consortium(**options)
    together = run_federation(apart.graph, apart.terms.options, make_transport=_defended())
    machines = Processes(apart, options)
    try:
        for name in apart.names:
            machines.start(name)
        for stage in ("round 0: mask", "round 1: share", "round 2: unmask", "round 4: share"):
            machines.start("server")
            machines.wait(lambda stage=stage: machines.reached(stage))
            machines.kill("server")
        machines.start("server")
        assert machines.running["server"].wait(timeout=300) == 0
        record = read_record(machines.root / "server" / "record.json")
        assert plain(record) == plain(make_record(apart.spec, together))
    finally:
        machines.close()


def _defended() -> Any:
    from fkgsec.defenses.transport import make_transport

    return make_transport
