"""Cryptography and noise on arrays and bytes; imports neither torch nor fkgsec, and knows nothing of graphs.

secagg    secure aggregation: the sum of the clients' vectors
psu       private set union: the union of the clients' identifiers
noise     for differential privacy: sampling, accounting, guarantees, audits
core      what these stand on: errors, keys, rings, shares, masks, fixed point
"""
