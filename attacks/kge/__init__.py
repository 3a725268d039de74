"""Attacks on knowledge-graph embedding: their view of a run, and how they are run on it."""
