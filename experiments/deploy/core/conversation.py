"""The server's conversation with deployed parties: items are collected, and sent when an answer is needed.

    talk = Conversation(agreement, ask, Journal(folder / "journal.bin"), transcript)
    loss = talk.post("client/north", "train", round=3)                # not sent yet
    outcome = talk.drive(server_upload(...), "upload", 3, "entities") # sent now, in one request with the posted item
    loss().content

A broadcast needs no answer, so it travels with the request for the next upload: a round in plaintext costs one request.

Every batch of replies is written to a journal before it is used. A restarted server continues from its checkpoint, makes the same
requests, and takes their replies from the journal. A request that was under way is repeated with the same bytes, for the same
reply.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from fkgsec.defenses.rounds import SENT_ROWS
from fkgsec.errors import RunError
from fkgsec.exchange.rounds import check_header
from fkgsec.experiments.deploy.agreement import Agreement
from fkgsec.experiments.deploy.core.messages import (
    LASTING,
    STALE_REQUEST,
    Answer,
    Item,
    Reply,
    Request,
    Step,
    decode,
    encode,
)
from fkgsec.experiments.runs.writing import read_bytes
from fkgsec.federation import messages
from fkgsec.federation.messages import SERVER, AnyMessage, Transcript
from fkgsec.federation.recipes import Table
from fkgsec.protocols.core.errors import MalformedMessage, describe
from fkgsec.protocols.core.rounds import NOTHING, Replies, Result, ServerRound, Silence

Ask = Callable[[str, Mapping[str, bytes]], Iterable[tuple[str, bytes | Silence]]]
"""(stage, requests by party): sends, waits, and yields replies in the order of the requests. A `Silence` has the reason for a
missing reply, such as a timeout. Parties have the names of `Agreement.addresses`; the stage, such as "round 3: upload", is for
messages to the user."""

LONGEST_REASON = 500
"""Characters of a party's reason; it is printed, and stored in the record."""
LARGEST_BACKLOG = 2**30
"""Bytes that wait for a party without an answer; beyond, it has left the run."""


class Posted:
    """A posted item. Call it for its answer; this sends the item, if necessary."""

    def __init__(self, item: Item, fetch: Callable[[], None]) -> None:
        self.item, self.answer = item, None
        self._fetch = fetch
        self.answer: Answer | None

    def __call__(self) -> Answer:
        if self.answer is None:
            self._fetch()
        return self.answer or Answer(silence="it was not asked")


class Journal:
    """Batches of replies on disk, each with its length and digest, which reveal an incomplete one at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._batches: dict[int, list[tuple[str, bytes, str]]] = {}
        for serial, replies in self._read():
            self._batches[serial] = replies

    def replies(self, serial: int) -> list[tuple[str, bytes | Silence]] | None:
        """Remove and return the replies to a request; None if none were written.

        Args:
            serial: of the request.
        """
        batch = self._batches.pop(serial, None)
        return None if batch is None else [(party, Silence(why) if why else reply) for party, reply, why in batch]

    def write(self, serial: int, replies: Mapping[str, bytes | Silence]) -> None:
        """Append a batch.

        Args:
            serial: of the request. replies: by party.

        Raises:
            RunError: the file cannot be written.
        """
        batch = [
            (party, b"", reply.reason) if isinstance(reply, Silence) else (party, reply, "")
            for party, reply in replies.items()
        ]
        content = encode((serial, batch))
        try:
            with self.path.open("ab") as handle:
                # Length and digest in front of the batch tell an incomplete one from a damaged one after a crash.
                handle.write(len(content).to_bytes(8, "little") + hashlib.sha256(content).digest() + content)
                handle.flush()
                os.fsync(handle.fileno())
        except OSError as error:
            raise RunError(f"{self.path}: cannot be written ({error.strerror})") from error

    def clear(self) -> None:
        """Remove all batches after a checkpoint."""
        self._batches.clear()
        try:
            self.path.write_bytes(b"")
        except OSError as error:
            raise RunError(f"{self.path}: cannot be written ({error.strerror})") from error

    def _read(self) -> Iterator[tuple[int, list[tuple[str, bytes, str]]]]:
        """Yield complete batches, and cut off an incomplete end."""
        content = read_bytes(self.path) if self.path.exists() else b""
        start = 0
        while start + 40 <= len(content):
            end = start + 40 + int.from_bytes(content[start : start + 8], "little")
            batch = content[start + 40 : end]
            if end > len(content):
                break
            if hashlib.sha256(batch).digest() != content[start + 8 : start + 40]:
                # Only the last batch can be incomplete after a kill. Damage before it is another fault, and must not pass unseen.
                if end < len(content):
                    raise RunError(f"{self.path}: damaged at byte {start:,}, and batches follow; take it from a backup")
                break
            yield msgspec.msgpack.decode(batch, type=tuple[int, list[tuple[str, bytes, str]]])
            start = end
        if start < len(content):
            with self.path.open("r+b") as handle:
                handle.truncate(start)


class Standing(msgspec.Struct):
    """State of a conversation in a checkpoint.

    Attributes:
        serial: of the last request. lasting: number of lasting items posted to each party.
        backlog: items that wait for each party. left: reason of each party that has left the run.
    """

    serial: int = 0
    lasting: dict[str, int] = {}
    backlog: dict[str, list[Item]] = {}
    left: dict[str, str] = {}
    bytes_up: int = 0
    bytes_down: int = 0


class Conversation:
    """The server's conversation with all parties.

    Attributes:
        requests: the stage of each request. needs_all: True if the run cannot go on without an answer of every party.
    """

    def __init__(self, agreement: Agreement, ask: Ask, journal: Journal, transcript: Transcript) -> None:
        self.agreement, self.standing, self._ask, self._journal = agreement, Standing(), ask, journal
        self._transcript = transcript
        self._outbox: dict[str, list[Posted]] = {party: [] for party in agreement.addresses}
        # Parties that did not answer the last request.
        self._away: set[str] = set()
        self.requests: list[str] = []
        self.needs_all = False

    def post(
        self,
        party: str,
        step: Step,
        *,
        round: int = 0,
        table: Table = "",
        frames: list[bytes] | None = None,
        content: bytes = b"",
        lasting: bool | None = None,
        stage: str = "",
    ) -> Posted:
        """Add an item to a party's next request.

        Args:
            frames: messages of a protocol; None gives the party the turn.
            content: further data, msgpack.
            lasting: the party must take it, even later; None: as the step is in `LASTING`.
            stage: for messages to the user.
        """
        number = 0
        if step in LASTING if lasting is None else lasting:
            number = self.standing.lasting[party] = self.standing.lasting.get(party, 0) + 1
        item = Item(step=step, round=round, table=table, lasting=number, frames=frames, content=content)
        posted = Posted(item, lambda: self.flush(stage or f"round {round}: {step}"))
        # A party that left the run answers nothing; its posts are answered at once.
        if party in self.standing.left:
            posted.answer = Answer(silence=self.standing.left[party])
        else:
            self._outbox[party].append(posted)
        return posted

    def post_all(self, step: Step, **fields: Any) -> dict[str, Posted]:
        """Post the same item to every party.

        Args:
            fields: further arguments of `post`.
        """
        return {party: self.post(party, step, **fields) for party in self.agreement.addresses}

    def drive(
        self,
        steps: ServerRound[Result],
        step: Step,
        round: int,
        table: Table,
        members: Collection[str] | None = None,
    ) -> Result:
        """Run the server's half of a protocol; its requests are sent when it reads the replies.

        Args:
            members: participants; other receivers only listen. None: all take part.
        """
        try:
            ask = next(steps)
            while True:
                posted = {}
                for party, frame in ask.requests.items():
                    # Receivers that take no part only listen, to know which rows are new.
                    part = step if members is None or party in members else "listen"
                    posted[party] = self._post_frame(party, part, round, table, frame, f"round {round}: {ask.stage}")
                ask = steps.send(self._replies(posted))
        except StopIteration as end:
            return end.value

    def _post_frame(self, party: str, step: Step, round: int, table: Table, frame: Any, stage: str) -> Posted:
        """Post a frame of a protocol, and record it in the transcript."""
        if frame == NOTHING:
            return self.post(party, step, round=round, table=table, stage=stage)
        encoded = [messages.encode(message) for message in frame]
        for message, content in zip(frame, encoded, strict=True):
            self._transcript.record(message, content)
        tells = any(message.label == SENT_ROWS for message in frame)
        if tells and party in self._away:
            # The party did not answer the last request, so it is in no session of this round.
            step = "listen"
        return self.post(party, step, round=round, table=table, frames=encoded, lasting=tells or None, stage=stage)

    def _replies(self, posted: Mapping[str, Posted]) -> Replies:
        """Yield the parties' replies in the order of the requests, as the protocol reads them."""
        for party, entry in posted.items():
            answer = entry()
            if entry.answer is None:
                # The item is lasting, and is sent later.
                continue
            if answer.silence:
                yield party, Silence(answer.silence)
            elif answer.frames is not None:
                yield party, self._decode_frames(party, entry.item, answer.frames)

    def _decode_frames(self, party: str, item: Item, frames: list[bytes]) -> tuple[AnyMessage, ...] | Silence:
        """Decode the messages of a reply and record them; return `Silence` for unexpected ones."""
        decoded = []
        for frame in frames:
            try:
                message = messages.decode(frame)
                check_header(message, item.round, party, SERVER, item.table, message.label)
            except RunError as error:
                return Silence(describe(MalformedMessage(str(error))))
            decoded.append((message, frame))
        for message, frame in decoded:
            self._transcript.record(message, frame)
        return tuple(message for message, _ in decoded)

    def flush(self, stage: str) -> None:
        """Send a request with all posted items to every party that must answer at least one.

        Args:
            stage: for messages to the user.

        Raises:
            RunError: no party answers. The request had no effect, and the server may be started again.
        """
        # Lasting items alone cause no request: they travel with the next item that needs an answer.
        due = {
            party: [entry for entry in posted if entry.answer is None]
            for party, posted in self._outbox.items()
            if any(entry.item.step not in LASTING for entry in posted)
        }
        if not due:
            return
        # The number grows only after the replies are stored, so a failed request is repeated with the same number and bytes.
        serial = self.standing.serial + 1
        requests = {
            party: encode(Request(self.agreement.digest, serial, [entry.item for entry in posted]))
            for party, posted in due.items()
        }
        replies = self._exchange(stage, serial, requests)
        self.standing.serial = serial
        self.standing.bytes_down += sum(map(len, requests.values()))
        self.standing.bytes_up += sum(len(reply) for reply in replies.values() if not isinstance(reply, Silence))
        self.requests.append(stage)
        for party, posted in due.items():
            self._deliver(party, posted, self._read(party, serial, replies[party], len(posted)))

    def _exchange(self, stage: str, serial: int, requests: Mapping[str, bytes]) -> Mapping[str, bytes | Silence]:
        """Return the first reply of each party, or `Silence`; from the journal for a repeated request."""
        replies: dict[str, bytes | Silence] = dict.fromkeys(requests, Silence("no reply"))
        # A restarted server makes the same requests, and takes their replies from the journal.
        if (journaled := self._journal.replies(serial)) is not None:
            return replies | dict(journaled)
        heard: set[str] = set()
        for party, reply in self._ask(stage, requests):
            # Only the first reply of a party counts, and only of one that was asked.
            if party in requests and party not in heard:
                heard.add(party)
                replies[party] = reply
        silent = {party: reply.reason for party, reply in replies.items() if isinstance(reply, Silence)}
        # If everybody is silent, the fault is the network's or the server's: stop instead of dropping all parties.
        if silent and (self.needs_all or len(silent) == len(requests)):
            reasons = "; ".join(f"{party}: {reason}" for party, reason in silent.items())
            raise RunError(f"{stage}: no answer of {reasons}; start the server again to go on")
        decoded = map(self._decode, replies.values())
        if all(isinstance(message, Reply) and STALE_REQUEST in message.error for message in decoded):
            raise RunError(
                f"{stage}: every party has answered a later request than {serial}; {self._journal.path.parent} is older than "
                "the run, take the folder that it went on in"
            )
        # Write the replies before they are used: a restart must see the same ones.
        self._journal.write(serial, replies)
        return replies

    def _decode(self, reply: bytes | Silence) -> Reply | Silence:
        if isinstance(reply, Silence):
            return reply
        try:
            return decode(reply, Reply, self.agreement.largest_bytes)
        except RunError as error:
            return Silence(f"MalformedMessage: {error}")

    def _read(self, party: str, serial: int, reply: bytes | Silence, count: int) -> list[Answer] | Silence:
        """Return the answers of a reply, or `Silence` for a faulty one."""
        message = self._decode(reply)
        if isinstance(message, Silence):
            return message
        if message.error:
            return Silence(_printable(message.error))
        # A party can answer only for itself, for this run and for this request.
        if (message.run, message.serial, message.party) != (self.agreement.digest, serial, party):
            return Silence(
                f"MalformedMessage: a reply of {message.party!r} to request {message.serial}; {serial} was due"
            )
        if len(message.answers) != count:
            return Silence(f"MalformedMessage: {len(message.answers)} answers to {count} items")
        return [replace(answer, silence=_printable(answer.silence)) for answer in message.answers]

    def _deliver(self, party: str, posted: list[Posted], answers: list[Answer] | Silence) -> None:
        """Give each item its answer, and store lasting items that the party has not taken."""
        self._away.discard(party)
        if isinstance(answers, Silence):
            self._away.add(party)
            answers = [Answer(silence=answers.reason)] * len(posted)
        backlog = []
        for entry, answer in zip(posted, answers, strict=True):
            entry.answer = answer
            if answer.silence and entry.item.lasting:
                # After its session the party still has to know which rows were sent.
                item = replace(entry.item, step="listen") if entry.item.step == "upload" else entry.item
                backlog.append(item)
        size = sum(len(item.content) + sum(map(len, item.frames or ())) for item in backlog)
        # A party that never returns must not fill the server's memory.
        if size > LARGEST_BACKLOG:
            self.standing.left[party] = f"{party} has left the run: {size:,} bytes wait for it"
            backlog = []
        self._outbox[party] = [self._waiting(item) for item in backlog]

    def _waiting(self, item: Item) -> Posted:
        return Posted(item, lambda: self.flush(f"round {item.round}: {item.step}"))

    def state(self) -> Standing:
        """Return the state for a checkpoint, with the items that were not sent."""
        waiting = {
            party: [entry.item for entry in posted if entry.answer is None] for party, posted in self._outbox.items()
        }
        self.standing.backlog = {party: items for party, items in waiting.items() if items}
        return self.standing

    def resume(self, standing: Standing) -> None:
        """Restore a conversation.

        Args:
            standing: from `state`.
        """
        self.standing = standing
        for party, items in standing.backlog.items():
            self._outbox[party] = [self._waiting(item) for item in items]

    def waiting(self, step: Step, round: int) -> dict[str, Posted]:
        """Return each party's posted items that were not sent.

        Args:
            step, round: of the items.
        """
        return {
            party: entry
            for party, posted in self._outbox.items()
            for entry in posted
            if (entry.item.step, entry.item.round) == (step, round)
        }

    def settle(self) -> None:
        """Clear the journal after a checkpoint."""
        self._journal.clear()


def _printable(reason: str) -> str:
    """Shorten a party's reason, and replace control characters."""
    # The reason is printed on the operator's terminal and stored in the record; escape sequences must not reach either.
    return "".join(letter if letter.isprintable() else "?" for letter in reason[:LONGEST_REASON])
