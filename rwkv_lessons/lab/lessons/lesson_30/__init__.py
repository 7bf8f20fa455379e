"""What lesson 30 alone needs."""
