"""An algorithm from outside, with two settings of its own: FedE whose clients are held back less in every round."""

from typing import Annotated

import pytest
from msgspec import Meta

from fkgsec import (
    ENTITIES,
    OBJECTIVES,
    RECIPES,
    AlgorithmSettings,
    KgeOptions,
    LocalRule,
    Recipe,
    WeightedObjective,
    generate_consortium,
    make_spec,
    register,
    run_federation,
)
from fkgsec.errors import SpecError


class LeashSettings(AlgorithmSettings, frozen=True):
    leash: Annotated[float, Meta(ge=0, le=100, description="weight of the distance to the rows received")] = 1.0
    decay: Annotated[float, Meta(gt=0, le=1, description="factor of that weight from round to round")] = 0.5


class Leash(LocalRule):
    def begin_round(self, round: int) -> None:
        self.weight = self.settings.leash * self.settings.decay ** (round - 1)

    def objective(self) -> WeightedObjective:
        return WeightedObjective(OBJECTIVES["squared"], getattr(self, "weight", 0.0))


def test_it_trains_by_its_settings_and_a_spec_reads_them(request: pytest.FixtureRequest) -> None:
    register(Recipe("leash", ENTITIES, "this test", LeashSettings, local=Leash))
    request.addfinalizer(lambda: RECIPES.remove("leash"))
    graph, runs = generate_consortium(clients=2, size=200, seed=0), {}
    for leash in (0.0, 50.0):
        spec = make_spec(None, {"algorithm": "leash", "leash": leash, "dim": 8, "rounds": 2, "device": "cpu"})
        runs[leash] = run_federation(graph, spec.federation_options()).rounds[-1].loss
    plain = KgeOptions(algorithm="fede", dim=8, rounds=2, device="cpu")
    assert run_federation(graph, plain).rounds[-1].loss == runs[0.0] != runs[50.0]
    with pytest.raises(SpecError, match=r"decay must .*got 0"):
        make_spec(None, {"algorithm": "leash", "decay": 0})


def test_a_bound_that_is_excluded_is_refused() -> None:
    """`lt` was once ignored."""

    class Below(AlgorithmSettings, frozen=True):
        share: Annotated[float, Meta(ge=0, lt=1)] = 0.5

    with pytest.raises(SpecError, match="share must be at least 0 and below 1; got 1"):
        Below(share=1.0)
