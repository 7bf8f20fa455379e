"""The reverse sweep of the backward pass: it carries the gradient of the state."""

import math
from functools import cache

from numba import cuda, float32, int32

from ...runtime.launch_numba import ceil_div, types
from .instructions import exp2, row_at
from .tiles import (
    CHECKPOINT,
    IN_MEMORY,
    LOG2E,
    NEGLIGIBLE_DECAY,
    TILE,
    Tiles,
    make_store_columns,
    unrolled,
)


def make_token(tiles, KEYS, VALUES, STRONG):
    """The device function that takes dZ back through a token, `step` from the last: z and dv.

    STRONG: dZ decays at each token; otherwise afterwards, and s_k has k decayed to the group's end.
    """
    _, _, load_keys, load_values, store_key_shares, store_value_shares = tiles.tile
    TOKENS = tiles.sizes[-1]

    @cuda.jit(device=True, forceinline=True)
    def token(registers, shared, step):
        dz, count = registers
        s_r, s_k, s_decay, s_v, s_do, s_z, s_dv = shared
        r_i = cuda.local.array(KEYS, float32)
        k_i = cuda.local.array(KEYS, float32)
        decay = cuda.local.array(KEYS, float32)
        z_i = cuda.local.array(KEYS, float32)
        v_j = cuda.local.array(VALUES, float32)
        do_j = cuda.local.array(VALUES, float32)
        dv_j = cuda.local.array(VALUES, float32)
        t = count - 1 - step if STRONG else TOKENS - 1 - step
        load_keys(r_i, s_r, t + 1)
        load_keys(k_i, s_k, t)
        load_values(v_j, s_v, t)
        load_values(do_j, s_do, t + 1)
        if STRONG:
            load_keys(decay, s_decay, t)
        for m in range(KEYS):
            z_i[m] = float32(0)
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

    return token


def make_sum_with_saved(tiles, KEYS, VALUES):
    """The device function that finds Σ Z dZ over a key's values, with Z saved from `row` on."""
    THREADS, KEY_COLUMNS = tiles.sizes[0], tiles.columns[0]
    column, is_column, *_ = tiles.keys
    store_key_shares, add_shares = tiles.tile[4], tiles.sums[0]

    @cuda.jit(device=True, forceinline=True)
    def sum_with_saved(z_dz, saved, row, dz, s_z):
        z_i = cuda.local.array(KEYS, float32)
        for m in range(KEYS):
            z_i[m] = float32(0)
            for n in range(VALUES):
                z_i[m] += saved[row + (m * VALUES + n) * THREADS] * dz[m, n]
        store_key_shares(s_z, 0, z_i)
        cuda.syncthreads()
        for c in range(KEY_COLUMNS):
            if is_column(column(c)):
                z_dz[c] = add_shares(s_z, 0, column(c))

    return sum_with_saved


def make_put_keys(tiles, K):
    """The device function that puts a group's r, k, decays and r u k where `kernel` says.

    keys: how many are left from the block's first one on.
    """
    KP, TOKENS = tiles.sizes[1], tiles.sizes[-1]
    KEY_COLUMNS, _ = tiles.columns
    column, is_column, *_ = tiles.keys
    WHOLE = K % KP == 0

    @cuda.jit(device=True, forceinline=True)
    def put_keys(shared, following, u_i, keys, count, strong):
        s_r, s_k, s_decay, s_decay_of_all, s_terms = shared
        next_r, next_k, next_w = following
        for c in range(KEY_COLUMNS):
            i = column(c)
            if is_column(i):
                is_key = WHOLE or i < keys
                if strong:
                    for t in range(TOKENS):
                        s_r[t, i] = next_r[t, c] if is_key and t < count else float32(0)
                        s_k[t, i] = next_k[t, c] if is_key else float32(0)
                        s_decay[t, i] = math.exp(next_w[t, c]) if is_key else float32(0)
                else:
                    log2_e, after = float32(0), float32(1)
                    for back in range(TOKENS):
                        t = TOKENS - 1 - back
                        r_t, decay_t = next_r[t, c], after
                        log2_e += next_w[t, c] * float32(LOG2E)
                        after = exp2(log2_e)
                        if t > 0:  # the first is read by the earlier group, without decays
                            r_t *= exp2(-log2_e)
                        s_r[t, i] = r_t if is_key else float32(0)
                        s_k[t, i] = next_k[t, c] * decay_t if is_key else float32(0)
                        s_decay[t, i] = decay_t if is_key else float32(0)
                    s_decay_of_all[0, i] = after if is_key else float32(0)
                for t in range(TOKENS):
                    term = next_r[t, c] * next_k[t, c] * u_i[c]
                    s_terms[t, i] = term if is_key else float32(0)

    return put_keys


def make_store_token(tiles, narrow, narrow_dw, w_per_token, STRONG):
    """The device function that adds up and writes dr, dk and dw of a token and a key.

    Of the token that is `step` before the group's last. carried: of each key what the next earlier
    token takes over, and sums over tokens. now: k and y in registers, which a loop over as many
    tokens as there are cannot index; if STRONG they are in shared memory. place: the column and its
    key, tokens of the group, tokens that are left from there on, and from one token's row to the
    next.
    """
    TOKENS = tiles.sizes[-1]
    add_shares, *_, add_parts = tiles.sums

    @cuda.jit(device=True, forceinline=True)
    def store_token(registers, shared, step):
        carried, now, u_i, z_dz, results, place = registers
        k_now, y_now = now
        s_r, s_k, s_decay, s_y, s_z, s_now, s_later = shared
        r_next, dr_next, y_next, dw_next, du_sum, dw_sum = carried
        dr, dk, dw = results
        c, i, count, tokens, next_token, saved_here = place
        t = count - 1 - step if STRONG else TOKENS - 1 - step
        at = int32(int32(t * next_token) + i)
        r_t, z_t = s_r[t, i], add_shares(s_z, t, i)
        k_t, y_t = (s_k[t, i], s_y[t, i]) if STRONG else (k_now[t, c], y_now[t, c])
        if not STRONG:
            z_t *= s_decay[t, i]
            if t > 0:
                r_t *= s_decay[t - 1, i]
        product, product_next = add_parts(s_now, t), add_parts(s_later, t)
        u_product = u_i[c] * product
        if (not STRONG and t < TOKENS - 1) or t + 1 < tokens:
            dr[int32(at + next_token)] = narrow(dr_next[c] + k_t * product_next)
        dk[at] = narrow(z_t + r_next[c] * product_next + u_product * r_t)
        du_sum[c] += r_t * k_t * product
        change = dw_next[c] - k_t * z_t
        if STRONG and s_decay[t, i] < NEGLIGIBLE_DECAY:
            change = float32(0)
        if saved_here and step == 0:
            change = z_dz[c]
        change += r_next[c] * y_next[c]
        if w_per_token:
            dw[at] = narrow_dw(change)
        else:
            dw_sum[c] += change
        dw_next[c], y_next[c] = change, y_t
        dr_next[c] = y_t + u_product * k_t
        r_next[c] = r_t

    return store_token


def make_store_keys(tiles, narrow, narrow_dw, w_per_token):
    """The device function that adds up and writes dr, dk and dw of a group's tokens.

    place: keys and tokens that are left from the group's first on, tokens of the group, and from
    one token's row to the next.
    """
    TOKENS = tiles.sizes[-1]
    KEY_COLUMNS, _ = tiles.columns
    column, is_column, *_ = tiles.keys
    store_strong, store_weak = (
        make_store_token(tiles, narrow, narrow_dw, w_per_token, x) for x in (True, False)
    )

    @cuda.jit(device=True, forceinline=True)
    def store_keys(shared, results, carried, now, u_i, z_dz, place, saved_here, strong):
        keys, tokens, count, next_token = place
        for c in range(KEY_COLUMNS):
            i = column(c)
            if is_column(i) and i < keys:
                carried[0][c] = shared[0][count, i]
                if strong:
                    here = c, i, count, tokens, next_token, saved_here
                    for t in range(TOKENS):
                        shared[3][t, i] = now[1][t, c]
                    for step in range(count):
                        store_strong((carried, now, u_i, z_dz, results, here), shared, step)
                else:
                    here = c, i, TOKENS, tokens, next_token, saved_here
                    for step in range(TOKENS):
                        store_weak((carried, now, u_i, z_dz, results, here), shared, step)

    return store_keys


def make_store_values(tiles, V, narrow):
    """The device function that adds up and writes dv of a group's tokens, from where dv starts."""
    THREADS, _, VP, _, _, TOKENS = tiles.sizes
    _, _, add_bonus4, *_ = tiles.sums
    QUADS = VP // 4  # threads add up, and write, four values of a token at once
    ROUNDS = ceil_div(TOKENS * QUADS, THREADS)
    store_columns = make_store_columns(narrow, V)

    @cuda.jit(device=True, forceinline=True)
    def store_values(s_dv, s_bonus, s_do, dv, count, next_token):
        for n in range(ROUNDS):
            task = int32(int32(cuda.threadIdx.x) + int32(n * THREADS))
            t, j = int32(task // QUADS), int32(task % QUADS * 4)
            if t < count:
                dv4 = add_bonus4(s_dv, s_bonus, s_do, t, j)
                store_columns(dv, int32(int32(t * next_token) + j), V - j, dv4)

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
        (K, V), key_groups, VALUE_GROUPS, rows=(4, 2), shares=("keys", "values"), kept=(2, 1),
        **sizes,
    )  # fmt: skip
    THREADS, KP, VP, KROW, VROW, TOKENS = tiles.sizes
    TOKENS_AND_ONE = TOKENS + 1
    KEY_COLUMNS, VALUE_COLUMNS = tiles.columns
    column, is_column, make_fetch, _, is_strong, clear_keys, move_keys = tiles.keys
    _, _, make_fetch_values, put_values, _, clear_values, move_values = tiles.values
    fetch, fetch_w, fetch_state = make_fetch(widen), make_fetch(widen_w), make_fetch(float32)
    fetch_values = make_fetch_values(widen)
    key_at, value_at, load_keys, load_values, *_ = tiles.tile
    *_, bonus_of_tokens, products_of_tokens, _ = tiles.sums
    BLOCKS, narrow_dw = ceil_div(K, KP), narrow_w if w_per_token else float32

    strong_token, weak_token = (make_token(tiles, KEYS, VALUES, x) for x in (True, False))
    weak_tokens = unrolled(weak_token, TOKENS)
    put_keys, sum_with_saved = make_put_keys(tiles, K), make_sum_with_saved(tiles, KEYS, VALUES)
    store_keys = make_store_keys(tiles, narrow, narrow_dw, w_per_token)
    store_values = make_store_values(tiles, V, narrow if BLOCKS == 1 else float32)

    @cuda.jit
    def kernel(r, k, v, w, u, do, ds1, has_ds1, y, saved, dr, dk, dv, dw, du, ds0, B, T, H):
        head, i0 = cuda.blockIdx.x // BLOCKS, cuda.blockIdx.x % BLOCKS * KP
        b, h = head // H, head % H
        x = int32(cuda.threadIdx.x)
        t0 = (T - 1) // TOKENS * TOKENS  # the last group, the only one that may be short
        row_k, row_v = ((b * T + t0) * H + h) * K + i0, ((b * T + t0) * H + h) * V
        row_w = row_k if w_per_token else h * K + i0
        next_row_w = H * K if w_per_token else 0
        dv_block = cuda.blockIdx.x % BLOCKS * B * T * H * V
        checkpoints = (T + CHECKPOINT - 1) // CHECKPOINT
        row_saved = cuda.blockIdx.x * checkpoints * KEYS * VALUES * THREADS + x

        s_r = cuda.shared.array((TOKENS_AND_ONE, KROW), float32, alignment=16)
        s_k = cuda.shared.array((TOKENS, KROW), float32, alignment=16)
        # decays; unless strong, their products from after a token to the group's end
        s_decay = cuda.shared.array((TOKENS, KROW), float32, alignment=16)
        s_decay_of_all = cuda.shared.array((1, KROW), float32, alignment=16)  # of a group
        s_terms = cuda.shared.array((TOKENS, KROW), float32, alignment=16)  # r u k
        s_v = cuda.shared.array((TOKENS, VROW), float32, alignment=16)
        s_do = cuda.shared.array((TOKENS_AND_ONE, VROW), float32, alignment=16)
        s_z = cuda.shared.array((TOKENS, VALUE_GROUPS, KROW), float32, alignment=16)
        s_dv = cuda.shared.array((TOKENS, key_groups, VROW), float32, alignment=16)
        s_bonus = cuda.shared.array((TOKENS, 4), float32, alignment=16)
        s_now = cuda.shared.array((TOKENS, 4), float32, alignment=16)
        s_later = cuda.shared.array((TOKENS, 4), float32, alignment=16)
        next_r = cuda.local.array((TOKENS, KEY_COLUMNS), float32)
        next_k = cuda.local.array((TOKENS, KEY_COLUMNS), float32)
        next_w = cuda.local.array((TOKENS, KEY_COLUMNS), float32)
        k_now = cuda.local.array((TOKENS, KEY_COLUMNS), float32)
        y_now = cuda.local.array((TOKENS, KEY_COLUMNS), float32)
        next_v = cuda.local.array((TOKENS, VALUE_COLUMNS), float32)
        next_do = cuda.local.array((TOKENS, VALUE_COLUMNS), float32)
        dz = cuda.local.array((KEYS, VALUES), float32)
        r_i = cuda.local.array(KEYS, float32)
        decay = cuda.local.array(KEYS, float32)
        do_j = cuda.local.array(VALUES, float32)
        z_dz = cuda.local.array(KEY_COLUMNS, float32)
        u_i = cuda.local.array(KEY_COLUMNS, float32)
        r_next = cuda.local.array(KEY_COLUMNS, float32)
        dr_next = cuda.local.array(KEY_COLUMNS, float32)
        y_next = cuda.local.array(KEY_COLUMNS, float32)
        dw_next = cuda.local.array(KEY_COLUMNS, float32)
        du_sum = cuda.local.array(KEY_COLUMNS, float32)
        dw_sum = cuda.local.array(KEY_COLUMNS, float32)

        carried, now = (r_next, dr_next, y_next, dw_next, du_sum, dw_sum), (k_now, y_now)
        for m in range(KEYS):
            for n in range(VALUES):
                i, j = i0 + key_at(m), value_at(n)
                dz[m, n] = float32(0)
                if has_ds1 and i < K and j < V:
                    dz[m, n] = ds1[(head * K + i) * V + j]
        for c in range(KEY_COLUMNS):
            i = column(c)
            dr_next[c], y_next[c], dw_next[c] = float32(0), float32(0), float32(0)
            z_dz[c], du_sum[c], dw_sum[c] = float32(0), float32(0), float32(0)
            u_i[c] = float32(0)
            if is_column(i) and i0 + i < K:
                u_i[c] = u[h * K + i0 + i]

        count = int32(T - t0)
        clear_keys(s_r, 0, KEY_COLUMNS)
        clear_values(s_do, 0, VALUE_COLUMNS)
        fetch(next_r, row_at(r, row_k), H * K, count, K - i0)
        fetch(next_k, row_at(k, row_k), H * K, count, K - i0)
        fetch_w(next_w, row_at(w, row_w), next_row_w, count, K - i0)
        fetch_values(next_v, row_at(v, row_v), H * V, count, V)
        fetch_values(next_do, row_at(do, row_v), H * V, count, V)
        strong = cuda.syncthreads_or(is_strong(next_w, count))
        of_sweep = s_r, s_k, s_decay, s_v, s_do, s_z, s_dv
        of_keys = s_r, s_k, s_decay, s_terms, s_z, s_now, s_later  # the terms are added up by then
        of_put, following = (s_r, s_k, s_decay, s_decay_of_all, s_terms), (next_r, next_k, next_w)
        while t0 >= 0:
            # The row after the last token has the next token; after the sequence's last, zeros.
            move_keys(s_r, 0, TOKENS, KEY_COLUMNS)
            move_values(s_do, 0, TOKENS, VALUE_COLUMNS)
            put_keys(of_put, following, u_i, K - i0, count, strong)
            put_values(s_v, 0, next_v, V, TOKENS)
            put_values(s_do, 0, next_do, V, count)
            saved_here = (t0 + count) % CHECKPOINT == 0 or t0 + count == T
            if saved_here:
                row = row_saved + t0 // CHECKPOINT * KEYS * VALUES * THREADS
                sum_with_saved(z_dz, saved, row, dz, s_z)
            cuda.syncthreads()
            fetch_state(y_now, row_at(y, row_k), H * K, count, K - i0)
            for c in range(KEY_COLUMNS):
                for t in range(TOKENS):
                    k_now[t, c] = next_k[t, c]
            if t0 > 0:
                row, row_of_v = row_k - TOKENS * H * K, row_v - TOKENS * H * V
                row_of_w = row_w - TOKENS * next_row_w
                fetch(next_r, row_at(r, row), H * K, TOKENS, K - i0)
                fetch(next_k, row_at(k, row), H * K, TOKENS, K - i0)
                fetch_w(next_w, row_at(w, row_of_w), next_row_w, TOKENS, K - i0)
                fetch_values(next_v, row_at(v, row_of_v), H * V, TOKENS, V)
                fetch_values(next_do, row_at(do, row_of_v), H * V, TOKENS, V)

            bonus_of_tokens(s_bonus, s_terms)
            products_of_tokens(s_now, s_later, s_v, s_do)
            if strong:
                for step in range(count):
                    strong_token((dz, count), of_sweep, step)
            else:
                weak_tokens((dz, count), of_sweep)
                load_keys(decay, s_decay_of_all, 0)
                for m in range(KEYS):
                    for n in range(VALUES):
                        dz[m, n] *= decay[m]
            # one barrier for what is summed and what comes next, a whole group
            strong_next = cuda.syncthreads_or(is_strong(next_w, TOKENS))

            results = row_at(dr, row_k), row_at(dk, row_k), row_at(dw, row_k if w_per_token else 0)
            place = K - i0, T - t0, count, int32(H * K)
            store_keys(of_keys, results, carried, now, u_i, z_dz, place, saved_here, strong)
            store_values(s_dv, s_bonus, s_do, row_at(dv, dv_block + row_v), count, int32(H * V))
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
            i = column(c)
            if is_column(i) and i0 + i < K:
                dr[(b * T * H + h) * K + i0 + i] = narrow(dr_next[c])
                du[head * K + i0 + i] = du_sum[c]
                if not w_per_token:
                    dw[head * K + i0 + i] = dw_sum[c]

    return kernel, signature_of(memory, w_memory, w_per_token, BLOCKS), THREADS, BLOCKS
