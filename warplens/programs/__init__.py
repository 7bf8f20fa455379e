"""Whole programs of numba-cuda and numba-cuda-mlir on a computer without a GPU, unchanged."""
