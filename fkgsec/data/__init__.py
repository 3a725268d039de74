"""Graphs: readers, generator, partitions, statistics and checks."""
