"""What a server learns of single clients although it learns sums alone."""
