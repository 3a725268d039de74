"""An adversary from outside: a client that uploads the opposite of what it learnt, stated in the run's identity."""

from collections.abc import Collection

import torch
from torch import Tensor

from fkgsec import KgeOptions, generate_consortium, run_federation
from fkgsec.federation.adversary import Adversary
from fkgsec.federation.loop import run_identity
from fkgsec.federation.messages import Rows
from fkgsec.federation.recipes import Table


class Flipper(Adversary):
    def upload(self, round: int, table: Table, received: Tensor, trained: Tensor) -> Tensor:
        return 2 * received - trained

    def rounds_needed(self) -> Collection[int]:
        return (2,)


def test_it_flips_its_uploads_and_nothing_else() -> None:
    graph = generate_consortium(clients=3, size=300, seed=0)
    options = KgeOptions(dim=8, rounds=4, eval_every=4, batch_size=64, num_negatives=8, device="cpu")
    honest, flipped = run_federation(graph, options), run_federation(graph, options, adversary=Flipper("hospital-2"))
    assert run_identity(graph, options) != run_identity(graph, options, Flipper("hospital-2"))
    assert 2 in flipped.transcript.frames
    assert 2 not in honest.transcript.frames
    started = flipped.started["entities"]["client/hospital-2"]
    sent = {
        m.sender: m.unpack() for m in flipped.transcript.messages(4) if isinstance(m, Rows) and m.receiver == "server"
    }
    own = sent["client/hospital-2"]
    trained = flipped.trained[1].entities[: len(own)]
    torch.testing.assert_close(own - started[: len(own)], started[: len(own)] - trained, atol=1e-6, rtol=0)
    assert torch.equal(sent["client/hospital-1"], flipped.trained[0].entities[: len(sent["client/hospital-1"])])
    assert not torch.equal(flipped.tables[0].entities, honest.tables[0].entities)
