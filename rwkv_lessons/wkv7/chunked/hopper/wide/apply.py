"""One chunk, or single tokens, of 64 values: the state after them, and what they read.

As ../apply.py has it. The keys are two halves of 64, so a sum over keys is two products.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

from ..apply import by_token, in_pieces, solved
from ..layouts import LOG2E, READ, STATE, C, N, as_left
from ..maps import log_decay


@gluon.jit
def to_split(s_decay):
    """The decay of keys from a chunk's start to where it is split, see split.py."""
    b_decay = s_decay.load(gl.SliceLayout(0, STATE))
    return gl.where(b_decay < 0, -b_decay, 1.0)[None, :]


@gluon.jit
def from_split(s_decay, SPLIT: gl.constexpr):
    """The decay from there to the chunk's end. SPLIT: whether any chunk of the tile is split."""
    b_decay = s_decay.load(gl.SliceLayout(0, STATE))
    if SPLIT:
        b_decay = gl.abs(b_decay)
    return b_decay[None, :]


@gluon.jit
def apply_chunk(
    b_s0, b_s1, keys, s_v, s_small, s_decay0, s_decay1, first: gl.constexpr, SPLIT: gl.constexpr
):
    """One chunk, whose first token in the tile is `first`: the state after it, and oᵀ.

    b_s0, b_s1: Sᵀ of 64 values, for each half of the keys. keys: R̃, K̃, Ã and B̃ of each half.
    """
    s_r0, s_k0, s_a0, s_b0, s_r1, s_k1, s_a1, s_b1 = keys
    if SPLIT:
        b_s0 *= to_split(s_decay0)
        b_s1 *= to_split(s_decay1)
    zeros = gl.zeros([N, C], gl.float32, READ)
    v = s_v.slice(first, C, 0).permute((1, 0)).load(gl.DotOperandLayout(0, READ, 2))
    v_wide = gl.convert_layout(v, gl.DotOperandLayout(0, STATE, 2))
    s0, s1 = as_left(b_s0, READ), as_left(b_s1, READ)
    s_ak, s_rb = by_token(s_small.index(0), first), by_token(s_small.index(1), first)
    s_rk, s_t = by_token(s_small.index(2), first), by_token(s_small.index(3), first)
    b_y = warpgroup_mma(v, s_ak, zeros, use_acc=False, is_async=True)
    b_y = warpgroup_mma(s0, by_token(s_a0, first), b_y, is_async=True)
    b_y = warpgroup_mma(s1, by_token(s_a1, first), b_y, is_async=True)
    b_o = warpgroup_mma(v, s_rk, zeros, use_acc=False, is_async=True)
    b_o = warpgroup_mma(s0, by_token(s_r0, first), b_o, is_async=True)
    b_o = warpgroup_mma(s1, by_token(s_r1, first), b_o, is_async=True)
    b_s0 = warpgroup_mma(v_wide, s_k0.slice(first, C, 0), b_s0, is_async=True)
    b_s1 = warpgroup_mma(v_wide, s_k1.slice(first, C, 0), b_s1, is_async=True)
    b_y = warpgroup_mma_wait(5, deps=(b_y,))
    y = in_pieces(b_y)
    b_z = solved(y, s_t, zeros)
    deps = (b_z, b_o, b_s0, b_s1, s0, s1, v, v_wide) + y
    b_z, b_o, b_s0, b_s1 = warpgroup_mma_wait(0, deps=deps)[:4]
    z = as_left(b_z, READ)
    z_wide = gl.convert_layout(z, gl.DotOperandLayout(0, STATE, 2))
    b_s0 = warpgroup_mma(z_wide, s_b0.slice(first, C, 0), b_s0, is_async=True)
    b_s1 = warpgroup_mma(z_wide, s_b1.slice(first, C, 0), b_s1, is_async=True)
    b_o = warpgroup_mma(z, s_rb, b_o, is_async=True)
    b_decay0, b_decay1 = from_split(s_decay0, SPLIT), from_split(s_decay1, SPLIT)
    b_s0, b_s1, b_o = warpgroup_mma_wait(0, deps=(b_s0, b_s1, b_o, z, z_wide))[:3]
    return b_s0 * b_decay0, b_s1 * b_decay1, b_o, b_z


@gluon.jit
def row_of(x, at):
    """The keys of a token, in float32, of each half."""
    key = gl.arange(0, N, gl.SliceLayout(0, STATE))
    return gl.load(x + at + key).to(gl.float32), gl.load(x + at + N + key).to(gl.float32)


@gluon.jit
def apply_tokens(
    b_s0, b_s1, rows, o_rows, at, step, count, scale, z_t, FIRST: gl.constexpr, DECAY: gl.constexpr
):
    """The recurrence for `count` tokens, for any decay: the state after them. Stores their o.

    at: of the first token in global memory; step: to the next one. FIRST: of the 64 values. z_t:
    as in `apply_chunks`; it gets zeros after the tokens.
    """
    r, w, k, v, a, b = rows
    value = FIRST + gl.arange(0, N, gl.SliceLayout(1, STATE))
    for t in range(count):
        a0, a1 = row_of(a, at)
        b_z = gl.sum(b_s0 * a0[None, :], 1) + gl.sum(b_s1 * a1[None, :], 1)
        if z_t is not None:
            gl.store(z_t + (value - FIRST) * N + t, b_z.to(gl.bfloat16))
        w0, w1 = row_of(w, at)
        b_s0 *= gl.exp2(log_decay(w0, DECAY) * LOG2E)[None, :]
        b_s1 *= gl.exp2(log_decay(w1, DECAY) * LOG2E)[None, :]
        b0, b1 = row_of(b, at)
        b_s0 += b_z[:, None] * b0[None, :]
        b_s1 += b_z[:, None] * b1[None, :]
        b_v = gl.load(v + at + value).to(gl.float32)
        k0, k1 = row_of(k, at)
        b_s0 += b_v[:, None] * k0[None, :]
        b_s1 += b_v[:, None] * k1[None, :]
        r0, r1 = row_of(r, at)
        b_o = gl.sum(b_s0 * r0[None, :], 1) + gl.sum(b_s1 * r1[None, :], 1)
        gl.store(o_rows + at + value, (b_o * scale).to(gl.bfloat16))
        at += step
    if z_t is not None:
        for t in range(count, N):
            gl.store(z_t + (value - FIRST) * N + t, (value * 0).to(gl.bfloat16))
    return b_s0, b_s1
