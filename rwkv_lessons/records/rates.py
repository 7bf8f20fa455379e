"""The least time an operation can take on a GPU, and how near a measurement comes."""

FLOPS_OF = {"float32": "fp32_flops_per_s", "float16": "bf16_flops_per_s"}  # dtype → ceiling
FLOPS_OF["bfloat16"] = FLOPS_OF["float16"]  # tensor cores run both at the same rate


def floor_seconds(least, dtype, ceilings):
    """The slower of moving the fewest bytes and doing the arithmetic of the definition.

    No version moves fewer bytes; one that rearranges the sums may do with less arithmetic.

    Args:
        least: `Work` of the operation.
        dtype: "float32" counts arithmetic at the rate of ordinary multiply-adds, the 2-byte types
            at that of the tensor cores.
        ceilings: of the GPU, from its record of that name.
    """
    return max(both_seconds(least, ceilings["copy_bytes_per_s"], ceilings[FLOPS_OF[dtype]]))


def both_seconds(least, bytes_per_s, flops_per_s):
    """What the bytes alone and what the arithmetic alone would take."""
    return least.bytes / bytes_per_s, least.flops / flops_per_s


def rates(least, dtype, ms, ceilings=None):
    """Achieved GB/s and TFLOP/s, and the share of what the GPU allows: floor / time."""
    seconds = ms / 1e3
    speed = {"gb_per_s": least.bytes / seconds / 1e9, "tflop_per_s": least.flops / seconds / 1e12}
    if ceilings:
        speed["roofline_share"] = floor_seconds(least, dtype, ceilings) / seconds
    return speed
