"""`fkgsec describe NAME`: every part can be described, with its settings and what goes with it."""

import msgspec
import pytest

from fkgsec.attacks.options import THREAT_MODELS
from fkgsec.attacks.registry import ATTACKS
from fkgsec.defenses.options import KINDS
from fkgsec.errors import SpecError
from fkgsec.experiments.cli.describe import describe
from fkgsec.federation.recipes import RECIPES
from fkgsec.federation.settings import fields_of
from tests.experiments.commands import fkgsec


@pytest.mark.parametrize("name", [*RECIPES, *KINDS, *THREAT_MODELS, *ATTACKS])
def test_every_part_is_described_with_all_of_its_settings_and_measures(name: str) -> None:
    text = "\n".join(describe(name))
    assert name in text
    if name in RECIPES:
        assert all(
            f"--{field.name.replace('_', '-')} (default: {field.default}" in text
            for field in fields_of(RECIPES[name].settings)
        )
    if name in KINDS:
        assert all(f"  {field.name} (" in text for field in msgspec.structs.fields(KINDS[name]))
    if name in ATTACKS:
        assert all(f"{name}.{metric}: {about}" in text for metric, about in ATTACKS[name].metrics.items())


def test_an_algorithm_names_the_attacks_and_defenses_that_fit() -> None:
    (attacks,) = (line for line in describe("fedr") if line.startswith("Attacks"))
    assert "reconstruction" in attacks
    assert "client-passive" not in attacks  # reads broadcasts of entities, which FedR does not send
    (defenses,) = (line for line in describe("feds") if line.startswith("Defenses"))
    assert "psu" not in defenses  # FedS counts holders by name


def test_unknown_names_are_refused_with_those_that_exist() -> None:
    with pytest.raises(SpecError, match="nothing is named 'fedx'; names: single"):
        describe("fedx")
    status, out, _ = fkgsec("describe", "dp")
    assert status == 0
    assert "  clip (required; float): l2 norm" in out


def test_what_an_attack_and_a_guarantee_need_is_named() -> None:
    assert "--optimizer sgd, --local-epochs 1, one batch" in "\n".join(describe("gradient-inversion"))
    (delta,) = (line for line in describe("dp") if line.strip().startswith("delta"))
    assert "probability" in delta
