"""The reference says all that registries, types and commands have: made from them when it is built, it cannot be older."""

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from attacks.registry import ATTACKS
from attacks.view import THREAT_MODELS
from defenses.options import KINDS
from experiments.cli.surface import read_surface
from experiments.docs.docstrings import as_markdown, described, remarks
from experiments.docs.fields import fields_of, flattened, structs_of
from experiments.docs.pages.algorithms import file_name, module_of
from experiments.docs.pictures import draw, knowledge
from experiments.docs.reference import generated_files, navigation
from experiments.gate.measures import MEASURES
from experiments.runs.record import Record
from experiments.tasks.task import all_tasks
from fkgsec import errors
from fkgsec.errors import SpecError
from fkgsec.federation.recipes import ENTITIES, RECIPES, Recipe
from fkgsec.federation.settings import fields_of as settings_of


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return generated_files()


def test_every_command_and_option(pages: dict[str, str]) -> None:
    for path, command in flattened(read_surface()):
        page = pages[f"reference/commands/{path.split()[0]}.md"]
        assert f"# fkgsec {path}" in page
        for one in command.parameters:
            assert one.hidden or all(f"`{flag}`" in page for flag in one.flags), f"{path} {one.name}"


def test_every_algorithm_with_its_settings(pages: dict[str, str]) -> None:
    for name, recipe in RECIPES.items():
        page = pages[f"reference/algorithms/{file_name(name)}"]
        assert recipe.source in page
        for one in settings_of(recipe.settings):
            assert f"| `--{one.name.replace('_', '-')}` | {one.default} |" in page
    for name in ("pfedeg", "fedstar"):  # of each task; what leaks of them is recorded
        assert re.search(r"^## What leaked$", pages[f"reference/algorithms/{file_name(name)}"], re.MULTILINE), name
    assert "| up | 3,977 | 3,977 | 1.00 |" not in pages["reference/algorithms/feds.md"]
    assert (
        "refused: feds: codec 'top-k' needs a server that knows who holds each row"
        in pages["reference/algorithms/feds.md"]
    )
    assert "Efficient Federated Learning on Knowledge Graphs" in pages["reference/algorithms/fedr.md"]
    assert "D_KL(teacher || student)" in pages["reference/algorithms/fedlu.md"].replace("\\|", "|")


def test_every_algorithm_says_what_crosses_and_who_sees_it(pages: dict[str, str]) -> None:
    modules = set()
    for name, recipe in RECIPES.items():
        page, module = pages[f"reference/algorithms/{file_name(name)}"], module_of(recipe)
        modules.add(module.__name__)
        assert page.split("\n")[2].startswith((module.__doc__ or "").split("\n")[0][:40]), name
        assert ("## What crosses, and who sees it" in page) == bool(recipe.shared), name
        assert ("**Leakage:**" in page) == bool(recipe.shared), name
    assert len(modules) > 15, "each tells of its own, no package for all that are in it"
    assert "which of them changed most in each round" in pages["reference/algorithms/feds.md"]
    assert "sum of masked rows divided by" in pages["reference/algorithms/fedavg.md"]


def test_every_attack_with_its_metrics_and_threat_models(pages: dict[str, str]) -> None:
    for name, attack in ATTACKS.items():
        page = pages[f"reference/attacks/{name}.md"]
        assert all(f"`{name}.{metric}`" in page for metric in attack.metrics)
        assert all(f"| `{one}`" in page for one in attack.threat_models)
        assert "Source: " in page, name
    page = pages["reference/attacks/edges.md"]
    assert "| `psu,secagg` | 0.843" in page, "the committed matrix"
    (number,) = re.findall(r"^\| `fedr` \| (n/a \d+) \|$", page, re.MULTILINE)
    assert f"- {number}: no entity embedding of it crossed" in page
    assert "(../../graphs.md)" in pages["reference/attacks/backdoor.md"]
    assert "(../../membership.md)" not in pages["reference/attacks/backdoor.md"]


def test_every_defense_with_its_settings(pages: dict[str, str]) -> None:
    for name, kind in KINDS.items():
        page = pages[f"reference/defenses/{name}.md"]
        for one in msgspec.structs.fields(kind):
            (row,) = re.findall(rf"^\| `{one.name}` \|.*", page, re.MULTILINE)
            assert row.split(" | ")[-1].strip(" |"), f"{name}: nothing is said of {one.name}"


def test_every_threat_model_has_a_picture(pages: dict[str, str]) -> None:
    for name, model in THREAT_MODELS.items():
        picture = ElementTree.fromstring(pages[f"reference/threats/{name}.svg"])
        words = "".join(picture.itertext())
        assert ("adversary" in words) == ((model.server and not model.models) or model.colluder)
        assert all(one in words for one in knowledge(model))
        assert f"## {name}\n" in pages["reference/threats.md"]
    assert draw(THREAT_MODELS["server"]) != draw(THREAT_MODELS["client"])


def test_every_key_of_specs(pages: dict[str, str]) -> None:
    for task in all_tasks():
        for one in msgspec.structs.fields(task.spec):
            assert one.name == "settings" or f"| `{one.name}` | " in pages["reference/spec.md"]


def test_every_field_of_records_is_described(pages: dict[str, str]) -> None:
    page = pages["reference/record.md"]
    shown = [one for one in structs_of(Record) if not hasattr(one, "options_type")]
    assert len(shown) >= 10
    for one in shown:
        part = page.split(f"## {one.__name__}\n")[1].split("\n## ")[0]
        for field in fields_of(one):
            (row,) = re.findall(rf"^\| `{field.name}` \|.*", part, re.MULTILINE)
            assert row.split(" | ")[-1].strip(" |"), f"nothing is said of {one.__name__}.{field.name}"


def test_every_limit_and_exit_status(pages: dict[str, str]) -> None:
    assert all(f"| `{name}` | `{one.bound}` |" in pages["reference/policy.md"] for name, one in MEASURES.items())
    page = pages["reference/exit.md"]
    for line in ("| 0 | done |", "| 2 | An option or spec field", "| 130 | interrupted"):
        assert line in page
    for command in ("check", "verify", "verify-run"):
        assert re.search(rf"`fkgsec {command}`\]\(commands/{command}.md\) \| Exits 0 ", page)
    assert issubclass(errors.SpecError, errors.FkgsecError)


def test_every_page_is_in_the_navigation(pages: dict[str, str]) -> None:
    listed = set(re.findall(r"reference/[^'\"]+?\.md", str(navigation())))
    assert listed == {path for path in pages if path.endswith(".md")}


def test_an_algorithm_of_elsewhere_is_no_page_of_ours() -> None:
    from experiments.docs.pages.algorithms import module_of

    with pytest.raises(SpecError, match="'mine' is made in no module"):
        module_of(Recipe("mine", ENTITIES, "this test"))


@pytest.mark.slow
def test_the_command_writes_what_the_site_has(tmp_path: Path, pages: dict[str, str]) -> None:
    command = [sys.executable, "-m", "experiments.docs.reference", "--out", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    assert (tmp_path / "spec.md").read_text() == pages["reference/spec.md"] + "\n"


# Docstrings.


class Sample:
    """A thing, of `[N]` < M.

    What it sees
        Everything.
        And more.

    - one item
      that goes on
    - another

    Attributes:
        rank: of it.

    Source: ours. Differs: by a sign.
    """

    def method(self) -> None:
        """Does it. Differs in the other: it adds."""


def test_docstrings_become_markdown() -> None:
    made = as_markdown(Sample.__doc__ or "")
    assert made.startswith(
        "A thing, of `[N]` &lt; M.\n\n**What it sees.**\n\nEverything.\nAnd more.\n\n- one item\n    that goes on"
    )
    assert "Attributes" not in made
    assert described(Sample.__doc__, ["rank"]) == {"rank": "of it."}
    assert remarks(Sample, "Differs") == ["by a sign.", "in the other: it adds."]
    assert remarks(Sample, "Source") == ["ours."]
