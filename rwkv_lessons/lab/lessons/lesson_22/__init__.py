"""What lesson 22 alone needs."""
