"""Runs: their specs, records, files, and what is computed from several of them."""
