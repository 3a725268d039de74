"""What a federation does to its uploads and its training to resist: protocols in front of the server, noise, suppression."""

from defenses.options import KINDS, Defense, DefenseOptions, check_defense, parse_defense
from defenses.transport import DefendedTransport, make_transport

__all__ = [
    "KINDS",
    "DefendedTransport",
    "Defense",
    "DefenseOptions",
    "check_defense",
    "make_transport",
    "parse_defense",
]
