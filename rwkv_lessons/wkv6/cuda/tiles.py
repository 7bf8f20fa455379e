"""How the numba kernels cut a head: its state into tiles, one a thread; its tokens into groups.

A thread holds KEYS × VALUES elements of the state in registers. For each token it reads KEYS
numbers of r and k and VALUES of v from shared memory, where the block puts TOKENS tokens at once.
Its share of a sum over keys, or over values, it stores there; after TOKENS tokens the shares are
added up, always in the same order.

Decays take no instruction in the loop over tokens: for TOKENS tokens the state is kept as S / E,
with E the decays since their start, so that S ← decay S + kᵀ v is S / E ← S / E + (k / E)ᵀ v, and a
token reads it by r E. E is at least exp(-WEAK). Groups of tokens that decay more than that, the
strong ones, multiply their state at each token; so does a group that the sequence's end cuts short.
"""

from typing import NamedTuple

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
from .instructions import store4_at

TILE = 8, 8  # keys and values of a thread: 64 registers for the state, 60 to 110 around it
THREADS = 64  # in a block: a whole head of 64 × 64, and room for four blocks
TOKENS = 8  # fetched together, while the 8 before them are computed
THREADS_PER_SUM = 4  # threads that share a sum over all keys, or all values, of one token
SHARED_BYTES = 48 * 1024  # what a block may have without asking for more
CHECKPOINT = 64  # tokens between saved states: dw is then right to 7e-7; 16: 4e-7, 1024: 3e-6
WEAK = 8.0  # of the sum of log decays of TOKENS tokens; with 16 dw is wrong by 1.5e-6, not 9e-7
LOG2E = 1.4426950408889634
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


class Staging(NamedTuple):
    """Device functions for the columns of keys, or of values."""

    column: object
    is_there: object
    fetch: object
    put: object
    is_strong: object
    clear: object
    move_row: object


class Tiles:
    """The sizes of a block, and the device functions that follow from them.

    Args:
        head: its keys and values.
        key_groups, value_groups: threads along the keys and along the values of a block.
        rows: (keys, values): how many arrays in shared memory have a row per token, with a number
            for each key, and for each value.
        shares: "keys", "values" or both: for which of them threads share sums.
        kept: (keys, values): how many of these arrays have one row more, for a neighbour.
        tile: keys and values of a thread, multiples of 4.
        tokens: how many to stage together; fewer if shared memory is short.
    """

    def __init__(
        self, head, key_groups, value_groups, rows, shares, kept=(1, 0), tile=TILE, tokens=TOKENS
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
        # A block with a thread for each column of both leaves none without.
        first_value = KP if THREADS >= KP + VP else 0
        self.keys = _staging(THREADS, TOKENS, head[0], KP, 0)
        self.values = _staging(THREADS, TOKENS, head[1], VP, first_value)
        self.tile = _tile(KEYS, VALUES, value_groups)
        self.sums = _sums(THREADS, TOKENS, KP, VP)


def make_store_columns(narrow, size):
    """The device function that writes four columns of a token of `size` columns.

    In the dtype that `narrow` makes; in one store if all columns of a token are float32.
    """
    WIDE = narrow is float32 and size % 4 == 0

    @cuda.jit(device=True, forceinline=True)
    def store_wide(target, at, columns, x):
        if columns > 0:
            store4_at(target, (at,), x)

    @cuda.jit(device=True, forceinline=True)
    def store_columns(target, at, columns, x):
        """The first column is at `at`; columns: how many the token has from there on."""
        if columns > 0:
            target[at] = narrow(x[0])
        if columns > 1:
            target[int32(at + 1)] = narrow(x[1])
        if columns > 2:
            target[int32(at + 2)] = narrow(x[2])
        if columns > 3:
            target[int32(at + 3)] = narrow(x[3])

    return store_wide if WIDE else store_columns


def unrolled(token, tokens):
    """The device function that is `token` for t = 0, 1, … of so many, a power of two.

    Four tokens in an iteration share the computation of addresses. All eight would double the time
    that numba takes to compile.
    """

    @cuda.jit(device=True, forceinline=True)
    def one_by_one(registers, shared):
        for t in range(tokens):
            token(registers, shared, t)

    @cuda.jit(device=True, forceinline=True)
    def four_by_four(registers, shared):
        for t in range(0, tokens, 4):
            token(registers, shared, t)
            token(registers, shared, t + 1)
            token(registers, shared, t + 2)
            token(registers, shared, t + 3)

    return one_by_one if tokens < 4 else four_by_four


def _staging(THREADS, TOKENS, SIZE, PADDED, FIRST):
    """From device memory to registers, and from there to shared memory: a thread has columns.

    SIZE: of a head; PADDED: columns of a row; FIRST: the thread that has column 0.
    """
    WHOLE = SIZE % PADDED == 0  # no column is padding
    ALL = FIRST == 0 and PADDED % THREADS == 0  # every thread has as many columns

    @cuda.jit(device=True, forceinline=True)
    def column(c):
        return int32(int32(cuda.threadIdx.x) + int32(c * THREADS - FIRST))

    @cuda.jit(device=True, forceinline=True)
    def is_there(i):
        return ALL or (i >= 0 and i < PADDED)

    def fetch(widen):
        @cuda.jit(device=True, forceinline=True)
        def fetch(registers, source, stride, count, size):
            """The TOKENS tokens that `source` starts with.

            Past `count`, or `size` columns, the last again.
            """
            for c in range(registers.shape[1]):
                if is_there(column(c)):
                    i = int32(min(column(c), int32(size - 1)))
                    for t in range(TOKENS):
                        row = int32(int32(min(int32(t), int32(count - 1))) * int32(stride))
                        registers[t, c] = widen(source[int32(row + i)])

        return fetch

    @cuda.jit(device=True, forceinline=True)
    def put(s_x, row, registers, size, filled):
        """Passes a thread's columns on to the block, `filled` tokens,
        with zeros for the padding."""
        for c in range(registers.shape[1]):
            i = column(c)
            if is_there(i):
                for t in range(TOKENS):
                    is_input = (WHOLE or i < size) and t < filled
                    s_x[row + t, i] = registers[t, c] if is_input else float32(0)

    @cuda.jit(device=True, forceinline=True)
    def is_strong(log_decays, count):
        """Whether a thread's columns decay by more than WEAK; NaN does, and so does a short group.

        Every group that is not strong has TOKENS tokens.
        """
        strong = int32(count < TOKENS)
        for c in range(log_decays.shape[1]):
            if is_there(column(c)):
                total = float32(0)
                for t in range(TOKENS):
                    total += log_decays[t, c]
                if not total >= float32(-WEAK):
                    strong = int32(1)
        return strong

    @cuda.jit(device=True, forceinline=True)
    def clear(s_x, row, columns):
        for c in range(columns):
            if is_there(column(c)):
                s_x[row, column(c)] = float32(0)

    @cuda.jit(device=True, forceinline=True)
    def move_row(s_x, row, target, columns):
        """Moves a token to row `target`; a thread moves the columns that it puts."""
        for c in range(columns):
            if is_there(column(c)):
                s_x[target, column(c)] = s_x[row, column(c)]

    return Staging(column, is_there, fetch, put, is_strong, clear, move_row)


def _tile(KEYS, VALUES, VALUE_GROUPS):
    """A thread's keys and values of a token, and its share of a sum over either."""

    @cuda.jit(device=True, forceinline=True)
    def key_at(m):
        return cuda.threadIdx.x // VALUE_GROUPS * KEYS + m

    @cuda.jit(device=True, forceinline=True)
    def value_at(n):
        """Four values here, four VP / 2 further on: neighbours in a warp then differ in banks."""
        return (n // 4 * VALUE_GROUPS + cuda.threadIdx.x % VALUE_GROUPS) * 4 + n % 4

    @cuda.jit(device=True, forceinline=True)
    def load_keys(x, s_x, t):
        for m in range(0, KEYS, 4):
            x[m], x[m + 1], x[m + 2], x[m + 3] = load4(s_x, (t, key_at(m)))

    @cuda.jit(device=True, forceinline=True)
    def load_values(x, s_x, t):
        for n in range(0, VALUES, 4):
            x[n], x[n + 1], x[n + 2], x[n + 3] = load4(s_x, (t, value_at(n)))

    @cuda.jit(device=True, forceinline=True)
    def store_key_shares(s_shares, t, x):
        """A share of a sum over values, for each key."""
        share = cuda.threadIdx.x % VALUE_GROUPS
        for m in range(0, KEYS, 4):
            store4(s_shares, (t, share, key_at(m)), (x[m], x[m + 1], x[m + 2], x[m + 3]))

    @cuda.jit(device=True, forceinline=True)
    def store_value_shares(s_shares, t, x):
        """A share of a sum over keys, for each value."""
        share = cuda.threadIdx.x // VALUE_GROUPS
        for n in range(0, VALUES, 4):
            store4(s_shares, (t, share, value_at(n)), (x[n], x[n + 1], x[n + 2], x[n + 3]))

    return key_at, value_at, load_keys, load_values, store_key_shares, store_value_shares


def _sums(THREADS, TOKENS, KP, VP):
    """Adding up: shares, and the two numbers that a token has one of."""

    @cuda.jit(device=True, forceinline=True)
    def add_shares(s_shares, t, i):
        total = float32(0)
        for share in range(s_shares.shape[1]):
            total += s_shares[t, share, i]
        return total

    @cuda.jit(device=True, forceinline=True)
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

    @cuda.jit(device=True, forceinline=True)
    def bonus_of_tokens(s_sum, s_terms):
        """The sum of each token's terms, r u k, over the keys, in parts."""
        for n in range(ROUNDS):
            task = cuda.threadIdx.x + n * THREADS
            if task < TASKS:
                t, part = task & (TOKENS - 1), task >> LOG_TOKENS
                total = float32(0)
                for step in range(KEY_STEPS):
                    i = 4 * part + step * STEP
                    if i < KP:
                        a, b, c, d = load4(s_terms, (t, i))
                        total += (a + b) + (c + d)
                s_sum[t, part] = total

    @cuda.jit(device=True, forceinline=True)
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

    @cuda.jit(device=True, forceinline=True)
    def add_parts(s_sum, t):
        a, b, c, d = load4(s_sum, (t, 0))
        return (a + b) + (c + d)

    @cuda.jit(device=True, forceinline=True)
    def add_bonus4(s_shares, s_bonus, s_x, t, i):
        """Sums of four columns, with the token's bonus times its x."""
        a, b, c, d = add_shares4(s_shares, t, i)
        bonus = add_parts(s_bonus, t)
        e, f, g, h = load4(s_x, (t, i))
        return a + bonus * e, b + bonus * f, c + bonus * g, d + bonus * h

    return add_shares, add_shares4, add_bonus4, bonus_of_tokens, products_of_tokens, add_parts
