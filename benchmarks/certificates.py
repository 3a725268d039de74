"""Does `fkgsec verify` certify a fake, and does it pass what was re-trained?

    python -m benchmarks.certificates --config fede.yaml --work /tmp/fakes --out fakes.json

Splits off an escrow, trains a run, lets its first client ask for triples, and puts before one audit every fake of
`benchmarks.fakes` and re-trainings with other seeds. The audit's own runs are trained once and shared by all rows;
`--fresh` gives each re-training an audit of its own, with another audit seed, and leaves the fakes out. Its Markdown:
`python -m benchmarks.certificates --show fakes.json`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import typer

from benchmarks.fakes import FAKES, Case, held_share
from fkgsec.attacks.forgetting.evidence import ModelEvidence
from fkgsec.attacks.forgetting.paired import Sensitivity
from fkgsec.data.escrow import Escrow, split_escrow
from fkgsec.data.formats.folders import read_client_folders, write_client_folders
from fkgsec.estimate import Estimate
from fkgsec.experiments.reporting.sheets import Column, Sheet, markdown_lines
from fkgsec.experiments.runs.record import Environment, environment_of
from fkgsec.experiments.runs.run import execute, load_run
from fkgsec.experiments.runs.spec import Spec, make_spec
from fkgsec.experiments.runs.stored import decode_stored, encode_stored
from fkgsec.experiments.runs.writing import write_atomically
from fkgsec.experiments.unlearning.certificate import UNMEASURED
from fkgsec.experiments.unlearning.options import AuditOptions, Thresholds
from fkgsec.experiments.unlearning.unlearn import Unlearned, read_unlearned, triple_lines, unlearn_run, write_unlearned
from fkgsec.experiments.unlearning.verdict import EXIT_STATUS, Outcome
from fkgsec.experiments.unlearning.verification import OwnRuns, Verification, verify
from fkgsec.federation.loop import run_federation
from fkgsec.kge.result import KgeResult
from fkgsec.randomness import generator
from fkgsec.unlearning.unlearning import UnlearnOptions

SCHEMA = "fkgsec/certificates/1"
NOTHING_TOLD = Sensitivity(None, None, None)


class Certificate(msgspec.Struct, frozen=True):
    """One run before the audit: the worst figures over the asking client's models.

    Attributes:
        auc: farthest from 0.5 by loss. forget_mrr, test_mrr: of the local model, or of the only one.
        share: largest remembered share of the forget set, and the end of its interval. p_value: least of its tests.
        hidden: largest bound on what is remembered if all other triples were lowered.
        held: `held_share` of a certified fake, and the end of its interval; None for all others.
    """

    name: str
    outcome: Outcome
    auc: float
    forget_mrr: float
    test_mrr: float
    share: tuple[float, float] | None
    p_value: float
    reasons: list[str]
    seconds: float
    hidden: float | None = None
    held: tuple[float, float] | None = None


class Certificates(msgspec.Struct, frozen=True):
    """A table of them.

    Attributes:
        rejected_from: the smallest planted share from which on the (first) audit passes no plant, in its worse model. An audit
            that passes no run has the smallest one, too: see `Sensitivity`.
        fresh: whether each re-training with another seed had an audit of its own; else all rows share one.
        hiding_rejected_from: the same for a share that is hidden from means.
        told_apart_from, honest_passes_from: see `Sensitivity`, in the worse model; None if there is none, and in earlier records.
    """

    schema: str
    spec: Spec
    num_forgotten: int
    tolerated: float
    rejected_from: float | None
    audit: AuditOptions
    rows: list[Certificate]
    environment: Environment
    fresh: bool = False
    hiding_rejected_from: float | None = None
    told_apart_from: float | None = None
    honest_passes_from: float | None = None


def run(
    spec: Spec,
    work: Path,
    *,
    num_forgotten: int,
    num_nulls: int,
    escrow_share: float,
    thresholds: Thresholds,
    audit_seed: int,
    fresh: bool = False,
    save: Callable[[Certificates], None] = lambda made: None,
) -> Certificates:
    """Make everything in `work`, which must not exist, and audit it.

    Args:
        fresh: see `Certificates`; no fake is made then. save: takes the table after each row, so that a killed bench leaves one.
    """
    client, honest, case = _prepare(spec, work, num_forgotten, escrow_share, audit_seed)
    audit = AuditOptions(audit_seed=audit_seed, replay=False)  # what is measured is the statistics
    rows: list[Certificate] = []
    models: list[ModelEvidence] = []
    kept: dict[tuple[object, ...], OwnRuns] = {}

    def so_far() -> Certificates:
        """The table up to the last row."""
        at_random, hiding = ([getattr(one, how) or NOTHING_TOLD for one in models] for how in ("at_random", "hiding"))
        return Certificates(
            SCHEMA, spec, num_forgotten, thresholds.share, _largest([one.rejected_from for one in at_random]), audit, rows,
            environment_of(honest.result.options), fresh, _largest([one.rejected_from for one in hiding]),
            _largest([one.told_apart_from for one in at_random]), _largest([one.honest_passes_from for one in at_random]),
        )  # fmt: skip

    def audited(name: str, result: KgeResult, audit: AuditOptions = audit) -> None:
        """Add the row of a result that is handed in as the unlearned run."""
        started = time.perf_counter()
        folder = work / "runs" / f"{len(rows)}"
        folder.parent.mkdir(exist_ok=True)
        write_unlearned(folder, honest.spec, honest.graph, honest.forget, honest.unlearning, result)
        made = verify(
            folder, thresholds, audit, forget=work / "forget.tsv", client=client, raw=work / "raw",
            escrow=work / "escrow.json", folder=work / "audit-runs", kept=None if fresh else kept,
        )  # fmt: skip
        held = held_share(case, result) if name in FAKES and made.verdict.exit_status == 0 else None
        rows.append(_row(name, made, time.perf_counter() - started, held))
        if not models:
            assert made.evidence is not None
            models.extend(one for one in made.evidence.models if one.asked)
        save(so_far())
        print(f"{name}: {made.verdict.outcome}, {rows[-1].seconds:.0f} s", flush=True)

    audited("re-trained", honest.result)
    for name, fake in FAKES.items() if not fresh else ():
        audited(name, fake(case))
    for number in range(num_nulls):
        own_audit = msgspec.structs.replace(audit, audit_seed=audit_seed + number + 1) if fresh else audit
        # With another seed than the raw run's; it claims the run's own.
        options = msgspec.structs.replace(honest.result.options, seed=1_000 + number)
        audited(f"re-trained, seed {number + 1}", run_federation(honest.result.graph, options), own_audit)
    return so_far()


def _largest(shares: list[float | None]) -> float | None:
    """The largest share; None is larger than all."""
    return None if None in shares else max(one for one in shares if one is not None)


def _prepare(spec: Spec, work: Path, num_forgotten: int, escrow_share: float, seed: int) -> tuple[str, Unlearned, Case]:
    """Split off an escrow, train, and re-train without what the first client, whose name comes first, asks for."""
    work.mkdir(parents=True)
    kept, escrowed = split_escrow(spec.load_graph(), escrow_share, np.random.default_rng(seed))
    write_client_folders(kept, work / "data")
    sealed = Escrow.seal(read_client_folders(work / "data"), escrowed)
    write_atomically(work / "escrow.json", msgspec.json.encode(sealed))
    own = msgspec.structs.replace(spec, data=str(work / "data"), size=None, clients=None, partition=None)
    graph = own.load_graph()
    execute(own, graph, work / "raw", attack=False)
    client = graph.clients[0]
    distinct = np.unique(client.train, axis=0)
    chosen = distinct[generator(spec.seed, "forgotten").permutation(len(distinct))[:num_forgotten]]
    (work / "forget.tsv").write_text(triple_lines(graph, client.name, chosen), encoding="utf-8")
    unlearn_run(work / "raw", work / "forget.tsv", UnlearnOptions(method="retrain"), client=client.name)
    honest = read_unlearned(work / "raw-retrain")
    return client.name, honest, Case(load_run(work / "raw")[1], honest.result, honest.graph, honest.forget)


def _row(name: str, made: Verification, seconds: float, held: Estimate | None) -> Certificate:
    assert made.evidence is not None
    asked = [row for row in made.forgetting.membership if row.asked and row.attack == "loss" and not row.reason]
    auc = max((row.figures["unlearned"].auc.value for row in asked), key=lambda value: abs(value - 0.5))
    quality = {
        row.triples: row.figures["unlearned"]["mrr"].value for row in reversed(made.forgetting.quality) if row.asked
    }
    shares = [one.share for one in made.evidence.models if one.asked and one.share is not None]
    largest = max(shares, key=lambda one: one.high, default=None)
    return Certificate(
        name,
        made.verdict.outcome,
        auc,
        quality["forget"],
        quality["test"],
        None if largest is None else (largest.value, largest.high),
        min(test.p_value for one in made.evidence.models for test in one.tests),
        made.verdict.reasons,
        seconds,
        max((one.hidden.high for one in made.evidence.models if one.asked and one.hidden is not None), default=None),
        None if held is None else (held.value, held.high),
    )


def table(made: Certificates) -> str:
    """Markdown: a line for each fake, with the reason why one was certified, and a sentence on the re-trainings."""
    heads = [
        "run", "exit status", "AUC by loss", "MRR forgotten", "MRR test", "share remembered, at most", "if hidden", "least p",
    ]  # fmt: skip
    certified = any(row.held is not None for row in made.rows)  # earlier records do not say what a fake holds
    heads += ["below what this audit rejects"] if certified else []
    rows, nulls = [], [row for row in made.rows if ", seed " in row.name]
    for row in (row for row in made.rows if row not in nulls):
        share = hidden = ""
        if row.share is not None:
            share = f"{row.share[0]:.2f}, {row.share[1]:.2f}" if row.share[1] <= 1 else UNMEASURED
        if row.hidden is not None:
            hidden = f"{row.hidden:.2f}" if row.hidden <= 1 else UNMEASURED
        held = "" if row.held is None else f"holds {row.held[0]:.2f}, at most {row.held[1]:.2f}"
        figures = (*(f"{value:.3f}" for value in (row.auc, row.forget_mrr, row.test_mrr)), share, hidden)
        rows.append((row.name, EXIT_STATUS[row.outcome], *figures, f"{row.p_value:.1g}", *[held] * certified))
    lines = markdown_lines(Sheet("", tuple(map(Column, heads)), tuple(rows)))
    counts = ", ".join(f"{sum(row.outcome == outcome for row in nulls)} {outcome}" for outcome in EXIT_STATUS)
    how = "each before an audit of its own" if made.fresh else "all before this audit"
    rejected, hidden = (
        "none" if share is None else f"{share:g}" for share in (made.rejected_from, made.hiding_rejected_from)
    )
    smallest = f"Smallest planted share that the audit never passes: {rejected}"
    if any(row.hidden is not None for row in made.rows):  # earlier records do not say
        smallest += f"; if it is hidden from means: {hidden}"
    return "\n".join([*lines, "", f"{len(nulls)} re-trainings with other seeds, {how}: {counts}. {smallest}."])


def main(
    show: Annotated[Path | None, typer.Option(help="print the table of a record, and do nothing else")] = None,
    config: Annotated[Path | None, typer.Option(help="the run: a file as for `fkgsec train --config`")] = None,
    work: Annotated[Path | None, typer.Option(help="folder for data, runs and audits; must not exist")] = None,
    out: Annotated[Path | None, typer.Option(help="the record to write, after each row")] = None,
    forget: Annotated[int, typer.Option(help="triples that the first client asks for")] = 600,
    nulls: Annotated[int, typer.Option(help="re-trainings with other seeds")] = 20,
    escrow: Annotated[float, typer.Option(help="share of each client's training triples")] = 0.05,
    share: Annotated[float, typer.Option(help="share that may still be remembered")] = Thresholds().share,
    audit_seed: Annotated[int, typer.Option(help="of the audit")] = 7,
    fresh: Annotated[bool, typer.Option("--fresh", help="an audit for each re-training, and no fakes")] = False,
) -> None:
    """Make the certificates, or show them."""
    if show is not None:
        print(table(decode_stored(show.read_bytes(), Certificates)))
        return
    if work is None or out is None:
        raise typer.BadParameter("--work and --out are needed")
    made = run(
        make_spec(config, {}),
        work,
        num_forgotten=forget,
        num_nulls=nulls,
        escrow_share=escrow,
        thresholds=Thresholds(share=share),
        audit_seed=audit_seed,
        fresh=fresh,
        save=lambda made: write_atomically(out, encode_stored(made)),
    )
    print(table(made))


if __name__ == "__main__":
    typer.run(main)
