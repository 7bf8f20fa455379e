"""The gradients of tiles whose decays are too strong for products of all 64 tokens.

Token by token in float32, for any decay, of the tiles that gradients.py has marked. Forward, the
state before every EIGHT tokens is kept in shared memory; backward, a token's is computed again from
the last of these. With z what a token reads through a, and dS' of the state after it:

    S' = S decay + z b + v k        dS' += do r         dz = dS' b      dS = dS' decay + dz a
    dr = do S'     dk = v dS'     dv = dS' k     da = dz S     db = z dS'     dw = decay (S ⊙ dS')
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ....runtime.compile_triton import assembled
from ....sequences.spans import bounds_of_span
from .layouts import LOG2E, STATE, N
from .maps import log_decay
from .products import gradient_of_w

EIGHT = gl.constexpr(8)
MARKS = gl.constexpr(64)  # tiles that a program looks at
KEPT = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
BY_KEY = gl.constexpr(gl.SliceLayout(0, STATE))
BY_VALUE = gl.constexpr(gl.SliceLayout(1, STATE))


@assembled
@gluon.jit(do_not_specialize=["T", "H", "count", "scale"])
def wkv7_strong_gradients_kernel(
    r, w, k, v, a, b, do, states, d_states, bounds, dr, dw, dk, dv, da, db, strong, T, H, count,
    scale, DECAY: gl.constexpr,
):  # fmt: skip
    """As `wkv7_tile_gradients_kernel`, all of tensors. count: of tiles and heads."""
    s_kept = gl.allocate_shared_memory(gl.float32, [N // EIGHT, N, N], KEPT)
    first = gl.program_id(0).to(gl.int64) * MARKS
    for j in range(gl.minimum(MARKS, count - first)):
        i = first + j
        if gl.load(strong + i) != 0:
            start, end = bounds_of_span(bounds, i // H, T, N)
            at, step, at_state = start * (H * N) + i % H * N, H * N, i * (N * N)
            n = gl.minimum(end - start, N).to(gl.int32)
            inputs, outputs = (r, w, k, v, a, b), (dr, dw, dk, dv, da, db)
            keep_states(inputs, states + at_state, s_kept, at, step, n, DECAY)
            gradients_by_token(
                inputs, do, d_states + at_state, outputs, s_kept, at, step, n, scale, DECAY
            )  # fmt: skip


@gluon.jit
def load_state(state):
    value, key = gl.arange(0, N, BY_VALUE)[:, None], gl.arange(0, N, BY_KEY)[None, :]
    return gl.load(state + value * N + key).to(gl.float32)


@gluon.jit
def row_of(x, at, LAYOUT: gl.constexpr):
    """The keys or values of a token, in float32."""
    return gl.load(x + at + gl.arange(0, N, LAYOUT)).to(gl.float32)


@gluon.jit
def next_state(b_s, inputs, at, DECAY: gl.constexpr):
    """The state after a token; what it reads through a."""
    r, w, k, v, a, b = inputs
    b_z = gl.sum(b_s * row_of(a, at, BY_KEY)[None, :], 1)
    b_s *= gl.exp2(log_decay(row_of(w, at, BY_KEY), DECAY) * LOG2E)[None, :]
    b_s += b_z[:, None] * row_of(b, at, BY_KEY)[None, :]
    b_s += row_of(v, at, BY_VALUE)[:, None] * row_of(k, at, BY_KEY)[None, :]
    return b_s, b_z


@gluon.jit
def keep_states(inputs, state, s_kept, at, step, n, DECAY: gl.constexpr):
    """The state before every EIGHT of n tokens, to s_kept."""
    b_s = load_state(state)
    for t in range(n):
        if t % EIGHT == 0:
            s_kept.index(t // EIGHT).store(b_s)
        b_s, _ = next_state(b_s, inputs, at + t * step, DECAY)


@gluon.jit
def gradients_by_token(
    inputs, do, d_state, outputs, s_kept, at, step, n, scale, DECAY: gl.constexpr
):
    """Of n tokens, from the last to the first."""
    r, w, k, v, a, b = inputs
    dr, dw, dk, dv, da, db = outputs
    key, value = gl.arange(0, N, BY_KEY), gl.arange(0, N, BY_VALUE)
    b_ds = load_state(d_state)
    for i in range(n):
        t = n - 1 - i
        b_s = s_kept.index(t // EIGHT).load(STATE)
        for earlier in range(t // EIGHT * EIGHT, t):
            b_s, _ = next_state(b_s, inputs, at + earlier * step, DECAY)
        row = at + t * step
        b_after, b_z = next_state(b_s, inputs, row, DECAY)
        b_do = row_of(do, row, BY_VALUE) * scale
        b_ds += b_do[:, None] * row_of(r, row, BY_KEY)[None, :]
        gl.store(dr + row + key, gl.sum(b_do[:, None] * b_after, 0).to(gl.bfloat16))
        b_v, b_k = row_of(v, row, BY_VALUE), row_of(k, row, BY_KEY)
        gl.store(dk + row + key, gl.sum(b_v[:, None] * b_ds, 0).to(gl.bfloat16))
        gl.store(dv + row + value, gl.sum(b_k[None, :] * b_ds, 1).to(gl.bfloat16))
        gl.store(db + row + key, gl.sum(b_z[:, None] * b_ds, 0).to(gl.bfloat16))
        b_dz = gl.sum(row_of(b, row, BY_KEY)[None, :] * b_ds, 1)
        gl.store(da + row + key, gl.sum(b_dz[:, None] * b_s, 0).to(gl.bfloat16))
        b_w = log_decay(row_of(w, row, BY_KEY), DECAY)
        b_decay = gl.exp2(b_w * LOG2E)
        b_dw = gradient_of_w(gl.sum(b_s * b_ds, 0) * b_decay, b_w, DECAY)
        gl.store(dw + row + key, b_dw.to(gl.bfloat16))
        b_ds = b_ds * b_decay[None, :] + b_dz[:, None] * row_of(a, row, BY_KEY)[None, :]
