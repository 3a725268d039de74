"""Gradient inversion: the graphs of one local step, from the gradient that a client uploads."""
