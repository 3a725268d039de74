"""For tests of commands: see `tests.pictures`."""

from tests.pictures import rendered, sketched  # noqa: F401
