"""Commands in processes forked from one that has everything loaded, so that a trial costs a second: killed, starved, signalled.

    with Commands() as commands:
        ended = commands.run(["train", "--out", "run"], folder, at_event=7)      # killed before its seventh change of a file
        assert ended.status == -signal.SIGKILL

The child is a whole `fkgsec` in every other way: its own streams, its own working folder. What commands import late is found by a
first child and imported before the others are forked; nothing is compiled before, since threads do not survive a fork.
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
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return Ended(**json.loads(self._process.stdout.readline()))


def _child(asked: dict[str, Any], report: mmap.mmap, said: dict[str, int]) -> None:
    """Become the command; never returns. What it says goes through pipes, which no limit of files concerns."""
    from experiments.cli.main import main

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
        if event in NETWORK:
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
        main()
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
        from experiments.cli.main import main

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


def _serve() -> None:
    """Fork a command for every line of standard input, and say in a line how it ended."""
    importlib.import_module("experiments.cli.main")
    importlib.import_module(
        "encodings.utf_8_sig"
    )  # a child that becomes somebody else may not read the interpreter's folder
    for name in _late_imports():
        with contextlib.suppress(Exception):  # what only loads as a part of something else
            importlib.import_module(name)
    for line in sys.stdin:
        asked = json.loads(line)
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
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        for timer in timers:
            timer.cancel()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        texts = {name: one.text() for name, one in said.items()}
        events = int.from_bytes(report[:8], "little")
        print(json.dumps(Ended(status, time.monotonic() - started, events, **texts)._asdict()), flush=True)


if __name__ == "__main__":
    _serve()
