"""What lesson 29 alone needs."""
