"""Our Adam beside torch's: the same bits, the same state, and nothing compiled on the way."""

import subprocess
import sys

import pytest
import torch

from fkgsec.adam import Adam, load_packed_state, packed_state

SHAPES = ((5, 3), (4,), (2, 2))


def steps(kind: type, *, decay: float, start: int = 0, load: dict | None = None) -> tuple[list[torch.Tensor], dict]:
    """Parameters after five steps, in which the second one has a gradient in every other step and the third one none."""
    torch.manual_seed(0)
    rows = [torch.randn(shape).requires_grad_() for shape in SHAPES]
    gradients = [[torch.randn(shape) for shape in SHAPES] for _ in range(5)]
    adam = kind(rows, lr=0.01, weight_decay=decay, **({} if kind is Adam else {"fused": True}))
    if load is not None:
        for row, kept in zip(rows, load["rows"], strict=True):
            row.detach().copy_(kept)
        adam.load_state_dict(adam.state_dict() | {"state": load["state"]})
    for number in range(start, 5):
        adam.zero_grad()
        rows[0].grad = gradients[number][0]
        rows[1].grad = gradients[number][1] if number % 2 else None
        adam.step()
        if number == 2 and load is None:
            halfway = {"rows": [row.detach().clone() for row in rows]}
            state = adam.state_dict()["state"]
            halfway["state"] = {place: {key: one.clone() for key, one in kept.items()} for place, kept in state.items()}
    return [row.detach() for row in rows], halfway if load is None else adam.state_dict()["state"]


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_the_bits_are_those_of_torch(decay: float) -> None:
    (ours, mine), (theirs, reference) = steps(Adam, decay=decay), steps(torch.optim.Adam, decay=decay)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert set(mine["state"]) == set(reference["state"]) == {0, 1}
    for place, kept in reference["state"].items():
        assert all(torch.equal(mine["state"][place][name], tensor) for name, tensor in kept.items())


def test_it_goes_on_from_a_state_that_either_gave() -> None:
    whole, _ = steps(Adam, decay=0.1)
    _, halfway = steps(torch.optim.Adam, decay=0.1)
    resumed, _ = steps(Adam, decay=0.1, start=3, load=halfway)
    assert all(torch.equal(a, b) for a, b in zip(whole, resumed, strict=True))


def test_a_step_without_any_gradient_moves_nothing() -> None:
    row = torch.ones(2, 2, requires_grad=True)
    Adam([row], lr=0.1).step()
    assert torch.equal(row.detach(), torch.ones(2, 2))


def test_training_does_not_import_a_compiler() -> None:
    code = """
import sys
from fkgsec import KgeOptions, generate_consortium, run_federation
run_federation(generate_consortium(clients=2, size=300), KgeOptions(dim=4, rounds=1, num_negatives=2))
print("torch._dynamo" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("kind", [Adam, torch.optim.Adam])
def test_a_packed_state_continues_with_the_same_bits(kind: type) -> None:
    gradients = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))

    def run(first: int, last: int, row: torch.Tensor, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        optimizer = kind([row, torch.zeros(2, requires_grad=True)], lr=0.01)
        load_packed_state(optimizer, state)
        for gradient in gradients[first:last]:
            row.grad = gradient.clone()
            optimizer.step()
        return packed_state(optimizer)

    through, halves = torch.zeros(4, requires_grad=True), torch.zeros(4, requires_grad=True)
    whole = run(0, 6, through, {})
    packed = run(3, 6, halves, run(0, 3, halves, {}))
    assert set(packed) == set(whole) == {"0.step", "0.exp_avg", "0.exp_avg_sq"}
    assert torch.equal(through, halves)
    assert all(torch.equal(packed[name], whole[name]) for name in whole)
