"""How large a head may be for the kernels in chunks: read by `method_for` before it takes them."""

LARGEST = 256  # keys; the state of 512 would not fit the registers and shared memory of a program
SMALL_LARGEST = {2: 128, 4: 64}  # on other GPUs, where factors of more fill a warp's registers


def largest(dtype, gpu):
    """The most keys of a head."""
    return LARGEST if gpu.like_hopper else SMALL_LARGEST.get(dtype.itemsize, 0)
