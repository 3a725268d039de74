"""Cryptography and noise on arrays and bytes; imports neither torch nor fkgsec, and knows nothing of graphs.

secagg    secure aggregation: the sum of the clients' vectors
psu       private set union: the union of the clients' identifiers
noise     for differential privacy: sampling, accounting, guarantees
core      what these stand on: errors, keys, rings, shares, masks, fixed point

The words and limits below are those of options, which are read without loading a protocol.
"""

from typing import Literal

CipherName = Literal["aes-256-ctr", "chacha20"]
Accountant = Literal["rdp", "prv"]
# Tables of a private set union, each four times as large: up to a million items from `psu.plan.START_CAP`.
MAX_ATTEMPTS = 6
