"""Adversaries that begin late, and the state before the end of a run from which their rounds are replayed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fkgsec.data.graph import FederatedGraph
from fkgsec.defenses.transport import make_transport
from fkgsec.errors import RunError
from fkgsec.federation import loop
from fkgsec.federation.adversary import Adversary
from fkgsec.federation.checkpoint import Progress, stands_at
from fkgsec.federation.loop import BEFORE_END, KEPT_BEFORE_END, run_federation
from fkgsec.federation.messages import SERVER, Transcript
from fkgsec.federation.options import replace
from fkgsec.federation.recipes import Table
from fkgsec.federation.steps import Passed, judge
from fkgsec.kge.options import KgeOptions
from fkgsec.kge.result import KgeResult

ROUNDS = 7
SUMS, CLIP = "psu,secagg", "robust:rule=clip"


class Loud(Adversary):
    """Uploads rows of its own from a round on, and notes when it was asked."""

    guarded = False

    def __init__(self, party: str, begins: int) -> None:
        super().__init__(party)
        self.begins, self.asked = begins, []

    def upload(self, round: int, table: Table, received: Tensor, trained: Tensor) -> Tensor:
        self.asked.append(round)
        return received + 0.25

    def broadcast(self, round: int, table: Table, receiver: str, rows: Tensor) -> Tensor:
        self.asked.append(round)
        return rows + 0.25

    def rounds_needed(self) -> list[int]:
        return [self.begins]


def of_rounds(options: KgeOptions, defense: str = "") -> KgeOptions:
    return replace(options, rounds=ROUNDS, eval_every=2, patience=0, defense=defense)


def same(one: KgeResult, other: KgeResult) -> bool:
    """To the bit: tables, ranks, rounds but for seconds, and in clear every message that was kept."""
    pairs = zip([*one.tables, *one.trained], [*other.tables, *other.trained], strict=True)
    equal = all(torch.equal(a.entities, b.entities) and torch.equal(a.relations, b.relations) for a, b in pairs)
    equal &= all((a == b).all() for a, b in zip(one.test_ranks, other.test_ranks, strict=True))
    rounds = [[(entry.round, entry.loss, entry.valid, entry.cut_rows) for entry in run.rounds] for run in (one, other)]
    clear = one.options.defense or one.transcript.frames == other.transcript.frames
    return equal and rounds[0] == rounds[1] and one.best_round == other.best_round and bool(clear)


@pytest.mark.parametrize(
    "defense", ["", pytest.param(CLIP, marks=pytest.mark.slow), pytest.param(SUMS, marks=pytest.mark.slow)]
)
def test_before_it_begins_the_run_is_that_without_it(uneven: FederatedGraph, options: KgeOptions, defense: str) -> None:
    asked = of_rounds(options, defense)
    adversary = Loud("large", 5)
    late = run_federation(uneven, asked, make_transport=make_transport, adversary=adversary)
    clean = run_federation(uneven, asked, make_transport=make_transport)
    assert adversary.asked == [5, 6, 7]
    assert [one.valid for one in late.rounds[:5]] == [one.valid for one in clean.rounds[:5]]
    assert [one.loss for one in late.rounds[:6]] == [one.loss for one in clean.rounds[:6]]  # it trains as others do
    assert late.rounds[6].loss != clean.rounds[6].loss


@pytest.mark.parametrize(
    ("defense", "party", "begins"),
    [
        ("", "large", 3),
        ("", "large", 4),
        ("", SERVER, 6),
        (CLIP, "large", 5),
        (SUMS, "large", 5),
        pytest.param(SUMS, SERVER, 6, marks=pytest.mark.slow),
        pytest.param(SUMS, "large", 4, marks=pytest.mark.slow),
        pytest.param(SUMS, "large", 3, marks=pytest.mark.slow),
        pytest.param(CLIP, SERVER, 6, marks=pytest.mark.slow),
    ],
)
def test_a_replay_from_the_state_before_the_end_has_the_bits_of_a_whole_one(
    uneven: FederatedGraph, options: KgeOptions, tmp_path: Path, defense: str, party: str, begins: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    asked = of_rounds(options, defense)
    run_federation(uneven, asked, tmp_path, make_transport=make_transport)
    assert stands_at(tmp_path / BEFORE_END)[1] == ROUNDS - KEPT_BEFORE_END == 3
    whole = run_federation(uneven, asked, make_transport=make_transport, adversary=Loud(party, begins))
    trained, train = [], loop.Federation.train

    def counted(self: loop.Federation, round: int, *rest: Any) -> object:
        trained.append(round)
        return train(self, round, *rest)

    monkeypatch.setattr(loop.Federation, "train", counted)
    replayed = run_federation(
        uneven, asked, make_transport=make_transport, adversary=Loud(party, begins), start=tmp_path / BEFORE_END
    )
    assert same(replayed, whole)
    assert trained == list(range(4 if begins > 3 else 1, ROUNDS + 1))  # one that begins earlier takes all rounds


def test_a_state_of_another_run_is_left_alone_and_a_damaged_one_named(
    uneven: FederatedGraph, options: KgeOptions, tmp_path: Path
) -> None:
    asked = of_rounds(options)
    run_federation(uneven, replace(asked, seed=asked.seed + 1), tmp_path)
    start = tmp_path / BEFORE_END
    whole = run_federation(uneven, asked, adversary=Loud("large", 5))
    assert same(run_federation(uneven, asked, adversary=Loud("large", 5), start=start), whole)
    start.write_bytes(start.read_bytes()[:-1])
    with pytest.raises(RunError, match=r"before-end\.safetensors: not a whole checkpoint"):
        run_federation(uneven, asked, adversary=Loud("large", 5), start=start)


def test_a_run_that_stops_early_has_the_state_too(uneven: FederatedGraph, options: KgeOptions, tmp_path: Path) -> None:
    """Validated every fifth round, and no better after the first: it ends in round 10, and the state is of round 6."""
    asked = replace(options, rounds=40, eval_every=5, patience=1, learning_rate=1e-9)
    found = run_federation(uneven, asked, tmp_path)
    assert found.rounds[-1].round == 10
    assert stands_at(tmp_path / BEFORE_END)[1] == 6
    begun = Loud("large", 30)  # never: the run without it ends before
    assert same(run_federation(uneven, asked, adversary=begun, start=tmp_path / BEFORE_END), found)
    assert begun.asked == []


@pytest.mark.parametrize(("round", "best_round"), [(3, 2), (4, 4), (5, 5)])
def test_from_the_round_in_which_it_begins_earlier_ones_are_not_kept(
    round: int, best_round: int, options: KgeOptions
) -> None:
    """Round 2 validated best, before the adversary begins in round 4."""

    class Clients:
        def __init__(self) -> None:
            self.options, self.transcript = of_rounds(options), Transcript()

        def keep(self, round: int) -> None: ...

        def retain(self, *rounds: int) -> None: ...

    progress = Progress("run", best_round=2, best_valid=0.9)
    passed = Passed(round, 0.0, True, lambda: 1.0, [], lambda: 0.5)
    judge(Clients(), progress, passed, begins=4)  # type: ignore[arg-type]
    assert progress.best_round == best_round
    assert progress.best_valid == (0.9 if best_round == 2 else 0.5)
