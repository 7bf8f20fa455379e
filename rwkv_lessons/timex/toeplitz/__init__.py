"""Time-x on tensor cores: products with triangular Toeplitz matrices, in Triton."""
