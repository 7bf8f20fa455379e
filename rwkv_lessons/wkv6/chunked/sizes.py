"""ChunkSizes of the kernels in chunks, of which `method_for` reads how large a head may be."""

from typing import NamedTuple

# Tokens from one state that the forward pass saves to the next: a chunk of the backward kernels. 64
# would save the forward kernel a seventh of its traffic, but no backward kernel in Triton with
# chunks of 64 tokens had the registers for them: 6.4 ms against 3.0 with 32 (docs/designs_wkv6.md).
CHECKPOINT = 32


def rows_of_state(K, half):
    """Rows that a state takes in what is saved: K, and of float16 its exponents, of K · V / 64."""
    return K + K // 64 if half else K


LARGEST = 256  # keys; the state of 512 would not fit the registers and shared memory of a program
SMALL_LARGEST = {2: 128, 4: 64}  # on other GPUs, where factors of more fill a warp's registers


def largest(dtype, gpu):
    """The most keys of a head."""
    return LARGEST if gpu.like_hopper else SMALL_LARGEST.get(dtype.itemsize, 0)


class ChunkSizes(NamedTuple):
    """What a kernel is compiled for: keys and values, blocks of them, tokens of a chunk."""

    K: int
    V: int
    BK: int
    BV: int
    C: int
