"""Worker processes of Ray, on this machine or on a cluster.

    with RayWorkers(4) as workers:
        run_federation(graph, options, make_task=spread_over(workers))

Without the environment's `RAY_ADDRESS` Ray is started on this machine, for this command alone: it listens on every interface, and
answers whoever has the token that is drawn here. With it, the workers are started on that cluster, whose nodes need the same
version of fkgsec; whoever reaches a cluster's ports can run code on it, unless it was started with a token.
"""

from __future__ import annotations

import importlib
import os
import secrets
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

import numba
import torch

from fkgsec.errors import RunError, SpecError
from fkgsec.experiments.deploy.ray.host import Host
from fkgsec.version import __version__

MOST_WORKERS = 4096
_LOOK_S, _START_S = 0.2, 300.0


class OneThread(Host):
    """A host in a process of its own, which takes one processor."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        numba.set_num_threads(1)
        super().__init__()

    def process(self) -> int:
        """Its number."""
        return os.getpid()


class RayWorkers:
    """So many workers of one processor each. Raises `SpecError` for a number that nobody has."""

    def __init__(self, count: int) -> None:
        if not 1 <= count <= MOST_WORKERS:
            raise SpecError(f"workers must lie in 1..{MOST_WORKERS:,}; got {count:,}")
        self.count = count
        self._ray: Any = None
        self._hosts: list[Any] = []

    def __enter__(self) -> Self:
        """Start them. Raises `RunError` where Ray is not installed, does not start, or has too few processors."""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing to Ray's makers
        if not os.environ.get("RAY_ADDRESS"):  # its ports are open on every interface, for whoever has the token
            os.environ.setdefault("RAY_AUTH_MODE", "token")
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        try:
            ray: Any = importlib.import_module("ray")
        except ImportError as error:
            raise RunError("engine: Ray is not installed; pip install 'fkgsec[ray]', or leave --engine out") from error
        self._ray = ray
        try:
            self._start()
        except BaseException:
            ray.shutdown()
            raise
        return self

    def _start(self) -> None:
        ray, address = self._ray, os.environ.get("RAY_ADDRESS")
        own: dict[str, Any] = {"num_cpus": self.count, "include_dashboard": False}
        try:
            ray.init(address=address or "local", log_to_driver=False, logging_level="error", **({} if address else own))
        except Exception as error:  # whatever Ray raises, it did not start
            raise RunError(
                f"engine: Ray does not start{f' at {address}' if address else ''} ({_line(error)})"
            ) from error
        there = int(ray.cluster_resources().get("CPU", 0))
        if there < self.count:
            raise RunError(f"workers: {self.count} need as many processors; the cluster at {address} has {there}")
        # Two calls at a time: one that trains, one that asks how far it is.
        kind = ray.remote(num_cpus=1, max_concurrency=2)(OneThread)
        self._hosts = [kind.remote() for _ in range(self.count)]
        for found in self.call("version", dict.fromkeys(range(self.count), ())).values():
            if found != __version__:
                raise RunError(f"a node of the cluster has fkgsec {found}, this one {__version__}; install one version")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for host in self._hosts:
            self._ray.kill(host)
        self._hosts = []
        self._ray.shutdown()

    def call(
        self, method: str, arguments: Mapping[int, tuple[Any, ...]], taken: Callable[[int], None] | None = None
    ) -> dict[int, Any]:
        """See `fkgsec.experiments.deploy.ray.spread.Workers`. Raises `RunError` where a worker ends, or does not start."""
        ray = self._ray
        asked = {number: getattr(self._hosts[number], method).remote(*own) for number, own in arguments.items()}
        try:
            waiting = list(asked.values())
            while taken is not None and waiting:
                _, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=_LOOK_S)
                if waiting:
                    taken(max(ray.get([self._hosts[number].taken.remote() for number in asked])))
            return {
                number: ray.get(one, timeout=_START_S if method == "version" else None) for number, one in asked.items()
            }
        except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError) as error:
            raise RunError(
                f"a worker of Ray ended or did not start ({_line(error)}); give the command again to go on"
            ) from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
