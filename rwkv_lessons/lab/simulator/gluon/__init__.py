"""Gluon kernels as written: asynchronous copies and products, fences, registers."""
