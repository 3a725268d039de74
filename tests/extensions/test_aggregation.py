"""An aggregation from outside: a coordinate-wise trimmed mean works in clear, and is refused where only sums are opened."""

from typing import Any

import pytest
import torch

from fkgsec import ENTITIES, RECIPES, KgeOptions, Recipe, generate_consortium, make_transport, register, run_federation
from fkgsec.errors import RunError, SpecError
from fkgsec.exchange import AGGREGATIONS, Aggregation, Delivered, SharedTable, Upload


class TrimmedMean(Aggregation):
    """Without the smallest and the largest value of each number that three clients or more uploaded."""

    needs = "single uploads"

    def aggregate(self, round: int, previous: torch.Tensor, delivered: Delivered) -> torch.Tensor:
        values = torch.full((len(delivered.uploads), *delivered.shape), torch.nan)
        for client, upload in enumerate(delivered.uploads.values()):
            values[client, upload.places] = upload.rows
        count = (~values.isnan()).sum(0)
        place, cut = torch.arange(len(values))[:, None, None], (count >= 3).long()
        kept = (place >= cut) & (place < count - cut)  # NaN is sorted last
        total = torch.where(kept, values.sort(dim=0).values, 0).sum(0)
        return torch.where(count > 0, total / kept.sum(0).clamp_min(1), previous)


def test_a_trimmed_mean(request: pytest.FixtureRequest) -> None:
    AGGREGATIONS.register("trimmed mean", TrimmedMean)
    register(Recipe("trimmed", ENTITIES, "here", aggregation="trimmed mean"))
    request.addfinalizer(lambda: RECIPES.remove("trimmed"))
    clear, secure = (KgeOptions(algorithm="trimmed", rounds=1, defense=defense) for defense in ("", "secagg"))
    uploads = {str(value): Upload(torch.tensor([0]), torch.tensor([[value]])) for value in (1.0, 3.0, 1e6)}
    trimmed = TrimmedMean(SharedTable("entities"), clear)
    assert trimmed.aggregate(1, torch.zeros(2, 1), Delivered((2, 1), uploads)).tolist() == [[3.0], [0.0]]
    graph = generate_consortium(clients=3, size=300, seed=1)
    assert run_federation(graph, clear).rounds[1].num_survivors == 3
    with pytest.raises(SpecError, match="'trimmed mean' needs single uploads"):
        run_federation(graph, secure, make_transport=make_transport)


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        ({"answers": "personal rows"}, "answers each client with rows of its own; defense 'secagg' sends all the same"),
        ({"keeps_uploads": True}, "keeps every client's most recent upload; defense 'secagg' delivers their sum alone"),
        ({"needs": "single upload"}, "needs must be one of sum, single uploads; got 'single upload'"),
        ({"answers": "own rows"}, "answers must be one of rows, personal rows, counted sums; got 'own rows'"),
        ({}, "the sum of the uploads alone was delivered"),
    ],
)
def test_what_sums_would_change_is_refused(declared: dict[str, Any], says: str, request: pytest.FixtureRequest) -> None:
    """Else every client would be sent the same rows, or an aggregation that reads uploads would find a round without any."""

    def aggregate(self: Aggregation, round: int, previous: torch.Tensor, delivered: Delivered) -> torch.Tensor:
        return torch.stack([upload.rows.mean(0) for upload in delivered.uploads.values()]).mean(0).expand_as(previous)

    AGGREGATIONS.register("own", type("Own", (Aggregation,), {"aggregate": aggregate, **declared}))
    register(Recipe("own-aggregation", ENTITIES, "here", aggregation="own"))
    request.addfinalizer(lambda: (RECIPES.remove("own-aggregation"), AGGREGATIONS.remove("own")))
    options = KgeOptions(algorithm="own-aggregation", dim=8, rounds=1, local_epochs=1, defense="secagg")
    with pytest.raises((SpecError, RunError), match=says):
        run_federation(generate_consortium(clients=3, size=300, seed=1), options, make_transport=make_transport)
