"""Flower carries the frames of a federation whose parties sit apart."""
