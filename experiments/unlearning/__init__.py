"""Let a finished run forget, and verify that it did."""
