"""What the gate measures of a finished run beyond its record: membership inference, and an unlearning that is made and verified.

    for one in inferences_of(run, Question(victim="hospital-2", shadows=8)):
        print(one.client, one.result.auc)                # AUC with its interval

The run's folder keeps the unlearned and the re-trained federation, and the shadow federations of their verification.
"""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from fkgsec.attacks.figure import Figure, headline
from fkgsec.attacks.membership.inference import TOO_FEW
from fkgsec.attacks.options import MEMBERSHIP, MODELS
from fkgsec.attacks.registry import run_attacks
from fkgsec.attacks.view import ALL
from fkgsec.data.graph import FederatedGraph
from fkgsec.defenses.transport import make_transport
from fkgsec.experiments.cli.progress import Observe, unobserved
from fkgsec.experiments.runs.run import Finished, load_run
from fkgsec.experiments.unlearning.options import AuditOptions, Thresholds
from fkgsec.experiments.unlearning.unlearn import Unlearning, read_unlearned, unlearn_run
from fkgsec.experiments.unlearning.verification import Verification, verify
from fkgsec.federation.loop import CHECKPOINT, run_federation
from fkgsec.kge.options import KgeOptions
from fkgsec.kge.result import KgeResult
from fkgsec.unlearning.forget_sets import read_forget
from fkgsec.unlearning.unlearning import Method, UnlearnOptions

UNLEARNING_FOLDER = "unlearning"


class NotMeasured(Exception):
    """Why a run does not have a figure. Whoever judges a limit on it must fail it."""


class Question(NamedTuple):
    """Which figure of a run is meant: the keys of a limit beside its bound.

    Attributes:
        threat, leak, victim: of reconstruction; None, None and "all" for other measures. Of membership, `victim` is the client
            whose triples are asked about; "all" of them together; `threat` None: whoever holds the models.
        shadows: federations that the adversary of membership and unlearning trains; with 0 it has what models say alone.
        forget, client, method: of unlearning, see `fkgsec unlearn`.
        unit, delta: of a privacy guarantee: what it must protect, and the largest delta that still counts.
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
        """What a table says of it beside the measure; empty where there is nothing to say."""
        parts = []
        if self.threat is not None:
            parts += [self.threat, *([] if self.leak is None else [f"leak {self.leak:g}"])]
        if self.forget is not None:
            parts += [f"{self.forget} by {self.method}"]
        if self.victim != ALL:
            parts += [self.victim]
        if self.shadows:
            parts += [f"{self.shadows} shadows"]
        return ", ".join(parts)


def conspicuous(run: Finished, question: Question, metric: str = "auc") -> Figure:
    """What the strongest membership attack gets on the models of the victim (or of all).

    Raises:
        NotMeasured: the victim's triples match none that nobody trained on; of all clients, those of any of them.
    """
    inferences = [one for one in headline(inferences_of(run, question)) if one.metric == metric]
    victims = {one.victim for one in inferences} - {ALL}
    left_out = sorted({one.victim for one in inferences if (one.reason or "").startswith(TOO_FEW)})
    if victims == set(left_out):
        raise NotMeasured(f"all clients have {TOO_FEW}")
    if question.victim == ALL and left_out:
        raise NotMeasured(
            f"{len(left_out)} of {len(victims)} clients have {TOO_FEW} "
            f"({', '.join(left_out)}); name a victim, or give them test triples"
        )
    found = [one for one in inferences if one.victim == question.victim]
    if not found or question.victim in left_out:
        raise NotMeasured(f"{question.victim} has {TOO_FEW}")
    return found[0]


def inferences_of(run: Finished, question: Question, observe: Observe = unobserved) -> list[Figure]:
    """Membership inference on the run, as a limit asks for it."""
    return inferences_on(run.folder, question.shadows, question.threat or MODELS, observe)


def unlearning_of(run: Finished, question: Question, observe: Observe = unobserved) -> Unlearning | None:
    """The unlearning that a limit names, made if it was not; None where it names none."""
    if question.forget is None:
        return None
    return made_unlearning(run.folder, Path(question.forget), question.client, question.method, observe)[1]


def verification_of(run: Finished, question: Question, observe: Observe = unobserved) -> Verification:
    """The unlearning that a limit asks for, made and verified."""
    assert question.forget is not None
    forget = Path(question.forget)
    return verified_unlearning(run.folder, forget, question.client, question.method, question.shadows, observe)


def inferences_on(folder: Path, num_shadows: int, threat: str = MODELS, observe: Observe = unobserved) -> list[Figure]:
    """Membership inference on a run: by every way on every model of every client, and of all clients together.

    Several limits ask about one run; each audit is made once. `observe` gives each shadow federation its observer.
    """
    key = (_stamp(folder / CHECKPOINT), num_shadows, threat)
    if key not in _INFERENCES:
        _INFERENCES[key] = _infer(folder, num_shadows, threat, observe)
    return _INFERENCES[key]


def verified_unlearning(
    folder: Path, forget: Path, client: str | None, method: Method, num_shadows: int, observe: Observe = unobserved
) -> Verification:
    """Let a run forget by a method and by re-training, and measure the one beside the other; each is made once.

    Args:
        folder: the run's. forget, client: see `read_forget`. observe: gives both and each shadow federation an observer.
    """
    key = (_stamp(folder / CHECKPOINT), _stamp(forget), client, method, num_shadows)
    if key not in _VERIFICATIONS:
        _VERIFICATIONS[key] = _unlearn_and_verify(folder, forget, client, method, num_shadows, observe)
    return _VERIFICATIONS[key]


Stamp = tuple[tuple[str, int, int], ...]
# What is made in a process, which is one `fkgsec check`; a file that changes in between gets an entry of its own.
_INFERENCES: dict[tuple[Stamp, int, str], list[Figure]] = {}
_VERIFICATIONS: dict[tuple[Stamp, Stamp, str | None, Method, int], Verification] = {}


def _stamp(path: Path) -> Stamp:
    """Of a file, or of all in a folder, as they are now: what has changed is measured anew."""
    files = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
    return tuple((str(one), one.stat().st_mtime_ns, one.stat().st_size) for one in files)


def _infer(folder: Path, num_shadows: int, threat: str, observe: Observe) -> list[Figure]:
    spec, result = load_run(folder)
    numbers = itertools.count(1)

    def train(graph: FederatedGraph, options: KgeOptions) -> KgeResult:
        """A shadow federation, watched."""
        with observe(options, f"membership on {folder}: shadow {next(numbers)} of {num_shadows}") as observer:
            return run_federation(graph, options, observer=observer, make_transport=make_transport)

    asked = {"attack": (MEMBERSHIP,), "threat": (threat,), "shadows": num_shadows, "leak": spec.leak[:1]}
    options = msgspec.structs.replace(spec.attack_options(), seed=spec.seed, shadow_knowledge="same-graph", **asked)
    return run_attacks(result, options, train=train).figures


def made_unlearning(
    folder: Path, forget: Path, client: str | None, method: Method, observe: Observe = unobserved
) -> tuple[Path, Unlearning]:
    """A run after it forgot by a method: where that lies in the run's folder, and its record. Made if it was not.

    Raises:
        RunError: the folder holds no finished run, or a damaged unlearning. DataError: the forget file.
    """
    _, raw = load_run(folder)
    digest = hashlib.sha256(raw.graph.hash.encode())
    for name, triples in read_forget(forget, raw.graph, client).items():
        digest.update(msgspec.json.encode([name, np.unique(triples, axis=0).tolist()]))
    path = folder / UNLEARNING_FOLDER / f"{method}-{digest.hexdigest()[:12]}"
    if not path.exists():
        unlearn_run(folder, forget, UnlearnOptions(method=method), client=client, out=path, observe=observe, force=True)
    return path, read_unlearned(path).unlearning


def _unlearn_and_verify(
    folder: Path, forget: Path, client: str | None, method: Method, num_shadows: int, observe: Observe
) -> Verification:
    made, _ = made_unlearning(folder, forget, client, method, observe)
    reference, _ = made_unlearning(folder, forget, client, "retrain", observe)
    return verify(
        made,
        Thresholds(),
        # Whoever runs the gate made both runs just now; its limits are on single figures, not on a certificate.
        AuditOptions(references=0, shadows=num_shadows, plants=0, relearn_steps=0, audit_seed=load_run(folder)[0].seed),
        forget=forget,
        client=client,
        against=reference,
        raw=folder,
        folder=folder / "audits",
        observe=lambda options, name: observe(options, f"unlearning on {folder}: {name}"),
        force=True,
    )
