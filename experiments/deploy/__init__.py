"""A federation on separate machines: each party keeps its data, tables and keys, and exchanges only bytes."""

# Validation or test triples: a party reveals no figure of fewer.
FEWEST_TRIPLES = 10
# For a party's reply.
TIMEOUT_S = 600.0
