"""A client of a deployed federation, with its graph, tables and keys. It answers requests.

    party = Party(Path("north"), "north", agreement, read_party_data(Path("north/data"), "north"))
    reply = party.answer(request)                    # bytes from Flower, a socket, or a test

It has no object of the server and no data of another client. Its folder has what must outlive the process: `party.safetensors`
(tables, optimizer, state of codec and broadcasts, last lasting reply), `identity.key`, and at the end `embeddings.safetensors`,
the model of the best round.

A party must live from one request to the next: secrets of a session of secure aggregation are in memory only, on purpose. A
restarted party continues from its folder. It is silent in the session that it left, as if it had dropped out, and takes part
again in the next round. An engine with a process for each message therefore runs the party in a process beside it.

A repeated request (same serial number, same bytes) gets the same reply, and nothing is done twice. A party enters at most one
session for each table and round, so that repetition cannot draw both kinds of share of a secret from it. It takes each step of
the agreed rounds once and in order (`fkgsec.federation.order`), and measures and scores one model.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from fkgsec.data.graph import FederatedGraph
from fkgsec.defenses import rounds as defended_rounds
from fkgsec.defenses.bound_broadcasts import History, ReceivedBroadcasts, packed, unpack
from fkgsec.defenses.client import DefendedClient
from fkgsec.defenses.terms import PartyEntropy
from fkgsec.errors import DataError, FkgsecError, RunError, SpecError
from fkgsec.exchange import AGGREGATIONS, CODECS, Received, rounds
from fkgsec.exchange.client import TableClient
from fkgsec.experiments.deploy.agreement import Agreement, agreed_terms, new_identity, read_secret
from fkgsec.experiments.deploy.core.audit import score_attacks
from fkgsec.experiments.deploy.core.measure import Best, measure_models, rounded, write_embeddings
from fkgsec.experiments.deploy.core.messages import (
    STALE_REQUEST,
    Answer,
    Hello,
    Item,
    Placed,
    Reply,
    Request,
    Trained,
    Validated,
    are_places,
    decode,
    encode,
    placed_rows,
)
from fkgsec.experiments.tasks.kge import TASK
from fkgsec.federation import checkpoint, messages, packing
from fkgsec.federation.checkpoint import Progress
from fkgsec.federation.messages import Entry, Transcript, client_party
from fkgsec.federation.options import replace
from fkgsec.federation.order import ClientOrder, Position
from fkgsec.federation.recipes import RECIPES, Table
from fkgsec.kge.local.task import KgeTask
from fkgsec.kge.result import KgeResult
from fkgsec.protocols.core.errors import ProtocolError, describe
from fkgsec.protocols.core.prg import SEED_BYTES, derive
from fkgsec.protocols.core.rounds import NOTHING, Silence
from fkgsec.protocols.core.rounds import Party as Part
from fkgsec.version import __version__

STATE = "party.safetensors"
SAVED_STEPS = ("hello", "union", "train")
"""Steps after which the state is written, beside lasting ones and those that extend the history of broadcasts."""
MOST_ROWS = 10_000_000
"""Upper limit on the rows of a shared table."""


class Memory(msgspec.Struct):
    """A party's state beside its tensors.

    Attributes:
        serial, request, reply: number, digest and reply of the last request after which the state was written.
        lasting: number of the last lasting item that it took.
        uploads: by table the last round whose session it entered. unions: names of a table by private union.
        placed: by table the number of rows, and the positions of this party's.
        sent_rows: by table the last round with a choice of rows, and the rows to send as packed bits.
        judged: rounds of the stored models; "trained": of those before the last broadcast.
        entries: of its transcript. position: in the run, see `fkgsec.federation.order`.
        final_answers: by step its only answer at the end.
    """

    serial: int = 0
    request: bytes = b""
    reply: bytes = b""
    lasting: int = 0
    uploads: dict[str, int] = {}
    unions: dict[str, list[str]] = {}
    placed: dict[str, tuple[int, bytes]] = {}
    sent_rows: dict[str, tuple[int, bytes]] = {}
    judged: dict[str, int] = {}
    entries: list[Entry] = []
    position: Position = msgspec.field(default_factory=Position)
    final_answers: dict[str, bytes] = {}


class Party:
    """A client of a deployed federation.

    Args:
        folder: for its state; made if it is missing. name: among the agreement's parties.
        data: its triples, a graph of one client (`fkgsec.experiments.deploy.data.read_party_data`).
        device: of its machine; None: that of the agreement.

    Raises:
        SpecError: it is no party of the agreement, or has another key there. DataError: data of several clients.
        RunError: the state in its folder is damaged, or of another run or other data.
    """

    def __init__(
        self, folder: Path, name: str, agreement: Agreement, data: FederatedGraph, device: str | None = None
    ) -> None:
        if name not in agreement.parties:
            raise SpecError(f"party: {name!r} is not among the parties {', '.join(agreement.parties)}")
        if len(data.clients) != 1:
            raise DataError(f"{data.name}: a party has the data of one client; got {len(data.clients)}")
        self.folder, self.name, self.agreement, self.data = folder, name, agreement, data
        self.place, self.address = agreement.parties.index(name), client_party(name)
        self.options = agreement.options if device is None else replace(agreement.options, device=device)
        self.recipe = RECIPES[self.options.algorithm]
        self._identify()
        seed = self.options.seed
        # Another agreement has another seed, also in a copied folder.
        if agreement.randomness != "laboratory":
            seed = int.from_bytes(derive(self._secret, "training of a party", agreement.digest, length=7), "big")
        self.task = KgeTask(data, replace(self.options, seed=seed), keys=[self.place])
        self.memory = Memory()
        # "candidate" is the last validated round, "best" the best one.
        self.best: dict[str, Best] = {}
        # Messages for an audit; empty without one.
        self.transcript = Transcript()
        # Round and shared models before its broadcast.
        self.trained: tuple[int, dict[str, Tensor]] = (0, {})
        self._parts: dict[tuple[str, Table], tuple[int, Part[Any]]] = {}
        # Serial number and digest of the last request, and the reply.
        self._last: tuple[int, bytes, bytes] = (0, b"", b"")
        self._join()
        self.order = ClientOrder(
            self.place,
            len(agreement.parties),
            self.options,
            self.recipe.shared,
            sums=self._sums,
            always_sent=not CODECS[self.recipe.codec].chooses_rows,
        )
        load_memory(self)
        self.order.position = self.memory.position
        self._last = (self.memory.serial, self.memory.request, self.memory.reply)
        # The marks in the stored state.
        self._written = self._marks()

    def _identify(self) -> None:
        """Read or draw the lasting secret, and draw one for this process. Raises `SpecError`, `RunError`."""
        public = new_identity(self.folder, self.agreement.run)
        pinned = self.agreement.identities.get(self.name, public)
        # With another key, the other parties would refuse every signature of this one.
        if pinned != public:
            raise SpecError(
                f"identities: the agreement has the key {pinned[:16]}... of {self.name}, and its folder {self.folder} the key "
                f"{public[:16]}...; use the folder that the agreement was made with"
            )
        self._secret = read_secret(self.folder)
        # Session randomness is fresh in every process; the lasting secret gives identity and noise. All but the identity are
        # bound to the agreement.
        self.entropy = PartyEntropy(
            self._secret, secrets.token_bytes(SEED_BYTES), self.agreement.run, self.agreement.digest
        )

    def _join(self) -> None:
        codec, aggregation = CODECS[self.recipe.codec], AGGREGATIONS[self.recipe.aggregation]
        self.tables = {
            table: TableClient(self.address, table, self.task.holdings(table)[0], codec, aggregation, self.options)
            for table in self.recipe.shared
        }
        self.defended: DefendedClient | None = None
        if not self.options.defense:
            return
        terms = agreed_terms(self.agreement)
        self.defended = DefendedClient(self.address, terms, self.entropy, ReceivedBroadcasts)
        for client in self.tables.values():
            self.defended.join(client)

    @property
    def _sums(self) -> bool:
        """True under secure aggregation."""
        return self.defended is not None and self.defended.terms.defense.secagg is not None

    @property
    def data_digest(self) -> bytes:
        """Digest of the data under the secret: it identifies the data, and lets no one check a guess of them."""
        return derive(self._secret, "digest of the data", self.agreement.run, self.data.hash, length=32)

    # Requests.

    def answer(self, request: bytes) -> bytes:
        """Answer a request of the server. A faulty request has no effect, and gets a reply with the error.

        Args:
            request: bytes of a `Request`.

        Returns:
            Bytes of a `Reply`.
        """
        try:
            message = decode(request, Request, self.agreement.largest_bytes)
            # The digest covers all terms, so a server cannot change one unseen.
            if message.run != self.agreement.digest:
                raise RunError("a request of another run or under other terms")
        except RunError as error:
            return self._refused(0, str(error))
        serial, seen = message.serial, hashlib.sha256(request).digest()
        # A repeated request gets the same bytes, and nothing is done twice.
        if serial == self._last[0] and seen == self._last[1]:
            return self._last[2]
        # An older request is a replay, or the server's folder is older than the run.
        if serial <= self._last[0]:
            kind = "another request with the serial number" if serial == self._last[0] else f"a {STALE_REQUEST}: number"
            return self._refused(serial, f"{kind} {serial}; {self._last[0]} was answered")
        try:
            answers = self._take_all(message.items)
        except RunError as error:
            return self._refused(serial, str(error))
        reply = encode(Reply(self.agreement.digest, serial, self.address, answers))
        # Write the state before the reply leaves: a restarted party must not enter a session again, or forget what it released.
        if self._written != self._marks() or any(item.lasting or item.step in SAVED_STEPS for item in message.items):
            self.memory.serial, self.memory.request, self.memory.reply = serial, seen, reply
            # If writing fails, no reply leaves before a later attempt succeeds.
            self._written = ()
            save_memory(self)
            self._written = self._marks()
        self._last = (serial, seen, reply)
        return reply

    def _refused(self, serial: int, reason: str) -> bytes:
        return encode(Reply(self.agreement.digest, serial, self.address, [], f"{self.address}: {reason}"))

    def _marks(self) -> tuple[object, ...]:
        """State that a restarted party must remember: its broadcasts, sessions and steps."""
        memory, history = self.memory, self.defended.log.digest if self.defended else b""
        return history, dict(memory.uploads), encode(memory.position), set(memory.final_answers)

    def _take_all(self, items: list[Item]) -> list[Answer]:
        """Answer each item, up to one that fails: later items build on it.

        Raises `RunError` before any step if a lasting item is missing.
        """
        due = self.memory.lasting + 1
        for item in items:
            # Lasting items are numbered, so a gap is noticed before anything is done.
            if item.lasting > due:
                raise RunError(f"{item.step} is number {item.lasting} of what lasts; number {due} is missing here")
            due += item.lasting == due
        answers: list[Answer] = []
        failed = ""
        for item in items:
            if failed:
                answers.append(Answer(silence=failed))
                continue
            try:
                answers.append(self._take(item))
            except ProtocolError as error:
                failed = describe(error)
                answers.append(Answer(silence=failed))
            # A server must not be able to end a party.
            except Exception as error:
                # The text of foreign errors may reveal secrets to the server, so it gets their class alone.
                failed = type(error).__name__
                failed += f": {error}" if isinstance(error, FkgsecError) else ""
                answers.append(Answer(silence=failed))
        return answers

    def _take(self, item: Item) -> Answer:
        if item.lasting and item.lasting <= self.memory.lasting:
            # Taken before; only the reply was lost.
            return Answer()
        steps: Mapping[str, Callable[[Item], Answer]] = {
            "hello": self._hello,
            "alignment": self._align,
            "union": self._unite,
            "place": self._place,
            "broadcast": self._broadcast,
            "train": self._train,
            "validate": self._validate,
            "candidate": self._candidate,
            "keep": self._keep,
            "upload": self._upload,
            "listen": self._listen,
            "measure": self._measure,
            "audit": self._audit,
        }
        if item.step not in steps:
            raise RunError(f"{self.address} does not do {item.step!r}")
        if item.table and item.table not in self.tables:
            raise RunError(f"{item.table!r} is no shared table of {self.options.algorithm}")
        # A malicious server may ask for steps out of order, or twice: `ClientOrder` refuses what the agreed rounds do not have.
        self.order.check(item.step, item.round, item.table)
        answer = steps[item.step](item)
        self.order.mark(item.step, item.round, item.table)
        if item.lasting:
            self.memory.lasting = item.lasting
        return answer

    def _speak(self, item: Item, part: Part[Any]) -> Answer:
        """Pass an item's frames to the client's half of a protocol."""
        frames: Any = NOTHING
        if item.frames is not None:
            frames = tuple(messages.decode(frame) for frame in item.frames)
        reply = part.answer(frames)
        if isinstance(reply, Silence):
            return Answer(silence=reply.reason)
        if self.agreement.audit and not self._sums:
            for message in (*frames, *reply):
                self.transcript.record(message, messages.encode(message))
        return Answer(frames=None if reply == NOTHING else [messages.encode(message) for message in reply])

    def _forget(self, round: int) -> None:
        """Drop messages that an audit does not need, whichever round will be the best."""
        # Which round will be the best is not known yet: store the messages of all that can be.
        rounds = {round, *(best.round for best in self.best.values())}
        before = {self.transcript.last_broadcast(number) for number in rounds}
        self.transcript.retain({0, *rounds}, set(), broadcasts=before)

    # Steps.

    def _hello(self, _: Item) -> Answer:
        sizes = TASK.describe(self.data)[self.data.clients[0].name]
        return Answer(content=encode(Hello(sizes, self.data_digest, __version__)))

    def _align(self, item: Item) -> Answer:
        if self.defended and self.defended.whole:
            raise RunError(f"{self.address} tells no names of {item.table}: they are aligned by private set union")
        return self._speak(item, Part(rounds.client_alignment(self.tables[item.table])))

    def _unite(self, item: Item) -> Answer:
        defended = self._defended()
        # The difference of two unions over different cohorts shows what the missing clients hold, so enter one only.
        if self.order.enter_union(item.table) and ("union", item.table) not in self._parts:
            raise RunError(f"{self.address} was in the union of {item.table}, and enters no second one")
        part = self._part("union", item, lambda: defended_rounds.client_union(defended, item.table))
        answer = self._speak(item, part)
        if part.finished and item.table not in self.memory.unions:
            assert part.result is not None
            self.memory.unions[item.table] = list(part.result)
        return answer

    def _place(self, item: Item) -> Answer:
        placed = decode(item.content, Placed, self.agreement.largest_bytes)
        # The number of rows sizes this party's vectors: a hostile server could exhaust its memory.
        if not 0 < placed.num_rows <= MOST_ROWS:
            raise RunError(f"{item.table}: {placed.num_rows:,} rows; a table has 1 to {MOST_ROWS:,}")
        names, places = self.memory.unions.get(item.table), placed_rows(placed.places)
        names_here = self.tables[item.table].holding.names
        if self.defended and self.defended.whole:
            if names is None or len(names) != placed.num_rows:
                raise RunError(
                    f"{item.table}: {placed.num_rows} rows were said to be shared; the union has another number"
                )
        elif len(placed.places) != 4 * len(names_here) or not are_places(places, len(names_here), placed.num_rows):
            raise RunError(f"{item.table}: {len(places)} places were sent; {len(names_here)} different ones are due")
        self.memory.placed[item.table] = (placed.num_rows, placed.places)
        self.settle_places(item.table)
        return Answer()

    def settle_places(self, table: Table) -> None:
        """Adopt the positions of the party's rows from `memory`.

        Args:
            table: shared table.
        """
        if self.defended is None:
            return
        num_rows, places = self.memory.placed[table]
        names, names_here = self.memory.unions.get(table), self.tables[table].holding.names
        bind = names is not None
        # Without a private union, a party knows only its own names; other rows stay nameless.
        if names is None:
            names = [""] * num_rows
            for name, place in zip(names_here, placed_rows(places), strict=True):
                names[place] = name
        self.defended.place(table, names, bind=bind)
        self.defended.terms.prepare(table, num_rows, self.task.rows(table, 0).shape[1], 1)

    def _broadcast(self, item: Item) -> Answer:
        self._before_broadcast(item.round)
        # A broadcast ends the sessions of its round. Close them, so that their secrets are released.
        for key, (number, part) in list(self._parts.items()):
            if key[0] in ("upload", "listen") and number <= item.round:
                part.close()
                del self._parts[key]
        if self.defended and self._sums:
            part: Part[Any] = Part(defended_rounds.client_broadcast(self.defended, item.round, item.table))
        else:
            part = Part(rounds.client_broadcast(self.tables[item.table], item.round))
        answer = self._speak(item, part)
        if not part.finished:
            raise RunError(f"a broadcast of {item.table} in round {item.round} without messages")
        received: Received | None = part.result
        if received is not None:
            self.task.receive(item.round, item.table, 0, received)
        self._forget(item.round)
        return answer

    def _before_broadcast(self, round: int) -> None:
        if round > self.trained[0]:
            self.trained = (round, self.task.snapshot(shared_only=True))

    def _train(self, item: Item) -> Answer:
        before = {table: self.task.rows(table, 0).clone() for table in self.tables}
        self.task.begin_round()
        losses = self.task.train(item.round, [0], lambda: None)
        # Under sums, a party uploads only if its own training moved a row: a sum of rows that the server chose would reveal
        # the upload of another party.
        changed = any(not rows.equal(self.task.rows(table, 0)) for table, rows in before.items())
        self.order.training_changed(item.round, changed=changed)
        self._before_broadcast(item.round)
        # A server that chooses the table could read from a client's loss which rows the client has.
        hidden = self._sums and self.agreement.randomness != "laboratory"
        return Answer(content=encode(Trained(None if hidden else losses[0])))

    def _validate(self, item: Item) -> Answer:
        # Sums over too few validation triples would reveal single ranks.
        if not self.agreement.reveals(len(self.data.clients[0].valid)):
            return Answer(content=encode(Validated(0.0, 0)))
        total, count = self.task.evaluator.reciprocal("valid")[0]
        return Answer(content=encode(Validated(rounded(total, self.agreement), count)))

    def _candidate(self, item: Item) -> Answer:
        self._before_broadcast(item.round)
        self.best["candidate"] = Best(item.round, self.trained[1], self.task.snapshot())
        return Answer()

    def _keep(self, item: Item) -> Answer:
        # After the measurement, a server could choose further models to measure, each of which tells about the data.
        if self.memory.final_answers:
            raise RunError(f"the models of round {self.best['best'].round} were measured; no others are")
        candidate = self.best.get("candidate")
        # After a restart or a missed request, the models of that round may be missing.
        if candidate is None or candidate.round != item.round:
            raise RunError(f"the models of round {item.round} are to be kept, and are not there")
        self.best["best"] = self.best.pop("candidate")
        return Answer()

    def _upload(self, item: Item) -> Answer:
        table, round = item.table, item.round
        live = ("upload", table) in self._parts and self._parts["upload", table][0] == round
        # At most one session per table and round: a second one could draw both kinds of share of one secret.
        if not live and round <= self.memory.uploads.get(table, 0):
            raise RunError(f"{self.address} left the session of {table} in round {round}, and enters no second one")
        self.memory.uploads[table] = round
        return self._speak(item, self._part("upload", item, lambda: self._uploading(round, table)))

    def _uploading(self, round: int, table: Table) -> Any:
        rows = self.task.rows(table, 0)[: self.tables[table].holding.num_uploaded].cpu()
        if not (self.defended and self._sums):
            return rounds.client_upload(self.tables[table], round, rows)
        self.defended.begin(round, table, rows)
        addresses = self.agreement.addresses
        senders = [addresses[place] for place in self.options.participants(len(addresses), round)]
        return defended_rounds.client_upload(self.defended, round, table, senders)

    def _listen(self, item: Item) -> Answer:
        defended = self._defended()
        return self._speak(item, Part(defended_rounds.client_listening(defended, item.round, item.table)))

    def _part(self, step: str, item: Item, make: Callable[[], Any]) -> Part[Any]:
        """Return the client's half of a running protocol, or start one."""
        number, part = self._parts.get((step, item.table), (-1, None))
        if part is None or number != item.round:
            if part is not None:
                part.close()
            part = Part(make())
            self._parts[step, item.table] = (item.round, part)
        return part

    def _defended(self) -> DefendedClient:
        if self.defended is None:
            raise RunError(f"{self.address} takes part in no protocol: the agreement has no defense")
        return self.defended

    def _outcome(self) -> dict[str, Any]:
        if "best" not in self.best:
            raise RunError("no round was kept yet")
        return self.task.outcome(self.best["best"].trained, self.best["best"].final)

    def _audit(self, item: Item) -> Answer:
        if not self.agreement.audit:
            raise RunError(f"{self.address} scores no attacks: none were agreed on")
        if answer := self.memory.final_answers.get("audit"):
            return Answer(content=answer)
        outcome, best = self._outcome(), self.best["best"].round
        result = KgeResult(
            graph=self.data, options=self.options, rounds=[], best_round=best, transcript=self.transcript, **outcome
        )
        # The party attacks its own messages and models; only the figures leave it.
        figures = score_attacks(self.agreement.audit, result, self.options.seed)
        # Half of a figure's items are members or edges: neither half may be smaller than the least group of ranks.
        revealed = [figure for figure in figures if self.agreement.reveals((figure.estimate.n + 1) // 2)]
        self.memory.final_answers["audit"] = encode(revealed)
        return Answer(content=self.memory.final_answers["audit"])

    def _measure(self, item: Item) -> Answer:
        if answer := self.memory.final_answers.get("measure"):
            return Answer(content=answer)
        outcome, best = self._outcome(), self.best["best"]
        # The model stays in the party's folder.
        write_embeddings(self.folder, outcome, self.data)
        self.memory.final_answers["measure"] = encode(measure_models(outcome, best.round, self.data, self.agreement))
        return Answer(content=self.memory.final_answers["measure"])


def save_memory(party: Party) -> None:
    """Write the party's state; a failure leaves the old one.

    Args:
        party: whose state is written.

    Raises:
        RunError: it cannot be written.
    """
    memory = party.memory
    memory.judged = {kind: best.round for kind, best in party.best.items()} | {"trained": party.trained[0]}
    memory.entries = party.transcript.entries
    tree: dict[str, packing.Tree] = {
        "now": party.task.snapshot(),
        "trainer": party.task.trainer_state(),
        "trained": party.trained[1],
        "client": {table: client.tensors() for table, client in party.tables.items()},
        "best": {kind: {"trained": best.trained, "final": best.final} for kind, best in party.best.items()},
    }
    if party.defended:
        log = party.defended.log
        tree["history"] = {"bytes": packed(History(), {party.address: log})}
        memory.sent_rows = {
            table: (round, np.packbits(rows).tobytes()) for table, (round, rows) in party.defended.sent_rows.items()
        }
    tree["memory"] = {"bytes": torch.frombuffer(bytearray(msgspec.msgpack.encode(memory)), dtype=torch.uint8)}
    tensors, seen = packing.pack(tree), set[int]()
    # Tensors in a file must not share memory.
    for name, tensor in tensors.items():
        tensors[name] = tensor.clone() if tensor.data_ptr() in seen else tensor
        seen.add(tensor.data_ptr())
    messages = {"frame": party.transcript.frames}
    checkpoint.save(party.folder / STATE, tensors, Progress(_identity(party)), messages)


def load_memory(party: Party) -> None:
    """Restore the party's state, if there is one.

    Args:
        party: to restore.

    Raises:
        RunError: a damaged file, or that of another run.
    """
    path = party.folder / STATE
    if not path.exists():
        return
    try:
        tensors, _ = checkpoint.load(path, _identity(party))
    # The checkpoint's error advises to delete the file. Here, it records the sessions that the party entered.
    except RunError as error:
        reason = str(error).rpartition(";")[0] or str(error)
        raise RunError(
            f"{reason}; the party cannot go on: keep the file, and begin another run in a new folder"
        ) from error
    try:
        party.memory = msgspec.msgpack.decode(tensors["memory.bytes"].numpy().tobytes(), type=Memory)
        _restore(party, tensors)
    except (KeyError, msgspec.MsgspecError) as error:
        raise RunError(f"{path}: lacks {error}, which a party's state has") from error


def _restore(party: Party, tensors: Mapping[str, Tensor]) -> None:
    memory = party.memory
    party.task.restore(packing.below("now.", tensors))
    party.task.load_trainer_state(packing.below("trainer.", tensors))
    party.transcript = Transcript(list(memory.entries), packing.frames_of(packing.view_below("frame.", tensors)))
    party.trained = (memory.judged.get("trained", 0), packing.below("trained.", tensors))
    for table, client in party.tables.items():
        client.load(packing.below(f"client.{table}.", tensors))
    for kind in ("candidate", "best"):
        if kind in memory.judged:
            trained, final = (packing.below(f"best.{kind}.{part}.", tensors) for part in ("trained", "final"))
            party.best[kind] = Best(memory.judged[kind], trained, final)
    if party.defended is None:
        return
    for table in memory.placed:
        party.settle_places(table)
    unpack(tensors["history.bytes"], History(), {party.address: party.defended.log})
    for table, (round, bits) in memory.sent_rows.items():
        rows = np.unpackbits(np.frombuffer(bits, dtype=np.uint8), count=memory.placed[table][0])
        party.defended.sent_rows[table] = (round, rows.astype(bool))


def _identity(party: Party) -> str:
    return f"{party.name} {party.agreement.digest.hex()} {party.data_digest.hex()}"
