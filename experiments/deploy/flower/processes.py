"""Run Flower's SuperLink and SuperNodes with a consortium's options, and restart them when they end.

run_supernode(PartyFolder(Path("consortium/parties/berlin")), None, print)          # until the process is stopped
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import NamedTuple, Self

from fkgsec.errors import RunError
from fkgsec.experiments.deploy.flower.installed import command, complaint, configure, environment, interpreter
from fkgsec.experiments.deploy.layout import CONNECTION, PartyFolder, ServerFolder

Say = Callable[[str], None]
LOOPBACK = "127.0.0.1"
GATE = Path(__file__).absolute().parent / "inside" / "gate.py"
_LOOK_S, _AGAIN_S, _STEADY_S, _PATIENCE_S, _STOP_S = 0.2, 5.0, 60.0, 180.0, 10.0
_KNOWN = "already in use"


class Program(NamedTuple):
    """A process to run: its name, command line, environment, and a file for its output (None: this process's output)."""

    name: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    log: Path | None = None


def superlink(folder: ServerFolder) -> Program:
    """Describe the SuperLink, on the loopback interface.

    Args:
        folder: the server's.
    """
    tls = folder.tls.absolute()
    return Program(
        "SuperLink",
        [
            # The database lets a restarted SuperLink know its SuperNodes.
            command("flower-superlink"),
            *("--host", LOOPBACK, "--port", str(folder.read_settings().superlink_port)),
            *("--ssl-ca-certfile", str(tls / "ca.crt")),
            *("--ssl-certfile", str(tls / "server.crt"), "--ssl-keyfile", str(tls / "server.key")),
            *("--enable-supernode-auth", "--disable-runtime-dependency-installation"),
            *("--database", str(folder.flower.absolute() / "superlink.db")),
        ],
        environment(folder.flower, FKGSEC_SERVER=str(folder.address.absolute())),
    )


def entrance(folder: ServerFolder, listen: str | None = None) -> Program:
    """Describe the gate that SuperNodes connect to.

    Args:
        folder: the server's. listen: address instead of that in the settings.
    """
    settings = folder.read_settings()
    return Program(
        "gate",
        [
            interpreter(),
            str(GATE),
            *("--listen", listen or settings.listen, "--port", str(settings.port)),
            *("--superlink", f"{LOOPBACK}:{settings.superlink_port}", "--tls", str(folder.tls.absolute())),
        ],
        environment(folder.flower),
    )


def supernode(folder: PartyFolder, server: str | None = None) -> Program:
    """Describe a party's SuperNode.

    Args:
        folder: the party's. server: address instead of that in the settings.
    """
    settings = folder.read_node()
    return Program(
        "SuperNode",
        [
            command("flower-supernode"),
            *("--superlink", server or settings.server, "--root-certificates", str(folder.authority.absolute())),
            *("--auth-supernode-private-key", str(folder.key.absolute())),
            *("--host", LOOPBACK, "--port", str(settings.port)),
        ],
        environment(folder.flower, FKGSEC_PARTY=str(folder.address.absolute())),
    )


def run_superlink(folder: ServerFolder, listen: str | None, say: Say) -> None:
    """Run the SuperLink and its gate, with every party's SuperNode registered, until the process is stopped.

    Args:
        folder: the server's. listen: address of the gate instead of that in the settings. say: gets messages to the user.
    """
    with Supervised(superlink(folder), say) as link, Supervised(entrance(folder, listen), say) as gate:
        registry = Registry(folder, say)
        while True:
            for process in (link, gate, registry):
                process.look()
            time.sleep(_LOOK_S)


def run_supernode(folder: PartyFolder, server: str | None, say: Say) -> None:
    """Run a SuperNode until the process is stopped.

    Args:
        folder: the party's. server: address instead of that in the settings. say: gets messages to the user.
    """
    # The SuperLink takes up to a minute to notice that a SuperNode was killed, and refuses its successor until then. So repeat
    # failed starts for some minutes.
    with Supervised(supernode(folder, server), say) as node:
        while True:
            node.look()
            time.sleep(_LOOK_S)


class Registry:
    """Registers the keys of the parties' SuperNodes with the SuperLink, also those that are added later."""

    def __init__(self, folder: ServerFolder, say: Say) -> None:
        self._folder, self._say = folder, say
        self._known: dict[str, str] = {}
        self._next = 0.0

    @property
    def complete(self) -> bool:
        """True if all keys are registered."""
        return self._known == self._folder.public_keys()

    def look(self) -> None:
        """Register missing keys, if the SuperLink listens."""
        if time.monotonic() < self._next:
            return
        try:
            socket.create_connection((LOOPBACK, self._folder.read_settings().superlink_port), 1).close()
        except OSError:
            return
        self._next = time.monotonic() + _AGAIN_S
        keys = self._folder.public_keys()
        if missing := {party: key for party, key in keys.items() if self._known.get(party) != key}:
            self._known |= {party: key for party, key in missing.items() if register(self._folder, party)}
            if self.complete:
                self._say(f"the SuperLink knows the SuperNodes of {', '.join(keys)}")


def register(folder: ServerFolder, party: str) -> bool:
    """Register a SuperNode's key with the SuperLink.

    Args:
        folder: the server's. party: its name.

    Returns:
        True if the key is registered now.
    """
    connect_to(folder)
    key = folder.nodes.absolute() / f"{party}.pub"
    done = subprocess.run(
        [command("flwr"), "supernode", "register", str(key), CONNECTION],
        env=environment(folder.flower),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    # A key that is registered already is no error.
    wrong = complaint(done)
    return wrong is None or _KNOWN in wrong


def connect_to(folder: ServerFolder) -> None:
    """Let Flower's commands find the server's SuperLink. Raises `RunError`."""
    address = f"{LOOPBACK}:{folder.read_settings().superlink_port}"
    configure(folder.flower, CONNECTION, address, folder.tls / "ca.crt")


class Supervised:
    """A process that is restarted when it ends, unless starts have failed for some minutes."""

    def __init__(self, program: Program, say: Say) -> None:
        self._program, self._say = program, say
        self._process: subprocess.Popen[bytes] | None = None
        self._began = self._failing_since = self._next = 0.0

    def __enter__(self) -> Self:
        self._failing_since = time.monotonic()
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def look(self) -> None:
        """Restart the process if it has ended. Raises `RunError` if starts have failed for some minutes."""
        now = time.monotonic()
        if self._process is not None and (status := self._process.poll()) is not None:
            # A process that ran for a minute had started well: count failures anew.
            if now - self._began > _STEADY_S:
                self._failing_since = now
            if now - self._failing_since > _PATIENCE_S:
                raise RunError(f"the {self._program.name} always ends with exit status {status}; see above")
            self._say(f"the {self._program.name} ended with exit status {status}; starting it again")
            self._process, self._next = None, now + _AGAIN_S
        if self._process is None and now >= self._next:
            self._start()

    def _start(self) -> None:
        self._began = time.monotonic()
        with contextlib.ExitStack() as stack:
            log = self._program.log
            output = None if log is None else stack.enter_context(log.open("ab"))
            self._process = subprocess.Popen(
                self._program.arguments,
                env=dict(self._program.environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT if output else None,
            )


@contextlib.contextmanager
def stopped_by_signal() -> Iterator[None]:
    """Treat SIGTERM like an interruption, so that started processes are ended, too."""

    def stop(number: int, frame: FrameType | None) -> None:
        """Raise what Ctrl-C raises."""
        raise KeyboardInterrupt

    # A service manager ends a process with SIGTERM. Without this, started processes would outlive it.
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def on_one_machine(place: Path, say: Say) -> Iterator[None]:
    """Run all processes of a consortium except the server's own, for a trial; they print to `logs`.

    Args:
        place: the consortium. say: gets messages to the user.

    Raises:
        RunError: no consortium's folder.
    """
    names = sorted(path.name for path in (place / "parties").iterdir()) if (place / "parties").is_dir() else []
    if not names:
        raise RunError(f"{place}: is no consortium's folder (it has no parties)")
    logs, server = place / "logs", ServerFolder(place / "server")
    logs.mkdir(exist_ok=True)
    programs = {"superlink": superlink(server), "gate": entrance(server)}
    for name in names:
        command_line = [sys.executable, "-m", "fkgsec.experiments.cli.main", "deploy", "party"]
        folder = str(place / "parties" / name)
        programs[f"party-{name}"] = Program(f"process of {name}", [*command_line, folder], os.environ)
    programs |= {f"supernode-{name}": supernode(PartyFolder(place / "parties" / name)) for name in names}
    stopped, registry = threading.Event(), Registry(server, say)
    with contextlib.ExitStack() as stack:
        running: list[Supervised] = []
        for name, program in programs.items():
            # The SuperLink refuses SuperNodes that are not registered.
            while program.name == "SuperNode" and not registry.complete:
                for process in (registry, *running):
                    process.look()
                time.sleep(_LOOK_S)
            running.append(stack.enter_context(Supervised(program._replace(log=logs / f"{name}.log"), say)))
        say(f"started the SuperLink and {len(names)} parties; what they print is in {logs}")
        watch = threading.Thread(target=_watch, args=(running, stopped, say), daemon=True)
        watch.start()
        try:
            yield
        finally:
            stopped.set()
            watch.join()


def _watch(running: Sequence[Supervised], stopped: threading.Event, say: Say) -> None:
    while not stopped.wait(_LOOK_S):
        try:
            for process in running:
                process.look()
        except RunError as error:
            say(str(error))
            return
