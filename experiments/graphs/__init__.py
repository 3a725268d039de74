"""Federated graph classification on the command line: data, runs, their records."""
