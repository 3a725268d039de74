"""The server of a deployed federation: it asks, sums, sends, and writes the record; no triple, rank or local model comes to it.

    record = serve(spec, agreement, ask, Path("server"))

`ask` is the network: see `fkgsec.experiments.deploy.core.conversation.Ask`. The loop is the laboratory's
(`fkgsec.federation.steps`), and so are the halves of the exchange. A round is judged once the next one's uploads are there,
unless the run may end with it: what a broadcast, a validation and the next training need then crosses in one request.

In clear a round is one request; under secure aggregation it is six, the steps of its protocol, each of which needs what all
said in the one before, and with `suppress` twelve. Private set union takes seven at the start; a party that is restarted while
it runs ends the run, and a new one has to be agreed on.

What crosses beside the messages that the laboratory counts, and so what the server learns apart (`LEARNS` says it in the record):
each party's sizes, losses (not under secure aggregation), sums of validation ranks, and at the end sums and counts of its test
ranks.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
import torch

from fkgsec.attacks.figure import Figure
from fkgsec.errors import RunError, SpecError
from fkgsec.exchange import Uploaded
from fkgsec.experiments.deploy.agreement import Agreement, new_identity, read_secret
from fkgsec.experiments.deploy.core.audit import Audited, check_audited, check_settings
from fkgsec.experiments.deploy.core.conversation import Ask, Conversation, Journal, Posted, Standing
from fkgsec.experiments.deploy.core.exchange import server_exchange
from fkgsec.experiments.deploy.core.measure import PARTS, Measured, check_measured, reached
from fkgsec.experiments.deploy.core.messages import Hello, Trained, Validated, decode
from fkgsec.experiments.integrity.origin import Origin
from fkgsec.experiments.runs.record import (
    ABSENT,
    SCHEMA,
    Bytes,
    DataRecord,
    Record,
    encode_record,
    environment_of,
    sealed,
)
from fkgsec.experiments.runs.run import RECORD_FILE
from fkgsec.experiments.runs.writing import locked, write_atomically
from fkgsec.experiments.tasks.kge import TASK, Spec
from fkgsec.federation import checkpoint, packing
from fkgsec.federation.checkpoint import Progress
from fkgsec.federation.loop import CHECKPOINT
from fkgsec.federation.messages import Channel, Transcript
from fkgsec.federation.options import CHECKPOINT_EVERY_S
from fkgsec.federation.protection import Protection
from fkgsec.federation.recipes import RECIPES
from fkgsec.federation.steps import (
    Observer,
    Passed,
    broadcast_and_check,
    judge,
    mean_loss,
    round_entry,
    train_and_upload,
)
from fkgsec.kge.local.evaluation import mean_reciprocal
from fkgsec.kge.local.task import first_rows
from fkgsec.protocols.noise.guarantee import Guarantee
from fkgsec.version import __version__

JOURNAL = "journal.bin"
LARGEST_LOSS = 1e30
"""A loss beyond it is no loss: the mean over the others stays a number."""
LEARNS = (
    "apart: the server learns of each client how many entities, relations and triples of each split it has, and a digest of its "
    "data that only the client can compute",
    "apart: each round the server learns each client's mean training loss, but under secure aggregation nobody's; in rounds that "
    "are validated the sum of its reciprocal ranks of validation triples and their number",
    "apart: at the end the server learns of each client sums of reciprocal ranks, of their squares and of hits on its test "
    "triples, and their numbers, of all, of those that stand in its train split and of the others; nothing of fewer triples than "
    "were agreed on",
    "apart: a server that does not follow the protocol chooses the table that clients validate, at most once in each validated "
    "round, and the one that they measure at the end: each sum tells whether a client holds a row, or a triple of the split "
    "between two entities; under secure aggregation a client refuses once to upload since training moved none of its rows, which "
    "tells whether it holds one of a few rows; without it each round's loss tells that (tests/deploy/test_oracles.py)",
)
AUDITED = (
    "audit: each client played the adversary against itself and told figures alone; adversaries that have something of another "
    "client are not among them, and controls of membership are triples that the client itself never saw"
)
DRAWN = {
    "operating system": "randomness: every client drew its own from its operating system, for training and for protocols",
    "laboratory": "randomness: training drew from the run's seed, and test ranks crossed one by one, for comparison with one "
    "process; keys, shares, masks and noise came from the operating systems",
}
Kind = TypeVar("Kind")


class _State(msgspec.Struct):
    """What a checkpoint has beside tensors, transcript and progress: of the round that is summed and not sent yet."""

    standing: Standing
    hellos: dict[str, Hello]
    best: int
    round: int = 0
    loss: float | None = None
    valid: float | None = None
    outcomes: list[tuple[int, int, dict[str, str], dict[str, tuple[int, int]], int, float | None]] = []


class Server:
    """The parties as the server has them: addresses, and what they said. It is the `Sites` of the loop."""

    def __init__(self, agreement: Agreement, ask: Ask, folder: Path) -> None:
        self.agreement, self.options = agreement, agreement.options
        self.recipe = RECIPES[self.options.algorithm]
        self.channel = Channel()
        self.talk = Conversation(agreement, ask, Journal(folder / JOURNAL), self.transcript)
        new_identity(folder, agreement.run)
        self.exchange = server_exchange(self.talk, self.channel, agreement, read_secret(folder))
        self.hellos: dict[str, Hello] = {}
        self.best, self._round = 0, 0

    @property
    def transcript(self) -> Transcript:
        """What crossed so far."""
        return self.channel.transcript

    @property
    def judged_before_broadcast(self) -> bool:
        """As the task has it: of the shared models as trained, and of private ones, which no broadcast changes."""
        return self.options.evaluates_before_broadcast or self.recipe.private != "none"

    # The steps of the loop.

    def align(self) -> None:
        """Round 0. Nobody may be missing."""
        self.talk.needs_all = True
        said = self.talk.post_all("hello")  # with the first request of the alignment
        try:
            for table in self.exchange.server:
                self.exchange.align(table, {})
        finally:  # what a party says of itself explains best what went wrong
            if all(one.answer is not None for one in said.values()):
                self.hellos = {party: self._hello(party, posted) for party, posted in said.items()}
        if not any(self.agreement.tells(hello.sizes["test"]) for hello in self.hellos.values()):
            raise RunError(
                f"every party has fewer than {self.agreement.fewest_triples} test triples (fewest_triples), of which nothing is "
                "told; make another agreement"
            )
        for table, shared in self.exchange.server.items():
            model = self.options.kge_model()
            self.exchange.initialise(table, first_rows(model, self.options.seed, table, shared.names))
        self.talk.needs_all = False

    def _hello(self, party: str, posted: Posted) -> Hello:
        said = _content(posted, Hello)
        if isinstance(said, str):
            raise RunError(f"{party} did not say hello: {said}")
        if said.version != __version__:
            raise RunError(f"{party} runs fkgsec {said.version}, the server {__version__}; install one version")
        if set(said.sizes) != set(TASK.sizes) or min(said.sizes.values()) < 0 or said.sizes["train"] < 1:
            raise RunError(f"{party} says that it has {said.sizes}; {', '.join(TASK.sizes)} are due")
        return said

    def participants(self, round: int) -> list[int]:
        """By place."""
        return self.options.participants(len(self.agreement.parties), round)

    def num_steps(self, places: Sequence[int]) -> int:
        """The server cannot tell."""
        return 0

    def train(self, round: int, places: Sequence[int], on_step: Callable[[], None]) -> Callable[[], float | None]:
        """Ask these clients to train; the loss is the mean over those that send theirs, None if none does."""
        self._round = round
        posted = {place: self.talk.post(self.agreement.addresses[place], "train", round=round) for place in places}

        def loss() -> float | None:
            said = {place: _content(one, Trained) for place, one in posted.items()}
            losses = {
                place: trained.loss
                for place, trained in said.items()
                if isinstance(trained, Trained) and trained.loss is not None and abs(trained.loss) < LARGEST_LOSS
            }
            return mean_loss(losses, [hello.sizes["train"] for hello in self.hellos.values()])

        return loss

    def validate(self, round: int) -> Callable[[], float | None]:
        """All clients validate; those that are judged with what the broadcast said keep these models until it is clear whether
        they are the best."""
        posted = self.talk.post_all("validate", round=round)
        if not self.judged_before_broadcast:
            self.talk.post_all("candidate", round=round)
        return lambda: self._valid(posted)

    def _valid(self, posted: Mapping[str, Posted]) -> float | None:
        parts = []
        for party, one in posted.items():
            said = _content(one, Validated)
            if isinstance(said, Validated) and _is_sum(said, self.hellos[party].sizes["valid"]):
                parts.append((said.total, said.count))
        return mean_reciprocal(parts)

    def upload(self, round: int, places: Sequence[int]) -> list[Uploaded]:
        """The clients at these places send their rows."""
        senders = dict.fromkeys(self.agreement.addresses[place] for place in places)
        return [self.exchange.upload(round, table, senders) for table in self.exchange.server]

    def broadcast(self, round: int) -> None:
        """To all where the federation's model is what is judged, else to those that train next."""
        receivers = self.agreement.addresses
        if self.recipe.evaluated == "local" and round > 0:
            receivers = tuple(receivers[place] for place in self.participants(round + 1))
        for table in self.exchange.server:
            self.exchange.broadcast(round, table, receivers)

    def keep(self, round: int) -> None:
        """Tell all clients that this round is the best."""
        if self.judged_before_broadcast:
            self.talk.post_all("candidate", round=round)
        self.talk.post_all("keep", round=round)
        self.best = round

    def retain(self, *rounds: int) -> None:
        """Keep the messages of round 0, of these, and of the round that is on, as the laboratory does."""
        transcript, kept = self.transcript, {0, *rounds, self._round}
        kept |= self.options.first_exchange() if self.recipe.keeps_first else set()
        uploads = set[int]().union(*(transcript.latest_uploads(number) for number in rounds))
        noted = {*kept, *self.exchange.rounds_worth_noting()}
        transcript.retain(kept | uploads, noted, broadcasts={transcript.last_broadcast(number) for number in rounds})

    # The end.

    def measure(self) -> tuple[dict[str, Measured], dict[str, str]]:
        """By name what each client measured of the best round's models; and why others' figures are missing."""
        posted, found, missing = self.talk.post_all("measure", round=self.best), dict[str, Measured](), dict[str, str]()
        for name, (party, one) in zip(self.agreement.parties, posted.items(), strict=True):
            said = _content(one, Measured)
            try:
                if isinstance(said, str):
                    raise RunError(said)
                num_test = self.hellos[party].sizes["test"]
                two = self.recipe.private != "none"
                check_measured(said, self.agreement, round=self.best, num_test=num_test, two_models=two)
                found[name] = said
            except RunError as error:
                missing[name] = str(error)
        if not found:
            raise RunError(f"nobody measured its models: {'; '.join(missing.values())}")
        return found, missing

    def audit(self) -> tuple[list[Figure], dict[str, str]]:
        """What the clients found of the agreed attacks; and by name why others' figures are missing."""
        if not self.agreement.audit:
            return [], {}
        posted, found, missing = self.talk.post_all("audit", round=self.best), list[Figure](), dict[str, str]()
        for name, one in zip(self.agreement.parties, posted.values(), strict=True):
            said = _content(one, Audited)
            try:
                if isinstance(said, str):
                    raise RunError(said)
                check_audited(said, self.agreement.audit, name, self.best)
                found += said.figures
            except RunError as error:
                missing[name] = str(error)
        return found, missing

    # What is kept.

    def save(self, path: Path, progress: Progress, passed: Passed) -> None:
        """Write a checkpoint when what a round came to was posted, and nothing of it has crossed."""
        outcomes = [
            (o.num_survivors, o.num_clipped, dict(o.excluded), dict(o.cut), o.num_kept_rows, o.changed_levels)
            for o in passed.outcomes
        ]
        state = _State(self.talk.stand(), self.hellos, self.best, passed.round, passed.loss(), outcomes=outcomes)
        if passed.valid and self.judged_before_broadcast:
            state.valid = passed.valid()
        progress.entries = self.transcript.entries
        tree: dict[str, packing.Tree] = {
            "exchange": self.exchange.tensors(),
            "state": {"bytes": torch.frombuffer(bytearray(msgspec.msgpack.encode(state)), dtype=torch.uint8)},
        }
        messages = {"frame": self.transcript.frames, "note": self.transcript.notes}
        checkpoint.save(path, packing.pack(tree), progress, messages)
        self.talk.settle()

    def restore(self, path: Path) -> tuple[Progress, Passed]:
        """Go on from a checkpoint. Raises `RunError` for one that is damaged or of another run."""
        tensors, progress = checkpoint.load(path, self.agreement.digest.hex())
        transcript = self.transcript
        transcript.entries = list(progress.entries)
        transcript.frames = packing.frames_of(packing.view_below("frame.", tensors))
        transcript.notes = packing.frames_of(packing.below("note.", tensors))
        try:
            state = msgspec.msgpack.decode(tensors["state.bytes"].numpy().tobytes(), type=_State)
        except (KeyError, msgspec.MsgspecError) as error:
            raise RunError(f"{path}: no checkpoint of a deployed server ({error})") from error
        self.exchange.restore({table: {} for table in self.recipe.shared}, packing.below("exchange.", tensors))
        self.hellos, self.best, self._round = state.hellos, state.best, state.round
        self.talk.resume(state.standing)
        checked = state.round > 0 and self.options.is_checked(state.round)
        posted = self.talk.waiting("validate", state.round)
        outcomes = [Uploaded(*one) for one in state.outcomes]
        passed = Passed(state.round, time.perf_counter(), checked, lambda: state.loss, outcomes)
        if checked:
            passed.valid = (lambda: state.valid) if self.judged_before_broadcast else lambda: self._valid(posted)
        return progress, passed


def serve(
    spec: Spec,
    agreement: Agreement,
    ask: Ask,
    folder: Path,
    observer: Observer | None = None,
    checkpoint_every_s: float = CHECKPOINT_EVERY_S,
) -> Record:
    """Run a federation with its parties apart, and write its record to `folder`.

    Args:
        spec: what is asked for; its options are those of the agreement.
        ask: the network.
        folder: of checkpoints, the journal and the record; a server that was killed goes on from what it finds there.
        observer: progress callbacks for every round.

    Raises:
        SpecError: the spec's options are not those that were agreed on, or settings of attacks, which nobody would see.
        RunError: nobody answers, or the folder has another run.
    """
    if spec.replace(device="auto").federation_options() != msgspec.structs.replace(agreement.options, device="auto"):
        raise SpecError("options: the spec's are not those of the agreement; make the agreement from the spec")
    if tuple(spec.attack) != agreement.audit:
        raise SpecError(
            f"attack: the agreed audit is {', '.join(agreement.audit) or 'none'}; got {', '.join(spec.attack) or 'none'}"
        )
    check_settings(spec)
    observer = observer or Observer()
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        server = Server(agreement, ask, folder)
        progress = train_apart(server, folder / CHECKPOINT, observer, checkpoint_every_s)
        origin = Origin(
            checkpoint.fingerprint(*checkpoint.load(folder / CHECKPOINT, progress.identity)),
            agreement=progress.identity,
        )
        record = sealed(deployed_record(spec, server, progress, origin))
        write_atomically(folder / RECORD_FILE, encode_record(record))
        return record


def deployed_record(spec: Spec, server: Server, progress: Progress, origin: Origin) -> Record:
    """The record of a run whose rounds are over; its clients measure their models, and score the attacks that were agreed on."""
    measured, missing = server.measure()
    figures, unscored = server.audit()
    found, transcript = reached(measured, spec.seed), server.transcript
    protection: Protection = server.exchange.protection()
    absent = [f"{ABSENT}{name}, which did not measure ({why})" for name, why in missing.items()]
    absent += [f"apart: attacks are without {name}, which scored none ({why})" for name, why in unscored.items()]
    scored = {(one.attack, one.victim) for one in figures if one.estimate.n}
    absent += [
        f"apart: {attack} is without {name}, which has too few triples for it"
        for attack in server.agreement.audit
        for name in server.agreement.parties
        if name not in unscored and (attack, name) not in scored
    ]
    if whole := [name for name, one in measured.items() if PARTS[0] not in one.groups]:
        few = server.agreement.fewest_triples
        absent.append(
            f"apart: figures by split leak are without {', '.join(whole)}, with fewer than {few} triples of a kind"
        )
    audit = [AUDITED] if server.agreement.audit else []
    hellos = {name: server.hellos[party] for name, party in zip(server.agreement.parties, server.hellos, strict=True)}
    digest = hashlib.sha256(b"".join(hello.data for hello in hellos.values())).hexdigest()
    return Record(
        schema=SCHEMA,
        spec=spec,
        seed=spec.seed,
        data=DataRecord(spec.data, digest, {name: dict(hello.sizes) for name, hello in hellos.items()}, [], []),
        environment=environment_of(spec.federation_options()),
        utility=found.of_all,
        utility_by_client=found.by_client,
        utility_by_leak=found.by_leak,
        bytes=Bytes(
            transcript.num_bytes("up"),
            transcript.num_bytes("down"),
            [entry.bytes_up for entry in progress.rounds],
            [entry.bytes_down for entry in progress.rounds],
        ),
        rounds=progress.rounds,
        best_round=progress.best_round,
        protection=[*protection.lines(), *LEARNS, DRAWN[server.agreement.randomness], *audit, *absent],
        utility_shared=found.shared,
        guarantees={tables: one for tables, one in protection.guarantees.items() if isinstance(one, Guarantee)},
        withstands=protection.withstands,
        figures=figures,
        metric=TASK.metric,
        valid=next((entry.valid for entry in progress.rounds if entry.round == progress.best_round), None),
        origin=origin,
    )


def train_apart(server: Server, path: Path, observer: Observer, checkpoint_every_s: float) -> Progress:
    """All rounds, going on from the checkpoint at `path` where there is one; see `fkgsec.federation.loop.run_federation`."""
    saved_at = time.perf_counter()
    if path.exists():
        progress, passed = server.restore(path)
    else:
        progress, began = Progress(server.agreement.digest.hex(), metric=TASK.metric), time.perf_counter()
        server.align()
        server.broadcast(0)
        passed = Passed(0, began, checked=False, loss=lambda: None, outcomes=[])
        server.save(path, progress, passed)
    for entry in progress.rounds:
        observer.round_done(entry)
    if progress.finished:
        return progress
    while True:
        unjudged = passed if _is_judged_later(server, progress, passed) else None
        if unjudged is None and _closed(server, progress, passed, observer):
            server.save(path, progress, passed)  # what the record is computed from
            return progress
        passed = train_and_upload(server, passed.round + 1, observer)
        if unjudged is not None:
            _closed(server, progress, unjudged, observer)
        broadcast_and_check(server, passed)
        if time.perf_counter() - saved_at >= checkpoint_every_s:
            server.save(path, progress, passed)
            saved_at = time.perf_counter()


def _is_judged_later(server: Server, progress: Progress, passed: Passed) -> bool:
    """Whether a round's validation may come with the next one's uploads: it is asked for after the broadcast, and the run goes
    on whatever it says."""
    options = server.options
    last = passed.round == options.rounds or 0 < options.patience <= progress.bad_checks + 1
    return passed.checked and not server.judged_before_broadcast and not last


def _closed(server: Server, progress: Progress, passed: Passed, observer: Observer) -> bool:
    """Judge a round; returns whether it was the last."""
    if passed.round == 0:
        progress.rounds.append(round_entry(server.transcript, 0, None, None, [], passed.began))
    else:
        judge(server, progress, passed)
    observer.round_done(progress.rounds[-1])
    return progress.finished


def _content(posted: Posted, kind: type[Kind]) -> Kind | str:
    """What a party said; or why it said nothing that can be read."""
    answer = posted()
    if answer.silence:
        return answer.silence
    try:
        return decode(answer.content, kind)
    except RunError as error:
        return f"MalformedMessage: {error}"


def _is_sum(said: Validated, num_triples: int) -> bool:
    """Whether this can be a sum of reciprocal ranks of one or both sides of so many triples, or of none of them."""
    sides = (0, num_triples, 2 * num_triples)
    return said.count in sides and np.isfinite(said.total) and 0 <= said.total <= said.count
