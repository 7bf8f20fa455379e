"""What lesson 06 alone needs."""
