"""numba.cuda kernels as written: threads, barriers, shared memory, every access."""
