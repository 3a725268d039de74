"""What attacks on knowledge-graph embedding have of their own: their view of a run, and how they are run on it."""
