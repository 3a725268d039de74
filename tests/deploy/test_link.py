"""The server's end of the wire, against a ServerApp that answers by itself: order, silence, and another ServerApp after a loss.

The stand-in for `flwr run` starts a process that speaks as the ServerApp does; `test_flower` has the real one.
"""

import sys
import time
from pathlib import Path

import pytest

from fkgsec.errors import DataError, RunError
from fkgsec.experiments.deploy.certificates import node_key
from fkgsec.experiments.deploy.flower import inside
from fkgsec.experiments.deploy.flower.link import FlowerLink
from fkgsec.experiments.deploy.layout import ServerFolder, ServerSettings, encode_settings
from fkgsec.protocols.core.rounds import Silence

PARTIES = ("berlin", "paris", "rome")
FLWR = """#!{python}
import os, subprocess, sys
if "relay" not in sys.argv:
    quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)  # or `flwr run` would seem not to end
    subprocess.Popen([sys.executable, __file__, "relay"], **quiet)
    sys.exit()
sys.path.insert(0, {inside!r})
from pathlib import Path
from fkgsec_relay import wire
folder = Path({folder!r})
with open(folder / "starts", "a") as log:
    log.write("x")
keys = {keys!r}
with wire.connect(folder / "door" / "server.address") as stream:
    try:
        while True:
            header, frame = wire.receive(stream)
            if header["kind"] == "nodes":
                online = (folder / "online").read_text().split()
                wire.send(stream, {{"kind": "nodes", "online": {{keys[name]: 7 for name in online}}}})
            elif frame == b"die" and (folder / "starts").stat().st_size == 1:
                os._exit(9)
            elif frame == b"hush":
                wire.send(stream, {{"kind": "reply", "id": header["id"], "silence": "asleep"}})
            elif frame != b"never":
                wire.send(stream, {{"kind": "reply", "id": "old-1", "silence": ""}}, b"of an earlier request")
                wire.send(stream, {{"kind": "reply", "id": header["id"], "silence": ""}}, frame[::-1])
    except wire.WireError:
        pass
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    server = ServerFolder(tmp_path / "server")
    for made in (server.nodes, server.flower, server.address.parent, tmp_path / "bin"):
        made.mkdir(parents=True)
    server.settings.write_bytes(encode_settings(ServerSettings(listen="127.0.0.1", port=8443, superlink_port=8000)))
    for name in PARTIES:
        (server.nodes / f"{name}.pub").write_bytes(node_key(name)[1])
    (server.path / "online").write_text(" ".join(PARTIES))
    written = FLWR.format(
        python=sys.executable,
        inside=str(Path(inside.__file__).parent),
        folder=str(server.path),
        keys=server.public_keys(),
    )
    (tmp_path / "bin" / "flwr").write_text(written)
    (tmp_path / "bin" / "flwr").chmod(0o755)
    monkeypatch.setenv("FKGSEC_FLOWER", str(tmp_path / "bin"))
    return server.path


def asked(link: FlowerLink, *frames: bytes) -> list[tuple[str, bytes | Silence]]:
    requests = {f"client/{name}": frame for name, frame in zip(PARTIES, frames, strict=False)}
    return list(link.ask("round 1: upload", requests))


def test_replies_come_in_the_order_of_the_requests(folder: Path) -> None:
    with FlowerLink(folder, timeout_s=60) as link:
        link.wait_for([f"client/{name}" for name in PARTIES])
        assert asked(link, b"abc", b"hush", b"xyz") == [
            ("client/berlin", b"cba"),
            ("client/paris", Silence("asleep")),
            ("client/rome", b"zyx"),
        ]
        assert asked(link, b"", b"1") == [("client/berlin", b""), ("client/paris", b"1")]


def test_a_party_that_takes_too_long_or_is_not_there_is_silent(folder: Path) -> None:
    (folder / "online").write_text("berlin paris")
    with FlowerLink(folder, timeout_s=1) as link:
        before = time.monotonic()
        assert asked(link, b"never", b"abc", b"xyz") == [
            ("client/berlin", Silence("no reply within 1 s")),
            ("client/paris", b"cba"),
            ("client/rome", Silence("its SuperNode is not online")),
        ]
        assert time.monotonic() - before < 30
        with pytest.raises(RunError, match="the SuperNodes of client/rome are not online after 1 s"):
            link.wait_for(["client/berlin", "client/rome"])


def test_after_a_loss_another_serverapp_is_given_what_was_not_answered(folder: Path) -> None:
    said: list[str] = []
    with FlowerLink(folder, timeout_s=60, say=said.append) as link:
        assert asked(link, b"abc", b"die", b"xyz") == [
            ("client/berlin", b"cba"),
            ("client/paris", b"eid"),
            ("client/rome", b"zyx"),
        ]
    assert "the SuperLink went away; waiting for it to come back" in said
    assert (folder / "starts").read_text() == "xx"


def test_a_superlink_that_does_not_answer_is_told_in_a_line(folder: Path, tmp_path: Path) -> None:
    box = "╭─ Error ─╮\n│ Connection to the SuperLink is unavailable. │\n╰─────────╯\n"
    (tmp_path / "bin" / "flwr").write_text(f"#!{sys.executable}\nimport sys\nsys.stderr.write({box!r})\nsys.exit(1)\n")
    with pytest.raises(
        RunError, match=r"^the SuperLink does not take the run: Connection to the SuperLink is unavailable\.$"
    ):
        FlowerLink(folder, timeout_s=0.1).__enter__()
    assert not list((folder / "door").iterdir())


def test_no_supernode_is_that_of_two_parties(folder: Path) -> None:
    (folder / "nodes" / "paris.pub").write_bytes((folder / "nodes" / "rome.pub").read_bytes())
    with pytest.raises(DataError, match="two parties have the same key"):
        FlowerLink(folder)


def test_a_link_needs_to_know_whose_supernode_is_whose(folder: Path) -> None:
    for path in (folder / "nodes").iterdir():
        path.unlink()
    with pytest.raises(RunError, match="has no SuperNode's key in nodes"):
        FlowerLink(folder)
