"""Rebuilding a victim's entities and triples from what crossed."""
