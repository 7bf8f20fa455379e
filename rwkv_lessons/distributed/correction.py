"""What tokens read of an entry state E, and its gradients, in Triton: chunk by chunk, in parallel.

    o[t] += x[t] E,  x[t] = r[t] exp(w[0] + … + w[t-1])          (RWKV-7: x[t] is given)

A chunk knows the log decay before it, `before`; one that has nothing left of E ends at once. So
the cost is that of the tokens that E reaches: r, w, o read and o written. Backward there are two
kernels: E's gradient, Σ xᵀ do, for which other ranks wait, reads r, w, do; later dr and dw are
added to what the main pass left.
"""

import torch
import triton
import triton.language as tl

from ..runtime.compile_triton import assembled
from ..runtime.launch_triton import launch
from ..wkv6.chunked.tiles import LOG2E, log2_decays, log_decay, product, weighted_sums

CHUNKS_PER_PROGRAM = 16  # of the sums of xᵀ do: a state for each 1024 tokens is written


def chunk_for(K):
    """Tokens of a chunk: as many as leave its tiles in registers."""
    return 64 if K <= 64 else 32 if K <= 128 else 16


@triton.jit
def chunk_place(i, H, chunks, BV: tl.constexpr, V: tl.constexpr):
    """Batch, chunk, head and block of values of program i; heads change first."""
    blocks: tl.constexpr = (V + BV - 1) // BV
    i_v, i = i % blocks, i // blocks
    i_h, i = i % H, i // H
    return (i // chunks).to(tl.int64), i % chunks, i_h, i_v


@triton.jit
def nothing_left(b_before, m_k, cutoff):
    """Whether the log decay of every key is below the cutoff; NaN is not."""
    return tl.max((m_k & ~(b_before < cutoff)).to(tl.int32), 0) == 0


@triton.jit
def readers(
    r, w, b_before, at, m, row, o_tk, scale, C: tl.constexpr, DECAYS: tl.constexpr,
    RAW: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """r of a chunk, the decays of its tokens since the first one (with the scale), and w."""
    b_r = tl.load(r + at + o_tk, m, 0.0).to(tl.float32)
    b_decay, b_w = tl.zeros_like(b_r) + scale, b_r
    if DECAYS:
        b_w = log_decay(w + at + o_tk, m, RAW)
        col = tl.arange(0, C)[None, :]
        b_log2 = log2_decays((col < row).to(tl.float32), b_w, DTYPE == tl.float32)
        b_decay *= tl.exp2(b_log2 + b_before[None, :] * LOG2E)
    return b_r, b_decay, b_w


@assembled
@triton.jit(do_not_specialize=["T_r", "T_o", "H", "n", "chunks", "scale", "cutoff"])
def add_entry_kernel(
    r, w, before, E, o, T_r, T_o, H, n, chunks, scale, cutoff, K: tl.constexpr, V: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr, DECAYS: tl.constexpr, RAW: tl.constexpr,
):  # fmt: skip
    """o of a chunk; a program for each batch, chunk, head and block of values."""
    DTYPE: tl.constexpr = o.dtype.element_ty
    i_b, i_c, i_h, i_v = chunk_place(tl.program_id(0), H, chunks, BV, V)
    o_k, o_v, row = tl.arange(0, BK), i_v * BV + tl.arange(0, BV), tl.arange(0, C)[:, None]
    m_k, m_v, m_t = o_k < K, o_v < V, row < n - i_c * C
    b_before = tl.zeros([BK], tl.float32)
    if DECAYS:
        b_before = tl.load(before + ((i_b * chunks + i_c) * H + i_h) * K + o_k, m_k, 0.0)
        if nothing_left(b_before, m_k, cutoff):
            return
    at = ((i_b * T_r + i_c * C) * H + i_h) * K
    m, o_tk = m_t & m_k[None, :], row * (H * K) + o_k[None, :]
    b_r, b_decay, _ = readers(r, w, b_before, at, m, row, o_tk, scale, C, DECAYS, RAW, DTYPE)
    m_s = m_k[:, None] & m_v[None, :]
    b_e = tl.load(E + (i_b * H + i_h) * K * V + o_k[:, None] * V + o_v[None, :], m_s, 0.0)
    b_o = product(b_r * b_decay, b_e, tl.zeros([C, BV], tl.float32), DTYPE)
    to = o + ((i_b * T_o + i_c * C) * H + i_h) * V + row * (H * V) + o_v[None, :]
    m_o = m_t & m_v[None, :]
    tl.store(to, (tl.load(to, m_o, 0.0).to(tl.float32) + b_o).to(DTYPE), m_o)


@assembled
@triton.jit(do_not_specialize=["T_r", "T_o", "H", "n", "chunks", "groups", "scale", "cutoff"])
def entry_gradient_kernel(
    r, w, before, E, do, dE, sums, T_r, T_o, H, n, chunks, groups, scale, cutoff,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    DECAYS: tl.constexpr, RAW: tl.constexpr, CHUNKS_PER_PROGRAM: tl.constexpr,
):  # fmt: skip
    """Σ xᵀ do of a group of chunks, `[K, V]`; and of each chunk x · dx of each key, summed."""
    DTYPE: tl.constexpr = do.dtype.element_ty
    blocks: tl.constexpr = (V + BV - 1) // BV
    i_b, i_g, i_h, i_v = chunk_place(tl.program_id(0), H, groups, BV, V)
    o_k, o_v, row = tl.arange(0, BK), i_v * BV + tl.arange(0, BV), tl.arange(0, C)[:, None]
    m_k, m_v = o_k < K, o_v < V
    o_s, m_s = o_k[:, None] * V + o_v[None, :], m_k[:, None] & m_v[None, :]
    o_tk, o_tv = row * (H * K) + o_k[None, :], row * (H * V) + o_v[None, :]
    b_e = tl.load(E + (i_b * H + i_h) * K * V + o_s, m_s, 0.0)
    b_de = tl.zeros([BK, BV], tl.float32)
    last = tl.minimum((i_g + 1) * CHUNKS_PER_PROGRAM, chunks)
    for i_c in tl.range(i_g * CHUNKS_PER_PROGRAM, last):
        b_before, reaches = tl.zeros([BK], tl.float32), True
        if DECAYS:
            b_before = tl.load(before + ((i_b * chunks + i_c) * H + i_h) * K + o_k, m_k, 0.0)
            reaches = not nothing_left(b_before, m_k, cutoff)
        if reaches:
            m_t = row < n - i_c * C
            at = ((i_b * T_r + i_c * C) * H + i_h) * K
            m = m_t & m_k[None, :]
            b_r, b_decay, _ = readers(
                r, w, b_before, at, m, row, o_tk, scale, C, DECAYS, RAW, DTYPE
            )
            from_do = do + ((i_b * T_o + i_c * C) * H + i_h) * V + o_tv
            b_do = tl.load(from_do, m_t & m_v[None, :], 0.0)
            zeros = tl.zeros([BK, BV], tl.float32)
            b_part = product(tl.trans(b_r * b_decay), b_do, zeros, DTYPE)
            b_de += b_part
            if DECAYS:
                at_sum = (((i_b * chunks + i_c) * H + i_h) * blocks + i_v) * K
                tl.store(sums + at_sum + o_k, tl.sum(b_e * b_part, 1), m_k)
    at_group = ((i_b * groups + i_g) * H + i_h) * K * V
    tl.store(dE + at_group + o_s, b_de, m_s)


@assembled
@triton.jit(do_not_specialize=["T", "H", "n", "chunks", "scale", "cutoff", "has_dr", "has_dw"])
def add_gradients_kernel(
    r, w, before, E, do, later, dr, dw, T, H, n, chunks, scale, cutoff, has_dr, has_dw,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    RAW: tl.constexpr,
):  # fmt: skip
    """Adds to dr and dw of a chunk; w[u] is part of the decays of the tokens after u."""
    DTYPE: tl.constexpr = do.dtype.element_ty
    i_b, i_c, i_h, _ = chunk_place(tl.program_id(0), H, chunks, V, V)
    o_k, row, col = tl.arange(0, BK), tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    m_k, m_t = o_k < K, row < n - i_c * C
    at_chunk = ((i_b * chunks + i_c) * H + i_h) * K + o_k
    b_before = tl.load(before + at_chunk, m_k, 0.0)
    if nothing_left(b_before, m_k, cutoff):
        return
    at = ((i_b * T + i_c * C) * H + i_h) * K
    m, o_tk = m_t & m_k[None, :], row * (H * K) + o_k[None, :]
    b_r, b_decay, b_w = readers(r, w, b_before, at, m, row, o_tk, scale, C, True, RAW, DTYPE)
    b_dx = tl.zeros([C, BK], tl.float32)
    for i_v in tl.static_range((V + BV - 1) // BV):
        o_v = i_v * BV + tl.arange(0, BV)
        m_v = o_v < V
        from_e = E + (i_b * H + i_h) * K * V + o_k[:, None] * V + o_v[None, :]
        b_e = tl.load(from_e, m_k[:, None] & m_v[None, :], 0.0)
        from_do = do + ((i_b * T + i_c * C) * H + i_h) * V + row * (H * V) + o_v[None, :]
        b_do = tl.load(from_do, m_t & m_v[None, :], 0.0).to(tl.float32)
        b_dx = product(b_do, tl.trans(b_e), b_dx, DTYPE)
    b_dr = b_dx * b_decay
    if has_dr:
        b_old = tl.load(dr + at + o_tk, m, 0.0).to(tl.float32)
        tl.store(dr + at + o_tk, (b_old + b_dr).to(dr.dtype.element_ty), m)
    if has_dw:
        b_later = tl.load(later + at_chunk, m_k, 0.0)
        b_dw = weighted_sums((col > row).to(tl.float32), b_r * b_dr, DTYPE == tl.float32, 3)
        b_dw += b_later[None, :]
        if RAW:
            b_dw *= b_w.to(tl.float32)
        b_old = tl.load(dw + at + o_tk, m, 0.0).to(tl.float32)
        tl.store(dw + at + o_tk, (b_old + b_dw).to(dw.dtype.element_ty), m)


def sizes_for(K, V):
    """K, V, and blocks of both."""
    BK, BV = (max(16, triton.next_power_of_2(x)) for x in (K, V))
    return K, V, BK, min(BV, 64)


def warps_for(BK):
    """As many as leave a thread its registers, except where 256 keys are float32."""
    return 4 if BK <= 64 else 8


def add_entry(o, r, w, before, E, reach, scale=1.0, raw=False, cutoff=0.0):
    """Adds x E to o `[B, T, H, V]`, contiguous, of the first `reach` tokens.

    Args:
        r: `[B, ≥ reach, H, K]`; without decays, x itself.
        w: log decays (raw: x of exp(-exp(x))), of r's shape; None: r has them.
        before: the log decay before each chunk of `chunk_for(K)` tokens, `[B, chunks, H, K]`.
        E: `[B, H, K, V]`, float32.
    """
    (B, T_r, H, K), (T_o, V) = r.shape, (o.shape[1], o.shape[3])
    C, sizes, decays = chunk_for(K), sizes_for(K, V), w is not None
    chunks = -(-reach // C)
    r, w, before, E = (None if x is None else x.contiguous() for x in (r, w, before, E))
    launch(
        add_entry_kernel, B * chunks * H * -(-V // sizes[3]), warps_for(sizes[2]),
        (r, w, before, E, o), (T_r, T_o, H, reach, chunks, scale, cutoff), (*sizes, C, decays, raw),
    )  # fmt: skip


def entry_gradient(do, r, w, before, E, reach, scale=1.0, raw=False, cutoff=0.0):
    """E's gradient through `add_entry`, and Σ x · dx of each chunk, `[B, chunks, H, K]`."""
    (B, T_r, H, K), (T_o, V) = r.shape, (do.shape[1], do.shape[3])
    C, sizes, decays = chunk_for(K), sizes_for(K, V), w is not None
    chunks, blocks = -(-reach // C), -(-V // sizes[3])
    groups = -(-chunks // CHUNKS_PER_PROGRAM)
    r, w, before, E = (None if x is None else x.contiguous() for x in (r, w, before, E))
    new = {"dtype": torch.float32, "device": r.device}
    dE = torch.empty(B, groups, H, K, V, **new)
    sums = torch.zeros(B, chunks, H, blocks, K, **new) if decays else None
    launch(
        entry_gradient_kernel, B * groups * H * blocks, warps_for(sizes[2]),
        (r, w, before, E, do, dE, sums),
        (T_r, T_o, H, reach, chunks, groups, scale, cutoff),
        (*sizes, C, decays, raw, CHUNKS_PER_PROGRAM),
    )  # fmt: skip
    return dE.sum(1), sums.sum(3) if decays else None


def add_gradients(dr, dw, do, r, w, before, E, later, reach, scale, raw, cutoff):
    """Adds to dr and dw, contiguous, what `add_entry` makes of them; either may be None.

    Args:
        later: what dw gets of the chunks after its own, `[B, chunks, H, K]`.
    """
    (B, T, H, K), V = r.shape, do.shape[3]
    C, sizes = chunk_for(K), sizes_for(K, V)
    chunks = -(-reach // C)
    r, w, later, E = (x.contiguous() for x in (r, w, later, E))
    launch(
        add_gradients_kernel, B * chunks * H, warps_for(sizes[2]),
        (r, w, before.contiguous(), E, do, later, r if dr is None else dr, w if dw is None else dw),
        (T, H, reach, chunks, scale, cutoff, int(dr is not None), int(dw is not None)),
        (*sizes, C, raw),
    )  # fmt: skip
