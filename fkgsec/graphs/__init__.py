"""Labeled graphs for classification: sets, readers, features, division among clients, twins, a generator."""
