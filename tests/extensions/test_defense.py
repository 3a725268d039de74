"""A defense from outside: each client rounds its rows, alone and in secure sums, with a setting that is checked and shown."""

import pytest
import torch

from fkgsec import KgeOptions, generate_consortium, make_spec, run_federation
from fkgsec.defenses import KINDS, DefenseOptions, make_transport, parse_defense
from fkgsec.errors import SpecError
from fkgsec.experiments.cli.options import words_of
from fkgsec.federation.messages import SERVER


class Rounded(DefenseOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    about = "rows are rounded to multiples of step"
    step: float = 0.25

    def protect(self, round, table, rows, received, randomness):
        return torch.round(rows / self.step) * self.step


def test_it_guards_each_upload_and_its_setting_is_read(request: pytest.FixtureRequest) -> None:
    graph, _ = generate_consortium(clients=3, size=300, seed=0), KINDS.register("rounded", Rounded)
    request.addfinalizer(lambda: KINDS.remove("rounded"))
    for defense in ("rounded:step=0.5", "secagg,rounded:step=0.5"):
        options = KgeOptions(dim=8, rounds=1, local_epochs=1, device="cpu", defense=defense)
        result = run_federation(graph, options, make_transport=make_transport)
        uploads = [
            one.unpack() for one in result.transcript.messages(1) if (one.receiver, one.label) == (SERVER, "rows")
        ]
        sums = [torch.tensor(one.sums()[0]) for one in result.transcript.opened(1)]
        assert (len(uploads), len(sums)) == ((0, 1) if "secagg" in defense else (3, 0))
        assert all(((2 * rows).round() - 2 * rows).abs().max() < 1e-5 for rows in [*uploads, *sums])
        assert (
            "rounded: rows are rounded to multiples of step; no guarantee is stated for it" in result.protection.lines()
        )
    assert make_spec(None, {"defense": "Rounded:step=1"}).defense == "rounded:step=1"
    assert words_of("rounded") == "rounded (step), rows are rounded to multiples of step"
    with pytest.raises(SpecError, match="rounded: step: Expected `float`"):
        parse_defense("rounded:step=coarse")
