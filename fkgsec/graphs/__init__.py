"""Labelled graphs for classification: sets of them, readers, features, division among clients, twins, a generator."""
