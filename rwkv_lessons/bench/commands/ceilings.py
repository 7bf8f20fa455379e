"""The most this GPU can do, bytes and operations of each kind a second, and how long a load takes.

copy_bytes_per_s: a device-to-device copy by torch of a tensor that no cache holds, bytes read plus
bytes written. fp32_flops_per_s: a numba kernel of independent fused multiply-adds in registers.
bf16_flops_per_s: torch's product of two 8192 × 8192 matrices of random numbers (on zeros a GPU
runs faster than on data). tf32_flops_per_s: the same of float32 matrices, of which tensor cores
take 11 bits.

memory_latency_ns, l2_latency_ns: how long a thread waits for a load, from memory and from L2, while
nothing else is on its way. Each load brings the address of the next, in a line of its own, in
random order: nothing can be fetched ahead, and finding the page of an address is part of it.
"""

import torch
from numba import cuda, float32, uint32

from rwkv_lessons.bench.timing import CLEAR_BYTES, device_times
from rwkv_lessons.runtime.launch_numba import as_array, stream

COPY_BYTES = 4 * 2**30
STEPS = 16384
CHAINS = 8  # independent sums: a multiply-add takes 4 cycles, and 4 warps share a scheduler anyway
BLOCK = 256
BLOCKS_PER_SM = 8  # 2048 threads: all an SM can hold
M = 8192
LINE = 128 // 4  # int32 numbers: no two loads of a chase share a sector, or a line of a cache
L2_LINES = 16384  # 2 MiB: in any L2, and 8 times the largest L1
MEMORY_LINES = CLEAR_BYTES // (4 * LINE)  # of which a chase meets few, none twice


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


@cuda.jit
def chase_kernel(following, steps, end):
    """One thread: from element 0 of `following`, int32, `steps` times to the one that it names."""
    place = uint32(0)  # a signed index would be asked whether it counts from the end
    for _ in range(steps):
        place = uint32(following[place])
    end[0] = place


def ceilings(device):
    """Measures all of CEILING_NAMES and LATENCY_NAMES; returns name → number per second, or ns."""
    return {
        "copy_bytes_per_s": _copy(device),
        "fp32_flops_per_s": _fp32(device),
        "bf16_flops_per_s": _product(device, torch.bfloat16),
        "tf32_flops_per_s": _tf32(device),
        "memory_latency_ns": latency_ns(device, MEMORY_LINES),
        "l2_latency_ns": latency_ns(device, L2_LINES),
    }


def latency_ns(device, lines, steps=L2_LINES):
    """Nanoseconds of one load of a chase through an array.

    It is the difference of two chases, of `steps` and of twice as many loads: what a launch takes
    goes out. With as many lines as steps the second half is found in the cache where the first
    left it; with twice as many or more, no line is met twice.

    Args:
        lines: of 128 bytes, that the array has.
    """
    following = random_cycle(lines, device)
    end = torch.empty(1, dtype=torch.int32, device=device)
    launch, arrays = chase_kernel[1, 1, stream()], (as_array(following), as_array(end))
    once, twice = (
        _seconds(lambda n=n: launch(arrays[0], n, arrays[1]), device) for n in (steps, 2 * steps)
    )
    return 1e9 * (twice - once) / steps


def random_cycle(lines, device):
    """int32, [lines · LINE]: the first number of each line names another line's, in one cycle."""
    first = LINE * torch.randperm(lines, device=device)
    following = torch.zeros(lines * LINE, dtype=torch.int32, device=device)
    following[first] = first.roll(-1).int()
    return following


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
