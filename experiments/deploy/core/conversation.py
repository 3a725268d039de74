"""The server's side of talking to parties that sit apart: what is to be said is gathered, and crosses when an answer is needed.

    talk = Conversation(agreement, ask, Journal(folder / "journal.bin"), transcript)
    loss = talk.post("client/north", "train", round=3)                # nothing crosses yet
    outcome = talk.drive(server_upload(...), "upload", 3, "entities") # now it does, in one request with what was posted
    loss().content

A broadcast waits for no answer, so that it rides on the request for the next upload: a round in clear costs one request.

Every batch of replies is written to a journal before anything is made of it. A server that is started anew goes on from its last
checkpoint, makes the same requests, and takes from the journal what was answered already; a request that was under way is made
once more with the same bytes, and parties that have answered it answer as they did.
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
from fkgsec.experiments.deploy.core.messages import LASTING, LATE, Answer, Item, Reply, Request, Step, decode, encode
from fkgsec.federation import messages
from fkgsec.federation.messages import SERVER, AnyMessage, Transcript
from fkgsec.federation.recipes import Table
from fkgsec.protocols.core.errors import MalformedMessage, describe
from fkgsec.protocols.core.rounds import NOTHING, Replies, Result, ServerRound, Silence

Ask = Callable[[str, Mapping[str, bytes]], Iterable[tuple[str, bytes | Silence]]]
"""(stage, requests by party): sends, waits, and yields replies in the order of the requests; a `Silence` says why none came, such
as a timeout. Parties are named as in `Agreement.addresses`; the stage is for people, such as "round 3: upload"."""

LONGEST_REASON = 500
"""Letters of a reason that a party gives; it is shown, and stands in the record."""
LARGEST_BACKLOG = 2**30
"""Bytes that are kept for a party that does not answer; beyond, it has left the run."""


class Posted:
    """An item on its way; call it for its answer, which makes it cross where it has not yet."""

    def __init__(self, item: Item, fetch: Callable[[], None]) -> None:
        self.item, self.answer = item, None
        self._fetch = fetch
        self.answer: Answer | None

    def __call__(self) -> Answer:
        if self.answer is None:
            self._fetch()
        return self.answer or Answer(silence="it was not asked")


class Journal:
    """Batches of replies on disk, each with its length and digest, so that a torn one at the end is told from a whole one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._batches: dict[int, list[tuple[str, bytes, str]]] = {}
        for serial, replies in self._read():
            self._batches[serial] = replies

    def replies(self, serial: int) -> list[tuple[str, bytes | Silence]] | None:
        """What was answered to a request; None where nothing was written of it."""
        found = self._batches.pop(serial, None)
        return None if found is None else [(party, Silence(why) if why else reply) for party, reply, why in found]

    def write(self, serial: int, replies: Mapping[str, bytes | Silence]) -> None:
        """Append a batch. Raises `RunError` where it cannot be written."""
        batch = [
            (party, b"", one.reason) if isinstance(one, Silence) else (party, one, "") for party, one in replies.items()
        ]
        content = encode((serial, batch))
        try:
            with self.path.open("ab") as handle:
                handle.write(len(content).to_bytes(8, "little") + hashlib.sha256(content).digest() + content)
                handle.flush()
                os.fsync(handle.fileno())
        except OSError as error:
            raise RunError(f"{self.path}: cannot be written ({error.strerror})") from error

    def clear(self) -> None:
        """Forget all batches: a checkpoint has what came of them."""
        self._batches.clear()
        try:
            self.path.write_bytes(b"")
        except OSError as error:
            raise RunError(f"{self.path}: cannot be written ({error.strerror})") from error

    def _read(self) -> Iterator[tuple[int, list[tuple[str, bytes, str]]]]:
        """The whole batches; a torn end, which a kill leaves, is cut off, so that what is appended can be read."""
        try:
            content = self.path.read_bytes() if self.path.exists() else b""
        except OSError as error:
            raise RunError(f"{self.path}: cannot be read ({error.strerror})") from error
        start = 0
        while start + 40 <= len(content):
            end = start + 40 + int.from_bytes(content[start : start + 8], "little")
            batch = content[start + 40 : end]
            if end > len(content):
                break
            if hashlib.sha256(batch).digest() != content[start + 8 : start + 40]:
                if end < len(content):
                    raise RunError(f"{self.path}: damaged at byte {start:,}, and batches follow; take it from a backup")
                break
            yield msgspec.msgpack.decode(batch, type=tuple[int, list[tuple[str, bytes, str]]])
            start = end
        if start < len(content):
            with self.path.open("r+b") as handle:
                handle.truncate(start)


class Standing(msgspec.Struct):
    """Where a conversation stands, as a checkpoint keeps it.

    Attributes:
        serial: of the last request. lasting: by party how many items that it must take were posted.
        backlog: by party those that it has not taken. left: by party why it has left the run.
    """

    serial: int = 0
    lasting: dict[str, int] = {}
    backlog: dict[str, list[Item]] = {}
    left: dict[str, str] = {}
    bytes_up: int = 0
    bytes_down: int = 0


class Conversation:
    """See the module.

    Attributes:
        requests: the stage of each request that was made, to however many parties.
        needs_all: whether the run cannot go on without an answer of everybody who is asked.
    """

    def __init__(self, agreement: Agreement, ask: Ask, journal: Journal, transcript: Transcript) -> None:
        self.agreement, self.standing, self._ask, self._journal = agreement, Standing(), ask, journal
        self._transcript = transcript
        self._outbox: dict[str, list[Posted]] = {party: [] for party in agreement.addresses}
        self._away: set[str] = set()  # those that did not answer when they were last asked
        self.requests: list[str] = []
        self.needs_all = False

    # What is to be said.

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
        """Say something to a party with the next request that it is sent.

        Args:
            lasting: None: as `LASTING` says of the step.
        """
        number = 0
        if step in LASTING if lasting is None else lasting:
            number = self.standing.lasting[party] = self.standing.lasting.get(party, 0) + 1
        item = Item(step=step, round=round, table=table, lasting=number, frames=frames, content=content)
        posted = Posted(item, lambda: self.flush(stage or f"round {round}: {step}"))
        if party in self.standing.left:
            posted.answer = Answer(silence=self.standing.left[party])
        else:
            self._outbox[party].append(posted)
        return posted

    def post_all(self, step: Step, **said: Any) -> dict[str, Posted]:
        """The same to every party."""
        return {party: self.post(party, step, **said) for party in self.agreement.addresses}

    def drive(
        self,
        steps: ServerRound[Result],
        step: Step,
        round: int,
        table: Table,
        members: Collection[str] | None = None,
    ) -> Result:
        """Run the server's half of a protocol; each of its requests crosses when it reads the replies.

        Args:
            members: who takes part in it; others that are told something merely listen. None: all.
        """
        try:
            ask = next(steps)
            while True:
                stage = f"round {round}: {ask.stage}"
                posted = {
                    party: self._post_frame(
                        party, step if members is None or party in members else "listen", round, table, frame, stage
                    )
                    for party, frame in ask.requests.items()
                }
                ask = steps.send(self._replies(posted))
        except StopIteration as end:
            return end.value

    def _post_frame(self, party: str, step: Step, round: int, table: Table, frame: Any, stage: str) -> Posted:
        """A frame of a protocol, which the transcript has from now on."""
        if frame == NOTHING:
            return self.post(party, step, round=round, table=table, stage=stage)
        encoded = [messages.encode(message) for message in frame]
        for message, one in zip(frame, encoded, strict=True):
            self._transcript.record(message, one)
        tells = any(message.label == SENT_ROWS for message in frame)
        if tells and party in self._away:
            step = "listen"  # it is in no session of this round
        return self.post(party, step, round=round, table=table, frames=encoded, lasting=tells or None, stage=stage)

    def _replies(self, posted: Mapping[str, Posted]) -> Replies:
        """What parties reply, in the order of the requests; read as the protocol asks for it."""
        for party, one in posted.items():
            answer = one()
            if one.answer is None:
                continue  # it is told later
            if answer.silence:
                yield party, Silence(answer.silence)
            elif answer.frames is not None:
                yield party, self._spoken(party, one.item, answer.frames)

    def _spoken(self, party: str, item: Item, frames: list[bytes]) -> tuple[AnyMessage, ...] | Silence:
        """The messages of a reply, which the transcript has from now on; `Silence` for others than are due."""
        spoken = []
        for frame in frames:
            try:
                message = messages.decode(frame)
                check_header(message, item.round, party, SERVER, item.table, message.label)
            except RunError as error:
                return Silence(describe(MalformedMessage(str(error))))
            spoken.append((message, frame))
        for message, frame in spoken:
            self._transcript.record(message, frame)
        return tuple(message for message, _ in spoken)

    # What crosses.

    def flush(self, stage: str) -> None:
        """One request to every party that is to answer something, with all that was posted to it.

        Raises `RunError` where nobody answers: nothing was made of this request, and the server may be started again.
        """
        asked = {
            party: [one for one in posted if one.answer is None]
            for party, posted in self._outbox.items()
            if any(one.item.step not in LASTING for one in posted)
        }
        if not asked:
            return
        serial = self.standing.serial + 1
        requests = {
            party: encode(Request(self.agreement.digest, serial, [one.item for one in posted]))
            for party, posted in asked.items()
        }
        replies = self._exchange(stage, serial, requests)
        self.standing.serial = serial
        self.standing.bytes_down += sum(map(len, requests.values()))
        self.standing.bytes_up += sum(len(reply) for reply in replies.values() if not isinstance(reply, Silence))
        self.requests.append(stage)
        for party, posted in asked.items():
            self._deliver(party, posted, self._read(party, serial, replies[party], len(posted)))

    def _exchange(self, stage: str, serial: int, requests: Mapping[str, bytes]) -> Mapping[str, bytes | Silence]:
        """By party the first reply, or `Silence`; from the journal where it was asked before."""
        replies: dict[str, bytes | Silence] = dict.fromkeys(requests, Silence("no reply"))
        if (known := self._journal.replies(serial)) is not None:
            return replies | dict(known)
        heard: set[str] = set()
        for party, reply in self._ask(stage, requests):
            if party in requests and party not in heard:
                heard.add(party)
                replies[party] = reply
        silent = {party: reply.reason for party, reply in replies.items() if isinstance(reply, Silence)}
        if silent and (self.needs_all or len(silent) == len(requests)):
            told = "; ".join(f"{party}: {reason}" for party, reason in silent.items())
            raise RunError(f"{stage}: no answer of {told}; start the server again to go on")
        if all(self._is_late(reply) for reply in replies.values()):
            raise RunError(
                f"{stage}: every party has answered a later request than {serial}; {self._journal.path.parent} is older than "
                "the run, take the folder that it went on in"
            )
        self._journal.write(serial, replies)
        return replies

    def _is_late(self, reply: bytes | Silence) -> bool:
        """Whether a party refuses a request since it has answered a later one."""
        if isinstance(reply, Silence):
            return False
        try:
            return LATE in decode(reply, Reply, self.agreement.largest_bytes).error
        except RunError:
            return False

    def _read(self, party: str, serial: int, reply: bytes | Silence, count: int) -> list[Answer] | Silence:
        """The answers of a reply. A reply that is at fault counts as none."""
        if isinstance(reply, Silence):
            return reply
        try:
            said = decode(reply, Reply, self.agreement.largest_bytes)
        except RunError as error:
            return Silence(f"MalformedMessage: {error}")
        if said.error:
            return Silence(_told(said.error))
        if (said.run, said.serial, said.party) != (self.agreement.digest, serial, party):
            return Silence(f"MalformedMessage: a reply of {said.party!r} to request {said.serial}; {serial} was due")
        if len(said.answers) != count:
            return Silence(f"MalformedMessage: {len(said.answers)} answers to {count} items")
        return [replace(one, silence=_told(one.silence)) if one.silence else one for one in said.answers]

    def _deliver(self, party: str, posted: list[Posted], answers: list[Answer] | Silence) -> None:
        """Give each item its answer, and keep for later what the party must take and has not."""
        self._away.discard(party)
        if isinstance(answers, Silence):
            self._away.add(party)
            answers = [Answer(silence=answers.reason)] * len(posted)
        backlog = []
        for one, answer in zip(posted, answers, strict=True):
            one.answer = answer
            if answer.silence and one.item.lasting:
                # Of a session that is over the party has to know which rows were sent.
                told = replace(one.item, step="listen") if one.item.step == "upload" else one.item
                backlog.append(told)
        self._outbox[party] = []
        self._owe(party, backlog)

    def _owe(self, party: str, backlog: list[Item]) -> None:
        size = sum(len(item.content) + sum(map(len, item.frames or ())) for item in backlog)
        if size > LARGEST_BACKLOG:
            self.standing.left[party] = f"{party} has left the run: {size:,} bytes wait for it"
            return
        self._outbox[party] = [self._waiting(item) for item in backlog]

    def _waiting(self, item: Item) -> Posted:
        return Posted(item, lambda: self.flush(f"round {item.round}: {item.step}"))

    # What is kept.

    def stand(self) -> Standing:
        """Where it stands, with what was posted and has not crossed."""
        waiting = {party: [one.item for one in posted if one.answer is None] for party, posted in self._outbox.items()}
        self.standing.backlog = {party: items for party, items in waiting.items() if items}
        return self.standing

    def resume(self, standing: Standing) -> None:
        """Go on from what `stand` gave."""
        self.standing = standing
        for party, items in standing.backlog.items():
            self._outbox[party] = [self._waiting(item) for item in items]

    def waiting(self, step: Step, round: int) -> dict[str, Posted]:
        """By party what was posted of a step and has not crossed."""
        return {
            party: one
            for party, posted in self._outbox.items()
            for one in posted
            if (one.item.step, one.item.round) == (step, round)
        }

    def settle(self) -> None:
        """After a checkpoint that has all that was answered so far."""
        self._journal.clear()


def _told(reason: str) -> str:
    """A party's words, made fit for a line."""
    return "".join(letter if letter.isprintable() else "?" for letter in reason[:LONGEST_REASON])
