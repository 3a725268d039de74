"""The policy gate: a policy in, verdicts and an exit status out."""
