"""Parts of the sum in float16, for the kernels on Hopper: half as many bytes as in float32.

Each row has a unit of its own, a power of two that its largest element is at least once and less
than twice. So a part keeps 11 bits of its large elements, whatever the size of latents, and what it
loses is a sixth of what rounding o to bfloat16 does.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

barrier = getattr(gl, "barrier", None) or gl.thread_barrier  # its name in Triton 3.7, and in 3.6
EXPONENT = gl.constexpr(0x7F800000)  # the bits of a float32 that are its exponent
LARGEST = gl.constexpr(253 << 23)  # of a unit whose inverse is a float32, too
INVERSE = gl.constexpr(254 << 23)


@gluon.jit
def unit_of(most):
    """The largest power of two up to `most`, at least 0, and one over it."""
    bits = gl.minimum(most.to(gl.int32, bitcast=True) & EXPONENT, LARGEST)
    return bits.to(gl.float32, bitcast=True), (INVERSE - bits).to(gl.float32, bitcast=True)


@gluon.jit
def store_part(parts, s_half, at, inside, ROWS: gl.constexpr):
    """Stores rows of a part, in shared memory as float16, to `parts + at`.

    at, inside: of rows; the latter, whether they are stored. ROWS: a layout in which a thread has 8
    neighbours, 16 bytes. From the registers of a product it would be 4.
    """
    columns = gl.arange(0, s_half.shape[1], gl.SliceLayout(0, ROWS))[None, :]
    gl.store(parts + at[:, None] + columns, s_half.load(ROWS), inside[:, None])
