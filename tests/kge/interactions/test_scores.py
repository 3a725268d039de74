"""Every interaction of PyKEEN: its scores of a model of PyKEEN's and of the same parameters in rows."""

from __future__ import annotations

import math
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from fkgsec.errors import SpecError
from fkgsec.kge.interactions.layout import Plugged
from fkgsec.kge.interactions.network import InteractionModel
from fkgsec.kge.models import ENCODERS, MODELS, KgeModel
from fkgsec.kge.options import KgeOptions
from tests.kge.interactions.conftest import NAMES, needs_pykeen

pytestmark = [needs_pykeen, pytest.mark.filterwarnings("ignore")]  # PyKEEN's own, of what it is built on
DIM = 16
QUICK = ("ConvE", "KG2E", "MuRE", "RotatE", "TransH", "TransR(e=6)")  # the others with the slow ones


def model_of_pykeen(plugged: Plugged) -> Any:
    """A model of PyKEEN's with this interaction for 6 entities and 3 relations; all its parameters are drawn."""
    from pykeen.models import ERModel
    from pykeen.triples import CoreTriplesFactory

    triples = torch.tensor([[0, 0, 1], [2, 1, 3], [4, 2, 5]])
    sizes = {"d": DIM, "e": DIM, "f": DIM, "k": 4, "s": 1} | dict(plugged.sizes)
    interaction = plugged.make(DIM)

    def representations(shapes: Any) -> list[dict[str, Any]]:
        dtype = torch.complex64 if interaction.is_complex else torch.float32
        return [{"shape": tuple(sizes[one] for one in shape), "dtype": dtype} for shape in shapes]

    model = ERModel(
        triples_factory=CoreTriplesFactory.create(triples),
        interaction=interaction,
        entity_representations_kwargs=representations(interaction.entity_shape),
        relation_representations_kwargs=representations(interaction.relation_shape) or None,
        relation_representations=None if interaction.relation_shape else [],
        random_seed=0,
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
        if plugged.short == "KG2E":  # variances
            for two in (model.entity_representations, model.relation_representations):
                two[1]._embeddings.weight.abs_().add_(0.05)
        if plugged.short == "RotatE":
            weight = model.relation_representations[0]._embeddings.weight
            angles = torch.rand(3, DIM) * 2 * math.pi - math.pi
            weight.copy_(torch.view_as_real(torch.polar(torch.ones(3, DIM), angles)).flatten(1))
    return model.eval()


def rows_of(representations: Any, count: int, plugged: Plugged, initial_range: float, *, relations: bool) -> Tensor:
    """What PyKEEN's representations are as rows, written down from the description of `layout`."""
    parts: list[Tensor] = [torch.empty(count, 0)]
    for number, one in enumerate(representations):
        found = one(None).detach().reshape(count, -1)
        if plugged.short == "KG2E" and number == 1:
            found = found.log()
        if plugged.short == "RotatE" and relations:
            found = found.angle() * initial_range / math.pi
        parts += [found.real, found.imag] if found.is_complex() else [found]
    return torch.cat(parts, dim=1)


def ours(plugged: Plugged, theirs: Any) -> KgeModel:
    """Our model with PyKEEN's interaction's own parameters, where it has such."""
    if plugged.has_network:
        return InteractionModel(plugged.name, DIM, network=theirs.interaction.state_dict())
    return KgeModel(plugged.name, DIM)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
)
def test_scores_are_those_of_a_model_of_pykeen(name: str) -> None:
    """Of triples, and of every candidate on both sides, to 1e-5 of the largest."""
    plugged = Plugged.named(f"pykeen:{name}")
    theirs = model_of_pykeen(plugged)
    model = ours(plugged, theirs)
    assert (plugged.name in MODELS) is not plugged.has_network
    assert (plugged.name in ENCODERS) is plugged.has_network
    entities = rows_of(theirs.entity_representations, 6, plugged, model.initial_range, relations=False)
    relations = rows_of(theirs.relation_representations, 3, plugged, model.initial_range, relations=True)
    assert entities.shape == (6, model.entity_width)
    assert relations.shape == (3, model.relation_width)
    triples = torch.tensor([[0, 0, 1], [2, 1, 3], [4, 2, 5], [5, 0, 5]])
    h, r, t = triples.T
    with torch.no_grad():
        expected = theirs.score_hrt(triples)[:, 0], theirs.score_t(triples[:, :2]), theirs.score_h(triples[:, 1:])
        tails = model.score_all(model.query(entities[h], relations[r], "tail"), entities)
        heads = model.score_all(model.query(entities[t], relations[r], "head"), entities)
        found = model.score(entities[h], relations[r], entities[t]), tails, heads
    added = model.gamma if plugged.has_margin else 0.0
    for one, other in zip(found, expected, strict=True):
        scale = max(1.0, float(other.abs().max()))
        torch.testing.assert_close((one - added) / scale, other / scale, rtol=0, atol=1e-5)
    assert float(expected[1].std()) > 0


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("TransHH", "PyKEEN has no interaction 'TransHH'; did you mean TransH"),
        ("zzz", "PyKEEN has no interaction 'zzz'; allowed: AutoSF, BoxE, "),
        ("TransE(q=2)", "TransEInteraction has no argument q; allowed: p, power_norm"),
        ("TransE(p=", r"arguments are given as in pykeen:TransE\(p=2\)"),
        ("TransE(p=open('x'))", r"arguments are given as in pykeen:TransE\(p=2\)"),
        ("TransR(e=0)", "e must be a whole number of at least 1"),
        ("", "names no interaction; give pykeen:NAME"),
        ("AutoSF", "cannot be made for dim 64: missing 1 required positional argument: 'coefficients'"),
    ],
)
def test_a_name_that_means_nothing_is_one_line(name: str, said: str) -> None:
    with pytest.raises(SpecError, match=f"^model: .*{said}") as caught:
        KgeOptions(model=f"pykeen:{name}")
    assert "\n" not in str(caught.value)


def test_what_does_not_go_with_it_is_refused() -> None:
    with pytest.raises(
        SpecError, match=r"model pykeen:ConvE has a private network, .* training of fedlu does not support"
    ):
        KgeOptions(model="pykeen:ConvE", algorithm="fedlu")
    with pytest.raises(SpecError, match="pykeen:UM has no relation embeddings, which fedr shares"):
        KgeOptions(model="pykeen:UM", algorithm="fedr")
    with pytest.raises(SpecError, match="pykeen:Transformer cannot be made for dim 7"):
        KgeOptions(model="pykeen:Transformer", dim=7)
    assert KgeOptions(model="pykeen:TransH", algorithm="fedlu").model == "pykeen:TransH"


def test_without_pykeen_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pykeen.nn.modules", None)
    with pytest.raises(
        SpecError, match=r"pykeen: needs PyKEEN, which is not installed: pip install 'fkgsec\[pykeen\]'"
    ):
        KgeOptions(model="pykeen:TransE(p=7)")  # that nobody has asked for
