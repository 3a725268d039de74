"""The command line: `fkgsec` and what its commands share."""

import fkgsec  # noqa: F401  settles how long threads spin, which must happen before anything loads torch
