"""The gradients of tiles of a head of 128 whose decays are too strong for products of 64 tokens.

Token by token in float32, for any decay, of the tiles that gradients.py has marked; as ../strong.py
has them, but what is read through a, z, and its gradient dy are given. With these the keys do not
depend on each other: 64 at a time. The state before every SOME tokens is kept in shared memory.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .....runtime.compile_triton import assembled
from .....sequences.spans import bounds_of_span
from ..layouts import LOG2E, N
from ..maps import log_decay
from ..products import gradient_of_w
from .sweep import WIDE

SOME = gl.constexpr(16)
MARKS = gl.constexpr(64)  # tiles that a program looks at
KEPT = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
STATE = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [8, 1], [16, 64, 16]))  # [values, keys]
BY_KEY, BY_VALUE = gl.constexpr(gl.SliceLayout(0, STATE)), gl.constexpr(gl.SliceLayout(1, STATE))


@assembled
@gluon.jit(do_not_specialize=["T", "H", "count", "scale"])
def wkv7_wide_strong_kernel(
    r, w, k, v, a, b, do, z, dy, states, d_states, bounds, dr, dk, da, db, dw, strong, T, H, count,
    scale, DECAY: gl.constexpr,
):  # fmt: skip
    """As `wkv7_wide_gradients_kernel`, all of tensors. count: of tiles and heads."""
    s_kept = gl.allocate_shared_memory(gl.float32, [N // SOME, WIDE, N], KEPT)
    first = gl.program_id(0).to(gl.int64) * MARKS
    for j in range(gl.minimum(MARKS, count - first)):
        i = first + j
        if gl.load(strong + i) != 0:
            start, end = bounds_of_span(bounds, i // H, T, N)
            at, step = start * (H * WIDE) + i % H * WIDE, H * WIDE
            n = gl.minimum(end - start, N).to(gl.int32)
            of_values = v, do, z + i * (WIDE * N), dy + i * (WIDE * N)
            state, d_state = states + i * (WIDE * WIDE), d_states + i * (WIDE * WIDE)
            for half in range(WIDE // N):
                gradients_by_token(
                    (r, w, k, a, b), of_values, state, d_state, (dr, dk, da, db, dw), s_kept,
                    at, step, n, half * N, scale, DECAY,
                )  # fmt: skip


@gluon.jit
def load_half(state, first):
    value, key = gl.arange(0, WIDE, BY_VALUE)[:, None], gl.arange(0, N, BY_KEY)[None, :]
    return gl.load(state + value * WIDE + first + key).to(gl.float32)


@gluon.jit
def keys_of(x, at):
    """64 keys of a token, in float32."""
    return gl.load(x + at + gl.arange(0, N, BY_KEY)).to(gl.float32)


@gluon.jit
def values_of(x, at):
    """All values of a token, in float32."""
    return gl.load(x + at + gl.arange(0, WIDE, BY_VALUE)).to(gl.float32)


@gluon.jit
def read_of(x, t):
    """z or dy of a token of a tile: [values, tokens]."""
    return gl.load(x + gl.arange(0, WIDE, BY_VALUE) * N + t).to(gl.float32)


@gluon.jit
def next_state(b_s, inputs, of_values, t, at, first, DECAY: gl.constexpr):
    """The state after a token: 64 keys from `first` on."""
    r, w, k, a, b = inputs
    v, do, z, dy = of_values
    b_s *= gl.exp2(log_decay(keys_of(w, at + first), DECAY) * LOG2E)[None, :]
    b_s += read_of(z, t)[:, None] * keys_of(b, at + first)[None, :]
    return b_s + values_of(v, at)[:, None] * keys_of(k, at + first)[None, :]


@gluon.jit
def gradients_by_token(
    inputs, of_values, state, d_state, outputs, s_kept, at, step, n, first, scale,
    DECAY: gl.constexpr,
):  # fmt: skip
    """Of n tokens, from the last to the first, and of 64 keys from `first` on."""
    r, w, k, a, b = inputs
    v, do, z, dy = of_values
    dr, dk, da, db, dw = outputs
    b_s = load_half(state, first)
    for t in range(n):
        if t % SOME == 0:
            s_kept.index(t // SOME).store(b_s)
        b_s = next_state(b_s, inputs, of_values, t, at + t * step, first, DECAY)
    b_ds = load_half(d_state, first)
    key = gl.arange(0, N, BY_KEY)
    for i in range(n):
        t = n - 1 - i
        b_s = s_kept.index(t // SOME).load(STATE)
        for earlier in range(t // SOME * SOME, t):
            b_s = next_state(b_s, inputs, of_values, earlier, at + earlier * step, first, DECAY)
        token = at + t * step
        row = token + first
        b_after = next_state(b_s, inputs, of_values, t, token, first, DECAY)
        b_do, b_dy = values_of(do, token) * scale, read_of(dy, t)
        b_ds += b_do[:, None] * keys_of(r, row)[None, :]
        gl.store(dr + row + key, gl.sum(b_do[:, None] * b_after, 0).to(gl.bfloat16))
        b_dk = gl.sum(values_of(v, token)[:, None] * b_ds, 0)
        gl.store(dk + row + key, b_dk.to(gl.bfloat16))
        b_db = gl.sum(read_of(z, t)[:, None] * b_ds, 0)
        gl.store(db + row + key, b_db.to(gl.bfloat16))
        gl.store(da + row + key, gl.sum(b_dy[:, None] * b_s, 0).to(gl.bfloat16))
        b_w = log_decay(keys_of(w, row), DECAY)
        b_decay = gl.exp2(b_w * LOG2E)
        b_dw = gradient_of_w(gl.sum(b_s * b_ds, 0) * b_decay, b_w, DECAY)
        gl.store(dw + row + key, b_dw.to(gl.bfloat16))
        b_ds = b_ds * b_decay[None, :] + b_dy[:, None] * keys_of(a, row)[None, :]
