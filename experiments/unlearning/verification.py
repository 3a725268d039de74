"""Auditing an unlearned run beside re-trainings of the audit's own, and the record of it.

The audit trusts the party that unlearned only for the data and the options that its folder names. The request comes from the
client that made it. References, shadows and plants are trained here, from a seed that is drawn here. Controls come from an escrow
if there is one. Each training is stored in a folder named after its data and settings, so that a repeated audit (`--audit-seed`)
finds it. All seeds derive from the audit seed.

An honest re-training needs no statistics: the audit first repeats it with the seed that its folder names. If every embedding is
the same, bit by bit, it follows from the retained data alone, whatever the size of the request. Else the audit goes on to its
references.

What the verdict (`fkgsec.experiments.unlearning.verdict`) does not cover is reported beside it: low false positive rates,
reconstruction, and what the request itself told the server. None of these has a null that a threshold could sit on.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pandas as pd
import torch

from fkgsec.attacks.figure import Figure
from fkgsec.attacks.forgetting.evaluation import Forgetting, Results, measure_forgetting
from fkgsec.attacks.forgetting.evidence import Evidence, Power, measure_power, weigh_evidence
from fkgsec.attacks.forgetting.readings import AuditRun, read_run
from fkgsec.attacks.membership.audits import (
    Audited,
    Shadow,
    audited_triples,
    contains,
    replace_train,
    train_shadow,
    trained_elsewhere,
)
from fkgsec.data.escrow import Escrow, read_escrow
from fkgsec.data.graph import FederatedGraph
from fkgsec.defenses.transport import make_transport
from fkgsec.errors import RunError, SpecError
from fkgsec.experiments.cli.progress import Observe, unobserved
from fkgsec.experiments.runs.record import Environment, environment_of, read_if_of
from fkgsec.experiments.runs.run import check_fits, load_run
from fkgsec.experiments.unlearning.options import AuditOptions, Look, Thresholds, looks
from fkgsec.experiments.unlearning.unlearn import (
    NO_TRACE,
    UNLEARNED_FILE,
    Unlearned,
    Unlearning,
    read_unlearned,
    triple_lines,
)
from fkgsec.experiments.unlearning.verdict import Verdict, judge, judge_replay
from fkgsec.federation.loop import run_federation, run_identity
from fkgsec.federation.options import CHECKPOINT_EVERY_S
from fkgsec.frames import block
from fkgsec.kge.options import KgeOptions
from fkgsec.kge.result import KgeResult
from fkgsec.randomness import generator
from fkgsec.unlearning.forget_sets import Forget, read_forget
from fkgsec.unlearning.unlearning import unlearn

SCHEMA = "fkgsec/verification/1"
AUDIT_FOLDER = "audit"
REQUEST_UNKNOWN = (
    "the request itself was not given: the forget set is the one in the folder, from which the party that unlearned may have "
    "left out what is still remembered (--forget FILE, from the requesting client)"
)
STATISTICAL = (
    "A remembered share is a mean over the forgotten triples. Someone can keep some triples and lower the scores of all "
    "others, so that no mean changes. The bound for this case stands apart. Memory that is no stronger than what re-training "
    "leaves by chance cannot be excluded.",
    "The audit reads the scores of the forgotten triples, the ranks of their heads and tails, and whether their relations "
    "stand out between these. It cannot exclude memory in other forms, such as rows of entities at clients that cannot "
    "express the triples, or numbers that hardly change any score.",
)
REPLAYED = (
    "A replay proves that the embeddings follow from the retained data, the options and the seed alone. Someone who knew the "
    "triples can have trained with many seeds and chosen among the results.",
)
UNCHANGED = "Not one embedding of the audited run differs from the raw run's."


class OwnRuns(NamedTuple):
    """The auditor's trainings, which stay the same whatever run is audited.

    Attributes:
        first: the first of the re-trainings; None where there are none. references, shadow_runs, plants: what is read off each.
        power: of `measure_power`; empty without references.
    """

    first: KgeResult | None
    references: list[AuditRun]
    shadows: list[Shadow]
    shadow_runs: list[AuditRun]
    plants: list[tuple[float, AuditRun]]
    power: dict[tuple[str, str], Power]


class Auditor(NamedTuple):
    """Trains and reads runs for one audit.

    Attributes:
        folder: keeps the trainings. candidate: the audited run. audits: of `audited_triples`.
        seed: the audit seed. relearn_steps: see `read_run`. observe: gives each training its observer.
    """

    folder: Path
    candidate: Unlearned
    audits: Sequence[Audited]
    seed: int
    relearn_steps: int
    observe: Observe

    def own_runs(
        self,
        look: Look,
        num_shadows: int,
        shares: Sequence[float],
        thresholds: Thresholds | None,
        earlier: OwnRuns | None = None,
    ) -> OwnRuns:
        """Train and read everything of a look. Without references there are no plants.

        Args:
            shares: to be planted. thresholds: what the sensitivity is measured at; None leaves it out.
            earlier: of the look before, whose trainings are not read again.
        """
        retained = self.candidate.result.graph
        first, references = (None, []) if earlier is None else (earlier.first, list(earlier.references))
        # A later look adds re-trainings to those of the look before.
        for number in range(len(references), look.references):  # of which only the first stays in memory
            result = self._train(retained, "reference", number, look.references)
            first = first or result
            references.append(self.read(result))
        if earlier is None:
            # Shadows and plants do not depend on the number of references, so the first look trains all of them.
            trained = [self._shadow(number, num_shadows) for number in range(num_shadows)]
            shadows, shadow_runs = [shadow for shadow, _ in trained], [run for _, run in trained]
            plants = [
                (share, self.read(self._train(self._planted(number, share), "plant", number, len(shares))))
                for number, share in enumerate(shares)
                if first is not None
            ]
        else:
            shadows, shadow_runs, plants = earlier.shadows, earlier.shadow_runs, earlier.plants
        # The sensitivity is measured on trainings of the auditor, never on the audited run.
        power: dict[tuple[str, str], Power] = {}
        if first is not None and thresholds is not None:
            power = measure_power(
                references,
                shadow_runs,
                self.candidate.graph,
                self.audits,
                tolerance=thresholds.share,
                alarm=thresholds.alarm,
                seed=self.seed,
                level=thresholds.error * look.spending,
            )
        return OwnRuns(first, references, shadows, shadow_runs, plants, power)

    def replays(self) -> bool | None:
        """Re-train as the audited run claims to have been, with its own seed, and compare every embedding bit by bit.

        None where a replay proves nothing: another method than re-training, or options that `can_replay` refuses.
        """
        candidate = self.candidate
        if candidate.unlearning.options.method != "retrain" or not can_replay(candidate.result.options):
            return None
        return self.repeats(candidate.result)

    def repeats(self, result: KgeResult) -> bool:
        """Train a result anew, on its graph and with its seed, and compare every array of it bit by bit.

        Messages and rows that attacks start from count, too, since the forgotten triples could be read from them.
        """
        # Whoever unlearned knows the run's seed, but not the audit's, so no checkpoint of theirs can lie ready in this folder.
        again = self._run(result.graph, result.options, "replay", f"replay-{self.seed}-").tensors()
        submitted = result.tensors()
        return again.keys() == submitted.keys() and all(torch.equal(again[name], submitted[name]) for name in again)

    def _shadow(self, number: int, count: int) -> tuple[Shadow, AuditRun]:
        """Train a shadow federation, unlearned as the audited run was where that leaves a trace."""
        options = self.candidate.unlearning.options
        trained: list[KgeResult] = []

        def forgetting(result: KgeResult, forget: Forget) -> KgeResult:
            """Unlearn with the audited method."""
            return unlearn(result, forget, options, make_transport=make_transport)

        def train(graph: FederatedGraph, options: KgeOptions) -> KgeResult:
            """Train a shadow and keep its result before unlearning."""
            trained.append(self._run(graph, options, f"shadow {number + 1} of {count}"))
            return trained[0]

        shadow = train_shadow(
            self.candidate.graph,
            self.candidate.result.graph,
            self.audits,
            self.candidate.result.options,
            number,
            self.seed,
            unlearn=None if options.method in NO_TRACE else forgetting,
            train=train,
        )
        # Evidence needs the shadow before unlearning, which shows the values of triples that were trained on.
        return shadow, self.read(trained[0], relearn=False, trained_on=shadow.member)

    def _planted(self, number: int, share: float) -> FederatedGraph:
        """Return the retained graph with a random share of each client's forget set left in."""
        retained = self.candidate.result.graph
        clients = list(retained.clients)
        for audit in self.audits:
            if audit.asked:
                # Each plant draws its own triples; at least a single triple stays in, however small the share is.
                order = generator(self.seed, "plant", number, audit.name).permutation(len(audit.forget))
                planted = audit.forget[order[: max(1, round(share * len(audit.forget)))]]
                client = clients[audit.place]
                clients[audit.place] = replace_train(client, np.concatenate([client.train, planted]))
        return replace(retained, clients=tuple(clients))

    def read(
        self, result: KgeResult, *, relearn: bool = True, trained_on: dict[int, np.ndarray] | None = None
    ) -> AuditRun:
        """Read what evidence needs of a run."""
        return read_run(
            result,
            self.candidate.graph,
            self.audits,
            seed=self.seed,
            relearn_steps=self.relearn_steps if relearn else 0,
            trained_on=trained_on,
        )

    def measure(self, results: Results, shadows: Sequence[Shadow] = ()) -> Forgetting:
        """Measure the figures that no re-training calibrates, see `measure_forgetting`."""
        candidate, steps = self.candidate, self.relearn_steps
        return measure_forgetting(
            results,
            candidate.graph,
            candidate.forget,
            self.audits,
            shadows=shadows,
            seed=self.seed,
            relearn_steps=steps,
        )

    def _train(self, graph: FederatedGraph, kind: str, number: int, count: int) -> KgeResult:
        # The seed derives from the audit seed, so that a repeated audit trains the same federation.
        seed = int(generator(self.seed, f"{kind} seed", number).integers(2**31))
        options = msgspec.structs.replace(self.candidate.result.options, seed=seed)
        return self._run(graph, options, f"{kind} {number + 1} of {count}")

    def _run(self, graph: FederatedGraph, options: KgeOptions, name: str, prefix: str = "") -> KgeResult:
        folder = self.folder / AUDIT_FOLDER / f"{prefix}{run_identity(graph, options)[:16]}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"{folder}: cannot be made ({error.strerror})") from error
        with self.observe(options, name) as observer:
            return run_federation(graph, options, folder, observer, CHECKPOINT_EVERY_S, make_transport)


class Verification(msgspec.Struct, frozen=True):
    """The record of a verification, `verification.json`.

    Attributes:
        unlearning: what made the audited run. reference: what made the re-trained run that was supplied; None if none was.
        num_shadows, seed: of the shadow federations; the seed, the audit's, also draws controls and trains references.
        remarks: what a reader must know beside the figures. assumptions: what the verdict rests on and cannot check.
        evidence: beside re-trainings of the audit's own; None where there were none.
        escrow: the commitment of the escrow that controls were drawn from; None: the clients' test triples.
        options: how the audit was made; None in earlier records.
        request_given: whether the folder's forget set was held against the request as the requesting client gave it.
        unlearned_sha256: of the embeddings that were audited, in hexadecimal: `unlearned.safetensors`; "" in earlier records.
        request_sha256: of each client's forget set, see `request_digest`; empty in earlier records.
        audited_on: the day in UTC, as 2026-01-31; "" in earlier records.
        replayed: whether the re-training was repeated bit by bit; None if that was not tried.
    """

    schema: str
    unlearning: Unlearning
    reference: Unlearning | None
    thresholds: Thresholds
    num_shadows: int
    seed: int
    verdict: Verdict
    forgetting: Forgetting
    remarks: list[str]
    environment: Environment
    evidence: Evidence | None = None
    escrow: str | None = None
    assumptions: list[str] = []
    options: AuditOptions | None = None
    request_given: bool = False
    unlearned_sha256: str = ""
    request_sha256: dict[str, str] = {}
    audited_on: str = ""
    replayed: bool | None = None

    @property
    def figures(self) -> list[Figure]:
        """Measured values, as figures of attacks."""
        return self.forgetting.attack_figures()

    def to_frame(self) -> pd.DataFrame:
        """A row for each figure of each role, see `Forgetting.to_frame`; the outcome is `verdict.outcome`."""
        return self.forgetting.to_frame()

    def _repr_html_(self) -> str:
        rows = [
            (
                figure.key,
                figure.variant,
                figure.victim,
                figure.estimate,
                None if figure.baseline is None else figure.baseline.value,
            )
            for figure in self.figures
            if figure.reason is None
        ]
        heads = ("measure", "model, attack", "client", "unlearned", "re-trained")
        return block(f"Unlearning: {self.verdict.outcome}", self.verdict.reasons, heads=heads, rows=rows)


def verify(
    run: Path,
    thresholds: Thresholds,
    options: AuditOptions,
    *,
    forget: Path | None = None,
    client: str | None = None,
    against: Path | None = None,
    raw: Path | None = None,
    escrow: Path | None = None,
    folder: Path | None = None,
    observe: Observe = unobserved,
    kept: dict[tuple[object, ...], OwnRuns] | None = None,
    force: bool = False,
) -> Verification:
    """Measure and judge an unlearned run.

    Args:
        run: a folder of `fkgsec unlearn`. forget: the request, from the requesting client (`read_forget`); the verdict is never
            "forgotten" without it. client: whose triples these are; None: the file's layout says.
        against: the same by the method retrain, as it was supplied. It is trusted only where the audit makes no references.
        raw: the run that was unlearned; None leaves out what compares with it. No verdict rests on it.
        escrow: the file of `fkgsec data escrow`; controls are drawn from it.
        folder: keeps the audit's trainings, see `audit_folder`. observe: gives each of them its observer.
        kept: where audits of one request by one seed find each other's trainings as they were read; None: read from the folder.
        force: do not ask whether a training fits into memory beside what is audited.

    Raises:
        RunError: folders that do not belong together. DataError: the escrow. SpecError: an option or folder out of range, or it
            does not fit into memory.
    """
    if not force and any((options.references, options.shadows, options.plants)):
        # A training needs memory beside the audited result.
        check_fits(run, at_once=2)
    auditor, results, supplied, commitment, digest = _open(
        run, options, forget, client, against=against, raw=raw, escrow=escrow, folder=folder, observe=observe
    )
    candidate, seed = auditor.candidate, auditor.seed
    unchecked = [] if forget else [REQUEST_UNKNOWN]
    # A replay that agrees bit by bit shows that the result follows from the retained data. Else statistics decide.
    replayed = auditor.replays() if options.replay and options.references else None
    if replayed:
        results["retrained"] = candidate.result
        own, evidence, forgetting = OwnRuns(None, [], [], [], [], {}), None, auditor.measure(results)
        verdict = judge_replay(forgetting.membership, thresholds, unchecked)
    else:
        # Audits share trainings only if everything that these depend on is equal.
        key = (
            auditor.folder.resolve(), seed, options, thresholds, commitment, candidate.graph.hash,
            run_identity(candidate.result.graph, candidate.result.options), candidate.unlearning.options,
        )  # fmt: skip
        own, forgetting, evidence, verdict = _decide(
            auditor,
            thresholds,
            options,
            results,
            supplied and supplied.result,
            unchecked,
            {} if kept is None else kept,
            key,
        )
    return Verification(
        schema=SCHEMA,
        unlearning=candidate.unlearning,
        reference=supplied and supplied.unlearning,
        thresholds=thresholds,
        num_shadows=len(own.shadows),
        seed=seed,
        verdict=verdict,
        forgetting=forgetting,
        remarks=_remarks(results, candidate, len(own.shadows), replayed),
        environment=environment_of(candidate.result.options),
        evidence=evidence,
        escrow=commitment,
        assumptions=_assumptions(candidate, options, commitment is not None, replayed=bool(replayed)),
        options=options,
        request_given=forget is not None,
        unlearned_sha256=digest,
        request_sha256={
            name: request_digest(candidate.graph, name, triples) for name, triples in candidate.forget.items()
        },
        audited_on=datetime.now(UTC).date().isoformat(),
        replayed=replayed,
    )


def _open(
    run: Path,
    options: AuditOptions,
    forget: Path | None,
    client: str | None,
    *,
    against: Path | None,
    raw: Path | None,
    escrow: Path | None,
    folder: Path | None,
    observe: Observe,
) -> tuple[Auditor, dict[str, KgeResult], Unlearned | None, str | None, str]:
    """Read and check what `verify` was given.

    Returns:
        The auditor, results by role, the re-trained run that was supplied, the commitment of the escrow, and the digest of the
        audited embeddings.
    """
    candidate = read_unlearned(run)
    if forget is not None:
        # Whoever unlearned wrote the forget set in the folder, so compare it with the request.
        _check_request(run, candidate, forget, client)
    target = audit_folder(run, folder, options.audit_seed)
    if against is None and not options.references:
        raise SpecError("references is 0, so --against must name a re-trained run")
    supplied = None if against is None else _read_supplied(against, run, candidate)
    results = {"unlearned": candidate.result} | ({} if raw is None else {"raw": _read_raw(raw, run, candidate)})
    sealed, pools = (None, None) if escrow is None else read_escrow(escrow, candidate.graph)
    # The certificate identifies the audited file by its digest.
    digest = hashlib.sha256((run / UNLEARNED_FILE).read_bytes()).hexdigest()
    # The seed is fixed before any control is drawn and before any reference is trained.
    seed = audit_seed_of(options, sealed, digest, candidate.unlearning.forget_hash)
    # Paired tests need no matched control, so with references all forgotten triples are audited.
    audits = audited_triples(
        candidate.graph, candidate.result.graph, candidate.forget, seed, pools=pools, unmatched=options.references > 0
    )
    auditor = Auditor(target, candidate, audits, seed, options.relearn_steps, observe)
    commitment = None if sealed is None else sealed.commitment
    return auditor, results, supplied, commitment, digest


def _decide(
    auditor: Auditor,
    thresholds: Thresholds,
    options: AuditOptions,
    results: dict[str, KgeResult],
    supplied: KgeResult | None,
    unchecked: Sequence[str],
    kept: dict[tuple[object, ...], OwnRuns],
    key: tuple[object, ...],
) -> tuple[OwnRuns, Forgetting, Evidence | None, Verdict]:
    """Add references until the verdict is decided or the budget is spent.

    Args:
        results: the audited run and the raw one, if there is one; gains the re-trained one. supplied: a re-trained run, which is
            read only where the audit trains none. unchecked: see `judge`. kept: trainings as they were read, by `key` and look.
    """
    candidate, audits = auditor.candidate, auditor.audits
    measurable = any(len(audit.members) + len(audit.unmatched) for audit in audits)
    num_shadows = options.shadows if measurable else 0
    # By turns twice the tolerated share and that share itself, at most the whole forget set.
    shares = [
        min(1.0, thresholds.share * (1 + (number + 1) % 2)) for number in range(options.plants if measurable else 0)
    ]
    audited, own, forgetting, evidence, verdict = auditor.read(candidate.result), None, None, None, None
    # Without the request no reference makes it "forgotten", so a single look spends the whole error.
    for look in looks(options.references, options.references if unchecked else options.budget):
        if (*key, look) not in kept:
            kept[*key, look] = auditor.own_runs(look, num_shadows, shares, thresholds, own)
        own = kept[*key, look]
        if own.first is not None:
            evidence = weigh_evidence(
                audited,
                own.references,
                own.shadow_runs,
                own.plants,
                candidate.graph,
                audits,
                own.power,
                thresholds.error * look.spending,
            )
        if forgetting is None:  # more references add nothing to it
            retrained = own.first or supplied
            assert retrained is not None
            results["retrained"] = retrained
            forgetting = auditor.measure(results, own.shadows)
        verdict = judge(forgetting.membership, thresholds, evidence, unchecked, look.spending)
        if verdict.outcome != "inconclusive":
            break
    assert own is not None
    assert forgetting is not None
    assert verdict is not None
    return own, forgetting, evidence, verdict


def audit_seed_of(
    options: AuditOptions, escrow: Escrow | None = None, unlearned_sha256: str = "", forget_hash: str = ""
) -> int:
    """Return the audit seed: the one that is set; else with an escrow one that follows from it and from what is audited.

    A derived seed binds the audit: repeating it gives the same references and controls. The party that unlearned cannot compute
    it, since it does not have the nonce of the escrow. Without an escrow the operating system draws one.

    Args:
        unlearned_sha256: of the audited embeddings. forget_hash: of the graph without the forget set.
    """
    if options.audit_seed is not None:
        return options.audit_seed
    if escrow is None:
        # JSON readers that use doubles keep every integer below 2**53 exact.
        return secrets.randbelow(2**53)
    fields = ["fkgsec/audit seed/1", escrow.nonce, unlearned_sha256, forget_hash]
    return int.from_bytes(hashlib.sha256(msgspec.json.encode(fields)).digest()[:6])


def request_digest(graph: FederatedGraph, client: str, triples: np.ndarray) -> str:
    """Return the sha256 of a client's request, as `LC_ALL=C sort -u FILE | sha256sum` prints it of a forget file."""
    lines = sorted(set(triple_lines(graph, client, triples).encode().splitlines(keepends=True)))
    return hashlib.sha256(b"".join(lines)).hexdigest()


def can_replay(options: KgeOptions) -> bool:
    """Return True if a training can be repeated bit by bit: without a defense, which draws anew, and without an encoder."""
    return not options.defense and not options.has_encoder


def same_embeddings(result: KgeResult, other: KgeResult) -> bool:
    """Return True if all embeddings of two results of one recipe are equal, bit by bit."""
    return all(
        torch.equal(rows.entities, others.entities) and torch.equal(rows.relations, others.relations)
        for kind in ("tables", "trained", "private")
        for rows, others in zip(getattr(result, kind), getattr(other, kind), strict=True)
    )


def audit_folder(run: Path, folder: Path | None, audit_seed: int | None) -> Path:
    """Return where an audit of `run` keeps its trainings: a folder of the auditor's, or `RUN-audit` beside the run.

    Raises:
        SpecError: it lies in the audited folder, where a training may come from the party that unlearned; or the audit repeats
            another, whose trainings it finds again, and names no folder.
    """
    if folder is None and audit_seed is not None:
        raise SpecError(
            f"audit_seed {audit_seed} finds trainings again, and those beside {run} may come from the party that unlearned: "
            "it takes a folder of your own (--out)"
        )
    # The paths `.` and `..` have no name to extend, so use their absolute path.
    beside = run if run.name not in ("", "..") else run.resolve()
    target = folder or beside.with_name(f"{beside.name}-audit")
    # `resolve` follows links, so a link into the audited folder is rejected, too.
    if target.resolve().is_relative_to(run.resolve()):
        raise SpecError(
            f"{target}: lies in the audited folder {run}, which belongs to the party that unlearned: the audit takes a folder of "
            "your own (--out)"
        )
    return target


def _check_request(run: Path, candidate: Unlearned, forget: Path, client: str | None) -> None:
    """Raises `RunError` unless the forget set in the folder is the request, `SpecError` for a request out of that folder."""
    if forget.resolve().is_relative_to(run.resolve()):
        raise SpecError(
            f"{forget}: lies in the audited folder {run}, which belongs to the party that unlearned: --forget takes the file of "
            "the client that made the request"
        )
    asked = read_forget(forget, candidate.graph, client)
    for name in sorted({*asked, *candidate.forget}):
        # Compare as sets, since the order of the triples makes no difference.
        here, there = (
            set(map(tuple, np.asarray(forget_set.get(name, np.empty((0, 3)))).astype(int).tolist()))
            for forget_set in (asked, candidate.forget)
        )
        if here != there:
            raise RunError(
                f"{run}: is not about what was asked: {len(here - there)} of the {len(here)} triples that {forget} names of "
                f"{name} are missing in its forget set, which has {len(there - here)} others"
            )


def _read_supplied(against: Path, run: Path, candidate: Unlearned) -> Unlearned:
    """Read the re-trained run that was supplied. Raises `RunError` where it does not belong to the audited one."""
    supplied = read_unlearned(against)
    reference, audited = supplied.unlearning, candidate.unlearning
    # The reference must re-train the same run on the same request,
    # else its difference from the audited run says nothing about forgetting.
    if reference.options.method != "retrain":
        raise RunError(
            f"{against}: was made by method {reference.options.method}; the reference must be made by retrain"
        )
    if reference.identity != audited.identity:
        raise RunError(f"{against}: comes from another run than {run}")
    if reference.forget_hash != audited.forget_hash:
        raise RunError(f"{against}: was made with another forget file than {run}")
    return supplied


def _read_raw(raw: Path, run: Path, candidate: Unlearned) -> KgeResult:
    """Read the run before the request. Raises `RunError` if the audited run was made from another."""
    before = load_run(raw)[1]
    if run_identity(before.graph, before.options) != candidate.unlearning.identity:
        raise RunError(f"{raw}: is not the run that {run} was made from")
    return before


def _assumptions(candidate: Unlearned, options: AuditOptions, escrowed: bool, *, replayed: bool) -> list[str]:
    """Assumptions that no audit of a folder can check."""
    made = [
        f"The run's data and options are those that its folder names (run {candidate.unlearning.identity[:12]}, data "
        f"{candidate.graph.hash[:12]}): compare them with what was agreed.",
        *(REPLAYED if replayed else STATISTICAL),
        "The certificate covers the local and global models in the folder. It does not cover messages, rows or copies that "
        "anyone kept elsewhere.",
    ]
    if replayed:
        return made
    if options.references:
        made.append("This audit trained all references, shadows and plants. It relied on no supplied re-training.")
    else:
        made.append("The reference was supplied and may be false. So this audit never says 'forgotten'.")
    if escrowed:
        made.append("The party that unlearned must not have had the escrow or the data that it was drawn from.")
    else:
        made.append(
            "Without an escrow, the never-seen triples are the clients' test triples. The party that unlearned knows them and "
            "may have trained on them. Paired tests and test MRR do not depend on them."
        )
    made.append("The stated error is that of one audit. Audits that were repeated until one passed are not covered.")
    if options.audit_seed is not None:
        made.append(
            "The audit seed was given, not drawn. A party that knew it before unlearning knew the controls and references."
        )
    elif escrowed:
        made.append(
            "The audit seed follows from the escrow, the request and the audited file: a repeated audit is the same."
        )
    else:
        made.append("Without an escrow nothing binds the audit seed: an auditor can repeat the audit until it passes.")
    return made


def copies_elsewhere(candidate: Unlearned) -> int:
    """Count requested triples that another client still trains on. A request covers one client's copy only."""
    clients = {client.name: client for client in candidate.graph.clients}
    return sum(
        int(contains(trained_elsewhere(candidate.result.graph, clients[name]), np.asarray(triples)).sum())
        for name, triples in candidate.forget.items()
    )


def _remarks(results: Results, candidate: Unlearned, num_shadows: int, replayed: bool | None) -> list[str]:
    """State what a reader must know beside the figures."""
    remarks = []
    if copies := copies_elsewhere(candidate):
        remarks.append(
            f"Other clients still train on {copies:,} of the requested triples. The request does not cover their copies."
        )

    # The reader must learn that an unlearning changed nothing, whatever the verdict is.
    if "raw" in results and same_embeddings(results["unlearned"], results["raw"]):
        remarks.append(UNCHANGED)
    if same_embeddings(results["unlearned"], results["retrained"]):
        remarks.append("The audited run is the re-trained one itself, so it exceeds it by 0 everywhere.")
    method = candidate.unlearning.options.method
    if replayed:
        return remarks
    if replayed is False:
        remarks.append(
            "The replay gave other embeddings or messages: this was another training than the folder says, or on another kind "
            "of machine. The verdict rests on statistics."
        )
    if not num_shadows:
        remarks.append("Without shadow federations the attack knows the loss alone: the weakest of those there are.")
    elif method in NO_TRACE:
        remarks.append(
            f"Shadows were not unlearnt: by its own account {method} leaves no trace that depends on the triples."
        )
    return remarks


def read_verification(path: Path) -> Verification | None:
    """Read a verification; None when the file is something else. Raises `RunError` when it cannot be read."""
    return read_if_of(path, SCHEMA, Verification)


def encode(record: msgspec.Struct) -> bytes:
    """Write the record as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"
