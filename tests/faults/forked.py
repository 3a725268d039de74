"""Commands in processes forked from one that has everything loaded, so that a trial costs a second: killed, starved, signalled.

    with Commands() as commands:
        ended = commands.run(["train", "--out", "run"], folder, at_event=7)      # killed before its seventh change of a file
        assert ended.status == -signal.SIGKILL

The child is a whole `fkgsec` in every other way: its own streams, its own working folder. What commands import late is found by a
first child and imported before the others are forked; nothing is compiled before, since threads do not survive a fork.
A command that runs until it is stopped is kept beside the others, and started again whenever it is killed (`Commands.keep`).
`python -m tests.faults.forked` is the process that forks.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import mmap
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

ROOT = Path(__file__).parents[2]
NETWORK = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "socket.bind")
REACHED_OUT = 97  # the status of a command that asks for the network, which none but a download may
CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink")
LIMITS = {"file": resource.RLIMIT_FSIZE, "memory": resource.RLIMIT_AS, "files": resource.RLIMIT_NOFILE}
TOO_LONG_S = 300


class Ended(NamedTuple):
    """How a command ended: its status (minus a signal's number), seconds, changes of files that it made, and what it said."""

    status: int
    seconds: float
    events: int
    out: str
    err: str


class Commands:
    """The process that forks, started with one thread for every library."""

    def __enter__(self) -> Self:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.forked"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment,
        )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def run(
        self,
        arguments: list[str],
        folder: Path,
        *,
        kill: int = signal.SIGKILL,
        at_event: int = 0,
        after_s: float = 0.0,
        user: int | None = None,
        **limits: int,
    ) -> Ended:
        """One command in a folder, to its end.

        Args:
            kill: a signal that it is sent before it changes a file for the `at_event`th time, or after so many seconds.
            user: whose it is, where we are root. limits: bytes of a "file", of "memory" beyond what the process has, or "files".
        """
        asked = {
            "arguments": arguments, "folder": str(folder), "kill": int(kill), "at_event": at_event, "after_s": after_s,
            "user": user, "limits": limits,
        }  # fmt: skip
        return Ended(**self._say(asked))

    def _say(self, asked: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def keep(self, arguments: list[str], folder: Path, kills: Sequence[int] = ()) -> None:
        """A command that runs beside those of `run`, until `release`, and is started again when it is killed.

        Args:
            kills: it is killed before so many changes of files, counted from its start, and again from each start.
        """
        self._say({"keep": arguments, "folder": str(folder), "kills": list(kills)})

    def release(self) -> int:
        """Kill what is kept; returns how often one of them was killed before."""
        return self._say({"release": True})["killed"]


def _child(asked: dict[str, Any], report: mmap.mmap, said: dict[str, int]) -> None:
    """Become the command; never returns. What it says goes through pipes, which no limit of files concerns."""
    from fkgsec.experiments.cli.main import main

    started: Callable[[], object] = main
    if asked["arguments"][0] == "-m":
        started = importlib.import_module(asked["arguments"][1]).main
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for one in (signal.SIGTERM, signal.SIGHUP):  # which a shell has its background commands ignore
        signal.signal(one, signal.SIG_DFL)
    os.chdir(asked["folder"])
    for name, stream in (("out", 1), ("err", 2)):
        os.dup2(said[name], stream)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", errors="strict")
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1)
    here, count = os.path.realpath(asked["folder"]), 0

    def watch(event: str, details: tuple[Any, ...]) -> None:
        """Count what changes a file below the folder, and kill before one of them; end a command that asks for the network."""
        nonlocal count
        if event in NETWORK and not isinstance(
            details[-1], str
        ):  # an address of the network, no socket of the file system
            os.write(2, f"{event} {details}\n".encode())
            os._exit(REACHED_OUT)
        if event == "open":
            path, _, flags = details
            changes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR) and isinstance(path, str)
        else:
            path, changes = (details or ("",))[0], event in CHANGES
        if changes and os.path.abspath(str(path)).startswith(here):  # noqa: PTH100 (no more calls than needed in a hook)
            count += 1
            report[:8] = count.to_bytes(8, "little")
            if count == asked["at_event"]:
                os.kill(os.getpid(), asked["kill"])

    sys.addaudithook(watch)
    for name, value in asked["limits"].items():
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        most = value + (taken if name == "memory" else 0)
        resource.setrlimit(LIMITS[name], (most, most))
    if asked["user"] is not None:
        os.setgroups([])
        os.setgid(asked["user"])
        os.setuid(asked["user"])
    sys.argv = ["fkgsec", *asked["arguments"]]
    status = 0
    try:
        started()
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
        status = 1
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(status)


def _late_imports() -> list[str]:
    """The modules that commands load while they run, found in a process that runs one on each kind of data."""
    found = os.memfd_create("modules")
    child = os.fork()
    if child == 0:
        from fkgsec.experiments.cli.main import main

        with tempfile.TemporaryDirectory() as folder, Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            for data in (["--size", "300", "--dim", "4"], ["--algorithm", "cefgl", "--size", "160", "--width", "4"]):
                sys.argv = ["fkgsec", "attack", *data, "--rounds", "1", "--out", f"{folder}/{len(data)}", "--quiet"]
                with contextlib.suppress(SystemExit):
                    main()
        os.write(found, "\n".join(sys.modules).encode())
        os._exit(0)
    os.waitpid(child, 0)
    return [name for name in os.pread(found, 2**24, 0).decode().splitlines() if name not in sys.modules]


class _Said(threading.Thread):
    """What a process writes into a pipe, read as it comes."""

    def __init__(self, reads: int, writes: int) -> None:
        super().__init__(daemon=True)
        os.close(writes)
        self._reads, self._pieces = reads, list[bytes]()
        self.start()

    def run(self) -> None:
        while piece := os.read(self._reads, 2**16):
            self._pieces.append(piece)
        os.close(self._reads)

    def text(self) -> str:
        """All of it; raises `AssertionError` where a process that it started holds the pipe."""
        self.join(TOO_LONG_S)
        assert not self.is_alive()
        return b"".join(self._pieces).decode(errors="replace")


class _Kept:
    """A command that is started again whenever it ends."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self._asked = {
            "arguments": asked["keep"],
            "folder": asked["folder"],
            "kill": signal.SIGKILL,
            "user": None,
            "limits": {},
        }
        self._kills, self.num_killed = list(asked["kills"]), 0
        self._start()

    def _start(self) -> None:
        at_event = self._kills.pop(0) if self._kills else 0
        nowhere = os.open(os.devnull, os.O_WRONLY)
        self._process = os.fork()
        if self._process == 0:
            _child(self._asked | {"at_event": at_event}, mmap.mmap(-1, 8), {"out": nowhere, "err": nowhere})
        os.close(nowhere)

    def look(self) -> None:
        """Start it again where it was killed. Raises `AssertionError` where it has ended otherwise."""
        process, status = os.waitpid(self._process, os.WNOHANG)
        if process:
            assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, f"{self._asked['arguments']}: {status}"
            self.num_killed += 1
            self._start()

    def end(self) -> None:
        os.kill(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)


def _serve() -> None:
    """Fork a command for every line of standard input, and say in a line how it ended."""
    importlib.import_module("fkgsec.experiments.cli.main")
    importlib.import_module(
        "encodings.utf_8_sig"
    )  # a child that becomes somebody else may not read the interpreter's folder
    for name in _late_imports():
        with contextlib.suppress(Exception):  # what only loads as a part of something else
            importlib.import_module(name)
    kept: list[_Kept] = []
    for line in sys.stdin:
        asked = json.loads(line)
        if "keep" in asked:
            kept.append(_Kept(asked))
            print("{}", flush=True)
            continue
        if "release" in asked:
            for one in kept:
                one.end()
            print(json.dumps({"killed": sum(one.num_killed for one in kept)}), flush=True)
            kept.clear()
            continue
        report, pipes = mmap.mmap(-1, 8), {name: os.pipe() for name in ("out", "err")}
        started = time.monotonic()
        child = os.fork()
        if child == 0:
            _child(asked, report, {name: writes for name, (_, writes) in pipes.items()})
        said = {name: _Said(*pipe) for name, pipe in pipes.items()}
        timers = [threading.Timer(TOO_LONG_S, os.kill, (child, signal.SIGKILL))]
        if asked["after_s"]:
            timers.append(threading.Timer(asked["after_s"], os.kill, (child, asked["kill"])))
        for timer in timers:
            timer.start()
        # Waited for without reaping, so that no timer hits another process of that number.
        while kept and os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            for one in kept:
                one.look()
            time.sleep(0.02)
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        for timer in timers:
            timer.cancel()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        texts = {name: one.text() for name, one in said.items()}
        events = int.from_bytes(report[:8], "little")
        print(json.dumps(Ended(status, time.monotonic() - started, events, **texts)._asdict()), flush=True)
    for one in kept:
        one.end()


if __name__ == "__main__":
    _serve()
