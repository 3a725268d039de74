"""Processes that are kept running, and SuperNodes that are told to a SuperLink: with programs that take no time."""

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fkgsec.errors import RunError
from fkgsec.experiments.deploy.certificates import node_key
from fkgsec.experiments.deploy.flower import processes
from fkgsec.experiments.deploy.flower.processes import Program, Registry, Supervised, on_one_machine, stopped_by_signal
from fkgsec.experiments.deploy.layout import ServerFolder, ServerSettings, encode_settings


def program(script: str, log: Path | None = None) -> Program:
    return Program("helper", ["/bin/sh", "-c", script], os.environ, log)


def look_for_a_minute(kept: Supervised) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        kept.look()
        time.sleep(0.02)


def test_what_ends_is_started_again_and_given_up_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_AGAIN_S", 0.0)
    monkeypatch.setattr(processes, "_PATIENCE_S", 0.3)
    said: list[str] = []
    ends = Supervised(program("echo started; exit 3", tmp_path / "log"), said.append)
    with pytest.raises(RunError, match=r"^the helper always ends with exit status 3; see above$"), ends:
        look_for_a_minute(ends)
    starts = (tmp_path / "log").read_text().count("started")
    assert starts == said.count("the helper ended with exit status 3; starting it again") + 1 > 1


def test_what_runs_is_ended_with_the_block(tmp_path: Path) -> None:
    with Supervised(program("exec sleep 600"), print) as kept:
        kept.look()
        process = kept._process
        assert process is not None
        assert process.poll() is None
    assert process.poll() == -15


def test_a_request_to_end_is_an_interruption() -> None:
    with pytest.raises(KeyboardInterrupt), stopped_by_signal():
        signal.raise_signal(signal.SIGTERM)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerFolder]:
    """A server's folder, something that listens where its SuperLink should, and a `flwr` that writes down what it is told."""
    folder = ServerFolder(tmp_path / "server")
    for made in (folder.nodes, folder.flower, tmp_path / "bin"):
        made.mkdir(parents=True)
    (folder.nodes / "berlin.pub").write_bytes(node_key("berlin")[1])
    flwr = tmp_path / "bin" / "flwr"
    flwr.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/told\n[ ! -e {tmp_path}/known ] || '
        "{ printf '╭─ Error ─╮\\n│ Public key already │\\n│ in use. │\\n╰─────────╯\\n' >&2; exit 1; }\n"
    )
    flwr.chmod(0o755)
    monkeypatch.setenv("FKGSEC_FLOWER", str(tmp_path / "bin"))
    monkeypatch.setattr(processes, "_AGAIN_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        folder.settings.write_bytes(encode_settings(ServerSettings(listen="127.0.0.1", port=8443, superlink_port=port)))
        yield folder


@pytest.mark.parametrize("known", [False, True])
def test_each_supernode_is_registered_once_and_again_with_a_new_key(
    known: bool, server: ServerFolder, tmp_path: Path
) -> None:
    if known:  # of a SuperLink that was restarted, and has it in its database
        (tmp_path / "known").touch()
    said: list[str] = []
    registry = Registry(server, said.append)
    assert not registry.complete
    registry.look()
    registry.look()
    assert registry.complete
    assert said == ["the SuperLink knows the SuperNodes of berlin"]
    (server.nodes / "berlin.pub").write_bytes(node_key("berlin")[1])
    assert not registry.complete
    registry.look()
    told = (tmp_path / "told").read_text().splitlines()
    assert told == [f"supernode register {server.nodes / 'berlin.pub'} consortium"] * 2
    assert f'root-certificates = "{server.tls / "ca.crt"}"' in (server.flower / "config.toml").read_text()


def test_nobody_is_registered_before_the_superlink_listens(server: ServerFolder, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    server.settings.write_bytes(encode_settings(ServerSettings(listen="127.0.0.1", port=8443, superlink_port=port)))
    registry = Registry(server, print)
    registry.look()
    assert not registry.complete
    assert not (tmp_path / "told").exists()


def test_a_consortium_without_parties_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is no consortium's folder"), on_one_machine(tmp_path, print):
        pass
