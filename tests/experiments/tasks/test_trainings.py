"""Federations that attacks train: said beforehand, and read back after a kill."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import msgspec
import torch

from fkgsec import KgeOptions, generate_consortium
from fkgsec.defenses import make_transport
from fkgsec.experiments.tasks.trainings import Trainings
from fkgsec.federation.loop import Observer, run_federation

OPTIONS = KgeOptions(
    dim=8, rounds=2, local_epochs=1, eval_every=2, batch_size=64, num_negatives=4, device="cpu"
)  # fmt: skip


class Listening(Observer):
    def __init__(self) -> None:
        self.said: list[str] = []
        self.steps = 0

    def run_started(self, name: str, num_rounds: int) -> None:
        self.said.append(f"{name}, {num_rounds} rounds")

    def step_done(self) -> None:
        self.steps += 1


def test_an_attack_that_was_killed_goes_on(tmp_path: Path) -> None:
    graph = generate_consortium(clients=2, size=200, seed=0)
    train = partial(run_federation, make_transport=make_transport)
    seen = Listening()
    first = Trainings(train, tmp_path / "shadows", seen, count=2, seconds=90)
    made = first(graph, OPTIONS)
    assert seen.said == ["shadow federation 1 of 2; all 2 take about 3 min, 2 rounds"]
    assert seen.steps > 0
    again = Listening()
    second = Trainings(train, tmp_path / "shadows", again, count=2, seconds=90)
    read = second(graph, OPTIONS)
    assert again.steps == 0
    assert torch.equal(read.tables[0].entities, made.tables[0].entities)
    other = second(graph, msgspec.structs.replace(OPTIONS, seed=9))
    assert again.steps > 0
    assert not torch.equal(other.tables[0].entities, made.tables[0].entities)
    assert len(list((tmp_path / "shadows").iterdir())) == 2
    steps = again.steps
    second(graph, OPTIONS, rounds_needed=(1,))  # with something besides it is trained for itself
    assert again.steps == steps
    assert len(list((tmp_path / "shadows").iterdir())) == 2
    second.clear()
    assert not (tmp_path / "shadows").exists()
