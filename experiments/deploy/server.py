"""The server of a deployed federation: it requests, aggregates, sends, and writes the record.

    record = serve(spec, agreement, ask, Path("server"))

It receives no triple, rank or local model. `ask` is the network, see `fkgsec.experiments.deploy.core.conversation.Ask`. The loop
(`fkgsec.federation.steps`) and the server's half of the exchange are those of one process. A round is judged after the uploads of
the next one, unless the run may end with it, so that broadcast, validation and the next training share a request.

A round takes one request in plaintext, six under secure aggregation (the steps of its protocol), and twelve with `suppress`.
Private set union takes seven at the start; a party that restarts meanwhile ends the run, and a new one must be agreed on.

Beside the exchange the server learns each party's sizes, losses (not under secure aggregation), sums of validation
ranks, and at the end sums and counts of its test ranks. The record states this (`LEARNS`).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import torch

from fkgsec.attacks.figure import Figure
from fkgsec.defenses.terms import Entropy
from fkgsec.defenses.transport import DefendedTransport
from fkgsec.errors import RunError, SpecError
from fkgsec.exchange import Holding, Received, Transport, Uploaded
from fkgsec.exchange.rounds import sole
from fkgsec.experiments.deploy.agreement import Agreement, agreed_terms, new_identity, read_secret
from fkgsec.experiments.deploy.core.audit import check_figures, check_settings
from fkgsec.experiments.deploy.core.conversation import Ask, Conversation, Journal, Posted, Standing
from fkgsec.experiments.deploy.core.measure import PARTS, Measured, check_measured, combine
from fkgsec.experiments.deploy.core.messages import Hello, Placed, Step, Trained, Validated, decode, encode
from fkgsec.experiments.integrity.origin import Origin
from fkgsec.experiments.runs.record import (
    ABSENT,
    SCHEMA,
    Bytes,
    DataRecord,
    Record,
    environment_of,
    sealed,
)
from fkgsec.experiments.runs.run import RECORD_FILE
from fkgsec.experiments.runs.stored import encode_stored
from fkgsec.experiments.runs.writing import locked, write_atomically
from fkgsec.experiments.tasks.kge import TASK, Spec
from fkgsec.federation import checkpoint, packing
from fkgsec.federation.checkpoint import Progress
from fkgsec.federation.loop import CHECKPOINT
from fkgsec.federation.messages import Channel, Transcript
from fkgsec.federation.options import CHECKPOINT_EVERY_S
from fkgsec.federation.protection import Protection
from fkgsec.federation.recipes import RECIPES, Table
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
from fkgsec.protocols.core.rounds import Replies, ServerRound, Silence
from fkgsec.version import __version__

JOURNAL = "journal.bin"
LARGEST_LOSS = 1e30
"""Larger losses are ignored, so that the mean over the others stays finite."""
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
    "laboratory": "randomness: training drew from the run's seed, and test ranks were transmitted one by one, for comparison "
    "with one process; keys, shares, masks and noise came from the operating systems",
}
Kind = TypeVar("Kind")


class Apart(Transport):
    """A transport whose clients are other processes: it has the server's half of the exchange, and a conversation."""

    def __init__(self, talk: Conversation, channel: Channel, agreement: Agreement, secret: bytes) -> None:
        self.talk, self.agreement, self.secret, options = talk, agreement, secret, agreement.options
        super().__init__(channel, options, agreement.addresses, RECIPES[options.algorithm].shared, agreement.run)

    def align(self, table: Table, holdings: Mapping[str, Holding]) -> None:
        """Align a table, so that `server[table].names` is the union.

        Args:
            holdings: not used: clients send their names.

        Raises:
            RunError: a client with another weight or other rows than this version has.
        """
        defense: Any = getattr(self, "defense", None)
        step = "union" if defense and defense.psu else "alignment"
        self.talk.drive(self.aligning(table), step, 0, table)
        shared = self.server[table]
        for party, rows in shared.holdings.items():
            weight = shared.weights[party], shared.num_upwards[party]
            if weight != (1, 0) or not 0 <= shared.num_uploaded[party] <= len(rows):
                raise RunError(
                    f"{party} aligned {table} with weight {weight[0]}, {weight[1]} rows upwards and "
                    f"{shared.num_uploaded[party]} of {len(rows)} rows to send; every client has weight 1 and sends its rows"
                )

    def place(self, table: Table) -> None:
        """Tell clients the positions of their rows.

        Args:
            table: shared table.
        """
        shared = self.server[table]
        for party in self.parties:
            places = shared.holdings.get(party)
            # After a private union a client finds its rows in the list of names; the server does not know them.
            content = b"" if places is None else places.numpy().astype("<i4").tobytes()
            self.talk.post(party, "place", table=table, content=encode(Placed(len(shared.names), content)))

    def broadcast(self, round: int, table: Table, parties: Sequence[str]) -> dict[str, Received]:
        """Send each of these clients its broadcast.

        Args:
            parties: receivers.
        """
        steps = self.broadcasting(round, table, self.receivers(parties))
        if steps is not None:
            self.talk.drive(steps, "broadcast", round, table)
        return {}

    def upload(self, round: int, table: Table, rows: Mapping[str, Any], **refusals: Any) -> Uploaded:
        """Aggregate the uploads of the clients that `rows` names.

        Args:
            rows: only its keys are used. refusals: not used: clients check by themselves what they refuse.
        """
        steps = self.uploading(round, table, list(rows))
        steps = steps if self.sums else self._readable(steps, round, table)
        return self.talk.drive(steps, "upload", round, table, members=list(rows))

    def _readable(self, steps: ServerRound[Uploaded], round: int, table: Table) -> ServerRound[Uploaded]:
        """Exclude missing or unreadable uploads, with the reason."""
        # In one process a bad upload is a bug and raises. Apart, a faulty client must not end the run.
        excluded: dict[str, str] = {}

        def read(replies: Replies) -> Replies:
            """Yield the readable replies, and note the reason of others."""
            for party, reply in replies:
                try:
                    if isinstance(reply, Silence):
                        raise RunError(reply.reason)
                    self.servers[table].codec.accept(round, sole(reply, party))
                except RunError as error:
                    # The reason is a missing reply, or a message that the codec cannot read.
                    excluded[party] = f"{table}: {error}"
                else:
                    yield party, reply

        try:
            ask = next(steps)
            while True:
                replies = yield ask
                ask = steps.send(read(replies))
        except StopIteration as end:
            outcome: Uploaded = end.value
        return outcome._replace(excluded={**excluded, **outcome.excluded})


class DefendedApart(Apart, DefendedTransport):
    """`Apart` under a defense."""

    def _draw_from(self, entropy: Entropy) -> None:
        """Draw from the server's secret, so that a restarted server announces the same, and use the agreed public keys."""
        # From the server's secret, so that a restarted server announces the same salts. Keys come from the agreement.
        self.entropy, self.defended = Entropy(self.secret, self.run), {}
        agreed = agreed_terms(self.agreement)
        self.terms.adopt(agreed.keys, agreed.sessions)

    def align(self, table: Table, holdings: Mapping[str, Holding]) -> None:
        """Align a table, and tell clients the positions of their rows."""
        super().align(table, holdings)
        self._place(table, {})
        self.place(table)


class _State(msgspec.Struct):
    """State in a checkpoint beside tensors, transcript and progress: of the round that is aggregated and not sent yet."""

    standing: Standing
    hellos: dict[str, Hello]
    best: int
    round: int = 0
    loss: float | None = None
    valid: float | None = None
    outcomes: list[tuple[int, int, dict[str, str], dict[str, tuple[int, int]], int, float | None]] = []


class Server:
    """The parties as the server sees them, by their messages. Implements the `Sites` of the loop."""

    def __init__(self, agreement: Agreement, ask: Ask, folder: Path) -> None:
        self.agreement, self.options = agreement, agreement.options
        self.recipe = RECIPES[self.options.algorithm]
        self.channel = Channel()
        self.talk = Conversation(agreement, ask, Journal(folder / JOURNAL), self.transcript)
        new_identity(folder, agreement.run)
        kind = DefendedApart if agreement.options.defense else Apart
        self.exchange = kind(self.talk, self.channel, agreement, read_secret(folder))
        self.hellos: dict[str, Hello] = {}
        self.best, self._round = 0, 0

    @property
    def transcript(self) -> Transcript:
        """All messages so far."""
        return self.channel.transcript

    @property
    def judged_before_broadcast(self) -> bool:
        """True if the task judges models as trained: shared ones before the broadcast, or private ones."""
        return self.options.evaluates_before_broadcast or self.recipe.private != "none"

    # The steps of the loop.

    def align(self) -> None:
        """Run round 0, in which every party must answer."""
        self.talk.needs_all = True
        # Travels with the first request of the alignment.
        hellos = self.talk.post_all("hello")
        try:
            for table in self.exchange.server:
                self.exchange.align(table, {})
        # A party's hello best explains an error, such as another version.
        finally:
            if all(posted.answer is not None for posted in hellos.values()):
                self.hellos = {party: self._hello(party, posted) for party, posted in hellos.items()}
        # Without a party that reveals its figures, the run would end with an empty record.
        if not any(self.agreement.reveals(hello.sizes["test"]) for hello in self.hellos.values()):
            raise RunError(
                f"every party has fewer than {self.agreement.fewest_triples} test triples (fewest_triples), of which nothing is "
                "told; make another agreement"
            )
        for table, shared in self.exchange.server.items():
            model = self.options.kge_model()
            self.exchange.initialise(table, first_rows(model, self.options.seed, table, shared.names))
        self.talk.needs_all = False

    def _hello(self, party: str, posted: Posted) -> Hello:
        hello = _content(posted, Hello)
        if isinstance(hello, str):
            raise RunError(f"{party} did not answer: {hello}")
        # Other versions may compute other bits, or have other messages.
        if hello.version != __version__:
            raise RunError(f"{party} runs fkgsec {hello.version}, the server {__version__}; install one version")
        if set(hello.sizes) != set(TASK.sizes) or min(hello.sizes.values()) < 0 or hello.sizes["train"] < 1:
            raise RunError(f"{party} says that it has {hello.sizes}; {', '.join(TASK.sizes)} are due")
        return hello

    def participants(self, round: int) -> list[int]:
        """Return the indices of the clients that train in a round."""
        return self.options.participants(len(self.agreement.parties), round)

    def num_steps(self, places: Sequence[int]) -> int:
        """Return 0: the server does not know."""
        return 0

    def train(self, round: int, places: Sequence[int], on_step: Callable[[], None]) -> Callable[[], float | None]:
        """Let these clients train.

        Args:
            places: client indices. on_step: not called: the server sees no steps.

        Returns:
            A function for the mean loss of those that send theirs; None without any.
        """
        self._round = round
        posted = {place: self.talk.post(self.agreement.addresses[place], "train", round=round) for place in places}

        def loss() -> float | None:
            """Compute the mean loss."""
            losses = {}
            for place, answer in posted.items():
                trained = _content(answer, Trained)
                # A client may send any number: ignore huge ones, so that the mean stays finite.
                if isinstance(trained, Trained) and trained.loss is not None and abs(trained.loss) < LARGEST_LOSS:
                    losses[place] = trained.loss
            return mean_loss(losses, [hello.sizes["train"] for hello in self.hellos.values()])

        return loss

    def validate(self, round: int) -> Callable[[], float | None]:
        """Let all clients validate; those that are judged after the broadcast store these models as candidates.

        Args:
            round: of the models.
        """
        posted = self.talk.post_all("validate", round=round)
        if not self.judged_before_broadcast:
            self.talk.post_all("candidate", round=round)
        return lambda: self._valid(posted)

    def _valid(self, posted: Mapping[str, Posted]) -> float | None:
        parts = []
        for party, answer in posted.items():
            validated = _content(answer, Validated)
            if isinstance(validated, Validated) and _is_sum(validated, self.hellos[party].sizes["valid"]):
                parts.append((validated.total, validated.count))
        return mean_reciprocal(parts)

    def upload(self, round: int, places: Sequence[int]) -> list[Uploaded]:
        """Collect the rows of these clients.

        Args:
            places: client indices.
        """
        senders = dict.fromkeys(self.agreement.addresses[place] for place in places)
        return [self.exchange.upload(round, table, senders) for table in self.exchange.server]

    def broadcast(self, round: int) -> None:
        """Send to all clients if the shared model is judged, else to those that train next.

        Args:
            round: of the table.
        """
        receivers = self.agreement.addresses
        if self.recipe.evaluated == "local" and round > 0:
            receivers = tuple(receivers[place] for place in self.participants(round + 1))
        for table in self.exchange.server:
            self.exchange.broadcast(round, table, receivers)

    def keep(self, round: int) -> None:
        """Tell all clients that this round is the best.

        Args:
            round: the best one.
        """
        if self.judged_before_broadcast:
            self.talk.post_all("candidate", round=round)
        self.talk.post_all("keep", round=round)
        self.best = round

    def retain(self, *rounds: int) -> None:
        """Drop messages of all rounds but round 0, these and the current one, as in one process.

        Args:
            rounds: that an attack may need.
        """
        transcript, rounds_to_keep = self.transcript, {0, *rounds, self._round}
        rounds_to_keep |= self.options.first_exchange() if self.recipe.keeps_first else set()
        uploads = set[int]().union(*(transcript.latest_uploads(number) for number in rounds))
        noted = {*rounds_to_keep, *self.exchange.rounds_worth_noting()}
        transcript.retain(
            rounds_to_keep | uploads, noted, broadcasts={transcript.last_broadcast(number) for number in rounds}
        )

    # The end.

    def _collect(
        self, step: Step, kind: type[Kind], check: Callable[[Kind, str, str], None]
    ) -> tuple[dict[str, Kind], dict[str, str]]:
        """Return each client's checked content by name, and the reasons of those without one."""
        contents, missing = dict[str, Kind](), dict[str, str]()
        posted = self.talk.post_all(step, round=self.best)
        for name, (party, answer) in zip(self.agreement.parties, posted.items(), strict=True):
            content = _content(answer, kind)
            try:
                if isinstance(content, str):
                    raise RunError(content)
                check(content, name, party)
                contents[name] = content
            except RunError as error:
                missing[name] = str(error)
        return contents, missing

    def measure(self) -> tuple[dict[str, Measured], dict[str, str]]:
        """Return the clients' measurements of the best round's models by name, and the reasons of missing ones."""

        def check(measured: Measured, name: str, party: str) -> None:
            """Check a client's measurements."""
            num_test, two = self.hellos[party].sizes["test"], self.recipe.private != "none"
            check_measured(measured, self.agreement, round=self.best, num_test=num_test, two_models=two)

        measured, missing = self._collect("measure", Measured, check)
        if not measured:
            raise RunError(f"no client measured its models: {'; '.join(missing.values())}")
        return measured, missing

    def audit(self) -> tuple[list[Figure], dict[str, str]]:
        """Return the clients' figures of the agreed attacks, and the reasons of missing ones by name."""
        names = self.agreement.audit
        if not names:
            return [], {}
        figures, missing = self._collect(
            "audit", list[Figure], lambda figures, name, _: check_figures(figures, names, name, self.best)
        )
        return [figure for of_client in figures.values() for figure in of_client], missing

    # Checkpoints.

    def save(self, path: Path, progress: Progress, passed: Passed) -> None:
        """Write a checkpoint after a round's results were posted, and before any was sent.

        Args:
            path: file. progress: of the loop. passed: the round that is aggregated.
        """
        outcomes = [
            (o.num_survivors, o.num_clipped, dict(o.excluded), dict(o.cut), o.num_kept_rows, o.changed_levels)
            for o in passed.outcomes
        ]
        state = _State(self.talk.state(), self.hellos, self.best, passed.round, passed.loss(), outcomes=outcomes)
        if passed.valid and self.judged_before_broadcast:
            state.valid = passed.valid()
        # Entries without frames keep the byte counts of all messages; frames are stored for the retained rounds alone.
        progress.entries = self.transcript.entries
        tree: dict[str, packing.Tree] = {
            "exchange": self.exchange.tensors(),
            "state": {"bytes": torch.frombuffer(bytearray(msgspec.msgpack.encode(state)), dtype=torch.uint8)},
        }
        messages = {"frame": self.transcript.frames, "note": self.transcript.notes}
        checkpoint.save(path, packing.pack(tree), progress, messages)
        # The journal can go: the checkpoint has everything that its replies led to.
        self.talk.settle()

    def restore(self, path: Path) -> tuple[Progress, Passed]:
        """Continue from a checkpoint.

        Args:
            path: file.

        Raises:
            RunError: it is damaged or of another run.
        """
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
        outcomes = [Uploaded(*outcome) for outcome in state.outcomes]
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
        spec: has the options of the agreement. ask: the network. observer: progress callbacks for every round.
        folder: for checkpoints, the journal and the record; a killed server continues from it.

    Raises:
        SpecError: the spec's options differ from the agreement, or it has settings of attacks.
        RunError: no party answers, or the folder has another run.
    """
    # The spec is the server's file, and the agreement that of all parties. The run must follow the agreement.
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
        write_atomically(folder / RECORD_FILE, encode_stored(record))
        return record


def deployed_record(spec: Spec, server: Server, progress: Progress, origin: Origin) -> Record:
    """Let the clients measure their models and score the agreed attacks, and build the record of a finished run.

    Args:
        spec: of the run. progress: of the loop. origin: of the record.
    """
    measured, missing = server.measure()
    figures, unscored = server.audit()
    utility, transcript = combine(measured, spec.seed), server.transcript
    protection: Protection = server.exchange.protection()
    absent = [f"{ABSENT}{name}, which did not measure ({why})" for name, why in missing.items()]
    absent += [f"apart: attacks are without {name}, which scored none ({why})" for name, why in unscored.items()]
    # The record must state every client that is missing from a figure.
    scored = {(figure.attack, figure.victim) for figure in figures if figure.estimate.n}
    absent += [
        f"apart: {attack} is without {name}, which has too few triples for it"
        for attack in server.agreement.audit
        for name in server.agreement.parties
        if name not in unscored and (attack, name) not in scored
    ]
    if whole := [name for name, figure in measured.items() if PARTS[0] not in figure.groups]:
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
        utility=utility.of_all,
        utility_by_client=utility.by_client,
        utility_by_leak=utility.by_leak,
        bytes=Bytes(
            transcript.num_bytes("up"),
            transcript.num_bytes("down"),
            [entry.bytes_up for entry in progress.rounds],
            [entry.bytes_down for entry in progress.rounds],
        ),
        rounds=progress.rounds,
        best_round=progress.best_round,
        protection=[*protection.lines(), *LEARNS, DRAWN[server.agreement.randomness], *audit, *absent],
        utility_shared=utility.shared,
        guarantees=dict(protection.guarantees),
        withstands=protection.withstands,
        figures=figures,
        metric=TASK.metric,
        valid=next((entry.valid for entry in progress.rounds if entry.round == progress.best_round), None),
        origin=origin,
    )


def train_apart(server: Server, path: Path, observer: Observer, checkpoint_every_s: float) -> Progress:
    """Run all rounds, from the checkpoint at `path` if there is one; see `fkgsec.federation.loop.run_federation`.

    Args:
        observer: progress callbacks. checkpoint_every_s: seconds between checkpoints.
    """
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
        # If the run goes on anyway, validation travels with the next uploads, which saves a request.
        unjudged = passed if _is_judged_later(server, progress, passed) else None
        if unjudged is None and _is_last(server, progress, passed, observer):
            # The record is computed from this checkpoint.
            server.save(path, progress, passed)
            return progress
        passed = train_and_upload(server, passed.round + 1, observer)
        if unjudged is not None:
            _is_last(server, progress, unjudged, observer)
        broadcast_and_check(server, passed)
        if time.perf_counter() - saved_at >= checkpoint_every_s:
            server.save(path, progress, passed)
            saved_at = time.perf_counter()


def _is_judged_later(server: Server, progress: Progress, passed: Passed) -> bool:
    """Return True if a round's validation may arrive with the next round's uploads, since the run goes on in any case."""
    options = server.options
    last = passed.round == options.rounds or 0 < options.patience <= progress.bad_checks + 1
    return passed.checked and not server.judged_before_broadcast and not last


def _is_last(server: Server, progress: Progress, passed: Passed, observer: Observer) -> bool:
    """Judge a round; return True if it was the last."""
    if passed.round == 0:
        progress.rounds.append(round_entry(server.transcript, 0, None, None, [], passed.began))
    else:
        judge(server, progress, passed)
    observer.round_done(progress.rounds[-1])
    return progress.finished


def _content(posted: Posted, kind: type[Kind]) -> Kind | str:
    """Decode a party's answer, or return the reason why there is none."""
    answer = posted()
    if answer.silence:
        return answer.silence
    try:
        return decode(answer.content, kind)
    except RunError as error:
        return f"MalformedMessage: {error}"


def _is_sum(validated: Validated, num_triples: int) -> bool:
    """Return True if this can be a sum of reciprocal ranks of one or both sides of all triples, or of none."""
    sides = (0, num_triples, 2 * num_triples)
    # A client may lie. Accept only what a sum of reciprocal ranks can be.
    return validated.count in sides and np.isfinite(validated.total) and 0 <= validated.total <= validated.count
