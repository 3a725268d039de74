"""Cryptography and noise on arrays and bytes; imports neither torch nor fkgsec, and knows nothing of graphs."""
