"""Flower carries the frames of a federation whose parties run on separate machines."""
