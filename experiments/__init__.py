"""Composition root: command line, specs, run folders, records, tables and pictures."""
