"""Committed records can be made again: each names a landed commit and a command, and the cheapest give their figures anew."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fkgsec.data.catalogue import DATA_VARIABLE
from fkgsec.experiments.papers.results import read_records
from fkgsec.experiments.reporting.summary import __file__ as summary_file
from fkgsec.experiments.runs.record import Record, is_record, read_record, vector_level

RESULTS = Path(summary_file).resolve().parents[2] / "results"
NUM_CHEAPEST = 3
WITH_PATHS = ("attacks/matrix", "attacks/membership", "tables/kge")  # their commands name folders of one machine
REMADE = ("ddb14-fed5-fedr-6rounds", "ddb14-fed5-fede-published16")


def environments(found: Any) -> Iterator[dict[str, Any]]:
    """Every environment in a JSON document, at any depth; lists of numbers have none."""
    if isinstance(found, dict):
        if isinstance(found.get("environment"), dict):
            yield found["environment"]
        for value in found.values():
            yield from environments(value)
    elif isinstance(found, list):
        for value in found:
            if isinstance(value, dict | list):
                yield from environments(value)


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True, cwd=RESULTS).stdout


def test_every_record_names_a_landed_commit_and_a_command() -> None:
    shallow = git("rev-parse", "--is-shallow-repository").strip() == "true"
    landed = set(git("rev-list", "HEAD").split())
    checked = 0
    for path in sorted(RESULTS.rglob("*.json")):
        for environment in environments(msgspec.json.decode(path.read_bytes())):
            assert environment["commit"] in landed or (shallow and environment["commit"]), path
            assert environment["dirty"] is False, path
            if not environment["command"]:  # a bench's, which the folder's page gives
                assert re.search(
                    rf"^python -m .* {path.name}$", (path.parent / "README.md").read_text(), re.MULTILINE
                ), path
            else:
                assert environment["command"].startswith("fkgsec "), path
                if not path.relative_to(RESULTS).as_posix().startswith(WITH_PATHS):
                    assert " /" not in environment["command"], path
            checked += 1
    assert checked > 300


def seconds_of(record: Record) -> float:
    return sum(entry.seconds for entry in record.rounds)


def by_itself(record: Record) -> bool:
    """Whether its command makes this run alone, from published or generated data, with nothing of the operating system's."""
    words = shlex.split(record.environment.command)
    return words[1] in ("train", "attack") and not {"--run", "--seeds"} & set(words) and not record.spec.defense


def cheapest() -> list[Path]:
    found = [(path, read_record(path)) for path in sorted(RESULTS.rglob("*.json")) if is_record(path)]
    alone = [(path, record) for path, record in found if by_itself(record)]
    return [path for path, _ in sorted(alone, key=lambda one: seconds_of(one[1]))[:NUM_CHEAPEST]]


@pytest.mark.slow
@pytest.mark.skipif(DATA_VARIABLE not in os.environ, reason=f"{DATA_VARIABLE} is not set")
@pytest.mark.parametrize("name", [*range(NUM_CHEAPEST), *REMADE])
def test_a_record_follows_from_its_command(tmp_path: Path, name: int | str) -> None:
    path = cheapest()[name] if isinstance(name, int) else RESULTS / f"{name}.json"
    record = read_record(path)
    program, *arguments = shlex.split(record.environment.command)
    threads = str(record.environment.threads)
    environment = os.environ | {"OMP_NUM_THREADS": threads, "NUMBA_NUM_THREADS": threads}
    done = subprocess.run(
        [str(Path(sys.executable).with_name(program)), *arguments],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    again, unreadable = read_records([tmp_path])
    assert again
    assert not unreadable
    # Sums of float32 are rounded in another order on another CPU; `vector_level` of records of before is not known.
    within = 0.0 if record.environment.vector_level == vector_level() else 2e-3
    assert figures_of(again[0]) == pytest.approx(figures_of(record), abs=within, rel=0.0), path
    assert again[0].data.hash == record.data.hash


def figures_of(record: Record) -> dict[str, float]:
    """Everything that a table shows of a record, and the loss of each round."""
    found = {name: figure.value for name, figure in record.utility.items()}
    found |= {f"round {entry.round}": entry.loss for entry in record.rounds if entry.loss is not None}
    found |= {f"valid {entry.round}": entry.valid for entry in record.rounds if entry.valid is not None}
    for one in record.figures:
        place = f"{one.attack} {one.metric} {one.threat_model} {one.victim} {one.leak} {one.variant}"
        found[place] = one.estimate.value
    return found | {"bytes": float(record.bytes.up + record.bytes.down)}
