"""What lessons 10 to 11 alone need."""
