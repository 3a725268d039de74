"""The small federations of the loop's tests."""

from tests.federation.conftest import uneven  # noqa: F401
