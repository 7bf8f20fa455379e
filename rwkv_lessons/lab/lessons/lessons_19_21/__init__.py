"""What lessons 19 to 21 alone need."""
