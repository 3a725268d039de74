"""Count who earns a certificate: honest re-trainings of small requests, and parties that only claim to have forgotten.

    python -m benchmarks.earned --data UMLS --size 200 --honest 20 --work /tmp/earned --out umls-200.json
    python -m benchmarks.earned --show umls-200.json

A run of three clients is trained with FedE. In each honest draw, the first client requests other triples, the party that unlearns
re-trains, and `fkgsec verify` audits it at its defaults with another audit seed. For one more request, all of `FORGERS`, and a
party that unlearned only nine tenths of it, submit results as re-trainings. Their audits share one audit seed and its trainings.
`--statistics` leaves out the replay.

Acceptance: at least 18 of 20 honest draws earn "forgotten", in at most five minutes each, and no forger does.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import typer

from benchmarks.fakes import FORGERS, Case, held_share
from fkgsec.errors import RunError
from fkgsec.experiments.reporting.sheets import Column, Sheet, markdown_lines
from fkgsec.experiments.runs.record import Environment, environment_of
from fkgsec.experiments.runs.run import execute, load_run
from fkgsec.experiments.runs.spec import Spec
from fkgsec.experiments.runs.stored import decode_stored, encode_stored
from fkgsec.experiments.runs.writing import write_atomically
from fkgsec.experiments.unlearning.options import AuditOptions, Thresholds
from fkgsec.experiments.unlearning.unlearn import Unlearned, read_unlearned, triple_lines, unlearn_run, write_unlearned
from fkgsec.experiments.unlearning.verification import OwnRuns, verify
from fkgsec.kge.result import KgeResult
from fkgsec.randomness import generator
from fkgsec.unlearning.forget_sets import Forget
from fkgsec.unlearning.unlearning import UnlearnOptions

SCHEMA = "fkgsec/earned/1"
HONEST, LESS = "re-trained", "asked for less"
SETTINGS = Spec(algorithm="fede", dim=32, rounds=40, num_negatives=32, learning_rate=0.01, eval_every=40, device="cpu")


class Audit(msgspec.Struct, frozen=True):
    """An audit: the outcome, or "refused"; CPU seconds of re-training and audit; the first reason.

    `held`: `held_share` of a certified forger, and its upper bound.
    """

    name: str
    outcome: str
    seconds: float
    reason: str
    held: tuple[float, float] | None = None


class Earned(msgspec.Struct, frozen=True):
    """All audits of requests of one size to one run."""

    schema: str
    spec: Spec
    size: int
    options: AuditOptions
    audits: list[Audit]
    environment: Environment


def request(raw: KgeResult, size: int, draw: int) -> Forget:
    """Draw distinct triples of the first client."""
    client = raw.graph.clients[0]
    return {client.name: generator(draw, "requested").permutation(np.unique(client.train, axis=0))[:size]}


def audits(
    spec: Spec, size: int, num_honest: int, num_forgers: int, options: AuditOptions, work: Path
) -> Iterator[Audit]:
    """Train the run in a new folder, and yield each audit.

    Args:
        spec: options of the run.
        size: triples of a request.
        num_honest: honest draws.
        num_forgers: forgers, from the first of `FORGERS` on.
        options: options of each audit, but for its seed.
        work: folder.
    """
    if not (work / "raw").exists():
        work.mkdir(parents=True)
        execute(spec, spec.load_graph(), work / "raw", attack=False)
    raw = load_run(work / "raw")[1]
    name = raw.graph.clients[0].name

    def retrained(folder: Path, draw: int, size: int) -> Unlearned:
        """Re-train without the triples of a draw."""
        folder.mkdir(parents=True)
        triples = request(raw, size, draw)[name]
        (folder / "forget.tsv").write_text(triple_lines(raw.graph, name, triples), encoding="utf-8")
        how = UnlearnOptions(method="retrain")
        unlearn_run(work / "raw", folder / "forget.tsv", how, client=name, out=folder / "run")
        return read_unlearned(folder / "run")

    def audited(title: str, run: Path, asked: Path, draw: int, kept: dict[tuple[object, ...], OwnRuns]) -> Audit:
        """Audit a folder."""
        started = time.process_time()
        settings = msgspec.structs.replace(options, audit_seed=draw)
        try:
            made = verify(
                run, Thresholds(), settings, forget=asked, client=name, folder=asked.parent / "own", kept=kept
            )
        except RunError as error:
            return Audit(title, "refused", time.process_time() - started, str(error).partition(": ")[2])
        return Audit(title, made.verdict.outcome, time.process_time() - started, made.verdict.reasons[0])

    for draw in range(1, num_honest + 1):
        folder, started = work / f"honest-{size}-{draw}", time.process_time()
        retrained(folder, draw, size)
        made = audited(f"{HONEST}, {draw}", folder / "run", folder / "forget.tsv", draw, {})
        yield msgspec.structs.replace(made, seconds=time.process_time() - started)
    if not num_forgers:
        return
    folder, kept = work / f"forged-{size}", {}
    honest = retrained(folder, 0, size)
    retrained(folder / "less", 0, size - size // 10)
    yield audited(LESS, folder / "less" / "run", folder / "forget.tsv", 0, kept)
    case = Case(raw, honest.result, honest.graph, honest.forget)
    for title in list(FORGERS)[:num_forgers]:
        fake, run = FORGERS[title](case), folder / title.replace(" ", "-")
        write_unlearned(run, honest.spec, honest.graph, honest.forget, honest.unlearning, fake)
        made = audited(title, run, folder / "forget.tsv", 0, kept)
        if made.outcome == "forgotten":
            held = held_share(case, fake)
            made = msgspec.structs.replace(made, held=(held.value, held.high))
        yield made


def table(earned: Earned) -> str:
    """Return the table in Markdown: the honest draws in a row, and each forger."""
    honest = [audit for audit in earned.audits if audit.name.startswith(HONEST)]
    passed = sum(audit.outcome == "forgotten" for audit in honest)
    slowest = max((audit.seconds for audit in honest), default=0.0)
    rows = [(f"{HONEST}, {len(honest)} draws", f"{passed} forgotten", f"{slowest:.0f} at most", "")]
    for audit in earned.audits[len(honest) :]:
        held = "" if audit.held is None else f"holds {audit.held[0]:.2f}, at most {audit.held[1]:.2f}"
        rows.append((audit.name, audit.outcome, f"{audit.seconds:.0f}", held or audit.reason[:100]))
    return "\n".join(markdown_lines(Sheet("", tuple(map(Column, ("party", "outcome", "CPU s", "why"))), tuple(rows))))


def main(
    show: Annotated[Path | None, typer.Option(help="print the table of a record, and do nothing else")] = None,
    data: Annotated[str | None, typer.Option(help="data set, divided among three clients (default: embedded)")] = None,
    size: Annotated[int, typer.Option(help="triples of a request")] = 200,
    honest: Annotated[int, typer.Option(help="honest draws; 20 for acceptance")] = 2,
    forgers: Annotated[int, typer.Option(help="forgers; 9 for acceptance")] = 2,
    statistics: Annotated[bool, typer.Option("--statistics", help="leave out the replay")] = False,
    work: Annotated[Path | None, typer.Option(help="folder for runs and audits; its run is used again")] = None,
    out: Annotated[Path | None, typer.Option(help="the record to write, after each audit")] = None,
) -> None:
    """Count, or show."""
    if show is not None:
        print(table(decode_stored(show.read_bytes(), Earned)))
        return
    if work is None or out is None:
        raise typer.BadParameter("--work and --out are needed")
    spec = SETTINGS if data is None else msgspec.structs.replace(SETTINGS, data=data, clients=3)
    options = AuditOptions(replay=not statistics)
    earned = Earned(SCHEMA, spec, size, options, [], environment_of(spec.federation_options()))
    for audit in audits(spec, size, honest, forgers, options, work):
        earned.audits.append(audit)
        write_atomically(out, encode_stored(earned))
        print(f"{audit.name}: {audit.outcome}, {audit.seconds:.0f} s", flush=True)
    print(table(earned))


if __name__ == "__main__":
    typer.run(main)
