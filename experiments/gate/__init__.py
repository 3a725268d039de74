"""The policy gate: a policy in, verdicts and an exit status out."""

from typing import Literal

SCHEMA = "fkgsec/check/1"
CHECK_FILE = "check.json"
WhenInconclusive = Literal["report", "pass", "fail"]
