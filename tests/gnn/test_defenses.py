"""Defended graph federations: sums are those in clear to the bound, noise is counted, what does not fit is refused."""

import numpy as np
import pytest

from fkgsec.defenses.transport import make_transport
from fkgsec.errors import SpecError
from fkgsec.exchange.tensors.quantised import Quantised
from fkgsec.federation.loop import run_federation
from fkgsec.federation.messages import SERVER, Alignment, QuantisedRows, Rows
from fkgsec.federation.options import replace
from fkgsec.gnn.options import GnnOptions
from fkgsec.gnn.result import GnnResult
from fkgsec.graphs.sets import FederatedGraphs

SMALL = GnnOptions(width=8, rounds=1, batch_size=16, device="cpu", seed=6)
NOISE = "dp:epsilon=8,clip=0.5"
SUMMED = {
    "fedstar": {},
    "cefgl": {"exchange": 1.0},
    "cefgl, both": {"exchange": 1.0, "upload": "both"},
    "cefgl, l2": {"exchange": 1.0, "scale": "l2", "rounding": "stochastic", "bits": 8},
}


def options_of(name: str) -> GnnOptions:
    return replace(SMALL, algorithm=name.split(",")[0], settings=SUMMED[name])


def uploads(result: GnnResult) -> list[np.ndarray]:
    """What each client uploaded in clear in round 1, as the server reads it."""
    messages = [message for message in result.transcript.messages(1) if message.receiver == SERVER]
    return [
        (Quantised(*one.unpack()).values() if isinstance(one, QuantisedRows) else one.unpack()).double().numpy()
        for one in messages
        if isinstance(one, QuantisedRows | Rows)
    ]


@pytest.mark.parametrize("name", SUMMED)
def test_a_secure_sum_is_that_of_clear_uploads_to_the_bound(name: str, motifs: FederatedGraphs) -> None:
    """With integer weights, the numbers of training graphs; CEFGL's steps stay with the clients, whose values are summed."""
    options = options_of(name)
    clear = run_federation(motifs, options)
    secured = run_federation(motifs, replace(options, defense="secagg", protocol_seed=0), make_transport=make_transport)
    (opened,) = secured.transcript.opened(1)
    total, weights = opened.sums()
    expected = sum(weight * rows for weight, rows in zip((48, 40, 32), uploads(clear), strict=True))
    assert set(weights.tolist()) == {120}
    assert 0 < np.abs(total - expected).max() <= opened.error
    assert not any(
        isinstance(one, QuantisedRows | Rows) and one.receiver == SERVER for one in secured.transcript.messages(1)
    )
    told = [
        {one.sender: one.weight for one in run.transcript.messages(0) if isinstance(one, Alignment)}
        for run in (clear, secured)
    ]
    assert list(told[0].values()) == [48, 40, 32]
    assert list(told[1].values()) == [1, 1, 1]  # nobody's number of training graphs crosses


def test_noise_is_counted_for_the_rounds_in_which_rows_cross(motifs: FederatedGraphs) -> None:
    """CEFGL's coin is the seed's: of twelve rounds as many releases as heads, for the same epsilon with less noise."""
    found = {}
    for name, settings in (("fedavg", {}), ("cefgl", {"exchange": 0.5})):
        options = replace(SMALL, algorithm=name, rounds=12, settings=settings, defense=NOISE, protocol_seed=0)
        result = run_federation(motifs, options, make_transport=make_transport)
        guarantee = result.protection.guarantees["parameters"]
        found[name] = sum(entry.num_survivors > 0 for entry in result.rounds), guarantee
        (released,) = guarantee.releases  # type: ignore[attr-defined]
        assert released.count == found[name][0]
        assert guarantee.epsilon == pytest.approx(8, rel=0.01)
        assert guarantee.unit == "client"
    assert 0 < found["cefgl"][0] < found["fedavg"][0] == 12


@pytest.mark.parametrize(
    ("algorithm", "given", "fault"),
    [
        ("fedavg", {"defense": "dp:epsilon=8,clip=0.5,unit=row"}, "rows of parameters are nobody's: take unit=client"),
        ("fedstar", {"defense": f"secagg,{NOISE}"}, "noise discrete is for weights of 1"),
        (
            "fedavg",
            {"defense": "secagg", "rounds": 4, "settings": {"drop_alpha": 5.0, "drop_beta": 1.0}},
            "drop_alpha leaves 1 of 3 participants in some round",
        ),
        ("gcfl", {"defense": "secagg"}, "needs single uploads"),
        ("gcfl+dws", {"defense": "psu,secagg"}, "needs single uploads"),
    ],
)
def test_what_is_refused(algorithm: str, given: dict[str, object], fault: str, motifs: FederatedGraphs) -> None:
    with pytest.raises(SpecError, match=fault):
        run_federation(motifs, replace(SMALL, algorithm=algorithm, **given), make_transport=make_transport)
