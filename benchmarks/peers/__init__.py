"""Comparisons with other libraries, in one process on one machine."""
