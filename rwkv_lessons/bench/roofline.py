"""The least time an operation can take on a card, and how near a measurement comes."""


def floor_seconds(least, dtype, ceilings):
    """The slower of moving the fewest bytes and doing the arithmetic of the definition.

    No version moves fewer bytes; one that rearranges the sums may do with less arithmetic.

    Args:
        least: `Work` of the operation.
        dtype: "float32" counts arithmetic at the rate of ordinary multiply-adds, the 2-byte types
            at that of the tensor cores.
        ceilings: of the card, from ceilings.py.
    """
    unit = "fp32_flops_per_s" if dtype == "float32" else "bf16_flops_per_s"
    return max(least.bytes / ceilings["copy_bytes_per_s"], least.flops / ceilings[unit])


def rates(least, dtype, ms, ceilings=None):
    """Achieved GB/s and TFLOP/s, and the share of what the card allows: floor / time."""
    seconds = ms / 1e3
    speed = {"gb_per_s": least.bytes / seconds / 1e9, "tflop_per_s": least.flops / seconds / 1e12}
    if ceilings:
        speed["roofline_share"] = floor_seconds(least, dtype, ceilings) / seconds
    return speed
