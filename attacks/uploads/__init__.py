"""Attacks by a server on a victim's uploaded rows."""
