"""The least time an operation can take on a GPU, and how near a measurement comes.

What bounds the arithmetic of a kernel is the unit that does it. Ordinary multiply-adds are float32
whatever the inputs are. Tensor cores multiply matrices, in 16 bits or in TF32; a product that is to
be right to float32 costs them three of TF32.
"""

from rwkv_lessons.operations.work import MULTIPLY_ADDS, TENSOR_CORES

CEILING_NAMES = "copy_bytes_per_s", "fp32_flops_per_s", "bf16_flops_per_s", "tf32_flops_per_s"
LATENCY_NAMES = "memory_latency_ns", "l2_latency_ns"  # in the same record, not in older ones
TF32_FOR_FLOAT32 = 3  # products


def unit_of(dtype):
    """What most kernels of a type compute with: tensor cores, in 16 bits."""
    return MULTIPLY_ADDS if dtype == "float32" else TENSOR_CORES


def flops_per_second(ceilings, dtype, unit=None):
    """The most operations a second of a `unit` on inputs of `dtype`.

    Where nobody measured TF32, half of the rate of bfloat16, as in NVIDIA's data sheets.

    Args:
        ceilings: of the GPU, from its record of that name.
        dtype: "float32", "float16" or "bfloat16"; tensor cores run both at the same rate.
        unit: MULTIPLY_ADDS or TENSOR_CORES; by default `unit_of(dtype)`.
    """
    if (unit or unit_of(dtype)) == MULTIPLY_ADDS:
        return ceilings["fp32_flops_per_s"]
    if dtype != "float32":
        return ceilings["bf16_flops_per_s"]
    tf32 = ceilings.get("tf32_flops_per_s") or ceilings["bf16_flops_per_s"] / 2
    return tf32 / TF32_FOR_FLOAT32


def floor_seconds(least, dtype, ceilings, unit=None):
    """The slower of moving the fewest bytes and doing the arithmetic of the definition.

    No version moves fewer bytes; one that rearranges the sums may do with less arithmetic.

    Args:
        least: `Work` of the operation.
        dtype, unit, ceilings: as for `flops_per_second`.
    """
    flops = flops_per_second(ceilings, dtype, unit)
    return max(both_seconds(least, ceilings["copy_bytes_per_s"], flops))


def both_seconds(least, bytes_per_s, flops_per_s):
    """What the bytes alone and what the arithmetic alone would take."""
    return least.bytes / bytes_per_s, least.flops / flops_per_s


def rates(least, dtype, ms, ceilings=None, unit=None):
    """Achieved GB/s and TFLOP/s, and the share of what the GPU allows: floor / time."""
    seconds = ms / 1e3
    speed = {"gb_per_s": least.bytes / seconds / 1e9, "tflop_per_s": least.flops / seconds / 1e12}
    if ceilings:
        speed["roofline_share"] = floor_seconds(least, dtype, ceilings, unit) / seconds
    return speed
