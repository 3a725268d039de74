"""Settings of algorithms: what a struct declares, what is refused and in which words, and flat documents."""

from types import SimpleNamespace
from typing import Annotated, Literal

import pytest
from msgspec import Meta

from fkgsec.errors import SpecError
from fkgsec.federation.options import RunOptions, flat, nested, replace, run_identities, run_identity
from fkgsec.federation.recipes import ENTITIES, RECIPES, Recipe, register
from fkgsec.federation.settings import AlgorithmSettings, fields_of
from fkgsec.kge.options import KgeOptions


class Made(AlgorithmSettings, frozen=True):
    weight: Annotated[float, Meta(ge=0, le=2, description="of something")] = 0.5
    count: Annotated[int, Meta(ge=1)] = 3
    rate: Annotated[float, Meta(gt=0)] = 0.1
    kind: Annotated[Literal["a", "b"], Meta(description="a or b")] = "a"
    flag: bool = False


def test_what_a_struct_declares() -> None:
    weight, count, rate, kind, flag = fields_of(Made)
    assert (weight.name, weight.kind, weight.default, weight.low, weight.high, weight.help) == (
        "weight", float, 0.5, 0, 2, "of something"
    )  # fmt: skip
    assert (count.kind, count.high, rate.above, kind.choices, flag.kind) == (int, None, True, ("a", "b"), bool)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"weight": 3}, r"^weight must lie in 0..2; got 3$"),
        ({"weight": float("nan")}, r"^weight must lie in 0..2; got nan$"),
        ({"weight": "1"}, r"^weight must be a number; got '1'$"),
        ({"weight": True}, r"^weight must be a number; got True$"),
        ({"count": 0}, r"^count must be at least 1; got 0$"),
        ({"count": 2.5}, r"^count must be a whole number; got 2.5$"),
        ({"rate": 0}, r"^rate must be a positive number; got 0$"),
        ({"kind": "c"}, r"^kind must be one of a, b; got 'c'$"),
        ({"flag": 1}, r"^flag must be true or false; got 1$"),
    ],
)
def test_what_is_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Made(**given)  # type: ignore[arg-type]


def test_given_settings_are_those_not_at_their_defaults() -> None:
    assert Made(weight=1, kind="a").given() == {"weight": 1.0}
    assert isinstance(Made(weight=1).weight, float)


def test_a_setting_without_default_is_refused_when_the_recipe_is_made() -> None:
    class Open(AlgorithmSettings, frozen=True):
        weight: float

    with pytest.raises(SpecError, match=r"Open.weight: a setting needs a default"):
        Recipe("open", ENTITIES, "this test", Open)


def test_two_recipes_of_one_name_are_refused() -> None:
    assert "fede" in RECIPES
    with pytest.raises(SpecError, match="algorithm 'fede' is registered already"):
        register(Recipe("fede", ENTITIES, "this test"))


def test_documents_are_flat_and_options_nested() -> None:
    assert nested({"algorithm": "feds", "sparsity": 0.2}) == {"algorithm": "feds", "settings": {"sparsity": 0.2}}
    assert flat({"algorithm": "feds", "settings": {"sparsity": 0.2}}) == {"algorithm": "feds", "sparsity": 0.2}
    options = replace(KgeOptions(algorithm="feds", settings={"sparse_rounds": 1}), sparsity=0.2)
    assert (options.settings.sparsity, options.settings.sparse_rounds) == (0.2, 1)
    assert replace(options, sparsity=None).settings.sparsity == 0.4
    assert replace(options, algorithm="fedepl").settings.sparsity == 0.2
    with pytest.raises(SpecError, match="sparse_rounds does not apply to fede, which has no such part"):
        replace(options, algorithm="fede", sparsity=None)


@pytest.mark.parametrize(("algorithm", "num_ways"), [("fede", 2**2), ("fedlu", 2**5), ("cefgl", 1)])
def test_identities_of_before_are_tried_where_there_was_a_version_before(algorithm: str, num_ways: int) -> None:
    options, graph = RunOptions(algorithm=algorithm), SimpleNamespace(hash="abc")
    identities = run_identities(graph, options)
    assert len(set(identities)) == num_ways
    assert identities[0] == run_identity(graph, options)
