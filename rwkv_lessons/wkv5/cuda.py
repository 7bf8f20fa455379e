"""WKV-5 as one numba kernel: the state stays in registers, each thread holding a tile of it.

A thread that owns a column of 64 keys reads 64 of r and of k for every token, 32 times 16 bytes
of shared memory for its 192 multiplications and additions. A thread that owns a tile of 8 keys ×
8 values does as many with 6 such reads: 8 of r, 8 of k, 8 of v. The price is that o becomes a sum
over the threads that share a value, passed through shared memory once for every TOKENS tokens.

Memory: r, k, v are read once and o is written once, 4·B·T·H·N elements. At N = 64 and float32
that takes a good half of the time of the arithmetic, 3 instructions per element of the state and
token, so arithmetic is the floor. Around the 192 instructions of a tile stand 24 for the bonus,
some 30 for shared memory and the loop, and some 65 to fetch the next tokens and to add up o: three
fifths of what is issued works on the state. The next tokens are on their way while these are
computed. Larger tiles spill; smaller ones read more, but give a head more threads, which pays
where heads are few.
"""

import math
from functools import cache

import torch
from numba import cuda, float32

from ..runtime import devices
from ..runtime.bounded import remembered
from ..runtime.launch_numba import (
    bfloat16_to_float32,
    ceil_div,
    compiled,
    float32_to_bfloat16,
    launch,
    load4,
    store4,
    types,
)
from ..runtime.operators import call
from .arguments import LARGEST, check_arguments
from .cuda_backward import backward, keep_inputs

KEYS, VALUES = 8, 8  # the tile of a thread: 64 registers for the state, some 130 around it
STATE = 64 * 64  # elements of the state in a block: 64 threads, and room for four such blocks
TOKENS = 8  # fetched together, while the 8 before them are computed
SHARED_BYTES = 48 * 1024  # what a block may have without asking for more

IN_MEMORY = {
    torch.float32: (types.float32, float32, float32),
    torch.float16: (types.float16, float32, types.float16),
    torch.bfloat16: (types.uint16, bfloat16_to_float32, float32_to_bfloat16),
}


@cache
def build(K, V, dtype, VALUES, KEYS=KEYS, TOKENS=TOKENS):
    """The kernel for one head size and dtype, its argument types, and how it is launched.

    Args:
        K, V: keys and values of a head.
        dtype: of r, k, v and o, a key of `IN_MEMORY`.
        VALUES, KEYS: the tile of a thread, multiples of 4.
        TOKENS: fetched together; fewer where shared memory is short.

    Returns:
        kernel, numba types of its arguments, threads of a block, blocks per head (each has some of
        the values).
    """
    memory, widen, narrow = IN_MEMORY[dtype]
    KEY_GROUPS = ceil_div(K, KEYS)
    fitting = STATE // (KEYS * VALUES * KEY_GROUPS)
    VALUE_GROUPS = min(ceil_div(V, VALUES), max(fitting, 1))
    THREADS = KEY_GROUPS * VALUE_GROUPS
    KP, VP = KEY_GROUPS * KEYS, VALUE_GROUPS * VALUES  # keys and values of a block, padded
    BLOCKS = ceil_div(V, VP)
    while TOKENS > 1 and 4 * TOKENS * (2 * KP + VP + KEY_GROUPS * VP) > SHARED_BYTES:
        TOKENS //= 2
    KEY_COLUMNS, VALUE_COLUMNS = ceil_div(KP, THREADS), ceil_div(VP, THREADS)

    @cuda.jit(device=True, inline="always")
    def fetch(registers, source, start, stride, t0, T, size):
        """One thread's share of tokens t0 …; past either end it reads the last one again."""
        for t in range(TOKENS):
            row = start + min(t0 + t, T - 1) * stride
            for c in range(registers.shape[1]):
                registers[t, c] = widen(source[row + min(cuda.threadIdx.x + c * THREADS, size - 1)])

    @cuda.jit(device=True, inline="always")
    def put(s_x, registers, size):
        """Passes a thread's share on to the block, with zeros for the padding."""
        for c in range(registers.shape[1]):
            i = cuda.threadIdx.x + c * THREADS
            if i < s_x.shape[1]:
                for t in range(TOKENS):
                    s_x[t, i] = registers[t, c] if i < size else float32(0)

    @cuda.jit
    def kernel(r, k, v, w, u, s0, has_s0, o, s1, T, H):
        head, j0 = cuda.blockIdx.x // BLOCKS, cuda.blockIdx.x % BLOCKS * VP
        b, h = head // H, head % H
        x = cuda.threadIdx.x
        i0, group = x // VALUE_GROUPS * KEYS, x // VALUE_GROUPS
        start_k, start_v = (b * T * H + h) * K, (b * T * H + h) * V + j0

        s_r = cuda.shared.array((TOKENS, KP), float32, alignment=16)
        s_k = cuda.shared.array((TOKENS, KP), float32, alignment=16)
        s_v = cuda.shared.array((TOKENS, VP), float32, alignment=16)
        s_o = cuda.shared.array((TOKENS, KEY_GROUPS, VP), float32, alignment=16)
        next_r = cuda.local.array((TOKENS, KEY_COLUMNS), float32)
        next_k = cuda.local.array((TOKENS, KEY_COLUMNS), float32)
        next_v = cuda.local.array((TOKENS, VALUE_COLUMNS), float32)

        s = cuda.local.array((KEYS, VALUES), float32)
        decay = cuda.local.array(KEYS, float32)
        bonus = cuda.local.array(KEYS, float32)
        r_i = cuda.local.array(KEYS, float32)
        k_i = cuda.local.array(KEYS, float32)
        v_j = cuda.local.array(VALUES, float32)
        o_j = cuda.local.array(VALUES, float32)
        # Four values here, four VP / 2 further on: neighbours in a warp then differ in banks.
        for m in range(KEYS):
            i = i0 + m
            decay[m] = math.exp(w[h * K + i]) if i < K else float32(0)
            bonus[m] = u[h * K + i] if i < K else float32(0)
            for n in range(VALUES):
                j = (n // 4 * VALUE_GROUPS + x % VALUE_GROUPS) * 4 + n % 4
                s[m, n] = float32(0)
                if has_s0 and i < K and j0 + j < V:
                    s[m, n] = s0[(head * K + i) * V + j0 + j]

        fetch(next_r, r, start_k, H * K, 0, T, K)
        fetch(next_k, k, start_k, H * K, 0, T, K)
        fetch(next_v, v, start_v, H * V, 0, T, V - j0)
        for t0 in range(0, T, TOKENS):
            put(s_r, next_r, K)
            put(s_k, next_k, K)
            put(s_v, next_v, V - j0)
            cuda.syncthreads()
            fetch(next_r, r, start_k, H * K, t0 + TOKENS, T, K)
            fetch(next_k, k, start_k, H * K, t0 + TOKENS, T, K)
            fetch(next_v, v, start_v, H * V, t0 + TOKENS, T, V - j0)

            for t in range(min(TOKENS, T - t0)):
                for m in range(0, KEYS, 4):
                    r_i[m], r_i[m + 1], r_i[m + 2], r_i[m + 3] = load4(s_r, (t, i0 + m))
                    k_i[m], k_i[m + 1], k_i[m + 2], k_i[m + 3] = load4(s_k, (t, i0 + m))
                for n in range(0, VALUES, 4):
                    j = (n // 4 * VALUE_GROUPS + x % VALUE_GROUPS) * 4
                    v_j[n], v_j[n + 1], v_j[n + 2], v_j[n + 3] = load4(s_v, (t, j))
                ruk = float32(0)
                for m in range(KEYS):
                    ruk += r_i[m] * bonus[m] * k_i[m]
                for n in range(VALUES):
                    o_j[n] = ruk * v_j[n]
                for m in range(KEYS):
                    for n in range(VALUES):
                        o_j[n] += r_i[m] * s[m, n]
                        s[m, n] = decay[m] * s[m, n] + k_i[m] * v_j[n]
                for n in range(0, VALUES, 4):
                    j = (n // 4 * VALUE_GROUPS + x % VALUE_GROUPS) * 4
                    store4(s_o, (t, group, j), (o_j[n], o_j[n + 1], o_j[n + 2], o_j[n + 3]))
            cuda.syncthreads()

            for c in range(VALUE_COLUMNS):
                j = x + c * THREADS
                if j < VP and j0 + j < V:
                    for t in range(TOKENS):
                        if t0 + t < T:
                            total = float32(0)
                            for g in range(KEY_GROUPS):
                                total += s_o[t, g, j]
                            o[start_v + (t0 + t) * H * V + j] = narrow(total)

        for m in range(KEYS):
            for n in range(VALUES):
                j = (n // 4 * VALUE_GROUPS + x % VALUE_GROUPS) * 4 + n % 4
                if i0 + m < K and j0 + j < V:
                    s1[(head * K + i0 + m) * V + j0 + j] = s[m, n]

    array, state = types.CPointer(memory), types.CPointer(types.float32)
    number = types.int64
    signature = (array, array, array, state, state, state, number, array, state, number, number)
    return kernel, signature, THREADS, BLOCKS


@remembered
def compiled_kernel(BH, K, V, dtype, device):
    """The compiled kernel for a shape, its grid and its block."""
    gpu = devices.gpu_of(device)
    # Few heads leave SMs idle; half a tile then gives each head twice the threads.
    values = VALUES if BH > gpu.sms else VALUES // 2
    kernel, signature, threads, blocks = build(K, V, dtype, values)
    return compiled(kernel, signature, threads, gpu.capability), BH * blocks, threads


def forward(r, k, v, w, u, s0):
    if r.device.index != torch.cuda.current_device():
        with torch.cuda.device(r.device):
            return forward(r, k, v, w, u, s0)
    r, k, v = r.contiguous(), k.contiguous(), v.contiguous()
    w, u = w.float().contiguous(), u.float().contiguous()
    B, T, H, K = r.shape
    V = v.shape[-1]
    o = torch.empty_like(v)
    s1 = torch.empty(B, H, K, V, dtype=torch.float32, device=r.device)
    s0 = s1 if s0 is None else s0.float().contiguous()
    kernel, grid, block = compiled_kernel(B * H, K, V, r.dtype, r.device)
    inputs, outputs = (r, k, v, w, u, s0), (o, s1)
    addresses = [x.data_ptr() for x in inputs], [x.data_ptr() for x in outputs]
    launch(kernel, grid, block, *addresses[0], int(s0 is not s1), *addresses[1], T, H)
    return o, s1


def forward_shapes(r, k, v, w, u, s0):
    B, _, H, K = r.shape
    o = torch.empty_like(v, memory_format=torch.contiguous_format)
    return o, r.new_empty(B, H, K, v.shape[-1], dtype=torch.float32)


NAME = "rwkv_lessons::wkv5_forward"
torch.library.define(
    NAME, "(Tensor r, Tensor k, Tensor v, Tensor w, Tensor u, Tensor? s0) -> (Tensor, Tensor)"
)
torch.library.impl(NAME, "CUDA", forward)
torch.library.register_fake(NAME, forward_shapes)
torch.library.register_autograd(NAME, backward, setup_context=keep_inputs)


def wkv5_cuda(r, k, v, w, u, s0=None):
    """Same arguments and results as `wkv5`, on an NVIDIA GPU, gradients included.

    Args:
        r, k: receptance and key, `[B, T, H, K]`, float32, float16 or bfloat16; K up to 1024.
        v: value, `[B, T, H, V]`, of the same dtype; V up to 1024.
        w, u: log decay (at most 0, -inf too) and bonus, `[H, K]`, any of these dtypes.
        s0: state before the first token, `[B, H, K, V]` (keys × values); zeros if None.

    Returns:
        o `[B, T, H, V]` in r's dtype, and s1 `[B, H, K, V]` in float32. Sums are float32.

    Raises:
        TypeError, ValueError: an argument has the wrong dtype, shape or device.
    """
    tensors = (r, k, v, w, u) if s0 is None else (r, k, v, w, u, s0)
    _, _, _, K, V = check_arguments(*tensors, dtypes=tuple(IN_MEMORY))
    if not r.is_cuda:
        raise ValueError(f"r must be on a CUDA device, got {r.device}; wkv5 works on any device")
    for name, letter, size in (("r", "K", K), ("v", "V", V)):
        if size > LARGEST:
            raise ValueError(f"{name} must have {letter} ≤ {LARGEST}, got {letter} = {size}")
    return call(torch.ops.rwkv_lessons.wkv5_forward, r, k, v, w, u, s0)
