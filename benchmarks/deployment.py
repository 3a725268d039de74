"""Costs of the deployment engines: Flower's requests and memory, and rounds with Ray workers compared to one process.

    python -m benchmarks.deployment --requests 5 --megabytes 100
    python -m benchmarks.deployment --workers 1,2 --clients 100 --size 20000 --dim 64

SuperLink, gate and SuperNodes are processes on the loopback interface, over TLS. Parties return each request at once,
so that only the engine is measured. Requires Flower's commands, or Ray with `--workers` (see docs/deployment.md).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from fkgsec.experiments.deploy.consortium import Plan, make_consortium
from fkgsec.experiments.deploy.flower.link import FlowerLink
from fkgsec.experiments.deploy.flower.local import Door, attend
from fkgsec.experiments.deploy.flower.processes import Registry, Supervised, entrance, superlink, supernode
from fkgsec.experiments.deploy.layout import PartyFolder, ServerFolder
from fkgsec.experiments.deploy.ray import RayWorkers, spread_over
from fkgsec.experiments.runs.spec import make_spec
from fkgsec.experiments.tasks.kge import Spec
from fkgsec.federation.loop import run_federation
from fkgsec.kge.result import KgeResult

PARTIES = ("one", "two", "three")
KINDS = ("flower-superlink", "gate.py", "flower-supernode", "flower-superexec", "flwr-serverapp", "flwr-clientapp")
_LIMIT_S = 1800.0


@contextlib.contextmanager
def echoing(place: Path) -> Iterator[FlowerLink]:
    """Start a consortium whose parties return every request.

    Args:
        place: empty folder.
    """

    def echo(door: Door) -> None:
        """Answer requests until the door is closed."""
        with contextlib.suppress(OSError):  # the door was closed
            attend(door, lambda frame: frame, print)

    # Free ports: bound all at once, so that they differ, and released before use.
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        ports = [listener.getsockname()[1] for listener in listeners]
    server = ServerFolder(place / "server")
    plan = Plan(
        parties=dict.fromkeys(PARTIES, ""), server=f"127.0.0.1:{ports[0]}", superlink_port=ports[1], node_port=ports[2]
    )
    make_consortium(place, Spec(), plan)
    with contextlib.ExitStack() as stack:
        for program in (superlink(server), entrance(server)):
            stack.enter_context(Supervised(program._replace(log=place / "log"), print))
        registry = Registry(server, print)
        while not registry.complete:
            registry.look()
            time.sleep(0.2)
        for name in PARTIES:
            folder = PartyFolder(place / "parties" / name)
            door = stack.enter_context(Door(folder.address))
            threading.Thread(target=echo, args=(door,), daemon=True).start()
            stack.enter_context(Supervised(supernode(folder)._replace(log=place / "log"), print))
        link = stack.enter_context(FlowerLink(server.path, timeout_s=_LIMIT_S, say=print))
        link.wait_for([f"client/{name}" for name in PARTIES])
        yield link


def seconds(link: FlowerLink, frame: bytes) -> float:
    """Measure a request to all parties until the last reply.

    Args:
        link: to the parties.
        frame: content of the request.

    Returns:
        Wall-clock seconds.

    Raises:
        AssertionError: a reply differs from the frame.
    """
    began = time.perf_counter()
    replies = dict(link.ask("bench", {f"client/{name}": frame for name in PARTIES}))
    assert all(reply == frame for reply in replies.values()), "a frame came back as another"
    return time.perf_counter() - began


class Memory(threading.Thread):
    """Thread that records the largest resident memory of a process of each kind, in bytes (Linux)."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most: dict[str, int] = {}
        self.stopped = threading.Event()

    def run(self) -> None:
        """Poll twice a second."""
        while not self.stopped.wait(0.5):
            for path in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError):
                    command = (path / "cmdline").read_bytes().decode(errors="replace")
                    # The second field of statm is the resident set, in pages.
                    resident = int((path / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
                    for kind in KINDS:
                        if kind in command:
                            self.most[kind] = max(self.most.get(kind, 0), resident)


def measure(link: FlowerLink, requests: int, megabytes: int) -> list[str]:
    """Measure requests, and return the figures as lines.

    Args:
        link: to the parties.
        requests: number of small requests.
        megabytes: size of the large request; 0: none.
    """
    memory = Memory()
    # Every SuperNode starts its copy of the app at the first request.
    seconds(link, b"the first starts every SuperNode's copy of the app")
    small = [seconds(link, secrets.token_bytes(100_000)) for _ in range(requests)]
    lines = [_line("100 kB", small, 0.1)]
    if megabytes:
        memory.start()
        large = [seconds(link, secrets.token_bytes(megabytes * 1_000_000))]
        memory.stopped.set()
        memory.join()
        lines.append(_line(f"{megabytes} MB", large, megabytes))
        lines += [f"{kind}: at most {size / 1e6:.0f} MB" for kind, size in sorted(memory.most.items())]
    return [*lines, f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors"]


def _line(size: str, times_s: Sequence[float], megabytes: float) -> str:
    middle = statistics.median(times_s)
    # Every byte goes to each party and back.
    rate = 2 * len(PARTIES) * megabytes / middle
    spread_s = f"({min(times_s):.1f} to {max(times_s):.1f})"
    return f"{size} to {len(PARTIES)} parties and back: {middle:.1f} s {spread_s}, {rate:.1f} MB/s"


def spread(counts: Sequence[int], spec: Spec) -> list[str]:
    """Measure the seconds of a round, including validation, in this process and with Ray workers.

    Args:
        counts: numbers of workers.
        spec: of the run.

    Returns:
        Lines with the minimum over the rounds after the first, and the median.

    Raises:
        AssertionError: a validation differs.
    """
    graph, options = spec.load_graph(), spec.federation_options()
    rows = sum(client.num_entities for client in graph.clients)
    lines = [
        f"{len(graph.clients)} clients, {rows:,} rows of entities, {sum(len(c.train) for c in graph.clients):,} triples"
    ]
    # One process is the reference, for time and for the figures.
    alone = run_federation(graph, options)
    lines.append(_round_line(f"one process, {torch.get_num_threads()} threads", alone))
    for count in counts:
        with RayWorkers(count) as workers:
            result = run_federation(graph, options, make_task=spread_over(workers))
        assert [entry.valid for entry in result.rounds] == [entry.valid for entry in alone.rounds], "another validation"
        lines.append(_round_line(f"{count} workers", result))
    return [*lines, f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors"]


def _round_line(name: str, result: KgeResult) -> str:
    # Round 0 aligns and round 1 compiles.
    times_s = [entry.seconds for entry in result.rounds[2:]]
    return f"{name}: {min(times_s):.2f} s a round (median {statistics.median(times_s):.2f} of {len(times_s)})"


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description="What the engines cost, on this machine.")
    parser.add_argument("--requests", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=100, help="of the large frame; 0: none")
    parser.add_argument("--workers", default="", help="numbers of Ray's workers, as in 1,2; measures these instead")
    for name, value in (("clients", 100), ("size", 20_000), ("dim", 64), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=value, help="with --workers")
    parser.add_argument("--data", default="consortium", help="with --workers")
    arguments = parser.parse_args()
    if arguments.workers:
        how = {name: getattr(arguments, name) for name in ("clients", "dim", "rounds", "data")}
        how |= {"size": arguments.size} if arguments.data == "consortium" else {}
        spec = make_spec(None, how | {"eval_every": 1, "device": "cpu"})
        print(*spread([int(count) for count in arguments.workers.split(",")], spec), sep="\n")
        return
    with tempfile.TemporaryDirectory() as folder, echoing(Path(folder) / "bench") as link:
        print(*measure(link, arguments.requests, arguments.megabytes), sep="\n")


if __name__ == "__main__":
    main()
