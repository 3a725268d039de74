"""Tables in the terminal, listings, pictures and pages of finished runs."""
