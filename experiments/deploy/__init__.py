"""A federation whose server and clients sit apart: each party keeps its data, tables and keys, and only bytes cross."""
