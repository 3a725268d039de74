"""What a federation does to its uploads and its training to resist: protocols in front of the server, noise, suppression."""

from defenses.options import Defense, check_defense, parse_defense
from defenses.transport import DefendedTransport, make_transport

__all__ = ["DefendedTransport", "Defense", "check_defense", "make_transport", "parse_defense"]
