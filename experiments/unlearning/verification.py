"""Measuring an unlearned run beside a re-trained one, and the record of it.

What the verdict (`experiments.unlearning.verdict`) does not cover is reported beside it: low false positive rates, distances,
relearning, reconstruction, and what the request itself told the server. No finding of these turns a verdict, since none has a
null that a threshold could sit on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec
import torch

from attacks.audits import audited_triples
from attacks.forgetting import Forgetting, Results, measure_forgetting
from experiments.progress import Observe, unobserved
from experiments.record import Environment, describe_environment
from experiments.run import load_run
from experiments.unlearning.unlearn import NO_TRACE, Unlearned, Unlearning, kept_shadow, read_unlearned
from experiments.unlearning.verdict import Thresholds, Verdict, judge
from fkgsec.errors import RunError, SpecError
from fkgsec.federation.loop import run_identity

SCHEMA = "fkgsec/verification/1"
MIN_SHADOWS = 4  # each triple twice in, twice out: with fewer there is no spread to take a likelihood from


class Verification(msgspec.Struct, frozen=True):
    """The record of a verification, `verification.json`.

    Attributes:
        unlearning, reference: what made the audited and the re-trained run.
        num_shadows, seed: of the shadow federations; the seed also draws controls.
        remarks: what a reader must know beside the figures.
    """

    schema: str
    unlearning: Unlearning
    reference: Unlearning
    thresholds: Thresholds
    num_shadows: int
    seed: int
    verdict: Verdict
    forgetting: Forgetting
    remarks: list[str]
    environment: Environment


def verify(
    run: Path,
    against: Path,
    raw: Path | None,
    thresholds: Thresholds,
    *,
    num_shadows: int = MIN_SHADOWS,
    relearn_steps: int = 20,
    seed: int = 0,
    observe: Observe = unobserved,
) -> Verification:
    """Measure and judge an unlearned run. Shadow federations are kept in the reference's folder, for all that is held against it.

    Args:
        run, against: folders of `fkgsec unlearn`; `against` by the method retrain, of the same run and forget file.
        raw: the run that was unlearned; None leaves out what compares with it.
        num_shadows: 0 leaves out the attacks that need shadows; else even, at least `MIN_SHADOWS`.
        observe: gives each shadow federation its observer.

    Raises:
        RunError: folders that do not belong together. SpecError: an option out of range.
    """
    if num_shadows and (num_shadows < MIN_SHADOWS or num_shadows % 2):
        raise SpecError(f"shadows must be 0 or an even number of at least {MIN_SHADOWS}; got {num_shadows}")
    if relearn_steps < 0:
        raise SpecError(f"relearn_steps must be at least 0; got {relearn_steps}")
    candidate, reference = read_unlearned(run), read_unlearned(against)
    _check_together(run, candidate, against, reference)
    results: Results = {"retrained": reference.result, "unlearned": candidate.result}
    if raw is not None:
        raw_result = load_run(raw)[1]
        if run_identity(raw_result.graph, raw_result.options) != candidate.unlearning.identity:
            raise RunError(f"{raw}: is not the run that {run} was made from")
        results = {"raw": raw_result, **results}
    audits = audited_triples(candidate.graph, candidate.result.graph, candidate.forget, seed)
    if not any(len(audit.members) for audit in audits):
        num_shadows = 0
    shadows = []
    for number in range(num_shadows):
        with observe(candidate.result.options, f"{number + 1} of {num_shadows}") as observer:
            shadows.append(kept_shadow(against, candidate, audits, number, seed, observer))
    forgetting = measure_forgetting(
        results,
        candidate.graph,
        candidate.forget,
        audits,
        shadows=shadows,
        seed=seed,
        relearn_steps=relearn_steps,
    )
    return Verification(
        schema=SCHEMA,
        unlearning=candidate.unlearning,
        reference=reference.unlearning,
        thresholds=thresholds,
        num_shadows=num_shadows,
        seed=seed,
        verdict=judge(forgetting.membership, thresholds),
        forgetting=forgetting,
        remarks=_remarks(results, candidate, num_shadows),
        environment=describe_environment(candidate.result),
    )


def _check_together(run: Path, candidate: Unlearned, against: Path, reference: Unlearned) -> None:
    if reference.unlearning.options.method != "retrain":
        raise RunError(
            f"{against}: was made by method {reference.unlearning.options.method}; the reference must be made by retrain"
        )
    if reference.unlearning.identity != candidate.unlearning.identity:
        raise RunError(f"{against}: comes from another run than {run}")
    if reference.unlearning.forget_hash != candidate.unlearning.forget_hash:
        raise RunError(f"{against}: was made with another forget file than {run}")


def _remarks(results: Results, candidate: Unlearned, num_shadows: int) -> list[str]:
    remarks = []

    def same(role: Literal["raw", "retrained"]) -> bool:
        return all(
            torch.equal(one.entities, other.entities) and torch.equal(one.relations, other.relations)
            for kind in ("tables", "private")
            for one, other in zip(getattr(results["unlearned"], kind), getattr(results[role], kind), strict=True)
        )

    if "raw" in results and same("raw"):
        remarks.append("Not one embedding of the audited run differs from the raw run's.")
    if same("retrained"):
        remarks.append("The audited run is the reference itself, so it exceeds it by 0 everywhere.")
    method = candidate.unlearning.options.method
    if not num_shadows:
        remarks.append("Without shadow federations the attack knows the loss alone: the weakest of those there are.")
    elif method in NO_TRACE:
        remarks.append(
            f"Shadows were not unlearnt: by its own account {method} leaves no trace that depends on the triples."
        )
    return remarks


def encode(verification: Verification) -> bytes:
    """The record as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(verification), indent=2) + b"\n"
