"""What files of runs hold."""
