"""Contents of the files of a run."""
