"""The forward sweep of the backward pass: it carries the state, for y and the checkpoints."""

import math
from functools import cache

from numba import cuda, float32, int32

from ...runtime.launch_numba import ceil_div, load4, types
from .instructions import exp2, row_at
from .tiles import CHECKPOINT, IN_MEMORY, LOG2E, TILE, Tiles, make_store_columns, unrolled


def make_token(tiles, KEYS, VALUES, STRONG):
    """The device function that takes Z through a token, and finds shares of y.

    STRONG: Z decays at each token; otherwise afterwards, by the whole group's decays.
    """
    _, _, load_keys, load_values, store_key_shares, _ = tiles.tile

    @cuda.jit(device=True, forceinline=True)
    def token(z, shared, t):
        s_k, s_decay, s_v, s_do, s_y = shared
        k_i = cuda.local.array(KEYS, float32)
        decay = cuda.local.array(KEYS, float32)
        y_i = cuda.local.array(KEYS, float32)
        v_j = cuda.local.array(VALUES, float32)
        do_j = cuda.local.array(VALUES, float32)
        load_keys(k_i, s_k, t)
        load_values(v_j, s_v, t)
        load_values(do_j, s_do, t)
        if STRONG:
            load_keys(decay, s_decay, t)
        for m in range(KEYS):
            y_i[m] = float32(0)
        for m in range(KEYS):
            for n in range(VALUES):
                y_i[m] += z[m, n] * do_j[n]
                s = z[m, n] + k_i[m] * v_j[n]
                z[m, n] = decay[m] * s if STRONG else s
        store_key_shares(s_y, t, y_i)

    return token


@cache
def build(K, V, dtype, w_dtype, w_per_token, key_groups, **sizes):
    """The kernel that finds y and saves Z every CHECKPOINT tokens; see backward.py.

    Args:
        w_per_token: w is `[B, T, H, K]`; otherwise `[H, K]`.
        key_groups: threads along the keys of a block; a block has all values of a head.
        sizes: `tile` and `tokens` of `Tiles`.

    Returns:
        kernel, its argument types, threads of a block, blocks per head.
    """
    (memory, widen, _), (w_memory, widen_w, _) = IN_MEMORY[dtype], IN_MEMORY[w_dtype]
    KEYS, VALUES = sizes.get("tile", TILE)
    VALUE_GROUPS = ceil_div(V, VALUES)
    tiles = Tiles(
        (K, V), key_groups, VALUE_GROUPS, rows=(2, 2), shares=("keys",), kept=(2, 1), **sizes
    )
    THREADS, KP, _, KROW, VROW, TOKENS = tiles.sizes
    TOKENS_AND_ONE = TOKENS + 1
    KEY_COLUMNS, VALUE_COLUMNS = tiles.columns
    column, is_column, make_fetch, _, is_strong, clear_keys, move_keys = tiles.keys
    _, _, make_fetch_values, put, _, clear_values, move_values = tiles.values
    fetch, fetch_w, fetch_values = (
        make_fetch(widen), make_fetch(widen_w), make_fetch_values(widen)
    )  # fmt: skip
    key_at, value_at, load_keys, *_ = tiles.tile
    add_shares4, store_columns = tiles.sums[1], make_store_columns(float32, K)
    QUADS = KP // 4  # threads add up, and write, four keys of a token at once
    ROUNDS = ceil_div(TOKENS * QUADS, THREADS)
    BLOCKS, WHOLE = ceil_div(K, KP), K % KP == 0

    strong_token, weak_token = (make_token(tiles, KEYS, VALUES, x) for x in (True, False))
    weak_tokens = unrolled(weak_token, TOKENS)

    @cuda.jit
    def kernel(k, v, w, do, s0, has_s0, y, saved, T, H):
        head, i0 = cuda.blockIdx.x // BLOCKS, cuda.blockIdx.x % BLOCKS * KP
        b, h = head // H, head % H
        x = int32(cuda.threadIdx.x)
        row_k, row_v = (b * T * H + h) * K + i0, (b * T * H + h) * V
        row_w = row_k if w_per_token else h * K + i0
        next_row_w = H * K if w_per_token else 0
        checkpoints = (T + CHECKPOINT - 1) // CHECKPOINT
        row_saved = cuda.blockIdx.x * checkpoints * KEYS * VALUES * THREADS + x

        s_k = cuda.shared.array((TOKENS_AND_ONE, KROW), float32, alignment=16)
        # decays; unless strong, their products from the group's start to before a token, to its end
        s_decay = cuda.shared.array((TOKENS_AND_ONE, KROW), float32, alignment=16)
        s_v = cuda.shared.array((TOKENS_AND_ONE, VROW), float32, alignment=16)
        s_do = cuda.shared.array((TOKENS, VROW), float32, alignment=16)
        s_y = cuda.shared.array((TOKENS, VALUE_GROUPS, KROW), float32, alignment=16)
        next_k = cuda.local.array((TOKENS, KEY_COLUMNS), float32)
        next_w = cuda.local.array((TOKENS, KEY_COLUMNS), float32)
        next_v = cuda.local.array((TOKENS, VALUE_COLUMNS), float32)
        next_do = cuda.local.array((TOKENS, VALUE_COLUMNS), float32)
        z = cuda.local.array((KEYS, VALUES), float32)
        decay = cuda.local.array(KEYS, float32)

        for m in range(KEYS):
            for n in range(VALUES):
                i, j = i0 + key_at(m), value_at(n)
                z[m, n] = float32(0)
                if has_s0 and i < K and j < V:
                    z[m, n] = s0[(head * K + i) * V + j]

        clear_keys(s_k, TOKENS, KEY_COLUMNS)
        clear_values(s_v, TOKENS, VALUE_COLUMNS)
        count = int32(min(TOKENS, T))
        fetch(next_k, row_at(k, row_k), H * K, count, K - i0)
        fetch_w(next_w, row_at(w, row_w), next_row_w, count, K - i0)
        fetch_values(next_v, row_at(v, row_v), H * V, count, V)
        fetch_values(next_do, row_at(do, row_v), H * V, count, V)
        strong = cuda.syncthreads_or(is_strong(next_w, count))
        shared = s_k, s_decay, s_v, s_do, s_y
        for t0 in range(0, T, TOKENS):
            # Token t is put into row t + 1: row t then has the token before.
            move_keys(s_k, TOKENS, 0, KEY_COLUMNS)
            move_values(s_v, TOKENS, 0, VALUE_COLUMNS)
            for c in range(KEY_COLUMNS):
                i = column(c)
                if is_column(i):
                    is_key = WHOLE or i0 + i < K
                    if strong:
                        for t in range(TOKENS):
                            decay_t = math.exp(next_w[t, c])
                            s_k[t + 1, i] = next_k[t, c] if is_key else float32(0)
                            s_decay[t, i] = decay_t if is_key else float32(0)
                    else:
                        log2_e, e = float32(0), float32(1)
                        for t in range(TOKENS):
                            s_decay[t, i] = e if is_key else float32(0)
                            log2_e += next_w[t, c] * float32(LOG2E)
                            e, k_t = exp2(log2_e), next_k[t, c]
                            # the last one's is 1 for the next group, where products start anew
                            if t < TOKENS - 1:
                                k_t *= exp2(-log2_e)
                            s_k[t + 1, i] = k_t if is_key else float32(0)
                        s_decay[TOKENS, i] = e if is_key else float32(0)
            put(s_v, 1, next_v, V, TOKENS)
            put(s_do, 0, next_do, V, TOKENS)
            cuda.syncthreads()
            next_count = int32(min(TOKENS, T - t0 - count))
            if next_count > 0:
                row_v += TOKENS * H * V
                row_w += TOKENS * next_row_w
                next_row_k = row_k + TOKENS * H * K
                fetch(next_k, row_at(k, next_row_k), H * K, next_count, K - i0)
                fetch_w(next_w, row_at(w, row_w), next_row_w, next_count, K - i0)
                fetch_values(next_v, row_at(v, row_v), H * V, next_count, V)
                fetch_values(next_do, row_at(do, row_v), H * V, next_count, V)

            if strong:
                for t in range(count):
                    strong_token(z, shared, t)
            else:
                weak_tokens(z, shared)
                load_keys(decay, s_decay, TOKENS)
                for m in range(KEYS):
                    for n in range(VALUES):
                        z[m, n] *= decay[m]
            if (t0 + count) % CHECKPOINT == 0 or t0 + count == T:
                for m in range(KEYS):
                    for n in range(VALUES):
                        saved[row_saved] = z[m, n]
                        row_saved += THREADS
            # one barrier for what is summed and what comes next
            strong_next = cuda.syncthreads_or(is_strong(next_w, next_count))

            results = row_at(y, row_k)
            for n in range(ROUNDS):
                task = int32(x + n * THREADS)
                t, i = int32(task // QUADS), int32(task % QUADS * 4)
                if t < count:
                    y4 = add_shares4(s_y, t, i)
                    at = int32(int32(t * int32(H * K)) + i)
                    if strong:
                        store_columns(results, at, K - i0 - i, y4)
                    else:
                        d4 = load4(s_decay, (t, i))
                        y4 = y4[0] * d4[0], y4[1] * d4[1], y4[2] * d4[2], y4[3] * d4[3]
                        store_columns(results, at, K - i0 - i, y4)
            cuda.syncthreads()
            row_k += TOKENS * H * K
            strong = strong_next
            count = next_count

    array, state, number = types.CPointer(memory), types.CPointer(types.float32), types.int64
    signature = (array, array, types.CPointer(w_memory), array, state, number, state, state)
    return kernel, (*signature, number, number), THREADS, BLOCKS
