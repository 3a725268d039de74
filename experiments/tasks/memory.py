"""Check that a run fits into memory before it starts: an estimate by parts, compared with the free memory.

    parts = task_of(spec).memory(spec, graph)               # {"tables and optimizer": 1.2e9, "messages": ...}
    check_memory(spec, graph)                               # `SpecError` with the figures if it does not fit

Free memory is the least that the machine, the control groups of this process (a container's limit) and `ulimit -v` leave.
An estimate is no bound: `python -m benchmarks.memory` compares it with the peaks of real runs.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fkgsec.errors import SpecError
from fkgsec.experiments.tasks.spec import RunSpec
from fkgsec.experiments.tasks.task import task_of

GIB = 2**30
# Parts in the machine's memory even if a GPU trains.
HOST = ("messages", "checkpoint", "data")


class Free(NamedTuple):
    """Bytes that this process can still allocate, and the source of the limit."""

    num_bytes: float
    says: str


def check_memory(spec: RunSpec, graph: Any, *, at_once: int = 1) -> None:
    """Check that runs of a spec fit into the free memory.

    Args:
        spec: the run.
        graph: the clients' data.
        at_once: number of runs at the same time.

    Raises:
        SpecError: they do not fit; the message lists the parts.
    """
    parts = needed(spec, graph)
    total, free = at_once * sum(parts.values()), available()
    if total <= free.num_bytes:
        return
    # The largest part tells the user which option to reduce.
    largest = sorted(parts.items(), key=lambda part: -part[1])
    each = ", ".join(f"{name} {size / GIB:,.1f}" for name, size in largest)
    several = f"{at_once} runs at a time need" if at_once > 1 else "the run needs"
    raise SpecError(
        f"memory: {several} about {total / GIB:,.1f} GiB ({each}); {free.says} leaves {max(free.num_bytes, 0) / GIB:,.1f} GiB; "
        f"use {task_of(spec).smaller}, or --force"
    )


def needed(spec: RunSpec, graph: Any) -> Mapping[str, float]:
    """Estimate a run's bytes by part, without the program itself; on a GPU only those in the host's memory.

    Args:
        spec: the run.
        graph: the clients' data.
    """
    parts = task_of(spec).memory(spec, graph)
    if spec.federation_options().torch_device().type != "cpu":
        return {name: parts[name] for name in HOST}
    return parts


def available(root: Path = Path("/")) -> Free:
    """Return the smallest limit of the machine, the control groups and `ulimit -v`.

    Args:
        root: folder of /proc and /sys.
    """
    fields, page = _fields(root / "proc/meminfo"), os.sysconf("SC_PAGE_SIZE")
    limits = [Free(os.sysconf("SC_PHYS_PAGES") * page, "the whole machine"), *_groups(root)]
    # Better than the machine's size: Linux knows what other processes use.
    if "MemAvailable:" in fields:
        limits[0] = Free(1024 * fields["MemAvailable:"], "the machine")
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        # `ulimit -v` counts address space that this process uses already.
        pages = (_text(root / "proc/self/statm").split() or ["0"])[0]
        limits.append(Free(limit - int(pages) * page, "ulimit -v"))
    return min(limits, key=lambda free: free.num_bytes)


def _groups(root: Path) -> Iterator[Free]:
    """Yield the limits of the control groups, version 2 and 1, from this process's group to the top; cached files count
    as free.
    """
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers == "":
            base, most, used, cached = root / "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            base, most, used = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
            cached = "total_inactive_file"
        else:
            continue
        group = base / path.strip("/")
        # In a container, the path is the host's, and the container's group is mounted at the top.
        for folder in (group, *group.parents) if group.exists() else (base,):
            limit = _text(folder / most).strip()
            if limit.isdigit():
                in_use = int(_text(folder / used).strip() or 0) - _fields(folder / "memory.stat").get(cached, 0)
                yield Free(int(limit) - in_use, "the control group (a container's limit)")
            if folder == base:
                break


def _fields(path: Path) -> dict[str, int]:
    """Read a file with a name and a number in each line."""
    lines = (line.split() for line in _text(path).splitlines())
    return {parts[0]: int(parts[1]) for parts in lines if len(parts) > 1 and parts[1].isdigit()}


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
