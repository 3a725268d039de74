"""What `make bench` times."""
