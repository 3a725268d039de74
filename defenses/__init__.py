"""What a federation does to its uploads and its training to resist. Holds no defense yet."""
