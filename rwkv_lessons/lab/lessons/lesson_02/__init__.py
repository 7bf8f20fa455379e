"""What lesson 02 alone needs."""
