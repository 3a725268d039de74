"""The server of a consortium on one machine, without Flower: it knocks at the doors that `fkgsec deploy party` listens at.

    commands.run(["-m", "tests.faults.apart", "consortium"], folder)

A party that is not there is waited for, as one whose process is started again is: the same request is made once more.
"""

import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from fkgsec.experiments.deploy.agreement import Agreement
from fkgsec.experiments.deploy.flower.inside.fkgsec_relay import wire
from fkgsec.experiments.deploy.layout import PartyFolder, ServerFolder
from fkgsec.experiments.deploy.server import serve
from fkgsec.experiments.runs.run import read_spec
from fkgsec.experiments.runs.spec import require_triples
from fkgsec.protocols.core.rounds import Silence

PATIENCE_S = 120.0


def main() -> None:
    root = Path(sys.argv[2 + sys.argv[1:].index("-m") + 1])
    folder = ServerFolder(root / "server")
    spec, agreement = require_triples(read_spec(folder.path), "deploy server"), Agreement.read(folder.agreement)

    def ask(stage: str, requests: Mapping[str, bytes]) -> Iterator[tuple[str, bytes | Silence]]:
        for address, request in requests.items():
            yield address, reply_of(root / "parties" / address.removeprefix("client/"), stage, request)

    serve(spec, agreement, ask, folder.run, checkpoint_every_s=0)


def reply_of(party: Path, stage: str, request: bytes) -> bytes | Silence:
    """What the party's own process replies, however often that is started again meanwhile."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            with wire.connect(PartyFolder(party).address) as stream:
                wire.send(stream, {"stage": stage}, request)
                header, reply = wire.receive(stream)
                return Silence(header["silence"]) if header["silence"] else reply
        except wire.WireError as error:
            if time.monotonic() > until:
                return Silence(str(error))
            time.sleep(0.02)
