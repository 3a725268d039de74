"""A federation whose server and clients sit apart: each party keeps its data, tables and keys, and only bytes cross."""

# Validation or test triples: a party reveals no figure of fewer.
FEWEST_TRIPLES = 10
# For a party's reply.
TIMEOUT_S = 600.0
