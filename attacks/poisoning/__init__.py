"""Attacks that change the run: false triples planted in others' embeddings, and training degraded for all clients."""
