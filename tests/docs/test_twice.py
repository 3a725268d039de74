"""Commands of pages that are run `reduced`, twice in one folder: the second time each finds what it made, or refuses in a line.

What is heavy runs small, by these rules and no other: a command that trains takes the options `SMALL`, whatever it says of them
(and `SIZE` where it has the embedded data), one on graphs to classify `SMALL_GRAPHS`; a paper's table is trained on the embedded
data, or on generated graphs, with the same options, one cell of it; `check --init` proposes a policy for the
pages' own small federation. Files that pages take as given are made first.

Guides (`GUIDES`) are run once, by the same rules; those on published graphs where `FKGSEC_DATA` has them.
"""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from fkgsec.data.consortium import generate_consortium
from fkgsec.data.formats.folders import write_client_folders
from fkgsec.experiments.cli.main import app
from fkgsec.experiments.papers.spec import shipped_experiments
from tests.docs.page_examples import blocks, how

TUTORIALS = Path(__file__).parents[2] / "docs/tutorials"
ORDER = (
    "graph-classification",
    "runs",
    "defend",
    "paper-table",
    "forget",
    "gate",
    "tables",
)  # later pages use runs of earlier ones
GUIDES = ("graphs", "membership", "poisoning", "robustness")
PUBLISHED_GRAPHS = Path(os.environ.get("FKGSEC_DATA", "/nowhere")) / "TUDataset"
PAGES = {name: (TUTORIALS / f"{name}.md").read_text() for name in ORDER}
SMALL = {"dim": 8, "rounds": 2, "num_negatives": 4, "batch_size": 64, "unlinked_heads": 0, "device": "cpu"}
SIZE = {"size": 600}
SMALL_GRAPHS = {"width": 8, "rounds": 2, "size": 200, "device": "cpu"}
OF_GRAPHS = {"cefgl", "fedavg", "fedstar"}
TABLES_OF_GRAPHS = {name for name in shipped_experiments() if name.startswith("liu2024_cefgl")}
PUBLISHED = {"NCI1", "PTC_MR", "AIDS"}
ATTACK_ONLY = {"unlinked_heads"}
REPORTS = {"check.xml", "check.sarif", "check.md"}  # of a build: each check makes its own


def commands(pages: Iterable[str] = PAGES.values(), languages: tuple[str, ...] = ("bash",)) -> list[str]:
    """The lines of the pages' blocks of commands that begin with fkgsec or awk, without their comments."""
    return [
        line
        for text in pages
        for block in blocks(text)
        if block.language in languages and block.begins is None
        for line in re.findall(r"^(?:fkgsec|awk) .*?(?= +#|$)", joined(block.body), flags=re.MULTILINE)
    ]


def joined(body: str) -> str:
    """A block with the lines that end in a backslash joined to the next."""
    return re.sub(r"\\\n\s*", "", body)


def reduced(line: str) -> list[str]:
    """The words of a command by the rules above."""
    words = shlex.split(line)[1:]
    trains = words[0] in ("train", "compare") or (words[0] == "attack" and "--run" not in words)
    if words[:2] == ["check", "--init"]:
        return words if "--data" in words else [*words, "--data", "my-federation"]
    if "--dry-run" in words:
        return words
    if words[:2] == ["experiment", "run"]:
        only = "GIN FedAvg CHEM" if words[2] in TABLES_OF_GRAPHS else "FedE"
        return [*words[:2], f"{words[2]}.yaml", *words[3:], *([] if "--only" in words else ["--only", only])]
    if words[:2] == ["data", "generate"]:
        return [*words, "--size", str(SIZE["size"])]
    if not trains or "--config" in words:
        return words
    own = SMALL if words[0] != "train" else {name: value for name, value in SMALL.items() if name not in ATTACK_ONLY}
    own = own if "--data" in words else own | SIZE
    own = SMALL_GRAPHS if OF_GRAPHS & set(words) else own
    if PUBLISHED & set(words):  # published graphs have the size that they have
        own = {name: value for name, value in SMALL_GRAPHS.items() if name != "size"}
    for name, value in own.items():
        option = f"--{name.replace('_', '-')}"
        while option in words:
            place = words.index(option)
            del words[place : place + 2]
        words += [option, str(value)]
    return words


def make_given(folder: Path) -> None:
    """What the pages take as given: a federation, a graph, a spec, tables trained elsewhere, the papers' tables made small."""
    graph = generate_consortium(clients=3, size=600, seed=2)
    write_client_folders(graph, folder / "my-federation")
    lines = [
        "head,relation,tail",
        *(
            ",".join(line.split("\t"))
            for file in (folder / "my-federation").glob("*/train.txt")
            for line in file.read_text().splitlines()
        ),
    ]
    (folder / "graph.csv").write_text("\n".join(dict.fromkeys(lines)) + "\n")
    (folder / "spec.yaml").write_text(yaml.safe_dump(SMALL | SIZE))
    rng = np.random.default_rng(0)
    for client in graph.clients:
        (folder / "elsewhere" / client.name).mkdir(parents=True)
        for table, names, ids in (
            ("entities", graph.entities, client.entity_ids),
            ("relations", graph.relations, client.relation_ids),
        ):
            rows = rng.normal(size=(len(ids), 8)).astype(np.float32)
            np.save(folder / "elsewhere" / client.name / f"{table}.npy", rows)
            listed = "".join(f"{row}\t{names[number]}\n" for row, number in enumerate(ids))
            (folder / "elsewhere" / client.name / f"{table}.dict").write_text(listed)
    for path in shipped_experiments().values():
        small = (
            {"data": "motifs"} | SMALL_GRAPHS
            if path.stem in TABLES_OF_GRAPHS
            else {"data": "consortium"} | SMALL | SIZE
        )
        settings = {name: {"value": value, "why": "small"} for name, value in small.items()}
        shutil.copy(path, folder / f"base_{path.name}")
        document = yaml.safe_load(path.read_text())
        base = document.get("base", path.stem)
        (folder / path.name).write_text(
            yaml.safe_dump({"base": f"base_{base}", "title": path.stem, "our_settings": settings})
        )


def contents(folder: Path) -> dict[str, bytes]:
    """Every finished file. The runs of `fkgsec check` are its cache, and are attacked anew each time."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in REPORTS and "runs/check" not in path.as_posix()
    }


def run_twice(lines: list[str], folder: Path) -> None:
    for line in lines:
        if line.startswith("awk"):
            subprocess.run(["bash", "-c", line], cwd=folder, check=True)
            continue
        words = reduced(line)
        first = CliRunner().invoke(app, words, catch_exceptions=False)
        allowed = (0, 1, 3) if words[0] in ("verify", "check") else (0,)
        assert first.exit_code in allowed, f"{shlex.join(words)}: {first.output}"
        before = contents(folder)
        second = CliRunner().invoke(app, words, catch_exceptions=False)
        assert contents(folder) == before, f"{line}: wrote over what the first had finished"
        if second.exit_code != first.exit_code:
            assert second.exit_code == 2, f"{line}: {second.output}"
            assert re.fullmatch(r"fkgsec: \S+: .*give --overwrite", second.stderr.strip().splitlines()[-1]), (
                second.stderr
            )


def test_all_pages_that_are_run_reduced_are_run_here() -> None:
    assert {path.stem for path in TUTORIALS.parent.rglob("*.md") if how(path.read_text()) == "reduced"} == set(ORDER)


def test_the_pages_have_commands_of_every_kind() -> None:
    kinds = {shlex.split(line)[1] for line in commands() if line.startswith("fkgsec")}
    assert kinds >= {
        "train", "attack", "compare", "unlearn", "verify", "check", "report", "export", "audit", "results", "data", "experiment",
    }  # fmt: skip


@pytest.mark.slow
def test_a_run_and_what_is_made_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The quick part: no command that trains but the first, nor one that judges."""
    monkeypatch.chdir(tmp_path)
    make_given(tmp_path)
    wanted = ("runs/mine", "--tables tables", "data generate", "data stats")
    chosen = [line for line in commands() if any(word in line for word in wanted) and "unlearn" not in line]
    assert len(chosen) >= 7
    run_twice(chosen, tmp_path)


@pytest.mark.slow
def test_every_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_given(tmp_path)
    run_twice(commands(), tmp_path)


def of_guides() -> tuple[list[str], list[str]]:
    """The lines of guides, those on published graphs and what is made of their runs apart."""
    lines = commands([(TUTORIALS.parent / f"{name}.md").read_text() for name in GUIDES], ("", "bash"))
    published = [
        line for line in lines if re.search(r"MUTAG|NCI1|PTC_MR|AIDS|runs/(?:nci1|fedsgd|aids)", line) is not None
    ]
    return [line for line in lines if line not in published], published


def run_once(lines: list[str]) -> None:
    for line in lines:
        words = reduced(line)
        done = CliRunner().invoke(app, words, catch_exceptions=False)
        assert done.exit_code == 0, f"{shlex.join(words)}: {done.output}"


@pytest.mark.slow
def test_commands_of_guides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_given(tmp_path)
    lines, published = of_guides()
    assert len(lines) >= 8
    assert len(published) >= 7
    given = [
        f"fkgsec attack --data my-federation --target fede --leak 0.5 --out {folder}"
        for folder in ("runs/mine", "runs/demo")
    ]
    run_once([*given, *lines])


@pytest.mark.slow
@pytest.mark.skipif(not PUBLISHED_GRAPHS.is_dir(), reason="FKGSEC_DATA has no TUDataset")
def test_commands_of_guides_on_published_graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_once(of_guides()[1])
