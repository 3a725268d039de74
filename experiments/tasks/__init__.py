"""What the experiments know of each task, a module for each: its options, its figures, the words for them."""
