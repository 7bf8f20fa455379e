"""What lesson 18 alone needs."""
