"""Chunks of tokens: matrix products within one, a state from one to the next."""
