"""The shipped algorithms for graph classification, as in `fkgsec.algorithms`."""
