"""The reverse sweep of the backward pass: it carries the gradient of the state."""

import math
from functools import cache

from numba import cuda, float32, int32

from ...runtime.launch_numba import ceil_div, types
from .tiles import CHECKPOINT, IN_MEMORY, NEGLIGIBLE_DECAY, TILE, Tiles, make_store_columns


def make_sweep(tiles, KEYS, VALUES, STRONG):
    """The device function that takes dZ back through a group of tokens: shares of z and dv.

    STRONG: dZ decays at each token; otherwise afterwards, and k decays to the group's end.
    """
    _, _, load_keys, load_values, store_key_shares, store_value_shares = tiles.tile

    @cuda.jit(device=True, inline="always")
    def sweep(dz, s_r, s_k, s_decay, s_v, s_do, s_z, s_dv, count):
        r_i = cuda.local.array(KEYS, float32)
        k_i = cuda.local.array(KEYS, float32)
        decay = cuda.local.array(KEYS, float32)
        z_i = cuda.local.array(KEYS, float32)
        v_j = cuda.local.array(VALUES, float32)
        do_j = cuda.local.array(VALUES, float32)
        dv_j = cuda.local.array(VALUES, float32)
        for m in range(KEYS):
            decay[m] = float32(1)
        for step in range(count):
            t = count - 1 - step
            load_keys(r_i, s_r, t + 1)
            load_keys(k_i, s_k, t)
            load_values(v_j, s_v, t)
            load_values(do_j, s_do, t + 1)
            if STRONG:
                load_keys(decay, s_decay, t)
            for m in range(KEYS):
                z_i[m] = float32(0)
                if not STRONG:
                    k_i[m] *= decay[m]
            for n in range(VALUES):
                dv_j[n] = float32(0)
            for m in range(KEYS):
                for n in range(VALUES):
                    z_i[m] += dz[m, n] * v_j[n]
                    ds = dz[m, n] + r_i[m] * do_j[n]
                    dv_j[n] += k_i[m] * ds
                    dz[m, n] = decay[m] * ds if STRONG else ds
            store_key_shares(s_z, t, z_i)
            store_value_shares(s_dv, t, dv_j)
            if not STRONG:
                load_keys(decay, s_decay, max(t - 1, 0))

    return sweep


def make_put_r_and_decays(tiles):
    """The device function that puts a group's r and decays into shared memory, as `kernel` says.

    keys: how many are left from the block's first one on.
    """
    THREADS, _, _, KROW, _, TOKENS = tiles.sizes
    KEY_COLUMNS, _ = tiles.columns

    @cuda.jit(device=True, inline="always")
    def put_r_and_decays(s_r, s_decay, next_r, next_w, x, keys, count, strong):
        for c in range(KEY_COLUMNS):
            i = x + c * THREADS
            if i < KROW:
                e, over = float32(1), float32(1)
                for back in range(TOKENS):
                    t = TOKENS - 1 - back
                    decay_t, r_t, scale = math.exp(next_w[t, c]), next_r[t, c], float32(1)
                    is_there = t < count and i < keys
                    if not strong and t < count:
                        after = e
                        e *= decay_t
                        over *= math.exp(-next_w[t, c])
                        decay_t = after
                        if t > 0:  # the first is read by the earlier group, without decays
                            scale = over
                    s_r[t, i] = r_t * scale if is_there else float32(0)
                    s_decay[t, i] = decay_t if i < keys else float32(0)
                if not strong:
                    s_decay[count - 1, i] = e if i < keys else float32(0)

    return put_r_and_decays


def make_store_keys(tiles, narrow, narrow_dw, w_per_token):
    """The device function that adds up and writes dr, dk and dw of a group's tokens.

    carried: of each key what the next earlier token takes over, and sums over tokens. place: the
    thread, where the group's first row is, keys and tokens that are left from there on, tokens of
    the group, and from one token's row to the next.
    """
    THREADS, KP, *_ = tiles.sizes
    KEY_COLUMNS, _ = tiles.columns
    add_shares, *_, add_parts = tiles.sums

    @cuda.jit(device=True, inline="always")
    def store_keys(shared, results, carried, place, saved_here, strong):
        s_r, s_k, s_decay, s_y, s_z, s_u, s_now, s_later = shared
        dr, dk, dw = results
        dr_next, y_next, dw_next, z_dz, du_sum, dw_sum = carried
        x, row_k, keys, count, tokens, next_token = place
        for c in range(KEY_COLUMNS):
            i = x + c * THREADS
            if i < KP and i < keys:
                at, r_next, scale = row_k + (count - 1) * next_token + i, s_r[count, i], float32(1)
                for step in range(count):
                    t = count - 1 - step
                    scale_before = s_decay[max(t - 1, 0), i]
                    scale_before = scale_before if t > 0 and not strong else float32(1)
                    r_t, k_t = s_r[t, i] * scale_before, s_k[t, i]
                    z_t, y_t = add_shares(s_z, t, i) * scale, s_y[t, i]
                    product, product_next = add_parts(s_now, t), add_parts(s_later, t)
                    if t + 1 < tokens:
                        dr[at + next_token] = narrow(dr_next[c] + k_t * product_next)
                    dk[at] = narrow(z_t + r_next * product_next + s_u[0, i] * r_t * product)
                    du_sum[c] += r_t * k_t * product
                    change = dw_next[c] - k_t * z_t
                    if strong and s_decay[t, i] < NEGLIGIBLE_DECAY:
                        change = float32(0)
                    if saved_here and step == 0:
                        change = z_dz[c]
                    change += r_next * y_next[c]
                    if w_per_token:
                        dw[at] = narrow_dw(change)
                    else:
                        dw_sum[c] += change
                    dw_next[c], y_next[c] = change, y_t
                    dr_next[c] = y_t + s_u[0, i] * k_t * product
                    r_next, scale = r_t, scale_before
                    at -= next_token

    return store_keys


def make_store_values(tiles, V, narrow):
    """The device function that adds up and writes dv of a group's tokens, the first one at `at`."""
    THREADS, _, VP, _, _, TOKENS = tiles.sizes
    _, _, add_bonus4, *_ = tiles.sums
    QUADS = VP // 4  # threads add up, and write, four values of a token at once
    ROUNDS = ceil_div(TOKENS * QUADS, THREADS)
    store_columns = make_store_columns(narrow)

    @cuda.jit(device=True, inline="always")
    def store_values(s_dv, s_bonus, s_do, dv, x, at, count, H):
        for n in range(ROUNDS):
            task = x + n * THREADS
            t, j = task // QUADS, task % QUADS * 4
            if t < count:
                dv4 = add_bonus4(s_dv, s_bonus, s_do, t, j)
                store_columns(dv, at + t * H * V + j, j, V, dv4)

    return store_values


def signature_of(memory, w_memory, w_per_token, blocks):
    """The types of the kernel's arguments; elements of r are `memory`, those of w `w_memory`."""
    array, state, number = types.CPointer(memory), types.CPointer(types.float32), types.int64
    dv_type = array if blocks == 1 else state
    w_type = types.CPointer(w_memory)
    dw_type = w_type if w_per_token else state
    inputs = (array, array, array, w_type, state, array, state, number, state, state)
    outputs = (array, array, dv_type, dw_type, state, state)
    return *inputs, *outputs, number, number, number


@cache
def build(K, V, dtype, w_dtype, w_per_token, key_groups, **sizes):
    """The kernel that finds all gradients, from y and the saved Z; see backward.py.

    Arguments and results as for forward_sweep.py's `build`. With several blocks per head it
    writes dv in float32, a share for each block; dw is summed over the tokens unless w_per_token.
    """
    (memory, widen, narrow), (w_memory, widen_w, narrow_w) = IN_MEMORY[dtype], IN_MEMORY[w_dtype]
    KEYS, VALUES = sizes.get("tile", TILE)
    VALUE_GROUPS = ceil_div(V, VALUES)
    tiles = Tiles(
        key_groups, VALUE_GROUPS, rows=(4, 2), shares=("keys", "values"), kept=(2, 1), **sizes
    )
    THREADS, KP, VP, KROW, VROW, TOKENS = tiles.sizes
    TOKENS_AND_ONE = TOKENS + 1
    KEY_COLUMNS, VALUE_COLUMNS = tiles.columns
    make_fetch, put, is_strong, clear, move_row = tiles.staging
    fetch, fetch_w, fetch_state = make_fetch(widen), make_fetch(widen_w), make_fetch(float32)
    key_at, value_at, load_keys, load_values, store_key_shares, store_value_shares = tiles.tile
    add_shares, _, add_bonus4, bonus_of_tokens, products_of_tokens, add_parts = tiles.sums
    BLOCKS = ceil_div(K, KP)
    narrow_dw = narrow_w if w_per_token else float32

    sweep_strong, sweep_weak = (make_sweep(tiles, KEYS, VALUES, x) for x in (True, False))
    put_r_and_decays = make_put_r_and_decays(tiles)
    store_keys = make_store_keys(tiles, narrow, narrow_dw, w_per_token)
    store_values = make_store_values(tiles, V, narrow if BLOCKS == 1 else float32)

    @cuda.jit
    def kernel(r, k, v, w, u, do, ds1, has_ds1, y, saved, dr, dk, dv, dw, du, ds0, B, T, H):
        head, i0 = cuda.blockIdx.x // BLOCKS, cuda.blockIdx.x % BLOCKS * KP
        b, h = head // H, head % H
        x = cuda.threadIdx.x
        t0 = (T - 1) // TOKENS * TOKENS  # the last group, the only one that may be short
        row_k, row_v = ((b * T + t0) * H + h) * K + i0, ((b * T + t0) * H + h) * V
        row_w = row_k if w_per_token else h * K + i0
        next_row_w = H * K if w_per_token else 0
        dv_block = cuda.blockIdx.x % BLOCKS * B * T * H * V
        checkpoints = (T + CHECKPOINT - 1) // CHECKPOINT
        row_saved = cuda.blockIdx.x * checkpoints * KEYS * VALUES * THREADS + x

        s_r = cuda.shared.array((TOKENS_AND_ONE, KROW), float32, alignment=16)
        s_k = cuda.shared.array((TOKENS, KROW), float32, alignment=16)
        # decays; unless strong, their products from after a token to the group's end, with the
        # product of all in the row of the last token, where that would be 1
        s_decay = cuda.shared.array((TOKENS, KROW), float32, alignment=16)
        s_y = cuda.shared.array((TOKENS, KROW), float32, alignment=16)
        s_v = cuda.shared.array((TOKENS, VROW), float32, alignment=16)
        s_do = cuda.shared.array((TOKENS_AND_ONE, VROW), float32, alignment=16)
        s_z = cuda.shared.array((TOKENS, VALUE_GROUPS, KROW), float32, alignment=16)
        s_dv = cuda.shared.array((TOKENS, key_groups, VROW), float32, alignment=16)
        s_u = cuda.shared.array((1, KROW), float32, alignment=16)
        s_bonus = cuda.shared.array((TOKENS, 4), float32, alignment=16)
        s_now = cuda.shared.array((TOKENS, 4), float32, alignment=16)
        s_later = cuda.shared.array((TOKENS, 4), float32, alignment=16)
        next_r = cuda.local.array((TOKENS, KEY_COLUMNS), float32)
        next_k = cuda.local.array((TOKENS, KEY_COLUMNS), float32)
        next_w = cuda.local.array((TOKENS, KEY_COLUMNS), float32)
        next_y = cuda.local.array((TOKENS, KEY_COLUMNS), float32)
        next_v = cuda.local.array((TOKENS, VALUE_COLUMNS), float32)
        next_do = cuda.local.array((TOKENS, VALUE_COLUMNS), float32)
        dz = cuda.local.array((KEYS, VALUES), float32)
        r_i = cuda.local.array(KEYS, float32)
        decay = cuda.local.array(KEYS, float32)
        z_i = cuda.local.array(KEYS, float32)
        do_j = cuda.local.array(VALUES, float32)
        z_dz = cuda.local.array(KEY_COLUMNS, float32)
        dr_next = cuda.local.array(KEY_COLUMNS, float32)
        y_next = cuda.local.array(KEY_COLUMNS, float32)
        dw_next = cuda.local.array(KEY_COLUMNS, float32)
        du_sum = cuda.local.array(KEY_COLUMNS, float32)
        dw_sum = cuda.local.array(KEY_COLUMNS, float32)

        carried = dr_next, y_next, dw_next, z_dz, du_sum, dw_sum
        for m in range(KEYS):
            for n in range(VALUES):
                i, j = i0 + key_at(m), value_at(n)
                dz[m, n] = float32(0)
                if has_ds1 and i < K and j < V:
                    dz[m, n] = ds1[(head * K + i) * V + j]
        for i in range(x, KP, THREADS):
            s_u[0, i] = u[h * K + i0 + i] if i0 + i < K else float32(0)
        for c in range(KEY_COLUMNS):
            dr_next[c], y_next[c], dw_next[c] = float32(0), float32(0), float32(0)
            z_dz[c], du_sum[c], dw_sum[c] = float32(0), float32(0), float32(0)

        count = int32(T - t0)
        clear(s_r, 0, KEY_COLUMNS)
        clear(s_do, 0, VALUE_COLUMNS)
        fetch(next_r, r, row_k, H * K, count, K - i0)
        fetch(next_k, k, row_k, H * K, count, K - i0)
        fetch_w(next_w, w, row_w, next_row_w, count, K - i0)
        fetch_state(next_y, y, row_k, H * K, count, K - i0)
        fetch(next_v, v, row_v, H * V, count, V)
        fetch(next_do, do, row_v, H * V, count, V)
        strong = cuda.syncthreads_or(is_strong(next_w, count))
        while t0 >= 0:
            # The row after the last token has the next token; after the sequence's last, zeros.
            move_row(s_r, 0, TOKENS, KEY_COLUMNS)
            move_row(s_do, 0, TOKENS, VALUE_COLUMNS)
            put(s_k, 0, next_k, K - i0, TOKENS)
            put_r_and_decays(s_r, s_decay, next_r, next_w, x, K - i0, count, strong)
            put(s_y, 0, next_y, K - i0, TOKENS)
            put(s_v, 0, next_v, V, TOKENS)
            put(s_do, 0, next_do, V, count)
            saved_here = (t0 + count) % CHECKPOINT == 0 or t0 + count == T
            if saved_here:
                row = row_saved + t0 // CHECKPOINT * KEYS * VALUES * THREADS
                for m in range(KEYS):
                    z_i[m] = float32(0)
                    for n in range(VALUES):
                        z_i[m] += saved[row + (m * VALUES + n) * THREADS] * dz[m, n]
                store_key_shares(s_z, 0, z_i)
                cuda.syncthreads()
                for c in range(KEY_COLUMNS):
                    if x + c * THREADS < KP:
                        z_dz[c] = add_shares(s_z, 0, x + c * THREADS)
            cuda.syncthreads()
            if t0 > 0:
                row = row_k - TOKENS * H * K
                fetch(next_r, r, row, H * K, TOKENS, K - i0)
                fetch(next_k, k, row, H * K, TOKENS, K - i0)
                fetch_w(next_w, w, row_w - TOKENS * next_row_w, next_row_w, TOKENS, K - i0)
                fetch_state(next_y, y, row, H * K, TOKENS, K - i0)
                fetch(next_v, v, row_v - TOKENS * H * V, H * V, TOKENS, V)
                fetch(next_do, do, row_v - TOKENS * H * V, H * V, TOKENS, V)

            bonus_of_tokens(s_bonus, s_r, s_k, s_u, s_decay, -1 if strong else 1)
            products_of_tokens(s_now, s_later, s_v, s_do)
            if strong:
                sweep_strong(dz, s_r, s_k, s_decay, s_v, s_do, s_z, s_dv, count)
            else:
                sweep_weak(dz, s_r, s_k, s_decay, s_v, s_do, s_z, s_dv, count)
                load_keys(decay, s_decay, count - 1)
                for m in range(KEYS):
                    for n in range(VALUES):
                        dz[m, n] *= decay[m]
            # one barrier for what is summed and what comes next, a whole group
            strong_next = cuda.syncthreads_or(is_strong(next_w, TOKENS))

            shared = s_r, s_k, s_decay, s_y, s_z, s_u, s_now, s_later
            place = x, row_k, K - i0, count, T - t0, H * K
            store_keys(shared, (dr, dk, dw), carried, place, saved_here, strong)
            store_values(s_dv, s_bonus, s_do, dv, x, dv_block + row_v, count, H)
            cuda.syncthreads()
            t0 -= TOKENS
            row_k -= TOKENS * H * K
            row_v -= TOKENS * H * V
            row_w -= TOKENS * next_row_w
            count = int32(TOKENS)
            strong = strong_next

        load_keys(r_i, s_r, 0)
        load_values(do_j, s_do, 0)
        for m in range(KEYS):
            for n in range(VALUES):
                i, j = i0 + key_at(m), value_at(n)
                if i < K and j < V:
                    ds0[(head * K + i) * V + j] = dz[m, n] + r_i[m] * do_j[n]
        for c in range(KEY_COLUMNS):
            i = x + c * THREADS
            if i < KP and i0 + i < K:
                dr[(b * T * H + h) * K + i0 + i] = narrow(dr_next[c])
                du[head * K + i0 + i] = du_sum[c]
                if not w_per_token:
                    dw[head * K + i0 + i] = dw_sum[c]

    return kernel, signature_of(memory, w_memory, w_per_token, BLOCKS), THREADS, BLOCKS
