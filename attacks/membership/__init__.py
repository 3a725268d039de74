"""Telling triples that a model was trained on from others."""
