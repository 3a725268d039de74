"""The identity of a run: a digest of data, options and adversary, by which checkpoints and folders know it.

run_identity(graph, options) == run_identity(graph, replace(options, device="cuda"))
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection
from typing import Any

import msgspec

from fkgsec.federation.adversary import Adversary
from fkgsec.federation.options import RENAMED, RunOptions
from fkgsec.federation.settings import fields_of


def run_identity(
    graph: Any, options: RunOptions, adversary: Adversary | None = None, spelled: Collection[str] = ()
) -> str:
    """What a checkpoint must agree with: data, options except the device, and the adversary.

    4 and 4.0 are one value, and settings at their defaults are left out, so that a new one does not make strangers of earlier
    runs. For their sake names that have changed go by the old ones, and what once was there for all algorithms stays.

    Args:
        spelled: settings to name although they are at their defaults.
    """
    old = {new: name for name, new in RENAMED.items()}
    named = options.settings.given() | {name: getattr(options.settings, name) for name in spelled}
    kept = options.identity() | {old.get(name, name): value for name, value in named.items()}
    parts: list[Any] = [graph.hash, kept, *([adversary.identity()] if adversary else [])]
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()


def run_identities(graph: Any, options: RunOptions, adversary: Adversary | None = None) -> tuple[str, ...]:
    """The run's identity, and those by which version 0.1 knew it where settings were given at their defaults."""
    names = [one.name for one in fields_of(type(options.settings)) if one.name not in options.settings.given()]
    choices = itertools.chain.from_iterable(itertools.combinations(names, count) for count in range(len(names) + 1))
    return tuple(run_identity(graph, options, adversary, spelled) for spelled in choices)
