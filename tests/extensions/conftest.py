"""For tests of commands: see `tests.pictures`."""

from tests.pictures import sketched  # noqa: F401
