"""Time-x in numba: sums of products on ordinary cores, no tensor cores."""
