"""Sums of parts, of what several programs have a part in: of large heads' o and gradients.

torch's sum rounds in a kernel of its own; here one kernel reads all parts, in float32, and writes
their sum in 16 bits.
"""

import triton
import triton.language as tl

from ...runtime.compile_triton import assembled
from ...runtime.launch_triton import launch

UNIT = 64  # elements, of which all results have a multiple
BLOCK = 32  # units, of a program


@assembled
@triton.jit(do_not_specialize=["units"])
def sum_parts_kernel(parts, result, units, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """parts: one after another, of `units` · 64 elements each, and so is the result."""
    n = units.to(tl.int64) * 64
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    b_sum = tl.zeros([BLOCK], tl.float32)
    for part in tl.static_range(PARTS):
        b_sum += tl.load(parts + part * n + at, at < n, 0.0)
    tl.store(result + at, b_sum.to(result.dtype.element_ty), at < n)


def sum_parts(run, parts, result):
    """Launches it; run: `Launches`."""
    units = result.numel() // UNIT
    run(
        launch, sum_parts_kernel, -(-units // BLOCK), 4, (parts, result), (units,),
        (len(parts), BLOCK * UNIT),
    )  # fmt: skip
