"""What lesson 23 alone needs."""
