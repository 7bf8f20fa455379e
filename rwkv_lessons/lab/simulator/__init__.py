"""Kernels on a CPU: one room each for numba.cuda, Triton and Gluon."""
