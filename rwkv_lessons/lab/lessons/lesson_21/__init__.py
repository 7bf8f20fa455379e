"""What lesson 21 alone needs."""
