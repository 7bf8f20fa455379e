"""What lesson 28 alone needs."""
