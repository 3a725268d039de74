"""The long commands, at a size of about a second each, and when two outcomes of one are the same.

trials = Trials(commands, home, place)          # home: what they read, see `prepare`
trials.fresh()
trials.run("train", at_event=7)                 # killed before its seventh change of a file
assert trials.given_again("train") == []
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from fkgsec.experiments.runs.writing import LOCK_FILE
from fkgsec.federation.loop import BEFORE_END, CHECKPOINT
from tests.faults.forked import Commands, Ended

SMALL = [
    "--size", "400", "--clients", "2", "--dim", "4", "--num-negatives", "4", "--batch-size", "64", "--device", "cpu",
]  # fmt: skip
ROUNDS = ["--rounds", "5", "--eval-every", "1", "--patience", "0", "--quiet"]
EVERY = ["--checkpoint-every", "0"]
GRAPHS = [
    "--algorithm", "cefgl", "--clients", "2", "--size", "80", "--layers", "1", "--width", "8", "--device", "cpu", "--rounds", "5",
    "--quiet",
]  # fmt: skip
TABLE = """
title: Two federations
paper: Nobody 2024, Nothing
table: Table 9
paper_settings: {size: 300, clients: 2, batch_size: 64, num_negatives: 4, rounds: 3, patience: 0, eval_every: 1}
columns:
  - {name: one, paper_settings: {dim: 4}}
  - {name: two, paper_settings: {dim: 6}}
rows:
  - name: TransE FedE
    paper_settings: {model: transe, algorithm: fede}
    figures: {one: {mrr: 0.5}, two: {mrr: 0.4}}
"""
POLICY = """
federations:
  one: {data: consortium, size: 400, clients: 2, dim: 4, num_negatives: 4, batch_size: 64, rounds: 3, patience: 0, device: cpu}
limits:
  reconstruction.err: {max: 0.99, threat: collusion, leak: 0.5}
  utility.mrr: {min: 0.001}
"""
NAMES = ("train", "train graphs", "attack", "compare", "experiment", "unlearn", "verify", "audit", "check")
PASSING = {"check": (0, 3), "verify": (0, 1, 3)}
"""What a command may say where it ends by itself, other than 0: verdicts."""
# What two runs of equal figures may differ in: when, where, how long and of which commit they were made.
_VARIES = ("seconds", "environment", "tables_sha256", "unlearned_sha256", "commit", "dirty")
_PICTURES = (".png", ".html", ".md")


def prepare(commands: Commands, home: Path) -> None:
    """Make the run, the unlearnings, tables and files that commands read. Raises `AssertionError` with what was said."""
    (home / "table.yaml").write_text(TABLE)
    (home / "policy.yaml").write_text(POLICY)
    _done(commands, home, ["train", *SMALL, *ROUNDS, "--out", "made"])
    record = json.loads((home / "made" / "record.json").read_text())
    client = next(iter(record["data"]["clients"]))
    (home / "forget.tsv").write_text(_some_triples(record, client))
    for method in ("finetune", "retrain"):
        _done(
            commands,
            home,
            ["unlearn", "--run", "made", "--forget", "forget.tsv", "--client", client, "--method", method, "--quiet"],
        )
    _done(commands, home, ["export", "--run", "made", "--out", "tables"])


def _some_triples(record: Mapping[str, Any], client: str) -> str:
    from fkgsec.experiments.runs.spec import make_spec

    spec = make_spec(None, {name: record["spec"][name] for name in ("size", "clients")})
    graph = spec.load_graph()
    held = next(one for one in graph.clients if one.name == client)
    chosen = held.to_global(held.train[:20])
    return "".join(f"{graph.entities[h]}\t{graph.relations[r]}\t{graph.entities[t]}\n" for h, r, t in chosen)


def _done(commands: Commands, home: Path, arguments: list[str]) -> None:
    ended = commands.run(arguments, home)
    assert ended.status == 0, ended.err


def workloads(home: Path) -> dict[str, list[str]]:
    """By name the arguments of every long command; each writes below "out" of the folder that it runs in."""
    made, forget = str(home / "made"), str(home / "forget.tsv")
    return {
        "train": ["train", *SMALL, *ROUNDS, *EVERY, "--out", "out"],
        "train graphs": ["train", *GRAPHS, *EVERY, "--out", "out"],
        "attack": ["attack", *SMALL, *ROUNDS, *EVERY, "--unlinked-heads", "5", "--out", "out"],
        "compare": [
            "compare", *SMALL, *ROUNDS, "--unlinked-heads", "5", "--case", "none", "--case", "secagg", "--out", "out",
        ],
        "experiment": ["experiment", "run", str(home / "table.yaml"), "--out", "out", "--quiet"],
        "unlearn": ["unlearn", "--run", made, "--forget", forget, "--method", "retrain", "--out", "out/new", "--quiet"],
        "verify": [
            "verify", "--run", f"{made}-finetune", "--against", f"{made}-retrain", "--forget", forget, "--references", "3",
            "--shadows", "0", "--plants", "0", "--relearn-steps", "1", "--audit-seed", "1", "--out", "out", "--quiet",
        ],
        "audit": ["audit", "--tables", str(home / "tables"), "--json", "out/audit.json", "--quiet"],
        "check": ["check", str(home / "policy.yaml"), "--runs", "out", "--json", "out/verdict.json", "--quiet"],
    }  # fmt: skip


def passed(name: str, status: int) -> bool:
    """Whether a command ended by itself, as it does where nothing is wrong."""
    return status in PASSING.get(name, (0,))


class Trials:
    """Commands that are disturbed, in one place, whose name stands in records; and what each leaves undisturbed."""

    def __init__(self, commands: Commands, home: Path, place: Path) -> None:
        self.commands, self.home, self.place = commands, home, place
        self._undisturbed: dict[str, tuple[Ended, dict[str, object]]] = {}

    @cached_property
    def arguments(self) -> dict[str, list[str]]:
        """Of every long command, by its name."""
        return workloads(self.home)

    def fresh(self) -> None:
        """Empty the place."""
        shutil.rmtree(self.place, ignore_errors=True)
        (self.place / "out").mkdir(parents=True)

    def run(self, name: str, **faults: int | float) -> Ended:
        """A command with what is done to it, see `Commands.run`."""
        return self.commands.run(self.arguments[name], self.place, **faults)  # type: ignore[arg-type]

    def undisturbed(self, name: str) -> tuple[Ended, dict[str, object]]:
        """How a command ends and what it leaves; empties the place. Raises `AssertionError` where it fails."""
        if name not in self._undisturbed:
            self.fresh()
            ended = self.run(name)
            assert passed(name, ended.status), ended
            self._undisturbed[name] = ended, outcome(self.place)
            self.fresh()
        return self._undisturbed[name]

    def given_again(self, name: str) -> list[str]:
        """What is wrong after a disturbed command is given again: nothing, where it ends and leaves what it always does."""
        reference, expected = self.undisturbed(name)
        again = self.run(name)
        if again.status != reference.status:
            return [f"status {again.status}: {again.err}"]
        found = outcome(self.place)
        return [f"differs: {file}" for file in {*found, *expected} if found.get(file) != expected.get(file)]


def outcome(folder: Path) -> dict[str, object]:
    """What a command left, without when and where: every file by name, its content where two runs have the same.

    The lock file of a process that was killed at its very end may lie in a finished folder, where it locks nothing.
    """
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != LOCK_FILE]
    return {path.relative_to(folder).as_posix(): _content(path) for path in files}


def _content(path: Path) -> object:
    if path.suffix in _PICTURES or path.name in (
        CHECKPOINT,
        BEFORE_END,
    ):  # the former has its fingerprint in the record
        return path.stat().st_size > 0
    if path.suffix == ".json":
        return _timeless(json.loads(path.read_bytes()))
    if path.suffix == ".safetensors":
        return {name: (str(one.dtype), one.numpy().tobytes()) for name, one in load_file(path).items()}
    return path.read_bytes()


def _timeless(value: Any) -> Any:
    if isinstance(value, list):
        return [_timeless(one) for one in value]
    if not isinstance(value, dict):
        return value
    kept = {name: _timeless(one) for name, one in value.items() if name not in _VARIES}
    if isinstance(kept.get("origin"), dict):  # of a record: its own digest covers its seconds, sums hide fresh masks
        secret = "secagg" in value.get("spec", {}).get("defense", "")
        kept["origin"] = {
            name: one
            for name, one in kept["origin"].items()
            if name == "scores" or (name == "checkpoint" and not secret)
        }
    return kept
