"""Audits of whether a model that unlearned still remembers."""
