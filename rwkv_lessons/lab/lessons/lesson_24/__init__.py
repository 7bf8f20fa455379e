"""What lesson 24 alone needs."""
