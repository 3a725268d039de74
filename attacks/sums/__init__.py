"""Attacks by a server on single clients, although it learns sums alone."""
