"""What a server learns from a victim's uploaded rows."""
