"""Triton's interpreter, watched: every load and store of every program."""
