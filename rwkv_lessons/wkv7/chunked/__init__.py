"""RWKV-7 in chunks, as Triton kernels: the map of each chunk, sweeps over them, the gradients."""
