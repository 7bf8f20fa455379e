"""What lesson 09 alone needs."""
