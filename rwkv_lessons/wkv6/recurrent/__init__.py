"""Token by token in Triton: forward and backward."""
