"""One chunk, or single tokens, back: dS of 64 values before them, dv, and what z's equation gets.

As ../reverse.py has it, with dv. The keys are two halves of 64, so a sum over keys is two products.
With dS after a chunk,

    dS̃ = decay dS    dz = B̃ dS̃ + A_rbᵀ do    dy = Tᵀ dz    dS before it = dS̃ + R̃ᵀ do + Ãᵀ dy
    dv = K̃ dS̃ + A_rkᵀ do + A_akᵀ dy

Where decays are split (split.py), dS̃ is d dS, and dS before the chunk is multiplied by d.
dy of a token is the gradient of what it reads through a.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

from ..apply import by_token, in_pieces, solved
from ..layouts import LOG2E, READ, STATE, C, N, as_left
from ..maps import log_decay
from .apply import from_split, row_of, to_split


@gluon.jit
def apply_chunk_back(
    b_ds0, b_ds1, keys, s_do, s_small, s_decay0, s_decay1, first: gl.constexpr, SPLIT: gl.constexpr
):
    """One chunk, whose first token in the tile is `first`: dS before it, dvᵀ and dyᵀ.

    b_ds0, b_ds1: dSᵀ of 64 values, for each half of the keys. keys: R̃, K̃, Ã and B̃ of each half.
    """
    s_r0, s_k0, s_a0, s_b0, s_r1, s_k1, s_a1, s_b1 = keys
    b_ds0 *= from_split(s_decay0, SPLIT)
    b_ds1 *= from_split(s_decay1, SPLIT)
    zeros = gl.zeros([N, C], gl.float32, READ)
    do = s_do.slice(first, C, 0).permute((1, 0)).load(gl.DotOperandLayout(0, READ, 2))
    do_wide = gl.convert_layout(do, gl.DotOperandLayout(0, STATE, 2))
    ds0, ds1 = as_left(b_ds0, READ), as_left(b_ds1, READ)
    s_ak, s_rb = s_small.index(0).slice(first, C, 0), s_small.index(1).slice(first, C, 0)
    s_rk, s_t = s_small.index(2).slice(first, C, 0), s_small.index(3).slice(first, C, 0)
    b_dz = warpgroup_mma(do, s_rb, zeros, use_acc=False, is_async=True)
    b_dz = warpgroup_mma(ds0, by_token(s_b0, first), b_dz, is_async=True)
    b_dz = warpgroup_mma(ds1, by_token(s_b1, first), b_dz, is_async=True)
    b_dv = warpgroup_mma(do, s_rk, zeros, use_acc=False, is_async=True)
    b_dv = warpgroup_mma(ds0, by_token(s_k0, first), b_dv, is_async=True)
    b_dv = warpgroup_mma(ds1, by_token(s_k1, first), b_dv, is_async=True)
    b_ds0 = warpgroup_mma(do_wide, s_r0.slice(first, C, 0), b_ds0, is_async=True)
    b_ds1 = warpgroup_mma(do_wide, s_r1.slice(first, C, 0), b_ds1, is_async=True)
    b_dz = warpgroup_mma_wait(5, deps=(b_dz,))
    dz = in_pieces(b_dz)
    b_dy = solved(dz, s_t, zeros)
    deps = (b_dy, b_dv, b_ds0, b_ds1, ds0, ds1, do, do_wide) + dz
    b_dy, b_dv, b_ds0, b_ds1 = warpgroup_mma_wait(0, deps=deps)[:4]
    dy = as_left(b_dy, READ)
    dy_wide = gl.convert_layout(dy, gl.DotOperandLayout(0, STATE, 2))
    b_ds0 = warpgroup_mma(dy_wide, s_a0.slice(first, C, 0), b_ds0, is_async=True)
    b_ds1 = warpgroup_mma(dy_wide, s_a1.slice(first, C, 0), b_ds1, is_async=True)
    b_dv = warpgroup_mma(dy, s_ak, b_dv, is_async=True)
    b_ds0, b_ds1, b_dv = warpgroup_mma_wait(0, deps=(b_ds0, b_ds1, b_dv, dy, dy_wide))[:3]
    if SPLIT:
        b_ds0 *= to_split(s_decay0)
        b_ds1 *= to_split(s_decay1)
    return b_ds0, b_ds1, b_dv, b_dy


@gluon.jit
def apply_tokens_back(
    b_ds0, b_ds1, rows, dv_rows, at, step, count, scale, dy_t, FIRST: gl.constexpr,
    DECAY: gl.constexpr,
):  # fmt: skip
    """The recurrence back over `count` tokens, for any decay: dS before them. Stores dv and dy.

    rows: r, w, k, do, a, b; the others: as in `apply_tokens`.
    """
    r, w, k, do, a, b = rows
    value = FIRST + gl.arange(0, N, gl.SliceLayout(1, STATE))
    for i in range(count):
        t = count - 1 - i
        row = at + t * step
        b_do = gl.load(do + row + value).to(gl.float32) * scale
        r0, r1 = row_of(r, row)
        b_ds0 += b_do[:, None] * r0[None, :]
        b_ds1 += b_do[:, None] * r1[None, :]
        k0, k1 = row_of(k, row)
        b_dv = gl.sum(b_ds0 * k0[None, :], 1) + gl.sum(b_ds1 * k1[None, :], 1)
        gl.store(dv_rows + row + value, b_dv.to(gl.bfloat16))
        b0, b1 = row_of(b, row)
        b_dy = gl.sum(b_ds0 * b0[None, :], 1) + gl.sum(b_ds1 * b1[None, :], 1)
        gl.store(dy_t + (value - FIRST) * N + t, b_dy.to(gl.bfloat16))
        w0, w1 = row_of(w, row)
        a0, a1 = row_of(a, row)
        b_ds0 = b_ds0 * gl.exp2(log_decay(w0, DECAY) * LOG2E)[None, :] + b_dy[:, None] * a0[None, :]
        b_ds1 = b_ds1 * gl.exp2(log_decay(w1, DECAY) * LOG2E)[None, :] + b_dy[:, None] * a1[None, :]
    for t in range(count, N):
        gl.store(dy_t + (value - FIRST) * N + t, (value * 0).to(gl.bfloat16))
    return b_ds0, b_ds1
