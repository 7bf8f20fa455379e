"""What lesson 08 alone needs."""
