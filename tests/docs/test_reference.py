"""The generated reference covers all that registries, types and commands have."""

import re
from xml.etree import ElementTree

import msgspec
import pytest
import typer

from fkgsec.attacks.options import THREAT_MODELS
from fkgsec.attacks.registry import ATTACKS
from fkgsec.defenses.options import KINDS
from fkgsec.experiments.cli.describe import attributes
from fkgsec.experiments.cli.main import app
from fkgsec.experiments.gate.measures import MEASURES
from fkgsec.experiments.runs.record import Record
from fkgsec.experiments.tasks.task import all_tasks
from fkgsec.federation.recipes import RECIPES
from fkgsec.federation.settings import fields_of as settings_of
from scripts.docs.reference import anchor, as_markdown, fields_of, reference_files, structs_of


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return {path.removeprefix("reference/"): text for path, text in reference_files().items()}


def section(page: str, heading: str) -> str:
    """The part of a page below the heading that begins so, up to the next heading of its level or above."""
    level = heading.index(" ")
    part = page.split(f"\n{heading}", 1)[1]
    return re.split(rf"\n#{{1,{level}}} ", part)[0]


def rows(part: str, name: str) -> list[str]:
    return re.findall(rf"^\| `{re.escape(name)}` \|.*", part, re.MULTILINE)


def test_commands_have_all_their_options(pages: dict[str, str]) -> None:
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        part = section(pages["commands.md"], f"## `fkgsec {name}`")
        for option in command.params:
            if option.param_type_name == "option" and not option.hidden:
                assert option.opts[0] in part, f"{name} {option.opts[0]}"


def test_algorithms_have_their_source_and_settings(pages: dict[str, str]) -> None:
    for name, recipe in RECIPES.items():
        part = section(pages["algorithms.md"], f"### {name} {{ #{anchor(name)} }}")
        assert recipe.source.replace("<", "&lt;") in part
        for field in settings_of(recipe.settings):
            assert f"| `--{field.name.replace('_', '-')}` | {field.default} |" in part
    (row,) = [line for line in pages["algorithms.md"].splitlines() if line.startswith("| [`feds`]")]
    assert "refused: feds: codec 'top-k' needs a server that knows who holds each row" in row


def test_attacks_have_their_metrics_and_threat_models(pages: dict[str, str]) -> None:
    for name, attack in ATTACKS.items():
        part = section(pages["attacks.md"], f"### {name} {{ #{name} }}")
        assert "Source: " in part, name
        assert all(rows(part, f"{name}.{metric}") for metric in attack.metrics)
        [tested] = re.findall(
            rf"^\| \[`{name}`\].*", section(pages["attacks.md"], "## What each attack can find"), re.MULTILINE
        )
        assert all(tested.split("|")[2:4])
        assert all(rows(part, model) for model in attack.threat_models)


def test_defenses_describe_every_setting(pages: dict[str, str]) -> None:
    for name, kind in KINDS.items():
        part = section(pages["defenses.md"], f"## {name}")
        for field in msgspec.structs.fields(kind):
            (row,) = rows(part, field.name)
            assert row.split(" | ")[-1].strip(" |"), f"{name}.{field.name} has no description"


def test_every_field_of_records_is_described(pages: dict[str, str]) -> None:
    structs = [kind for kind in structs_of(Record, set()) if not hasattr(kind, "options_type")]
    assert len(structs) >= 10
    for kind in structs:
        part = section(pages["record.md"], f"## {kind.__name__}\n")
        for name in fields_of(kind):
            (row,) = rows(part, name)
            assert row.split(" | ")[-1].strip(" |"), f"{kind.__name__}.{name} has no description"


def test_specs_policies_and_exit_statuses_are_complete(pages: dict[str, str]) -> None:
    for task in all_tasks():
        assert all(name == "settings" or rows(pages["spec.md"], name) for name in task.spec.__struct_fields__)
    assert all(f"| `{name}` | `{measure.bound}` |" in pages["policy.md"] for name, measure in MEASURES.items())
    assert all(f"| {status} | " in pages["exit.md"] for status in (0, 2, 130))


def test_pictures_of_threat_models_show_the_adversary(pages: dict[str, str]) -> None:
    for name, model in THREAT_MODELS.items():
        words = "".join(ElementTree.fromstring(pages[f"threats/{name}.svg"]).itertext())
        assert ("adversary" in words) == ((model.server and not model.models) or model.colluder)
        assert f"## {name}\n" in pages["threats.md"]


def test_docstrings_become_markdown() -> None:
    docstring = """A thing, of `[N]` < M.

    What it sees
        Everything.

    - one item
      that goes on

    Attributes:
        rank: of it. columns: of the matrix.
        low, high: the range.
    """
    assert as_markdown(docstring) == (
        "A thing, of `[N]` &lt; M.\n\n**What it sees.**\n\nEverything.\n\n- one item\n    that goes on"
    )
    assert (
        as_markdown("Runs.\n\n    run(x < y)\n\nSource: ours.")
        == "Runs.\n\n```python\nrun(x < y)\n```\n\nSource: ours."
    )
    assert attributes(docstring, ["rank", "columns", "low", "high"]) == {
        "rank": "of it.", "columns": "of the matrix.", "low": "the range.", "high": "the range.",
    }  # fmt: skip
