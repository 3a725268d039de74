"""Attacks by a client, which learns of others from the broadcasts that it receives."""
