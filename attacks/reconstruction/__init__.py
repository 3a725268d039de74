"""Rebuilding a victim's entities and triples from the training messages."""
