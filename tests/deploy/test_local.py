"""The local address between a Flower process and ours: parcels, tokens, permissions, and what happens without a unix socket."""

import contextlib
import json
import socket
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from fkgsec.errors import DataError, RunError
from fkgsec.experiments.deploy.flower import local
from fkgsec.experiments.deploy.flower.inside.fkgsec_relay import wire
from fkgsec.experiments.deploy.flower.local import Door, attend
from fkgsec.protocols.core.rounds import Silence


def answer(frame: bytes) -> bytes | Silence:
    if frame == b"fail":
        raise DataError("/home/berlin/data: a place that the server must not learn")
    return Silence("not now") if frame == b"hush" else frame[::-1]


def until_closed(door: Door, said: list[str]) -> None:
    with contextlib.suppress(OSError):
        attend(door, answer, said.append)


@pytest.fixture(params=["unix", "loopback"])
def door(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Door, Path, list[str]]]:
    if request.param == "loopback":
        monkeypatch.delattr(socket, "AF_UNIX")
    path, said = tmp_path / "party.address", list[str]()
    with Door(path) as opened:
        threading.Thread(target=until_closed, args=(opened, said), daemon=True).start()
        yield opened, path, said


def asked(path: Path, frame: bytes) -> tuple[str, bytes]:
    with wire.connect(path) as stream:
        wire.send(stream, {"id": "1", "stage": "upload"}, frame)
        header, reply = wire.receive(stream)
        return header["silence"], reply


def test_a_frame_goes_to_the_party_and_its_reply_comes_back(door: tuple[Door, Path, list[str]]) -> None:
    large = bytes(range(256)) * 20_000
    assert asked(door[1], b"abc") == ("", b"cba")
    assert asked(door[1], b"") == ("", b"")
    assert asked(door[1], large) == ("", large[::-1])
    assert asked(door[1], b"hush") == ("not now", b"")


def test_what_goes_wrong_at_the_party_is_said_there_and_not_to_the_server(door: tuple[Door, Path, list[str]]) -> None:
    silence, reply = asked(door[1], b"fail")
    assert reply == b""
    assert "DataError" in silence
    assert "berlin" not in silence
    assert any("/home/berlin" in line for line in door[2])
    assert asked(door[1], b"abc") == ("", b"cba")  # and it goes on


def test_a_stalled_connection_does_not_keep_the_party_from_answering(
    door: tuple[Door, Path, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_PARCEL_S", 0.2)
    with wire.connect(door[1]), wire.connect(door[1]) as half, wire.connect(door[1]) as deaf:
        half.sendall(wire._LENGTHS.pack(2, 9) + b"{}")
        wire.send(deaf, {"stage": "upload"}, b"x" * 2**24)  # never reads the reply, which no socket buffer holds
        assert asked(door[1], b"abc") == ("", b"cba")
    assert len([line for line in door[2] if "in time" in line]) == 3


def test_a_greeting_that_trickles_in_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_GREETING_S", 0.3)
    with Door(tmp_path / "party.address") as door, socket.socket(socket.AF_UNIX) as slow:
        slow.connect(str(tmp_path / "party.sock"))
        slow.sendall(wire._LENGTHS.pack(wire.MOST_HEADER, 0))
        stop, accepted = threading.Event(), threading.Event()
        threading.Thread(target=trickle, args=(slow, stop), daemon=True).start()
        with wire.connect(tmp_path / "party.address"):
            threading.Thread(target=lambda: (door.accept(5.0).close(), accepted.set()), daemon=True).start()
            assert accepted.wait(10.0)
        stop.set()


def test_a_parcel_that_never_pauses_is_cut_off_at_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte within each millisecond: no single read waits."""

    class Drip:
        def settimeout(self, seconds: float | None) -> None:
            assert seconds is None or seconds > 0

        def recv(self, count: int) -> bytes:
            now[0] += 1e-4
            return b"\0"

    now = [0.0]
    monkeypatch.setattr(wire.time, "monotonic", lambda: now[0])
    with pytest.raises(wire.WireError, match="in time"):
        wire._exactly(cast(socket.socket, Drip()), 10**9, deadline=0.5)
    assert now[0] < 0.51


@pytest.mark.parametrize("lengths", [(2, 2**30), (wire.MOST_HEADER, 0)])
def test_a_stranger_sends_no_body_and_no_long_header(
    lengths: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is turned away by the lengths that it announces; before, all of it was read, and only then its token."""
    monkeypatch.setattr(local, "_GREETING_S", 3600.0)
    with Door(tmp_path / "party.address") as door, socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(str(tmp_path / "party.sock"))
        stranger.sendall(wire._LENGTHS.pack(*lengths))
        turned_away = threading.Event()
        with wire.connect(tmp_path / "party.address"):
            threading.Thread(target=lambda: (door.accept().close(), turned_away.set()), daemon=True).start()
            assert turned_away.wait(10.0), "who has the token comes next"


def test_strangers_do_not_hold_up_the_limit_of_accept(tmp_path: Path) -> None:
    stop = threading.Event()
    with Door(tmp_path / "party.address") as door:
        threading.Thread(target=knock, args=(tmp_path / "party.sock", stop), daemon=True).start()
        with pytest.raises(TimeoutError):
            door.accept(0.5)
        assert not stop.is_set(), "it was over while strangers still came"
        stop.set()


def knock(path: Path, stop: threading.Event) -> None:
    """Connect again and again for some seconds, without a token."""
    ends = time.monotonic() + 20
    while not stop.wait(0.05) and time.monotonic() < ends:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(str(path))
    stop.set()


def trickle(stream: socket.socket, stop: threading.Event) -> None:
    with contextlib.suppress(OSError):
        while not stop.wait(0.05):
            stream.sendall(b"\0")


def test_who_has_not_read_the_token_is_turned_away(door: tuple[Door, Path, list[str]], tmp_path: Path) -> None:
    forged = json.loads(door[1].read_text()) | {"token": "0" * 64}
    path = tmp_path / "forged.address"
    path.write_text(json.dumps(forged))
    with pytest.raises(wire.WireError):
        asked(path, b"abc")
    assert asked(door[1], b"abc") == ("", b"cba")


def test_a_token_that_no_encoding_has_is_turned_away(tmp_path: Path) -> None:
    path, forged = tmp_path / "party.address", tmp_path / "forged.address"
    with Door(path) as door:
        forged.write_text(json.dumps(json.loads(path.read_text()) | {"token": "\ud800"}))
        with wire.connect(forged), pytest.raises(TimeoutError):
            door.accept(0.2)


def test_only_the_owner_may_read_the_address(tmp_path: Path) -> None:
    with Door(tmp_path / "party.address"):
        for name in ("party.address", "party.sock"):
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == []


def test_a_path_too_long_for_a_socket_gets_a_port(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    with Door(folder / "party.address"):
        assert json.loads((folder / "party.address").read_text())["port"]


def test_an_address_that_nobody_has_written_or_answers_at_is_a_wire_error(tmp_path: Path) -> None:
    with pytest.raises(wire.WireError, match="no process of fkgsec"):
        wire.connect(tmp_path / "party.address")
    with Door(tmp_path / "party.address"):
        left = (tmp_path / "party.address").read_text()
    (tmp_path / "party.address").write_text(left)
    with pytest.raises(wire.WireError, match="does not answer") as caught:
        wire.connect(tmp_path / "party.address")
    assert str(tmp_path) not in str(caught.value)


def test_nobody_listens_where_nothing_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="cannot listen there"), Door(tmp_path / "missing" / "party.address"):
        pass


@pytest.mark.parametrize(
    "sent",
    [
        b"\xff" * 12,
        wire._LENGTHS.pack(3, 0) + b"{}}",
        wire._LENGTHS.pack(2, 0) + b"[]",
        wire._LENGTHS.pack(2, 9) + b"{}x",
    ],
)
def test_what_is_no_parcel_is_a_wire_error(sent: bytes) -> None:
    here, there = socket.socketpair()
    with here, there:
        here.sendall(sent)
        here.shutdown(socket.SHUT_WR)
        with pytest.raises(wire.WireError):
            wire.receive(there)
