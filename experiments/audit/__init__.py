"""Embedding tables as files, and attacks on them without training."""
