"""Kernels that no GPU has run yet: each is compiled anywhere, and checked and timed on a GPU."""
