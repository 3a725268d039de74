"""What a federation does to its uploads and its training to resist: protocols in front of the server, noise, suppression."""

from defenses.exchange import DefendedExchange
from defenses.exchanges import make_exchange
from defenses.options import Defense, check_defense, parse_defense

__all__ = ["DefendedExchange", "Defense", "check_defense", "make_exchange", "parse_defense"]
