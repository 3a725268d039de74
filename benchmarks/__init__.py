"""Benchmarks, most of them run by `make bench`."""
