"""An aggregation from outside: a coordinate-wise trimmed mean works in clear, and is refused where only sums are opened."""

import pytest
import torch

from defenses import make_transport
from fkgsec import FederationOptions, generate_consortium, run_federation
from fkgsec.errors import SpecError
from fkgsec.exchange import AGGREGATIONS, Aggregation, Delivered, SharedTable, Upload
from fkgsec.federation.recipes import ENTITIES, RECIPES, Recipe, register


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
    clear, secure = (FederationOptions(algorithm="trimmed", rounds=1, defense=defense) for defense in ("", "secagg"))
    uploads = {str(value): Upload(torch.tensor([0]), torch.tensor([[value]])) for value in (1.0, 3.0, 1e6)}
    trimmed = TrimmedMean(SharedTable("entities"), clear)
    assert trimmed.aggregate(1, torch.zeros(2, 1), Delivered((2, 1), uploads)).tolist() == [[3.0], [0.0]]
    graph = generate_consortium(clients=3, size=300, seed=1)
    assert run_federation(graph, clear).rounds[1].num_survivors == 3
    with pytest.raises(SpecError, match="'trimmed mean' needs single uploads; defense 'secagg' delivers their sum"):
        run_federation(graph, secure, make_transport=make_transport)
