"""A consortium on one machine whose parties share nothing but bytes, with a network that can fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file

from fkgsec.experiments.deploy.agreement import Agreement, new_identity, new_run
from fkgsec.experiments.deploy.core.measure import EMBEDDINGS
from fkgsec.experiments.deploy.data import read_party_data, write_party_folders
from fkgsec.experiments.deploy.party import Party
from fkgsec.experiments.deploy.server import Server, serve, train_apart
from fkgsec.experiments.runs.record import Record
from fkgsec.experiments.runs.spec import make_spec
from fkgsec.federation.checkpoint import Progress
from fkgsec.federation.steps import Observer
from fkgsec.kge.result import KgeResult
from fkgsec.protocols.core.rounds import Silence

TINY = {
    "size": 300,
    "dim": 16,
    "batch_size": 64,
    "num_negatives": 8,
    "rounds": 3,
    "eval_every": 1,
    "learning_rate": 0.01,
    "device": "cpu",
}
Fault = Callable[[str, str, bytes], bytes | Silence | None]
"""(stage, party, request) -> what comes of it in place of the party's reply; None: the reply."""


class Consortium:
    """Clients in folders of their own, and what the server needs to reach them.

    Attributes:
        stages: of all requests. crossed: all requests and replies. fault: what the network does to a request.
    """

    def __init__(self, root: Path, randomness: str = "laboratory", **options: Any) -> None:
        self.root = root
        self.spec = make_spec(None, TINY | options)
        self.graph = self.spec.load_graph()
        self.names = [client.name for client in self.graph.clients]
        write_party_folders(self.graph, root / "data")
        run = new_run()
        keys = {name: new_identity(root / name, run) for name in self.names}
        self.terms = Agreement(
            run=run,
            options=self.spec.federation_options(),
            parties=tuple(self.names),
            identities=keys,
            randomness=randomness,  # type: ignore[arg-type]
            audit=tuple(self.spec.attack),
        )
        self.parties = {name: self.party(name) for name in self.names}
        self.stages: list[str] = []
        self.crossed: list[bytes] = []
        self.fault: Fault = lambda stage, party, request: None

    def party(self, name: str) -> Party:
        """A new process of a party, as it were: all that it knows is what lies in its folder."""
        return Party(self.root / name, name, self.terms, read_party_data(self.root / "data" / name, name))

    def restart(self, name: str) -> None:
        self.parties[name] = self.party(name)

    def ask(self, stage: str, requests: Mapping[str, bytes]) -> Iterator[tuple[str, bytes | Silence]]:
        self.stages.append(stage)
        for address, request in requests.items():
            came = self.fault(stage, address, request)
            reply = self.parties[address.removeprefix("client/")].answer(request) if came is None else came
            self.crossed += [request, *([reply] if isinstance(reply, bytes) else [])]
            yield address, reply

    def serve(self, **more: Any) -> Record:
        return serve(self.spec, self.terms, self.ask, self.root / "server", **more)

    def train(self) -> tuple[Server, Progress]:
        """The rounds alone, with the server that ran them."""
        folder = self.root / "server"
        folder.mkdir(exist_ok=True)
        server = Server(self.terms, self.ask, folder)
        return server, train_apart(server, folder / "checkpoint.safetensors", Observer(), 0)


@pytest.fixture
def consortium(tmp_path: Path) -> Callable[..., Consortium]:
    def make(folder: str = "", **options: Any) -> Consortium:
        (tmp_path / folder).mkdir(exist_ok=True)
        return Consortium(tmp_path / folder, **options)

    return make


@pytest.fixture(scope="session")
def plain() -> Callable[[Record], dict[str, Any]]:
    return _plain


@pytest.fixture
def same_embeddings() -> Callable[[Consortium, KgeResult], bool]:
    """Whether what each party keeps of its run is, bit for bit, what the run of one process returns."""
    return _same_embeddings


def _same_embeddings(apart: Consortium, together: KgeResult) -> bool:
    for place, name in enumerate(apart.names):
        own = load_file(apart.root / name / EMBEDDINGS)
        for kind in ("tables", "trained", *(["private"] if together.private else [])):
            theirs = getattr(together, kind)[place]
            for part in ("entities", "relations"):
                if not torch.equal(own[f"{kind}.{part}"], getattr(theirs, part)):
                    return False
    return True


def _plain(record: Record) -> dict[str, Any]:
    """What a record says of a run, wherever it was made: not machine, time, digests, data as the server knows them, the
    statement, and what only one process can know: the rank of each test item, and which stand in another client's training."""
    told = msgspec.to_builtins(record)
    for name in ("environment", "data", "protection", "origin", "items", "items_shared"):
        del told[name]
    told["utility_by_leak"] = {"leaked": told["utility_by_leak"]["leaked"]}
    for entry in told["rounds"]:
        del entry["seconds"]
    return told
