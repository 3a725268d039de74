"""Cryptography and noise on arrays and bytes; imports neither torch nor fkgsec. Holds no protocol yet."""
