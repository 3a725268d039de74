"""For all tests: fkgsec comes before torch, since it says how long torch's threads spin."""

import fkgsec  # noqa: F401
