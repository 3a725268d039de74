"""What a federation does to its uploads and its training to resist: protocols in front of the server, noise, suppression."""
