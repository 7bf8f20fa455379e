"""What lessons 26 to 27 alone need."""
