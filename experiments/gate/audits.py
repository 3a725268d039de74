"""Audits by the gate beyond a run's record: membership, unlearning with its verification, and training clients alone.

    for figure in inferences_of(run, Question(victim="hospital-2", shadows=8)):
        print(figure.victim, figure.estimate)            # AUC with its interval

The run's folder stores the unlearned and the re-trained federation, and the shadow federations of their verification.
"""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from fkgsec.attacks.figure import Figure, headline
from fkgsec.attacks.membership.inference import TOO_FEW
from fkgsec.attacks.options import MEMBERSHIP, MODELS
from fkgsec.attacks.registry import run_attacks
from fkgsec.attacks.view import ALL
from fkgsec.data.graph import FederatedGraph
from fkgsec.defenses.transport import make_transport
from fkgsec.errors import RunError
from fkgsec.experiments.cli.progress import Observe, unobserved
from fkgsec.experiments.gate.folders import code_digest, run_folder
from fkgsec.experiments.integrity.checks import require_whole
from fkgsec.experiments.runs.baseline import alone_spec
from fkgsec.experiments.runs.record import Record, read_record
from fkgsec.experiments.runs.run import RECORD_FILE, Finished, execute, load_run
from fkgsec.experiments.tasks.spec import RunSpec
from fkgsec.experiments.unlearning.options import AuditOptions, Thresholds
from fkgsec.experiments.unlearning.unlearn import Unlearning, read_unlearned, unlearn_run
from fkgsec.experiments.unlearning.verification import Verification, verify
from fkgsec.federation.loop import CHECKPOINT, run_federation
from fkgsec.federation.options import run_identity
from fkgsec.kge.options import KgeOptions
from fkgsec.kge.result import KgeResult
from fkgsec.unlearning.forget_sets import read_forget
from fkgsec.unlearning.unlearning import Method, UnlearnOptions

UNLEARNING_FOLDER, AUDIT_FOLDER, ALONE_FOLDER = "unlearning", "audits", "single"


class NotMeasured(Exception):
    """A run does not have a figure. A limit on it must fail."""


class Question(NamedTuple):
    """The figure that a limit is about: its keys apart from the bound.

    Attributes:
        threat: threat model of an attack; None for other measures. For membership, None stands for the holder of the models.
        leak: leak ratio of reconstruction; None for other measures.
        victim: client whose items are attacked; "all" for all clients together.
        shadows: number of federations that the adversary of membership and unlearning trains; with 0 it uses the models alone.
        forget: file of triples to unlearn, see `fkgsec unlearn`.
        client: client that unlearns. For a gain, a client, or "each" for the worst one; None for all clients together.
        method: method of unlearning.
        unit: protected unit of a privacy guarantee.
        delta: largest accepted delta of a privacy guarantee.
    """

    threat: str | None = None
    leak: float | None = None
    victim: str = ALL
    shadows: int = 0
    forget: str | None = None
    client: str | None = None
    method: Method = "fedlu"
    unit: str = "client"
    delta: float = 1e-4

    def words(self) -> str:
        """Return the question in the words of a table, without the measure; empty if there is nothing to add."""
        parts = []
        if self.threat is not None:
            parts += [self.threat, *([] if self.leak is None else [f"leak {self.leak:g}"])]
        if self.forget is not None:
            parts += [f"{self.forget} by {self.method}"]
        if self.client is not None and self.forget is None:
            parts += [self.client]
        if self.victim != ALL:
            parts += [self.victim]
        if self.shadows:
            parts += [f"{self.shadows} shadows"]
        return ", ".join(parts)


def conspicuous(run: Finished, question: Question, metric: str = "auc") -> Figure:
    """Return the figure of the strongest membership attack on the models of the victim (or of all).

    Args:
        run: a finished run.
        question: victim, threat model and number of shadow federations.
        metric: metric of membership.

    Raises:
        NotMeasured: no triple that nobody trained on matches the victim's; for all clients, those of any client.
    """
    figures = [figure for figure in headline(inferences_of(run, question)) if figure.metric == metric]
    victims = {figure.victim for figure in figures} - {ALL}
    left_out = sorted({figure.victim for figure in figures if (figure.reason or "").startswith(TOO_FEW)})
    # A figure over all clients must cover all of them, or a hidden leak could pass.
    if victims == set(left_out):
        raise NotMeasured(f"all clients have {TOO_FEW}")
    if question.victim == ALL and left_out:
        raise NotMeasured(
            f"{len(left_out)} of {len(victims)} clients have {TOO_FEW} "
            f"({', '.join(left_out)}); name a victim, or give them test triples"
        )
    of_victim = [figure for figure in figures if figure.victim == question.victim]
    if not of_victim or question.victim in left_out:
        raise NotMeasured(f"{question.victim} has {TOO_FEW}")
    return of_victim[0]


Stamp = tuple[tuple[str, int, int], ...]
# Audits of this process, which is one `fkgsec check`: several limits may concern one run, and each audit runs once. If a file
# changes in between, the audit is repeated.
_INFERENCES: dict[tuple[Stamp, int, str], list[Figure]] = {}
_VERIFICATIONS: dict[tuple[Stamp, Stamp, str | None, Method, int], Verification] = {}


def _stamp(path: Path) -> Stamp:
    """Return name, time and size of a file, or of all files in a folder."""
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    return tuple((str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in files)


def inferences_of(run: Finished, question: Question, observe: Observe = unobserved) -> list[Figure]:
    """Infer membership by every method on every model of every client, and of all clients together.

    Args:
        run: a finished run.
        question: threat model and number of shadow federations.
        observe: gives each shadow federation its observer.
    """
    threat = question.threat or MODELS
    key = (_stamp(run.folder / CHECKPOINT), question.shadows, threat)
    if key not in _INFERENCES:
        spec, result = load_run(run.folder)
        numbers = itertools.count(1)

        def _train(graph: FederatedGraph, options: KgeOptions) -> KgeResult:
            name = f"membership on {run.folder}: shadow {next(numbers)} of {question.shadows}"
            with observe(options, name) as observer:
                return run_federation(graph, options, observer=observer, make_transport=make_transport)

        options = msgspec.structs.replace(
            spec.attack_options(), attack=(MEMBERSHIP,), threat=(threat,), shadows=question.shadows, leak=spec.leak[:1],
            seed=spec.seed, shadow_knowledge="same-graph",
        )  # fmt: skip
        _INFERENCES[key] = run_attacks(result, options, train=_train).figures
    return _INFERENCES[key]


def alone_folder(runs: Path, spec: RunSpec, data: Any) -> Path:
    """Return the folder of the same clients alone, shared by federations that differ only in defense or algorithm.

    Args:
        runs: folder of all runs.
        spec: spec of a federation.
        data: the clients' data, or anything with its name and hash.
    """
    return run_folder(runs, ALONE_FOLDER, alone_spec(spec), data, code_digest())


def alone_of(run: Finished, question: Question, observe: Observe = unobserved) -> Record:
    """Return the record of the same clients alone, which are trained if necessary.

    Args:
        run: a finished run of the federation.
        question: unused; measures have the same signature.
        observe: gives the training its observer.
    """
    folder, spec = alone_folder(run.folder.parent, run.record.spec, run.record.data), alone_spec(run.record.spec)
    # The folder's name includes the digest of the code, so the record is of the same code.
    if (folder / RECORD_FILE).exists():
        require_whole(folder)
        return read_record(folder / RECORD_FILE)
    with observe(spec, f"the clients of {run.folder} alone") as observer:
        return execute(spec, spec.load_graph(), folder, attack=False, observer=observer, at_once=0).record


def unlearning_of(run: Finished, question: Question, observe: Observe = unobserved) -> Unlearning | None:
    """Return the unlearning that a limit names, performed if necessary; None if it names none.

    Args:
        run: a finished run.
        question: forget file, client and method.
        observe: gives the unlearning its observer.
    """
    if question.forget is None:
        return None
    return read_unlearned(_unlearned(run.folder, question, question.method, observe)).unlearning


def _unlearned(folder: Path, question: Question, method: Method, observe: Observe) -> Path:
    """Return the folder of a run after unlearning by a method, performed if necessary.

    Raises:
        RunError: the folder has no finished run, or a damaged unlearning, or one of another run, method or request.
        DataError: the forget file is wrong.
    """
    forget = Path(str(question.forget))
    _, raw = load_run(folder)
    requested = {
        name: np.unique(triples, axis=0) for name, triples in read_forget(forget, raw.graph, question.client).items()
    }
    # Name the folder by the triples themselves: the same file name may hold other triples.
    digest = hashlib.sha256(raw.graph.hash.encode())
    for name, triples in requested.items():
        digest.update(msgspec.json.encode([name, triples.tolist()]))
    path, options = folder / UNLEARNING_FOLDER / f"{method}-{digest.hexdigest()[:12]}", UnlearnOptions(method=method)
    if not path.exists():
        unlearn_run(folder, forget, options, client=question.client, out=path, observe=observe, force=True)
        return path
    # Its name does not say how it was made: somebody may have put another unlearning there.
    finished = read_unlearned(path)
    forgotten = {name: np.unique(triples, axis=0) for name, triples in finished.forget.items()}
    for what, same in (
        ("run", finished.unlearning.identity == run_identity(raw.graph, raw.options)),
        ("method or settings", finished.unlearning.options == options),
        (
            "request",
            forgotten.keys() == requested.keys() and all(np.array_equal(forgotten[k], requested[k]) for k in requested),
        ),
    ):
        if not same:
            raise RunError(f"{path}: is the unlearning of another {what} than the policy names; --fresh repeats it")
    return path


def verification_of(run: Finished, question: Question, observe: Observe = unobserved) -> Verification:
    """Unlearn by a method and by re-training, and compare both.

    Args:
        run: a finished run.
        question: forget file, client, method and number of shadow federations.
        observe: gives both and each shadow federation an observer.
    """
    folder, forget = run.folder, Path(str(question.forget))
    key = (_stamp(folder / CHECKPOINT), _stamp(forget), question.client, question.method, question.shadows)
    if key not in _VERIFICATIONS:
        unlearned = _unlearned(folder, question, question.method, observe)
        reference = _unlearned(folder, question, "retrain", observe)
        # The gate itself produced both runs, and its limits concern single figures, not a certificate.
        seed = load_run(folder)[0].seed
        options = AuditOptions(references=0, shadows=question.shadows, plants=0, relearn_steps=0, audit_seed=seed)
        _VERIFICATIONS[key] = verify(
            unlearned,
            Thresholds(),
            options,
            forget=forget,
            client=question.client,
            against=reference,
            raw=folder,
            folder=folder / AUDIT_FOLDER,
            observe=lambda options, name: observe(options, f"unlearning on {folder}: {name}"),
            force=True,
        )
    return _VERIFICATIONS[key]
