"""What people look at: tables in the terminal, listings, pictures, pages."""
