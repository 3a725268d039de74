"""Whether a model that unlearned still remembers."""
