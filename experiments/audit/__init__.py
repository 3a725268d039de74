"""Embedding tables as files, and the attack on them without training."""
