"""Local training of a laboratory run in worker processes, on one machine or a Ray cluster."""
