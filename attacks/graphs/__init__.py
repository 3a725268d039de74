"""Attacks on federated graph classification: their view of a run, and each attack in a module."""
