"""Messages, channel and transcript: what is counted is what was serialised."""

import random

import msgspec
import pytest
import torch

from fkgsec.errors import RunError
from fkgsec.federation.messages import (
    SERVER,
    Alignment,
    Channel,
    Opened,
    Rows,
    Transcript,
    client_party,
    decode,
    encode,
)


def test_rows_are_contiguous_little_endian_float32() -> None:
    message = Rows.pack(1, SERVER, "client/a", "relations", torch.arange(6.0).reshape(2, 3).T)
    assert (message.num_rows, message.width) == (3, 2)
    assert message.data == b"".join(
        bytes(bytearray(x)) for x in torch.tensor([0.0, 3, 1, 4, 2, 5]).numpy().view("<u1").reshape(6, 4)
    )


def test_the_frame_is_msgpack_that_anybody_can_read() -> None:
    frame = encode(Alignment(0, "client/a", SERVER, "entities", ["x", "y"], 1))
    assert msgspec.msgpack.decode(frame) == {
        "kind": "alignment",
        "round": 0,
        "sender": "client/a",
        "receiver": "server",
        "table": "entities",
        "names": ["x", "y"],
        "num_uploaded": 1,
    }


@pytest.mark.parametrize("damage", ["cut", "kind", "empty", "no UTF-8"])
def test_a_damaged_frame_is_an_error(damage: str) -> None:
    frame = encode(Rows.pack(1, "client/a", SERVER, "entities", torch.zeros(2, 2)))
    broken = {
        "cut": frame[:-3],
        "kind": frame.replace(b"rows", b"rowz", 1),
        "empty": b"",
        "no UTF-8": frame.replace(b"/a", b"/\xe9"),
    }[damage]
    with pytest.raises(RunError, match="a message cannot be read"):
        decode(broken)


def test_rows_of_the_wrong_length_are_an_error() -> None:
    message = Rows(3, "client/a", SERVER, "entities", 2, 2, b"\0" * 12)
    with pytest.raises(RunError, match=r"message of client/a in round 3: 12 bytes do not hold 2 x 2 float32"):
        message.unpack()


def test_the_transcript_counts_and_forgets_contents_but_never_lines() -> None:
    channel = Channel()
    sizes = {}
    for number in range(4):
        message = Rows.pack(number, "client/a", SERVER, "entities", torch.zeros(number + 1, 2))
        channel.send(message)
        sizes[number] = len(encode(message))
    transcript = channel.transcript
    for number in (1, 2):
        transcript.note(Opened(number, "entities", ["client/a"], bytes(16), bytes(8), 0.5))
    transcript.retain({0, 3}, {2})
    assert set(transcript.frames) == {0, 3}
    assert transcript.opened(1) == []
    assert [opened.sums()[0].shape for opened in transcript.opened(2)] == [(1, 2)]
    assert transcript.messages(2) == []
    assert [entry.num_bytes for entry in transcript.entries] == list(sizes.values())
    assert transcript.num_bytes("up") == sum(sizes.values())
    assert transcript.num_bytes("up", 2) == sizes[2]
    assert transcript.num_bytes("down") == 0


def test_totals_follow_the_lines_however_they_come() -> None:
    """Against a scan of all lines: added one by one, replaced, and cut short."""
    draw = random.Random(0)
    channel = Channel()
    transcript = channel.transcript

    def scanned() -> tuple[object, ...]:
        lines = transcript.entries
        up = [one for one in lines if one.direction == "up"]
        latest = {one.sender: one.round for one in sorted(up, key=lambda one: one.round) if 0 < one.round <= 3}
        sums = {way: sum(one.num_bytes for one in lines if one.direction == way) for way in ("up", "down")}
        of_round = sum(one.num_bytes for one in lines if one.direction == "up" and one.round == 2)
        uploaded = max(latest.values(), default=3)
        down = max((one.round for one in lines if one.direction == "down" and one.round < uploaded), default=0)
        return set(latest.values()), sums["up"], sums["down"], of_round, down

    def counted() -> tuple[object, ...]:
        whole = transcript.num_bytes("up"), transcript.num_bytes("down"), transcript.num_bytes("up", 2)
        return transcript.latest_uploads(3), *whole, transcript.last_broadcast(3)

    for number in sorted(draw.choices(range(6), k=80)):
        pair = [client_party(draw.choice("abc")), SERVER]
        draw.shuffle(pair)
        channel.send(Rows.pack(number, pair[0], pair[1], "entities", torch.zeros(draw.randrange(5), 2)))
        assert counted() == scanned()
    transcript.entries = transcript.entries[::2]
    assert counted() == scanned()
    del transcript.entries[-9:]
    assert counted() == scanned()
    assert Transcript().num_bytes("up") == 0
