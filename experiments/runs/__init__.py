"""Runs: their specs, records and files, and comparisons of several runs."""
