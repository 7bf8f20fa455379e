"""The gradient of w as one numba kernel: sums along diagonals, over all batch rows.

    dw[c, T-1-d] = Σ_b Σ_{t ≥ d} do[b, c, t] k[b, c, t-d]

A thread owns DISTANCES neighbouring d, and takes 16 tokens t of a batch row at a time: 16 numbers
of do and a window of 32 of k, 12 reads of 16 bytes for 256 multiply-adds. Batch rows are spread
over the lanes of a block, whose sums are added at the end through shared memory, in a fixed order:
no atomics, and no dw for each batch row in memory.

Work: distance d is met by T - d pairs of tokens. Each block has two tiles of distances, the i-th
from the start and the i-th from the end, as in forward.py. What bounds it: arithmetic, as there.
"""

from functools import cache

import torch
from numba import cuda, float32, int32

from ...runtime import devices
from ...runtime.bounded import remembered
from ...runtime.launch_numba import ceil_div, compiled, launch, load4, types
from .in_memory import IN_MEMORY

DISTANCES = 16  # of a thread
STEP = 16  # tokens t between reads
THREADS = 64
TOKENS = 64  # t of a chunk


@cache
def build(dtype, ROW_LANES):
    """The kernel for one dtype, its argument types, and the distances of a block.

    Args:
        dtype: of k and do, a key of `IN_MEMORY`; dw is float32.
        ROW_LANES: threads along the batch: 1, 2 or 4; the others lie along the distances.
    """
    memory, widen, _ = IN_MEMORY[dtype]
    TILE = DISTANCES * (THREADS // ROW_LANES)
    WINDOW = TILE + TOKENS  # tokens of k that meet a chunk of do
    K_I = DISTANCES + STEP  # of these, a thread reads
    DO_STRIDE, K_STRIDE = TOKENS + 4, WINDOW + 4  # rows are then 4 banks apart
    DO_ROWS = THREADS // TOKENS  # that all threads fetch at once
    DO_COLUMNS, K_COLUMNS = ROW_LANES // DO_ROWS, WINDOW // THREADS

    @cuda.jit(device=True, inline="always")
    def fetch(next_do, next_k, do, k, b0, c, t0, d0, B, C, T):
        """One thread's share of do[b0 …, c, t0 …] and of the k that it meets, or zeros."""
        t, row = int32(t0) + cuda.threadIdx.x % TOKENS, cuda.threadIdx.x // TOKENS
        at = ((b0 + row) * C + c) * T + t
        for n in range(DO_COLUMNS):
            next_do[n] = float32(0)
            if row + n * DO_ROWS < B - b0 and t < T:
                next_do[n] = widen(do[at + n * DO_ROWS * C * T])
        for r in range(ROW_LANES):
            at = ((b0 + r) * C + c) * T
            for n in range(K_COLUMNS):
                u = t0 - d0 - TILE + cuda.threadIdx.x + n * THREADS
                next_k[r, n] = float32(0)
                if r < B - b0 and 0 <= u and u < T:
                    next_k[r, n] = widen(k[at + u])

    @cuda.jit(device=True, inline="always")
    def put(s_do, s_k, next_do, next_k):
        t, row = cuda.threadIdx.x % TOKENS, cuda.threadIdx.x // TOKENS
        for n in range(DO_COLUMNS):
            s_do[row + n * DO_ROWS, t] = next_do[n]
        for r in range(ROW_LANES):
            for n in range(K_COLUMNS):
                s_k[r, cuda.threadIdx.x + n * THREADS] = next_k[r, n]

    @cuda.jit
    def kernel(do, k, dw, B, C, T):
        tiles = (T + TILE - 1) // TILE
        pair, c = cuda.blockIdx.x // C, cuda.blockIdx.x % C
        x = cuda.threadIdx.x
        d_lane, row_lane = int32(x // ROW_LANES * DISTANCES), int32(x % ROW_LANES)

        s_do = cuda.shared.array((ROW_LANES, DO_STRIDE), float32, alignment=16)
        s_k = cuda.shared.array((ROW_LANES, K_STRIDE), float32, alignment=16)
        s_sums = cuda.shared.array((ROW_LANES, TILE), float32, alignment=16)
        next_do = cuda.local.array(DO_COLUMNS, float32)
        next_k = cuda.local.array((ROW_LANES, K_COLUMNS), float32)
        sums = cuda.local.array(DISTANCES, float32)
        do_i = cuda.local.array(STEP, float32)
        k_i = cuda.local.array(K_I, float32)

        for half in range(2):
            tile = pair if half == 0 else tiles - 1 - pair
            if half == 1 and 2 * pair == tiles - 1:
                break  # the tile in the middle is its own partner
            d0 = tile * TILE
            chunks = (T - d0 + TOKENS - 1) // TOKENS
            steps = chunks * ((B + ROW_LANES - 1) // ROW_LANES)
            for n in range(DISTANCES):
                sums[n] = float32(0)
            fetch(next_do, next_k, do, k, 0, c, d0, d0, B, C, T)
            for step in range(steps):
                put(s_do, s_k, next_do, next_k)
                cuda.syncthreads()
                tokens = int32(min(T - (d0 + step % chunks * TOKENS), TOKENS))
                if step + 1 < steps:
                    b0, t0 = (step + 1) // chunks * ROW_LANES, d0 + (step + 1) % chunks * TOKENS
                    fetch(next_do, next_k, do, k, b0, c, t0, d0, B, C, T)
                for t in range(0, tokens, STEP):
                    # s_k[TILE + (t - t0) - (d - d0)] is the k that do[t] meets at distance d.
                    first = TILE + t - d_lane - DISTANCES
                    for n in range(0, STEP, 4):
                        x0, x1, x2, x3 = load4(s_do, (row_lane, t + n))
                        do_i[n], do_i[n + 1], do_i[n + 2], do_i[n + 3] = x0, x1, x2, x3
                    for n in range(0, K_I, 4):
                        x0, x1, x2, x3 = load4(s_k, (row_lane, first + n))
                        k_i[n], k_i[n + 1], k_i[n + 2], k_i[n + 3] = x0, x1, x2, x3
                    for m in range(STEP):
                        for n in range(DISTANCES):
                            sums[n] += do_i[m] * k_i[DISTANCES + m - n]
                cuda.syncthreads()

            for n in range(DISTANCES):
                s_sums[row_lane, d_lane + n] = sums[n]
            cuda.syncthreads()
            for i in range(x, TILE, THREADS):
                if d0 + i < T:
                    total = float32(0)
                    for r in range(ROW_LANES):
                        total += s_sums[r, i]
                    dw[c * T + T - 1 - (d0 + i)] = total

    number, array = types.int64, types.CPointer(memory)
    return kernel, (array, array, types.CPointer(types.float32), number, number, number), TILE


def row_lanes_for(B):
    """Threads along the batch: as few as hold B, and at most 4."""
    return min(4, 1 << (B - 1).bit_length())


@remembered
def compiled_kernel(dtype, row_lanes, device):
    """The compiled kernel, and the distances of a block."""
    kernel, signature, tile = build(dtype, row_lanes)
    return compiled(kernel, signature, THREADS, devices.gpu_of(device).capability), tile


def blocks_for(C, T, tile):
    """How many blocks: channels, pairs of tiles."""
    return C * ceil_div(ceil_div(T, tile), 2)


def correlate(do, k):
    """dw `[C, T]`, float32, of `timex`."""
    B, C, T = k.shape
    do = do.to(k.dtype)
    dw = torch.empty(C, T, dtype=torch.float32, device=k.device)
    kernel, tile = compiled_kernel(k.dtype, row_lanes_for(B), k.device)
    addresses = (x.data_ptr() for x in (do, k, dw))
    launch(kernel, blocks_for(C, T, tile), THREADS, *addresses, B, C, T)
    return dw
