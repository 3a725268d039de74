"""Code for Flower's environment, without imports of fkgsec."""
