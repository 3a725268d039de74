"""The small federations of the loop's tests."""

from tests.federation.conftest import consortium, options, uneven

__all__ = ["consortium", "options", "uneven"]
