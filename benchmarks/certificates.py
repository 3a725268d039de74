"""Test whether `fkgsec verify` certifies fakes, and whether it passes honest re-trainings.

    python -m benchmarks.certificates --config fede.yaml --work /tmp/fakes --out fakes.json

It splits off an escrow, trains a run, and lets the first client request to forget triples. One audit then examines every fake of
`benchmarks.fakes` and re-trainings with other seeds. The audit's own runs are trained once and shared by all rows. `--fresh` runs
a separate audit for each re-training, with another audit seed, and skips the fakes. `python -m benchmarks.certificates --show
fakes.json` prints the table.
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
    """Outcome of one audited run: the worst figures over the requesting client's models.

    Attributes:
        auc: of the loss, farthest from 0.5.
        forget_mrr, test_mrr: of the local model, or of the only one.
        share: largest remembered share of the forget set, and the upper end of its interval.
        p_value: smallest of its tests.
        hidden: largest bound on the remembered share if all other triples were lowered.
        held: `held_share` of a certified fake, and the upper end of its interval; None for all others.
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
    """Table of certificates.

    Attributes:
        rejected_from: smallest planted share from which the (first) audit passes no plant, in its worse model. An audit that
            passes no run has the smallest share, too: see `Sensitivity`.
        fresh: whether each re-training with another seed had a separate audit; else all rows share one.
        hiding_rejected_from: as `rejected_from`, for a share that is hidden from means.
        told_apart_from, honest_passes_from: see `Sensitivity`, in the worse model; None if there is none, and in earlier
            records.
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
    save: Callable[[Certificates], None] = lambda verification: None,
) -> Certificates:
    """Train, unlearn and fake in a new folder, and audit everything.

    Args:
        spec: of the run.
        work: folder, which must not exist.
        num_forgotten: number of triples to forget.
        num_nulls: number of re-trainings with other seeds.
        escrow_share: share of each client's training triples.
        thresholds: of the verdict.
        audit_seed: of the audit.
        fresh: see `Certificates`; no fakes are made then.
        save: receives the table after each row, so that a killed benchmark leaves one.
    """
    client, honest, case = _prepare(spec, work, num_forgotten, escrow_share, audit_seed)
    audit = AuditOptions(audit_seed=audit_seed, replay=False)  # what is measured is the statistics
    rows: list[Certificate] = []
    models: list[ModelEvidence] = []
    shared_runs: dict[tuple[object, ...], OwnRuns] = {}

    def so_far() -> Certificates:
        """Return the table up to the last row."""
        at_random, hiding = (
            [getattr(model, how) or NOTHING_TOLD for model in models] for how in ("at_random", "hiding")
        )
        return Certificates(
            SCHEMA, spec, num_forgotten, thresholds.share, _largest([model.rejected_from for model in at_random]), audit, rows,
            environment_of(honest.result.options), fresh, _largest([model.rejected_from for model in hiding]),
            _largest([model.told_apart_from for model in at_random]), _largest([model.honest_passes_from for model in at_random]),
        )  # fmt: skip

    def audited(name: str, result: KgeResult, audit: AuditOptions = audit) -> None:
        """Audit a result as the unlearned run, and add its row."""
        started = time.perf_counter()
        folder = work / "runs" / f"{len(rows)}"
        folder.parent.mkdir(exist_ok=True)
        # The audit reads a folder, like one that a client receives.
        write_unlearned(folder, honest.spec, honest.graph, honest.forget, honest.unlearning, result)
        verification = verify(
            folder, thresholds, audit, forget=work / "forget.tsv", client=client, raw=work / "raw",
            escrow=work / "escrow.json", folder=work / "audit-runs", kept=None if fresh else shared_runs,
        )  # fmt: skip
        remembered = held_share(case, result) if name in FAKES and verification.verdict.exit_status == 0 else None
        rows.append(_row(name, verification, time.perf_counter() - started, remembered))
        # The audit's sensitivity is the same for all rows: take it from the first.
        if not models:
            assert verification.evidence is not None
            models.extend(model for model in verification.evidence.models if model.asked)
        save(so_far())
        print(f"{name}: {verification.verdict.outcome}, {rows[-1].seconds:.0f} s", flush=True)

    audited("re-trained", honest.result)
    for name, fake in FAKES.items() if not fresh else ():
        audited(name, fake(case))
    for number in range(num_nulls):
        own_audit = msgspec.structs.replace(audit, audit_seed=audit_seed + number + 1) if fresh else audit
        # Trained with another seed, submitted under the run's seed: honest, but not bit-identical.
        options = msgspec.structs.replace(honest.result.options, seed=1_000 + number)
        audited(f"re-trained, seed {number + 1}", run_federation(honest.result.graph, options), own_audit)
    return so_far()


def _largest(shares: list[float | None]) -> float | None:
    """Return the largest share; None is larger than all."""
    return None if None in shares else max(share for share in shares if share is not None)


def _prepare(spec: Spec, work: Path, num_forgotten: int, escrow_share: float, seed: int) -> tuple[str, Unlearned, Case]:
    """Split off an escrow, train, and re-train without the triples that the first client wants to forget."""
    work.mkdir(parents=True)
    remaining, escrowed = split_escrow(spec.load_graph(), escrow_share, np.random.default_rng(seed))
    # Written and read again: the escrow commits to the data as the run will load them.
    write_client_folders(remaining, work / "data")
    sealed = Escrow.seal(read_client_folders(work / "data"), escrowed)
    write_atomically(work / "escrow.json", msgspec.json.encode(sealed))
    stored = msgspec.structs.replace(spec, data=str(work / "data"), size=None, clients=None, partition=None)
    graph = stored.load_graph()
    execute(stored, graph, work / "raw", attack=False)
    client = graph.clients[0]
    distinct = np.unique(client.train, axis=0)
    # Distinct triples: a forgotten duplicate would stay in the data.
    chosen = distinct[generator(spec.seed, "forgotten").permutation(len(distinct))[:num_forgotten]]
    (work / "forget.tsv").write_text(triple_lines(graph, client.name, chosen), encoding="utf-8")
    unlearn_run(work / "raw", work / "forget.tsv", UnlearnOptions(method="retrain"), client=client.name)
    honest = read_unlearned(work / "raw-retrain")
    return client.name, honest, Case(load_run(work / "raw")[1], honest.result, honest.graph, honest.forget)


def _row(name: str, verification: Verification, seconds: float, remembered: Estimate | None) -> Certificate:
    assert verification.evidence is not None
    by_loss = [
        row for row in verification.forgetting.membership if row.asked and row.attack == "loss" and not row.reason
    ]
    # The model with the clearest trace of the forgotten triples decides.
    auc = max((row.figures["unlearned"].auc.value for row in by_loss), key=lambda value: abs(value - 0.5))
    quality = {
        row.triples: row.figures["unlearned"]["mrr"].value
        for row in reversed(verification.forgetting.quality)
        if row.asked
    }
    shares = [model.share for model in verification.evidence.models if model.asked and model.share is not None]
    largest = max(shares, key=lambda share: share.high, default=None)
    return Certificate(
        name,
        verification.verdict.outcome,
        auc,
        quality["forget"],
        quality["test"],
        None if largest is None else (largest.value, largest.high),
        min(test.p_value for model in verification.evidence.models for test in model.tests),
        verification.verdict.reasons,
        seconds,
        max(
            (model.hidden.high for model in verification.evidence.models if model.asked and model.hidden is not None),
            default=None,
        ),
        None if remembered is None else (remembered.value, remembered.high),
    )


def table(certificates: Certificates) -> str:
    """Return the table in Markdown: one row per fake, and a sentence on the re-trainings.

    Args:
        certificates: from `run`.
    """
    heads = [
        "run", "exit status", "AUC by loss", "MRR forgotten", "MRR test", "share remembered, at most", "if hidden", "least p",
    ]  # fmt: skip
    certified = any(row.held is not None for row in certificates.rows)  # earlier records do not say what a fake holds
    heads += ["below what this audit rejects"] if certified else []
    rows, nulls = [], [row for row in certificates.rows if ", seed " in row.name]
    for row in (row for row in certificates.rows if row not in nulls):
        # Bounds above 1 exclude nothing: the audit measured no share.
        share = hidden = ""
        if row.share is not None:
            share = f"{row.share[0]:.2f}, {row.share[1]:.2f}" if row.share[1] <= 1 else UNMEASURED
        if row.hidden is not None:
            hidden = f"{row.hidden:.2f}" if row.hidden <= 1 else UNMEASURED
        remembered = "" if row.held is None else f"holds {row.held[0]:.2f}, at most {row.held[1]:.2f}"
        figures = (*(f"{value:.3f}" for value in (row.auc, row.forget_mrr, row.test_mrr)), share, hidden)
        rows.append((row.name, EXIT_STATUS[row.outcome], *figures, f"{row.p_value:.1g}", *[remembered] * certified))
    lines = markdown_lines(Sheet("", tuple(map(Column, heads)), tuple(rows)))
    counts = ", ".join(f"{sum(row.outcome == outcome for row in nulls)} {outcome}" for outcome in EXIT_STATUS)
    how = "each before an audit of its own" if certificates.fresh else "all before this audit"
    rejected, hidden = (
        "none" if share is None else f"{share:g}"
        for share in (certificates.rejected_from, certificates.hiding_rejected_from)
    )
    smallest = f"Smallest planted share that the audit never passes: {rejected}"
    if any(row.hidden is not None for row in certificates.rows):  # earlier records do not say
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
    certificates = run(
        make_spec(config, {}),
        work,
        num_forgotten=forget,
        num_nulls=nulls,
        escrow_share=escrow,
        thresholds=Thresholds(share=share),
        audit_seed=audit_seed,
        fresh=fresh,
        save=lambda certificates: write_atomically(out, encode_stored(certificates)),
    )
    print(table(certificates))


if __name__ == "__main__":
    typer.run(main)
