"""Defenses of a federation: protocols in front of the server, noise, suppression."""

import importlib
from typing import TYPE_CHECKING, Any

from fkgsec.defenses.options import KINDS, Defense, DefenseOptions, check_defense, parse_defense

if TYPE_CHECKING:
    from fkgsec.defenses.transport import DefendedTransport, make_transport

__all__ = [
    "KINDS",
    "DefendedTransport",
    "Defense",
    "DefenseOptions",
    "check_defense",
    "make_transport",
    "parse_defense",
]


def __getattr__(name: str) -> Any:
    """Load the transport on first use: it imports torch, and options do not."""
    # The transport needs torch, and the command line reads options without it.
    if name not in __all__:
        raise AttributeError(f"module 'defenses' has no attribute {name!r}")
    return getattr(importlib.import_module("fkgsec.defenses.transport"), name)
