"""How the numba kernels cut a head: its state into tiles, one a thread; its tokens into groups.

A thread holds KEYS × VALUES elements of the state in registers. For each token it reads KEYS
numbers of r and k and VALUES of v from shared memory, where the block puts TOKENS tokens at once.
Its share of a sum over keys, or over values, it stores there; after TOKENS tokens the shares are
added up, always in the same order.

Decays take no instruction in the loop over tokens: for TOKENS tokens the state is kept as S / E,
with E the decays since their start, so that S ← decay S + kᵀ v is S / E ← S / E + (k / E)ᵀ v, and a
token reads it by r E. E is at least exp(-WEAK). Groups of tokens that decay more than that, the
strong ones, multiply their state at each token.
"""

import torch
from numba import cuda, float32, int32

from ...runtime import devices
from ...runtime.launch_numba import (
    bfloat16_to_float32,
    ceil_div,
    float32_to_bfloat16,
    load4,
    store4,
    types,
)

TILE = 8, 8  # keys and values of a thread: 64 registers for the state, 60 to 110 around it
THREADS = 64  # in a block: a whole head of 64 × 64, and room for four blocks
TOKENS = 8  # fetched together, while the 8 before them are computed
THREADS_PER_SUM = 4  # threads that share a sum over all keys, or all values, of one token
SHARED_BYTES = 48 * 1024  # what a block may have without asking for more
CHECKPOINT = 64  # tokens between saved states: dw is then right to 7e-7; 16: 4e-7, 1024: 3e-6
WEAK = 8.0  # of the sum of log decays of TOKENS tokens; with 16 dw is wrong by 1.5e-6, not 9e-7
NEGLIGIBLE_DECAY = 2.0**-24  # what a smaller decay lets through is below the state's rounding

IN_MEMORY = {  # dtype → numba's type of an element, to float32, from float32
    torch.float32: (types.float32, float32, float32),
    torch.float16: (types.float16, float32, types.float16),
    torch.bfloat16: (types.uint16, bfloat16_to_float32, float32_to_bfloat16),
}


def tile_for(heads, device, few):
    """The tile of a thread: TILE, or `few` where B·H heads leave SMs idle.

    Half a tile gives each head twice the threads, in two blocks.
    """
    return TILE if heads > devices.gpu_of(device).sms else few


def threads_along(groups, other_groups):
    """Threads of a block along the side of the state that blocks share; it has the other whole."""
    return min(groups, max(THREADS // other_groups, 1))


class Tiles:
    """The sizes of a block, and the device functions that follow from them.

    Args:
        key_groups, value_groups: threads along the keys and along the values of a block.
        rows: (keys, values): how many arrays in shared memory have a row per token, with a number
            for each key, and for each value.
        shares: "keys", "values" or both: for which of them threads share sums.
        kept: (keys, values): how many of these arrays have one row more, for a neighbour.
        tile: keys and values of a thread, multiples of 4.
        tokens: how many to stage together; fewer if shared memory is short.
    """

    def __init__(
        self, key_groups, value_groups, rows, shares, kept=(1, 0), tile=TILE, tokens=TOKENS
    ):
        KEYS, VALUES = tile
        THREADS = key_groups * value_groups
        KP, VP = key_groups * KEYS, value_groups * VALUES
        # Four more in a row: rows of different tokens, or shares, then start in other banks.
        KROW, VROW = KP + 4, VP + 4
        once = kept[0] * KROW + kept[1] * VROW
        token = rows[0] * KROW + rows[1] * VROW + 3 * THREADS_PER_SUM
        token += value_groups * KROW * ("keys" in shares)
        token += key_groups * VROW * ("values" in shares)
        while tokens > 1 and 4 * (tokens * token + once) > SHARED_BYTES:
            tokens //= 2
        TOKENS = tokens
        self.sizes = THREADS, KP, VP, KROW, VROW, TOKENS
        self.columns = ceil_div(KP, THREADS), ceil_div(VP, THREADS)
        self.staging = _staging(THREADS, TOKENS)
        self.tile = _tile(KEYS, VALUES, value_groups)
        self.sums = _sums(THREADS, TOKENS, KP, VP)


def make_store_columns(narrow):
    """The device function that writes four columns of a token, in the dtype that `narrow` makes."""

    @cuda.jit(device=True, inline="always")
    def store_columns(target, at, i, size, x):
        """Columns i to i + 3 of a token that has `size`; column i is at `at`."""
        if i < size:
            target[at] = narrow(x[0])
        if i + 1 < size:
            target[at + 1] = narrow(x[1])
        if i + 2 < size:
            target[at + 2] = narrow(x[2])
        if i + 3 < size:
            target[at + 3] = narrow(x[3])

    return store_columns


def _staging(THREADS, TOKENS):
    """From device memory to registers, and from there to shared memory: a thread has columns."""

    def fetch(widen):
        @cuda.jit(device=True, inline="always")
        def fetch(registers, source, row, stride, count, size):
            """TOKENS tokens from `row` on; past `count`, or `size` columns, the last again."""
            for t in range(TOKENS):
                for c in range(registers.shape[1]):
                    column = min(cuda.threadIdx.x + c * THREADS, size - 1)
                    registers[t, c] = widen(source[row + column])
                if t + 1 < count:
                    row += stride

        return fetch

    @cuda.jit(device=True, inline="always")
    def put(s_x, row, registers, size, filled):
        """Passes a thread's columns on to the block, `filled` tokens,
        with zeros for the padding."""
        for c in range(registers.shape[1]):
            i = cuda.threadIdx.x + c * THREADS
            if i < s_x.shape[1]:
                for t in range(TOKENS):
                    s_x[row + t, i] = registers[t, c] if i < size and t < filled else float32(0)

    @cuda.jit(device=True, inline="always")
    def is_strong(log_decays, count):
        """Whether a thread's columns of `count` tokens decay by more than WEAK; NaN does."""
        strong = int32(0)
        for c in range(log_decays.shape[1]):
            total = float32(0)
            for t in range(TOKENS):
                total += log_decays[t, c] if t < count else float32(0)
            if not total >= float32(-WEAK):
                strong = int32(1)
        return strong

    @cuda.jit(device=True, inline="always")
    def clear(s_x, row, columns):
        for c in range(columns):
            if cuda.threadIdx.x + c * THREADS < s_x.shape[1]:
                s_x[row, cuda.threadIdx.x + c * THREADS] = float32(0)

    @cuda.jit(device=True, inline="always")
    def move_row(s_x, row, target, columns):
        """Moves a token to row `target`; a thread moves the columns that it puts."""
        for c in range(columns):
            if cuda.threadIdx.x + c * THREADS < s_x.shape[1]:
                i = cuda.threadIdx.x + c * THREADS
                s_x[target, i] = s_x[row, i]

    return fetch, put, is_strong, clear, move_row


def _tile(KEYS, VALUES, VALUE_GROUPS):
    """A thread's keys and values of a token, and its share of a sum over either."""

    @cuda.jit(device=True, inline="always")
    def key_at(m):
        return cuda.threadIdx.x // VALUE_GROUPS * KEYS + m

    @cuda.jit(device=True, inline="always")
    def value_at(n):
        """Four values here, four VP / 2 further on: neighbours in a warp then differ in banks."""
        return (n // 4 * VALUE_GROUPS + cuda.threadIdx.x % VALUE_GROUPS) * 4 + n % 4

    @cuda.jit(device=True, inline="always")
    def load_keys(x, s_x, t):
        for m in range(0, KEYS, 4):
            x[m], x[m + 1], x[m + 2], x[m + 3] = load4(s_x, (t, key_at(m)))

    @cuda.jit(device=True, inline="always")
    def load_values(x, s_x, t):
        for n in range(0, VALUES, 4):
            x[n], x[n + 1], x[n + 2], x[n + 3] = load4(s_x, (t, value_at(n)))

    @cuda.jit(device=True, inline="always")
    def store_key_shares(s_shares, t, x):
        """A share of a sum over values, for each key."""
        share = cuda.threadIdx.x % VALUE_GROUPS
        for m in range(0, KEYS, 4):
            store4(s_shares, (t, share, key_at(m)), (x[m], x[m + 1], x[m + 2], x[m + 3]))

    @cuda.jit(device=True, inline="always")
    def store_value_shares(s_shares, t, x):
        """A share of a sum over keys, for each value."""
        share = cuda.threadIdx.x // VALUE_GROUPS
        for n in range(0, VALUES, 4):
            store4(s_shares, (t, share, value_at(n)), (x[n], x[n + 1], x[n + 2], x[n + 3]))

    return key_at, value_at, load_keys, load_values, store_key_shares, store_value_shares


def _sums(THREADS, TOKENS, KP, VP):
    """Adding up: shares, and the two numbers that a token has one of."""

    @cuda.jit(device=True, inline="always")
    def add_shares(s_shares, t, i):
        total = float32(0)
        for share in range(s_shares.shape[1]):
            total += s_shares[t, share, i]
        return total

    @cuda.jit(device=True, inline="always")
    def add_shares4(s_shares, t, i):
        """The same of four columns from i on, a multiple of 4."""
        a, b, c, d = load4(s_shares, (t, 0, i))
        for share in range(1, s_shares.shape[1]):
            e, f, g, h = load4(s_shares, (t, share, i))
            a, b, c, d = a + e, b + f, c + g, d + h
        return a, b, c, d

    TASKS = TOKENS * THREADS_PER_SUM
    ROUNDS = ceil_div(TASKS, THREADS)
    STEP = 4 * THREADS_PER_SUM
    KEY_STEPS, VALUE_STEPS = ceil_div(KP, STEP), ceil_div(VP, STEP)
    LOG_TOKENS = TOKENS.bit_length() - 1

    @cuda.jit(device=True, inline="always")
    def bonus_of_tokens(s_sum, s_r, s_k, s_u, s_decay, missing):
        """Σ r u k over the keys of each token, in parts.

        missing: how many tokens earlier in s_decay the decay is that r k lacks; none if negative.
        """
        for n in range(ROUNDS):
            task = cuda.threadIdx.x + n * THREADS
            if task < TASKS:
                t, part = task & (TOKENS - 1), task >> LOG_TOKENS
                total = float32(0)
                for step in range(KEY_STEPS):
                    i = 4 * part + step * STEP
                    if i < KP:
                        a, b, c = load4(s_r, (t, i)), load4(s_k, (t, i)), load4(s_u, (0, i))
                        p0, p1, p2, p3 = a[0] * b[0], a[1] * b[1], a[2] * b[2], a[3] * b[3]
                        if t >= missing >= 0:
                            d = load4(s_decay, (t - missing, i))
                            p0, p1, p2, p3 = p0 * d[0], p1 * d[1], p2 * d[2], p3 * d[3]
                        total += p0 * c[0] + p1 * c[1] + p2 * c[2] + p3 * c[3]
                s_sum[t, part] = total

    @cuda.jit(device=True, inline="always")
    def products_of_tokens(s_now, s_later, s_v, s_do):
        """Σ v[t] do[t] and Σ v[t] do[t + 1] over the values of each token, in parts.

        By the last threads of a block, as `bonus_of_tokens` is by the first.
        """
        for n in range(ROUNDS):
            task = THREADS - 1 - cuda.threadIdx.x + n * THREADS
            if task < TASKS:
                t, part = task & (TOKENS - 1), task >> LOG_TOKENS
                now, later = float32(0), float32(0)
                for step in range(VALUE_STEPS):
                    j = 4 * part + step * STEP
                    if j < VP:
                        a, b, c = load4(s_v, (t, j)), load4(s_do, (t, j)), load4(s_do, (t + 1, j))
                        now += a[0] * b[0] + a[1] * b[1] + a[2] * b[2] + a[3] * b[3]
                        later += a[0] * c[0] + a[1] * c[1] + a[2] * c[2] + a[3] * c[3]
                s_now[t, part] = now
                s_later[t, part] = later

    @cuda.jit(device=True, inline="always")
    def add_parts(s_sum, t):
        a, b, c, d = load4(s_sum, (t, 0))
        return (a + b) + (c + d)

    @cuda.jit(device=True, inline="always")
    def add_bonus4(s_shares, s_bonus, s_x, t, i):
        """Sums of four columns, with the token's bonus times its x."""
        a, b, c, d = add_shares4(s_shares, t, i)
        bonus = add_parts(s_bonus, t)
        e, f, g, h = load4(s_x, (t, i))
        return a + bonus * e, b + bonus * f, c + bonus * g, d + bonus * h

    return add_shares, add_shares4, add_bonus4, bonus_of_tokens, products_of_tokens, add_parts
