"""Time-x as one numba kernel: a tile of outputs and batch rows stays in registers.

    o[b, c, t] = eps + Σ_{u ≤ t} w[c, T-1-(t-u)] k[b, c, u]

Batch rows share w, and neighbouring t share k, shifted by one: a thread that owns OUTPUTS
neighbouring t of ROWS batch rows reads, for 4 tokens u, 4 numbers of each of its rows and 12 of w.
At 4 × 8 those are 7 reads of 16 bytes for 128 multiply-adds. 8 × 8 would be fewer
reads, and half as many warps in the registers of an SM: on an H200 a sixth slower.

Work: token t is a sum of t + 1 products, so a block of late tokens has many times the work of a
block of early ones. Each block has two tiles of tokens, the i-th from the start and the i-th from
the end, one after the other: every block then reads as many tokens as every other. Within the last
chunk of a tile, warps stop at their own last token; beyond t stand zeros of w.

Memory: w and k come in chunks of TOKENS through shared memory, the next one on its way while this
one is computed. A tile reads all of k before it: k comes T / (2·TILE) times, from L2 mostly.
What bounds it: arithmetic, B·C·T²/2 multiply-adds.
"""

from functools import cache

import torch
from numba import cuda, float32, int32

from ...runtime import devices
from ...runtime.bounded import remembered
from ...runtime.launch_numba import ceil_div, compiled, launch, load4, types
from ...runtime.operators import call
from ..arguments import check_arguments
from ..operators import define
from .backward import correlate
from .in_memory import IN_MEMORY

OUTPUTS = 8  # neighbouring t of a thread; with 4 rows, 32 registers for the sums
MAX_ROWS = 4
LANES = 8  # threads of a warp along t: 64 t, so that few products in a last chunk are with zeros
ROW_LANES = 4  # and along the batch
WARPS = 2
TILE = WARPS * LANES * OUTPUTS  # tokens t of a block, 128
TOKENS = 64  # u of a chunk


@cache
def build(dtype, ROWS, REVERSED=False):
    """The kernel for one dtype, its argument types, and threads of a block.

    Args:
        dtype: of k and o, a key of `IN_MEMORY`; w is float32.
        ROWS: batch rows of a thread, 1 to MAX_ROWS; a block has ROW_LANES times as many.
        REVERSED: whether time runs backwards in k and o: the gradient of k is such a sum.
    """
    memory, widen, narrow = IN_MEMORY[dtype]
    BLOCK_ROWS, THREADS = ROWS * ROW_LANES, WARPS * LANES * ROW_LANES
    STRIDE = TOKENS + 4  # of s_k: neighbouring rows are then 4 banks apart
    K_COLUMNS, W_COLUMNS = BLOCK_ROWS * TOKENS // THREADS, ceil_div(TILE + TOKENS, THREADS)
    K_ROWS = THREADS // TOKENS  # that all threads fetch at once
    WARP_TOKENS, W_SIZE, WINDOW = LANES * OUTPUTS, TILE + TOKENS, OUTPUTS + 4

    @cuda.jit(device=True, inline="always")
    def fetch(next_k, next_w, k, w, b0, rows, c, t0, u0, C, T):
        """One thread's share of k[b0 …, c, u0 …] and of the w between u0 … and t0 …, or zeros."""
        u, row = int32(u0) + cuda.threadIdx.x % TOKENS, cuda.threadIdx.x // TOKENS
        at = ((b0 + row) * C + c) * T + (T - 1 - u if REVERSED else u)
        for n in range(K_COLUMNS):
            next_k[n] = float32(0)
            if row + n * K_ROWS < rows and u < T:
                next_k[n] = widen(k[at + n * K_ROWS * C * T])
        for n in range(W_COLUMNS):
            i = T - 1 - (t0 - u0) + cuda.threadIdx.x + n * THREADS - TILE
            next_w[n] = float32(0)
            if 0 <= i and i < T:
                next_w[n] = w[c * T + i]

    @cuda.jit(device=True, inline="always")
    def put(s_k, s_w, next_k, next_w):
        u, row = cuda.threadIdx.x % TOKENS, cuda.threadIdx.x // TOKENS
        for n in range(K_COLUMNS):
            s_k[row + n * K_ROWS, u] = next_k[n]
        for n in range(W_COLUMNS):
            i = cuda.threadIdx.x + n * THREADS
            if i < W_SIZE:
                s_w[i] = next_w[n]

    @cuda.jit
    def kernel(w, k, o, eps, B, C, T):
        groups, tiles = (B + BLOCK_ROWS - 1) // BLOCK_ROWS, (T + TILE - 1) // TILE
        pair = cuda.blockIdx.x // (C * groups)
        c, b0 = cuda.blockIdx.x // groups % C, cuda.blockIdx.x % groups * BLOCK_ROWS
        rows = int32(min(B - b0, BLOCK_ROWS))
        warp, lane = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
        t_lane = int32((warp * LANES + lane // ROW_LANES) * OUTPUTS)
        row_lane = int32(lane % ROW_LANES)

        s_k = cuda.shared.array((BLOCK_ROWS, STRIDE), float32, alignment=16)
        s_w = cuda.shared.array(W_SIZE, float32, alignment=16)
        next_k = cuda.local.array(K_COLUMNS, float32)
        next_w = cuda.local.array(W_COLUMNS, float32)
        sums = cuda.local.array((ROWS, OUTPUTS), float32)
        w_i = cuda.local.array(WINDOW, float32)
        k_i = cuda.local.array(4, float32)

        for half in range(2):
            tile = tiles - 1 - pair if half == 0 else pair
            if half == 1 and 2 * pair == tiles - 1:
                break  # the tile in the middle is its own partner
            t0 = tile * TILE
            last = t0 + (warp + 1) * WARP_TOKENS - 1  # token of this warp
            for r in range(ROWS):
                for n in range(OUTPUTS):
                    sums[r, n] = float32(eps)
            fetch(next_k, next_w, k, w, b0, rows, c, t0, 0, C, T)
            end = min(t0 + TILE, T)
            for u0 in range(0, end, TOKENS):
                put(s_k, s_w, next_k, next_w)
                cuda.syncthreads()
                if u0 + TOKENS < end:
                    fetch(next_k, next_w, k, w, b0, rows, c, t0, u0 + TOKENS, C, T)
                if u0 <= last:
                    for u in range(0, int32(min(end - u0, TOKENS)), 4):
                        # s_w[TILE + (u - u0) - (t - t0)] is the weight of k[u] in o[t].
                        first = TILE - t_lane + u - OUTPUTS
                        for n in range(0, WINDOW, 4):
                            x0, x1, x2, x3 = load4(s_w, (first + n,))
                            w_i[n], w_i[n + 1], w_i[n + 2], w_i[n + 3] = x0, x1, x2, x3
                        for r in range(ROWS):
                            x0, x1, x2, x3 = load4(s_k, (r * ROW_LANES + row_lane, u))
                            k_i[0], k_i[1], k_i[2], k_i[3] = x0, x1, x2, x3
                            for m in range(4):
                                for n in range(OUTPUTS):
                                    sums[r, n] += w_i[OUTPUTS + m - n] * k_i[m]
                cuda.syncthreads()

            for r in range(ROWS):
                b = b0 + r * ROW_LANES + row_lane
                for n in range(OUTPUTS):
                    t = t0 + t_lane + n
                    if r * ROW_LANES + row_lane < rows and t < T:
                        at = T - 1 - t if REVERSED else t
                        o[(b * C + c) * T + at] = narrow(sums[r, n])

    number = types.int64
    weights, array = types.CPointer(types.float32), types.CPointer(memory)
    return kernel, (weights, array, array, types.float64, number, number, number), THREADS


def rows_for(B):
    """Batch rows of a thread: as few as hold B, and at most MAX_ROWS."""
    rows = 1
    while rows < MAX_ROWS and rows * ROW_LANES < B:
        rows *= 2
    return rows


@remembered
def compiled_kernel(dtype, rows, backwards, device):
    """The compiled kernel, and its block."""
    kernel, signature, threads = build(dtype, rows, backwards)
    return compiled(kernel, signature, threads, devices.gpu_of(device).capability), threads


def blocks_for(B, C, T, rows):
    """How many blocks: groups of batch rows, channels, pairs of tiles."""
    return ceil_div(B, rows * ROW_LANES) * C * ceil_div(ceil_div(T, TILE), 2)


def convolve(w, k, eps, backwards):
    """o of `timex`, with time reversed in k and in o where it runs backwards."""
    w = w.float()
    B, C, T = k.shape
    o, rows = torch.empty_like(k), rows_for(B)
    kernel, threads = compiled_kernel(k.dtype, rows, backwards, k.device)
    addresses = (x.data_ptr() for x in (w, k, o))
    launch(kernel, blocks_for(B, C, T, rows), threads, *addresses, eps, B, C, T)
    return o


OPERATOR = define("cuda", convolve, correlate)


def timex_cuda(w, k, eps=0.0):
    """Same arguments and results as `timex`, on an NVIDIA GPU, gradients included.

    Args:
        w: weights, `[C, T]`, float32, float16 or bfloat16.
        k: `[B, C, T]`, any of these dtypes.
        eps: a number, added to every output.

    Returns:
        o `[B, C, T]` in k's dtype. Sums are float32.

    Raises:
        TypeError, ValueError: an argument has the wrong dtype, shape or device.
    """
    check_arguments(w, k, eps, dtypes=tuple(IN_MEMORY))
    if not k.is_cuda:
        raise ValueError(f"k must be on a CUDA device, got {k.device}; timex works on any device")
    return call(OPERATOR, w, k, float(eps))
