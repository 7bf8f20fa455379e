"""The most this GPU can do: bytes a second, and operations a second of each kind.

copy_bytes_per_s: a device-to-device copy by torch of a tensor that no cache holds, bytes read plus
bytes written. fp32_flops_per_s: a numba kernel of independent fused multiply-adds in registers.
bf16_flops_per_s: torch's product of two 8192 × 8192 matrices of random numbers (on zeros a GPU
runs faster than on data). tf32_flops_per_s: the same of float32 matrices, of which tensor cores
take 11 bits.
"""

import torch
from numba import cuda, float32

from rwkv_lessons.bench.timing import device_times
from rwkv_lessons.runtime.launch_numba import as_array, stream

COPY_BYTES = 4 * 2**30
STEPS = 16384
CHAINS = 8  # independent sums: a multiply-add takes 4 cycles, and 4 warps share a scheduler anyway
BLOCK = 256
BLOCKS_PER_SM = 8  # 2048 threads: all an SM can hold
M = 8192


@cuda.jit
def fma_kernel(x, y):
    """STEPS · CHAINS multiply-adds per thread; x holds a factor and a term."""
    a, b = x[0], x[1]
    s0, s1, s2, s3 = float32(0), float32(1), float32(2), float32(3)
    s4, s5, s6, s7 = float32(4), float32(5), float32(6), float32(7)
    step = 0  # a `while`: the compiler unrolls it, 256 multiply-adds to a branch
    while step < STEPS:
        s0, s1, s2, s3 = s0 * a + b, s1 * a + b, s2 * a + b, s3 * a + b
        s4, s5, s6, s7 = s4 * a + b, s5 * a + b, s6 * a + b, s7 * a + b
        step += 1
    y[cuda.grid(1)] = s0 + s1 + s2 + s3 + s4 + s5 + s6 + s7


def ceilings(device):
    """Measures all of CEILING_NAMES; returns name → number per second."""
    return {
        "copy_bytes_per_s": _copy(device),
        "fp32_flops_per_s": _fp32(device),
        "bf16_flops_per_s": _product(device, torch.bfloat16),
        "tf32_flops_per_s": _tf32(device),
    }


def _copy(device):
    x = torch.randint(256, (COPY_BYTES,), dtype=torch.uint8, device=device)
    y = torch.empty_like(x)
    return 2 * COPY_BYTES / _seconds(lambda: y.copy_(x), device)


def _fp32(device):
    blocks = torch.cuda.get_device_properties(device).multi_processor_count * BLOCKS_PER_SM
    x, y = torch.rand(2, device=device), torch.empty(blocks * BLOCK, device=device)
    launch, arrays = fma_kernel[blocks, BLOCK, stream()], [as_array(x), as_array(y)]
    return 2 * CHAINS * STEPS * blocks * BLOCK / _seconds(lambda: launch(*arrays), device)


def _tf32(device):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        return _product(device, torch.float32)
    finally:
        torch.set_float32_matmul_precision(before)


def _product(device, dtype):
    a, b = (torch.randn(M, M, dtype=dtype, device=device) for _ in range(2))
    return 2 * M**3 / _seconds(lambda: a @ b, device)


def _seconds(f, device):
    return device_times(f, device).median_ms / 1e3
