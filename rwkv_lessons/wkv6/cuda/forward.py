"""WKV-6 as numba kernels: the state stays in registers, each thread holding a tile of it.

The forward kernel is WKV-5's with one more row per token, the decay. When the block puts tokens
into shared memory, it multiplies r by the decays since the first of them and divides k by those;
the state then takes its decay once for eight tokens (tiles.py, which has the layout, too).
backward.py has the gradients.

What bounds it: arithmetic, 2 instructions per element of the state and token, and once more half of
that around them; device memory moves r, k, v, w and o once.
"""

import math
from functools import cache

import torch
from numba import cuda, float32, int32

from ...runtime import devices
from ...runtime.bounded import remembered
from ...runtime.launch_numba import ceil_div, compiled, launch, types
from ...runtime.operators import call
from ..options import LARGEST, takes_options
from .backward import backward, keep_inputs
from .instructions import exp2, row_at
from .tiles import (
    IN_MEMORY,
    LOG2E,
    TILE,
    Tiles,
    make_store_columns,
    threads_along,
    tile_for,
    unrolled,
)


@cache
def build(K, V, dtype, w_dtype, value_groups, **sizes):
    """The kernel for one head size and dtypes, its argument types, and how it is launched.

    Args:
        value_groups: threads along the values of a block; a block has all keys of a head.
        sizes: `tile` and `tokens` of `Tiles`.

    Returns:
        kernel, types, threads of a block, blocks per head (each has some of the values).
    """
    (memory, widen, narrow), (w_memory, widen_w, _) = IN_MEMORY[dtype], IN_MEMORY[w_dtype]
    KEYS, VALUES = sizes.get("tile", TILE)
    KEY_GROUPS = ceil_div(K, KEYS)
    tiles = Tiles(
        (K, V), KEY_GROUPS, value_groups, rows=(4, 1), shares=("values",), kept=(0, 0), **sizes
    )
    THREADS, KP, VP, KROW, VROW, TOKENS = tiles.sizes
    KEY_COLUMNS, VALUE_COLUMNS = tiles.columns
    column, is_column, make_fetch, _, is_strong, _, _ = tiles.keys
    fetch, fetch_w, fetch_v = make_fetch(widen), make_fetch(widen_w), tiles.values.fetch(widen)
    put = tiles.values.put
    key_at, value_at, load_keys, load_values, _, store_value_shares = tiles.tile
    _, _, add_bonus4, bonus_of_tokens, _, _ = tiles.sums
    store_columns = make_store_columns(narrow, V)
    QUADS = VP // 4  # threads add up, and write, four values of a token at once
    ROUNDS = ceil_div(TOKENS * QUADS, THREADS)
    BLOCKS, WHOLE = ceil_div(V, VP), K % KP == 0

    def make_token(STRONG):
        """The device function that takes S through a token, and finds shares of o.

        STRONG: S decays at each token; otherwise afterwards, by the whole group's decays.
        """

        @cuda.jit(device=True, forceinline=True)
        def token(s, shared, t):
            s_r, s_k, s_decay, s_v, s_o = shared
            r_i = cuda.local.array(KEYS, float32)
            k_i = cuda.local.array(KEYS, float32)
            decay = cuda.local.array(KEYS, float32)
            v_j = cuda.local.array(VALUES, float32)
            o_j = cuda.local.array(VALUES, float32)
            load_keys(r_i, s_r, t)
            load_keys(k_i, s_k, t)
            load_values(v_j, s_v, t)
            if STRONG:
                load_keys(decay, s_decay, t)
            for n in range(VALUES):
                o_j[n] = float32(0)
            for m in range(KEYS):
                for n in range(VALUES):
                    o_j[n] += r_i[m] * s[m, n]
                    decayed = decay[m] * s[m, n] if STRONG else s[m, n]
                    s[m, n] = decayed + k_i[m] * v_j[n]
            store_value_shares(s_o, t, o_j)

        return token

    strong_token, weak_tokens = make_token(True), unrolled(make_token(False), TOKENS)

    @cuda.jit
    def kernel(r, k, v, w, u, s0, has_s0, o, s1, T, H):
        head, j0 = cuda.blockIdx.x // BLOCKS, cuda.blockIdx.x % BLOCKS * VP
        b, h = head // H, head % H
        x = int32(cuda.threadIdx.x)
        row_k, row_v = (b * T * H + h) * K, (b * T * H + h) * V + j0

        s_r = cuda.shared.array((TOKENS, KROW), float32, alignment=16)
        s_k = cuda.shared.array((TOKENS, KROW), float32, alignment=16)
        # decays; unless strong, the product of all in the first row
        s_decay = cuda.shared.array((TOKENS, KROW), float32, alignment=16)
        s_v = cuda.shared.array((TOKENS, VROW), float32, alignment=16)
        s_o = cuda.shared.array((TOKENS, KEY_GROUPS, VROW), float32, alignment=16)
        s_terms = cuda.shared.array((TOKENS, KROW), float32, alignment=16)  # r u k
        s_bonus = cuda.shared.array((TOKENS, 4), float32, alignment=16)
        next_r = cuda.local.array((TOKENS, KEY_COLUMNS), float32)
        next_k = cuda.local.array((TOKENS, KEY_COLUMNS), float32)
        next_w = cuda.local.array((TOKENS, KEY_COLUMNS), float32)
        next_v = cuda.local.array((TOKENS, VALUE_COLUMNS), float32)
        s = cuda.local.array((KEYS, VALUES), float32)
        decay = cuda.local.array(KEYS, float32)
        u_i = cuda.local.array(KEY_COLUMNS, float32)

        for m in range(KEYS):
            for n in range(VALUES):
                i, j = key_at(m), j0 + value_at(n)
                s[m, n] = float32(0)
                if has_s0 and i < K and j < V:
                    s[m, n] = s0[(head * K + i) * V + j]
        for c in range(KEY_COLUMNS):
            i = column(c)
            if is_column(i):
                u_i[c] = u[h * K + i] if i < K else float32(0)

        count = int32(min(TOKENS, T))
        fetch(next_r, row_at(r, row_k), H * K, count, K)
        fetch(next_k, row_at(k, row_k), H * K, count, K)
        fetch_w(next_w, row_at(w, row_k), H * K, count, K)
        fetch_v(next_v, row_at(v, row_v), H * V, count, V - j0)
        strong = cuda.syncthreads_or(is_strong(next_w, count))
        shared = s_r, s_k, s_decay, s_v, s_o
        for t0 in range(0, T, TOKENS):
            for c in range(KEY_COLUMNS):
                i = column(c)
                if is_column(i):
                    log2_e, e = float32(0), float32(1)
                    if strong:
                        for t in range(TOKENS):
                            s_decay[t, i] = math.exp(next_w[t, c])
                            s_r[t, i] = next_r[t, c] if WHOLE or i < K else float32(0)
                            s_k[t, i] = next_k[t, c] if WHOLE or i < K else float32(0)
                    else:
                        for t in range(TOKENS):
                            before = e
                            log2_e += next_w[t, c] * float32(LOG2E)
                            e, over = exp2(log2_e), exp2(-log2_e)
                            s_r[t, i] = next_r[t, c] * before if WHOLE or i < K else float32(0)
                            s_k[t, i] = next_k[t, c] * over if WHOLE or i < K else float32(0)
                        s_decay[0, i] = e if WHOLE or i < K else float32(0)
                    for t in range(TOKENS):
                        term = next_r[t, c] * next_k[t, c] * u_i[c]
                        s_terms[t, i] = term if WHOLE or i < K else float32(0)
            put(s_v, 0, next_v, V - j0, TOKENS)
            cuda.syncthreads()
            next_count = int32(min(TOKENS, T - t0 - count))
            if next_count > 0:
                row_k += TOKENS * H * K
                next_row_v = row_v + TOKENS * H * V
                fetch(next_r, row_at(r, row_k), H * K, next_count, K)
                fetch(next_k, row_at(k, row_k), H * K, next_count, K)
                fetch_w(next_w, row_at(w, row_k), H * K, next_count, K)
                fetch_v(next_v, row_at(v, next_row_v), H * V, next_count, V - j0)

            bonus_of_tokens(s_bonus, s_terms)
            if strong:
                for t in range(count):
                    strong_token(s, shared, t)
            else:
                weak_tokens(s, shared)
                load_keys(decay, s_decay, 0)
                for m in range(KEYS):
                    for n in range(VALUES):
                        s[m, n] *= decay[m]
            # one barrier for what is summed and what comes next
            strong_next = cuda.syncthreads_or(is_strong(next_w, next_count))

            results = row_at(o, row_v)
            for n in range(ROUNDS):
                task = int32(x + n * THREADS)
                t, j = int32(task // QUADS), int32(task % QUADS * 4)
                if t < count:
                    o4 = add_bonus4(s_o, s_bonus, s_v, t, j)
                    at = int32(int32(t * int32(H * V)) + j)
                    store_columns(results, at, V - j0 - j, o4)
            row_v += TOKENS * H * V
            strong = strong_next
            count = next_count
            cuda.syncthreads()

        for m in range(KEYS):
            for n in range(VALUES):
                i, j = key_at(m), j0 + value_at(n)
                if i < K and j < V:
                    s1[(head * K + i) * V + j] = s[m, n]

    array, state, number = types.CPointer(memory), types.CPointer(types.float32), types.int64
    signature = (array, array, array, types.CPointer(w_memory), state, state, number)
    return kernel, (*signature, array, state, number, number), THREADS, BLOCKS


@remembered
def compiled_kernel(BH, K, V, dtype, w_dtype, device):
    """The compiled kernel for a shape, its grid and its block."""
    tile = tile_for(BH, device, few=(TILE[0], TILE[1] // 2))
    value_groups = threads_along(ceil_div(V, tile[1]), ceil_div(K, tile[0]))
    kernel, signature, threads, blocks = build(K, V, dtype, w_dtype, value_groups, tile=tile)
    capability = devices.gpu_of(device).capability
    return compiled(kernel, signature, threads, capability), BH * blocks, threads


def forward(r, k, v, w, u, s0):
    if r.device.index != torch.cuda.current_device():
        with torch.cuda.device(r.device):
            return forward(r, k, v, w, u, s0)
    r, k, v, w = (x.contiguous() for x in (r, k, v, w))
    u = u.float().contiguous()
    B, T, H, K = r.shape
    V = v.shape[-1]
    o = torch.empty_like(v)
    s1 = torch.empty(B, H, K, V, dtype=torch.float32, device=r.device)
    s0 = s1 if s0 is None else s0.float().contiguous()
    kernel, grid, block = compiled_kernel(B * H, K, V, r.dtype, w.dtype, r.device)
    addresses = [x.data_ptr() for x in (r, k, v, w, u, s0)]
    launch(kernel, grid, block, *addresses, int(s0 is not s1), o.data_ptr(), s1.data_ptr(), T, H)
    return o, s1


def forward_shapes(r, k, v, w, u, s0):
    B, _, H, K = r.shape
    o = torch.empty_like(v, memory_format=torch.contiguous_format)
    return o, r.new_empty(B, H, K, v.shape[-1], dtype=torch.float32)


NAME = "rwkv_lessons::wkv6_forward"
torch.library.define(
    NAME, "(Tensor r, Tensor k, Tensor v, Tensor w, Tensor u, Tensor? s0) -> (Tensor, Tensor)"
)
torch.library.impl(NAME, "CUDA", forward)
torch.library.register_fake(NAME, forward_shapes)
torch.library.register_autograd(NAME, backward, setup_context=keep_inputs)


@takes_options(dtypes=tuple(IN_MEMORY))
def wkv6_cuda(r, k, v, w, u, s0=None):
    """Same arguments and results as `wkv6`, on an NVIDIA GPU, gradients included.

    Args:
        r, k: receptance and key, `[B, T, H, K]`, float32, float16 or bfloat16; K up to 1024.
        v: value, `[B, T, H, V]`, of the same dtype; V up to 1024.
        w: log decay, `[B, T, H, K]`, at most 0 and as low as -inf, any of these dtypes.
        u: bonus of the current token, `[H, K]`, any of these dtypes.
        s0: state before the first token, `[B, H, K, V]` (keys × values); zeros if None.

    Returns:
        o `[B, T, H, V]` in r's dtype, and s1 `[B, H, K, V]` in float32. Sums are float32. Where w
        is the same at every token, s1 is wrong by up to 6e-8 for each token remembered, as exp(w)
        is rounded and multiplied that many times. The gradient of w is that of the log decay: 0
        where w is -inf.

    Raises:
        TypeError, ValueError: an argument has the wrong dtype, shape or device.
    """
    if not r.is_cuda:
        raise ValueError(f"r must be on a CUDA device, got {r.device}; wkv6 works on any device")
    for name, letter, size in (("r", "K", r.shape[3]), ("v", "V", v.shape[3])):
        if size > LARGEST:
            raise ValueError(f"{name} must have {letter} ≤ {LARGEST}, got {letter} = {size}")
    return call(torch.ops.rwkv_lessons.wkv6_forward, r, k, v, w, u, s0)
