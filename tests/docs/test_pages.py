"""Pages of the documentation: what their blocks print is what stands there, and every command in any of them is one."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from fkgsec.attacks.figure import LABELS
from fkgsec.attacks.options import THREAT_MODELS
from fkgsec.attacks.registry import ATTACKS
from fkgsec.data.consortium import generate_consortium
from fkgsec.data.formats.folders import write_client_folders
from fkgsec.errors import RunError
from fkgsec.experiments.cli.main import app
from fkgsec.federation.recipes import RECIPES, algorithms_of
from fkgsec.kge.models import ENCODERS, MODELS
from tests.docs.page_examples import blocks, commands, comparable, excerpt, how, renewed, run_page
from tests.golden.test_golden import LIKE_THE_FILE

ROOT = Path(__file__).parents[2]
PROGRAM: Any = typer.main.get_command(app)
README = (ROOT / "README.md").read_text()
PAGES = {path.relative_to(ROOT).as_posix(): path.read_text() for path in sorted((ROOT / "docs").rglob("*.md"))}
RUN = [
    pytest.param(name, marks=[pytest.mark.slow] if how(text) == "slow" else [])
    for name, text in PAGES.items()
    if how(text) in ("quick", "slow")
]
COMMANDS = sorted(
    {
        re.split(r" +#", line)[0]
        for text in (README, *PAGES.values())
        for block in blocks(text)
        if block.language in ("", "bash") and block.begins is None
        for line in commands(block.body)
        if line.startswith("fkgsec ")
    }
)


@pytest.fixture
def registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a page registers is gone after it."""
    for registry in (RECIPES, ATTACKS):
        monkeypatch.setattr(registry, "_parts", dict(registry._all()))


def without_figures(text: str) -> str:
    return re.sub(r"-?\d*\.?\d+(?:e[+-]?\d+)?", "#", text)


@pytest.mark.usefixtures("registries")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", RUN)
def test_a_page_prints_what_stands_in_it(name: str, tmp_path: Path) -> None:
    plain = (lambda text: text) if LIKE_THE_FILE else without_figures
    for block, output in run_page(PAGES[name], tmp_path):
        assert plain(comparable(output)) == plain(comparable(block.body)), (
            f"renew it: python -m tests.docs.page_examples {name} --write"
        )


def test_every_page_with_commands_says_how_they_are_run() -> None:
    """Those of guides, which say more than can be tried in a row, are parsed; deployment has tests of its own (test_page)."""
    guides = {
        f"docs/{name}.md"
        for name in ("architecture", "deployment", "graphs", "membership", "poisoning", "robustness", "view")
    }
    run = {name for name, text in PAGES.items() if any(block.language in ("bash", "python") for block in blocks(text))}
    assert {name for name in run if not how(PAGES[name])} <= guides
    assert sum(how(text) == "quick" for text in PAGES.values()) >= 4


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_parse(line: str) -> None:
    """Every option of the line is one of its command, with a value of its type; nothing is run."""
    words, command = shlex.split(line)[1:], PROGRAM
    while hasattr(command, "commands"):
        assert words[0] in command.commands, f"no command {words[0]}"
        command = command.commands[words.pop(0)]
    command.make_context("fkgsec", words)


def test_what_is_no_command_would_be_noticed() -> None:
    with pytest.raises(Exception, match="No such option: --round"):
        test_commands_parse("fkgsec train --round 3")
    with pytest.raises(AssertionError, match="no command generat"):
        test_commands_parse("fkgsec data generat")


@pytest.fixture
def federation(tmp_path: Path) -> Path:
    write_client_folders(generate_consortium(clients=3, size=900, seed=2), tmp_path / "my-federation")
    return tmp_path


@pytest.mark.slow
def test_the_python_example_of_data_and_runs(federation: Path) -> None:
    (example,) = [block.body for block in blocks(PAGES["docs/tutorials/runs.md"]) if block.language == "python"]
    assert len([line for line in example.splitlines() if line.strip()]) <= 15
    (federation / "example.py").write_text(example)
    done = subprocess.run(
        [sys.executable, "example.py"],
        cwd=federation,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figure = r"^reconstruction\.(err|trr) (collusion|identifiers) (0.5|1.0) (hospital-2|hospital-3|all): [01]\.\d+ \["
    assert len(re.findall(figure, done.stdout, re.M)) == 24
    assert len(re.findall(r"^  without the training messages: \d\.\d+ \[", done.stdout, re.M)) >= 24
    assert re.search(r"hospital-[23] +\S+ +\S+ +\S+$", done.stdout, re.M), "no rebuilt triple was printed"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["graphs", "poisoning"])
def test_scripts_of_guides_run(name: str, tmp_path: Path) -> None:
    scripts = [f"```python\n{one.body}```\n" for one in blocks(PAGES[f"docs/{name}.md"]) if one.language == "python"]
    assert scripts
    list(run_page("\n".join(scripts), tmp_path))


@pytest.mark.slow
def test_the_block_on_graphs_is_what_its_command_prints(tmp_path: Path) -> None:
    """All but where the run was written."""
    page = PAGES["docs/tutorials/graph-classification.md"]
    command = re.search(r"`fkgsec (attack --target fedstar .*?)`", page)
    block = re.search(r"<!-- graphs -->\n```\n(.*?)```\n<!-- /graphs -->", page, flags=re.DOTALL)
    assert command is not None
    assert block is not None
    words = [*command[1].split(), "--out", str(tmp_path / "run")]
    shown = CliRunner().invoke(app, words, env={"COLUMNS": "80"}).stdout.split("\nDetails: ")[0]
    assert comparable(shown.strip()) == comparable(block[1].strip())


# The README, one page that leads on.


def test_the_readme_is_one_page() -> None:
    assert len(README.splitlines()) < 90
    assert README.count("![") == 1


def test_its_example_is_the_start_of_the_output_that_start_explains() -> None:
    (example,) = [block.body for block in blocks(README) if block.body.startswith("Verdict")]
    assert example in PAGES["docs/start.md"]


def test_its_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", README)
    assert len(targets) > 20
    assert [one for one in targets if not (ROOT / one).exists()] == []


def test_its_numbers_are_the_registries() -> None:
    counted = re.search(
        r"(\d+) algorithms for knowledge graphs .*? and (\d+) for graph classification .*?"
        r"(\d+) scoring functions, (\d+) models with graph encoders; (\d+) attacks under (\d+) threat models",
        " ".join(README.split()),
    )
    assert counted is not None
    sizes = (
        *(len(algorithms_of(task)) for task in ("kge", "graph")),
        len(MODELS),
        len(ENCODERS),
        len(ATTACKS),
        len(THREAT_MODELS),
    )
    assert tuple(map(int, counted.groups())) == sizes


def test_the_words_of_verdicts_are_explained() -> None:
    page = PAGES["docs/concepts/figures.md"]
    assert all(f"`{status}`" in page for status in LABELS)


# The machinery.

PAGE = """---
run: quick
---

```yaml title="words.txt"
one
two
```

```bash
cat words.txt; false   # exit status 1
```

<!-- output -->
```text
one
three
```

```python
print("a line")
print("\\nthe paragraph")
```

<!-- output: the -->
```text
```
"""


def test_a_page_is_run_and_renewed(tmp_path: Path) -> None:
    assert how(PAGE) == "quick"
    assert how("# No front matter\n") == ""
    assert [output for _, output in run_page(PAGE, tmp_path)] == ["one\ntwo\n", "the paragraph\n"]
    made = renewed(PAGE, tmp_path)
    assert made == PAGE.replace("three", "two").replace("text\n```\n", "text\nthe paragraph\n```\n")
    assert renewed(made, tmp_path) == made
    assert renewed(PAGE.replace("one\nthree\n", "none\n…\n"), tmp_path) == made.replace(
        "one\ntwo\n```\n\n```py", "one\n…\n```\n\n```py"
    )


def test_what_goes_wrong_is_said(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"cat words.txt; false: exit status 1"):
        list(run_page(PAGE.replace("   # exit status 1", ""), tmp_path))
    with pytest.raises(RunError, match="a script ended with ZeroDivisionError"):
        list(run_page("```python\n1 / 0\n```\n", tmp_path))
    with pytest.raises(RunError, match="no paragraph begins with 'x'"):
        excerpt("a\n\nb\n", "x")
    assert comparable("60  12.3    cpu\n──────") == comparable("60  9.1  cpu\n───")
    assert without_figures("0.359 .333–.387 2e-13") == "# #–# #"
