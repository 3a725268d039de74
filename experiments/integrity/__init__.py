"""Whether what lies in a run's folder is what was written there, and belongs together."""
