"""Token by token in numba.cuda: forward, backward, and their sweeps."""
