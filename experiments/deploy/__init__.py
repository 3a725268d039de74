"""A federation whose server and clients sit apart: each party keeps its data, tables and keys, and only bytes cross."""

FEWEST_TRIPLES = 10  # validation or test triples of which parties tell a figure
TIMEOUT_S = 600.0  # of a party's reply
