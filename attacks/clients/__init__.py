"""What a client learns of others from the broadcasts that it receives."""
