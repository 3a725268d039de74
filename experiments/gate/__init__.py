"""The policy gate: judges a policy, and returns verdicts and an exit status."""

from typing import Literal

SCHEMA = "fkgsec/check/1"
CHECK_FILE = "check.json"
WhenInconclusive = Literal["report", "pass", "fail"]
