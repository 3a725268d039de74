"""Unlearning: forget sets, the methods that forget them, and the round in which the outcome is transmitted."""
