"""Carries frames between a Flower process and the fkgsec process beside it. Holds no key, no data and no state."""
