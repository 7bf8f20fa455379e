"""What lessons 25 to 28 alone need."""
