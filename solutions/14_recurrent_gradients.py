"""Gradients of RWKV-6 in Triton: a forward sweep, a reverse sweep, and a sum per chunk."""

import torch
import triton
import triton.language as tl

from rwkv_lessons.lab.course.exercises import Afterwards, Exercise
from rwkv_lessons.lab.evidence.cuda import ATOMICS, at_most
from rwkv_lessons.lab.evidence.launching import launchable, launches, launches_gpu
from rwkv_lessons.lab.evidence.triton import exps, no_spills, reads, writes
from rwkv_lessons.lab.evidence.wkv6_triton import (
    BACKWARD,
    Size,
    wkv6_call,
    wkv6_function,
    wkv6_triton_kernel,
)
from rwkv_lessons.runtime.launch_numba import ceil_div


@triton.jit
def forward_sweep(
    k, v, w, s0, do, dr_s_parts, kept,
    B, T, H: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Forward sweep: a program has a tile of S, BK keys × BV values; grid (NV, NK, B·H).

    k, w are [B, T, H, K]; v, do are [B, T, H, V]; s0 is [B, H, K, V]. dr_s_parts, [NV, B, T, H, K],
    gets each block of values' partial sum of dr through S. kept, [B, chunks, H, K, V], gets S after
    the last token of every chunk of C. k, v, w, do may be bfloat16; the others are float32.
    """
    i_v, i_k, i_bh = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i_b, i_h = i_bh // H, i_bh % H
    o_k, o_v = i_k * BK + tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    m_k, m_v = o_k < K, o_v < V
    m_s = m_k[:, None] & m_v[None, :]
    o_s = o_k[:, None] * V + o_v[None, :]  # [BK, BV]
    b_s = tl.load(s0 + i_bh * K * V + o_s, m_s, 0)
    for t in range(T):
        i_t = (i_b * T + t) * H + i_h
        b_k = tl.load(k + i_t * K + o_k, m_k, 0).to(tl.float32)
        b_w = tl.load(w + i_t * K + o_k, m_k, 0).to(tl.float32)
        b_v = tl.load(v + i_t * V + o_v, m_v, 0).to(tl.float32)
        b_do = tl.load(do + i_t * V + o_v, m_v, 0).to(tl.float32)
        ### BEGIN SOLUTION
        b_dr = tl.sum(b_s * b_do[None, :], 1)
        b_s = tl.exp(b_w)[:, None] * b_s + b_k[:, None] * b_v[None, :]
        ### END SOLUTION
        tl.store(dr_s_parts + (i_v * B * T * H + i_t) * K + o_k, b_dr, m_k)
        if ((t + 1) % C == 0) | (t == T - 1):
            i_c = (i_b * tl.cdiv(T, C) + t // C) * H + i_h
            tl.store(kept + i_c * K * V + o_s, b_s, m_s)


@triton.jit
def backward_sweep(
    r, k, v, w, ds1, do, kept, dk_s_parts, dv_s_parts, ds0, a_parts,
    B, T, H: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Reverse sweep: a program has a tile of G, the gradient of S; grid (NV, NK, B·H).

    r, k, w are [B, T, H, K]; v, do are [B, T, H, V]; ds0, ds1 are [B, H, K, V]. dk_s_parts is
    [NV, B, T, H, K], dv_s_parts [NK, B, T, H, V]: partial sums of the gradients through G. kept,
    [B, chunks, H, K, V], has S after the last token of every chunk of C. a_parts, [NV, B, chunks,
    H, K], gets this block of values' partial sum of Σ_j S_ij G_ij there, where G is the gradient of
    that S. r, k, v, w, do may be bfloat16; the others are float32, and so is all arithmetic.
    """
    ### BEGIN SOLUTION
    i_v, i_k, i_bh = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i_b, i_h = i_bh // H, i_bh % H
    o_k, o_v = i_k * BK + tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    m_k, m_v = o_k < K, o_v < V
    m_s = m_k[:, None] & m_v[None, :]
    o_s = o_k[:, None] * V + o_v[None, :]  # [BK, BV]
    b_g = tl.load(ds1 + i_bh * K * V + o_s, m_s, 0)
    for step in range(T):
        ### BEGIN GAP
        t = T - 1 - step
        ### END GAP
        i_t = (i_b * T + t) * H + i_h
        b_r = tl.load(r + i_t * K + o_k, m_k, 0).to(tl.float32)
        b_k = tl.load(k + i_t * K + o_k, m_k, 0).to(tl.float32)
        b_w = tl.load(w + i_t * K + o_k, m_k, 0).to(tl.float32)
        b_v = tl.load(v + i_t * V + o_v, m_v, 0).to(tl.float32)
        b_do = tl.load(do + i_t * V + o_v, m_v, 0).to(tl.float32)
        if ((t + 1) % C == 0) | (step == 0):
            i_c = (i_b * tl.cdiv(T, C) + t // C) * H + i_h
            b_s = tl.load(kept + i_c * K * V + o_s, m_s, 0)
            i_a = i_v * B * tl.cdiv(T, C) * H + i_c
            tl.store(a_parts + i_a * K + o_k, tl.sum(b_s * b_g, 1), m_k)
        ### BEGIN GAP
        b_dk = tl.sum(b_g * b_v[None, :], 1)
        b_dv = tl.sum(b_g * b_k[:, None], 0)
        b_g = tl.exp(b_w)[:, None] * b_g + b_r[:, None] * b_do[None, :]
        ### END GAP
        tl.store(dk_s_parts + (i_v * B * T * H + i_t) * K + o_k, b_dk, m_k)
        tl.store(dv_s_parts + (i_k * B * T * H + i_t) * V + o_v, b_dv, m_v)
    tl.store(ds0 + i_bh * K * V + o_s, b_g, m_s)
    ### END SOLUTION


@triton.jit
def decay_gradient(
    r, k, dr_s, dk_s, a, dw,
    T, H: tl.constexpr, K: tl.constexpr, BK: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """All tokens of a chunk at once: a program has BK keys; grid (NK, chunks, B·H).

    r, k, dr_s, dk_s, dw are [B, T, H, K]; a, [B, chunks, H, K], has S·G at the end of each chunk.
    r, k, dw may be bfloat16.
    """
    i_k, i_c, i_bh = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i_b, i_h = i_bh // H, i_bh % H
    o_k, o_t = i_k * BK + tl.arange(0, BK), i_c * C + tl.arange(0, C)
    m_k = o_k < K
    m = (o_t < T)[:, None] & m_k[None, :]
    o = ((i_b * T + o_t) * H + i_h)[:, None] * K + o_k[None, :]  # [C, BK]
    b_rdr = tl.load(r + o, m, 0) * tl.load(dr_s + o, m, 0)
    b_kdk = tl.load(k + o, m, 0) * tl.load(dk_s + o, m, 0)
    b_a = tl.load(a + ((i_b * tl.cdiv(T, C) + i_c) * H + i_h) * K + o_k, m_k, 0)  # [BK]
    ### BEGIN SOLUTION
    b_dw = b_a[None, :] + tl.cumsum(b_rdr - b_kdk, 0, reverse=True) - b_rdr
    ### END SOLUTION
    tl.store(dw + o, b_dw, m)


def bonus_gradients(r, k, v, u, do):
    """The parts of dr, dk, dv from the bonus, and du [B, H, K], for all tokens at once.

    r, k are [B, T, H, K]; v, do are [B, T, H, V]; u is [H, K].
    """
    v_do = (v * do).sum(-1, keepdim=True)
    ### BEGIN SOLUTION
    dr, dk, du = u * k * v_do, u * r * v_do, (r * k * v_do).sum(1)
    dv = (r * u * k).sum(-1, keepdim=True) * do
    ### END SOLUTION
    return dr, dk, dv, du


def launch(B, T, H, K, V, BK=32, BV=32, C=64):
    """The grid of either sweep, and the kernel's sizes. One warp per program."""
    sizes = {"B": B, "T": T, "H": H, "K": K, "V": V, "BK": BK, "BV": BV, "C": C}
    return (ceil_div(V, BV), ceil_div(K, BK), B * H), sizes | {"num_warps": 1}


def launch_chunks(B, T, H, K, V, BK=32, BV=32, C=64):
    """The same for `decay_gradient`."""
    sizes = {"T": T, "H": H, "K": K, "BK": BK, "C": C}
    return (ceil_div(K, BK), ceil_div(T, C), B * H), sizes | {"num_warps": 4}


def through_states(r, k, v, w, s0, do, ds1):
    """Returns dr_s, dk_s, dv_s in float32, dw and ds0, from one launch of each of three kernels.

    r, k, w are [B, T, H, K], v, do [B, T, H, V], all of these float32 or bfloat16, and dw has the
    type of w; s0, ds1 are [B, H, K, V], float32. Partial sums are float32 for the sake of dw.
    """
    B, T, H, K = r.shape
    V = v.shape[-1]
    grid, constants = launch(B, T, H, K, V)
    NV, NK, chunks = *grid[:2], ceil_div(T, constants["C"])
    ### BEGIN SOLUTION
    dr_parts, dk_parts = s0.new_empty(2, NV, *r.shape)
    dv_parts, ds0 = s0.new_empty(NK, *v.shape), torch.empty_like(s0)
    kept, a_parts = s0.new_empty(B, chunks, H, K, V), s0.new_empty(NV, B, chunks, H, K)
    forward_sweep[grid](k, v, w, s0, do, dr_parts, kept, **constants)
    backward_sweep[grid](r, k, v, w, ds1, do, kept, dk_parts, dv_parts, ds0, a_parts, **constants)
    dr_s, dk_s, dv_s, a = (x.sum(0) for x in (dr_parts, dk_parts, dv_parts, a_parts))
    ### END SOLUTION
    dw = torch.empty_like(w)
    grid, constants = launch_chunks(B, T, H, K, V)
    decay_gradient[grid](r, k, dr_s, dk_s, a, dw, **constants)
    return dr_s, dk_s, dv_s, dw, ds0


def gradients(r, k, v, w, u, s0, do, ds1):
    """dr, dk, dv, dw, du, ds0 on a GPU; r, k, v, w, do may be bfloat16."""
    dr_s, dk_s, dv_s, dw, ds0 = through_states(r, k, v, w, s0, do, ds1)
    dr, dk, dv, du = bonus_gradients(r.float(), k.float(), v.float(), u, do.float())
    dr, dk, dv = ((x + y).to(r.dtype) for x, y in ((dr_s, dr), (dk_s, dk), (dv_s, dv)))
    return dr, dk, dv, dw, du.sum(0), ds0


FORWARD_TENSORS = ("k", "v", "w", "s0", "do", "dr_s_parts", "kept")
FORWARD_WRITES = FORWARD_TENSORS[-2:]
BACKWARD_TENSORS = ("r", "k", "v", "w", "ds1", "do", "kept")
BACKWARD_WRITES = ("dk_s_parts", "dv_s_parts", "ds0", "a_parts")
DECAY_TENSORS = ("r", "k", "dr_s", "dk_s", "a", "dw")
STEPS = (  # kernel, launch, its tensors, those it writes
    (forward_sweep, launch, FORWARD_TENSORS, FORWARD_WRITES),
    (backward_sweep, launch, (*BACKWARD_TENSORS, *BACKWARD_WRITES), BACKWARD_WRITES),
    (decay_gradient, launch_chunks, DECAY_TENSORS, ("dw",)),
)
KERNELS = {kernel.__name__: (kernel, writes) for kernel, _, _, writes in STEPS}
BLOCKS = {"BK": 4, "BV": 4, "C": 4}  # in the interpreter


def states_call(name, *shape, **more):
    """A `Call` of `through_states` with tensors of B, T, H, K, V."""
    takes, returns = ("r", "k", "v", "w", "s0", "do", "ds1"), ("dr_s", "dk_s", "dv_s", "dw", "ds0")
    return wkv6_call(name, takes, returns, Size(shape, **more))


NO_ATOMICS = at_most(0, *ATOMICS, text="no atomics")
EXERCISES = {
    "forward_sweep": Exercise(
        minutes=5,
        difficulty=1,
        afterwards=Afterwards(
            why={
                "b_dr = tl.sum(b_s * b_do[None, :], 1)": "A sum over values, axis 1, of the "
                "state before the token.",
                "b_s = tl.exp(b_w)[:, None] * b_s + b_k[:, None] * b_v[None, :]": "Then the "
                "state is updated, as in lesson 13.",
            },
            instead={
                "All values in a tile": "needs no partial sums of dr, but gives fewer programs.",
            },
            stretch="Keep the states in bfloat16. How much does dw change?",
        ),
        hints=(
            "Two lines: the tile's contribution to dr, and the tile after the token.",
            "dr uses the state before its token, so sum first. The sum runs over the values: "
            "axis 1 of the tile.",
            "b_dr = tl.sum(b_s * b_do[None, :], 1); b_s = tl.exp(b_w)[:, None] * b_s + "
            "b_k[:, None] * b_v[None, :].",
        ),
        evidence=wkv6_triton_kernel(
            launch,
            FORWARD_TENSORS,
            FORWARD_WRITES,
            BACKWARD,
            no_spills(),
            NO_ATOMICS,
            limits=(reads(3, "k", "w", "v", "do"), reads(1, "s0"), writes(1, *FORWARD_WRITES)),
            blocks=BLOCKS,
        ),
        symptoms={
            "by hand": "With one token and an empty state, dr gets nothing through S, and kept "
            "is k·v.",
            "last": "dr uses the state before its token, and sums over values: axis 1. Then S "
            "decays along the keys, and k·v is added.",
            "state": "dr uses the state before its token: sum first, then update S.",
        },
    ),
    "backward_sweep": Exercise(
        minutes=20,
        difficulty=2,
        afterwards=Afterwards(
            why={
                "t = T - 1 - step": "The last token first.",
                "b_g = tl.exp(b_w)[:, None] * b_g + b_r[:, None] * b_do[None, :]": "G is used "
                "first, then taken one token back.",
            },
            instead={
                "One kernel for both sweeps": "would still read r, k, v and w twice, because the "
                "sweeps begin at opposite ends.",
            },
            stretch="Sweep the chunks in parallel: what does a chunk need from later ones?",
        ),
        hints=(
            "The forward sweep above is nearly the same: same indices, masks and offsets. Which "
            "tile is loaded first, which token comes first, and what is stored where?",
            "The tile is b_g, from ds1; t = T - 1 - step. At a token, b_g is still the gradient "
            "of the state after it. At the end of a chunk, (t + 1) % C == 0 or t == T - 1, store "
            "the sum of kept·b_g over values. Then compute dk, a sum over values (axis 1), and "
            "dv, one over keys (axis 0). Then G decays and r·do is added. After the loop it is "
            "ds0.",
            "what a token does is b_dk = tl.sum(b_g * b_v[None, :], 1), b_dv = tl.sum(b_g * "
            "b_k[:, None], 0), then b_g = tl.exp(b_w)[:, None] * b_g + b_r[:, None] * "
            "b_do[None, :].",
        ),
        evidence=wkv6_triton_kernel(
            launch,
            (*BACKWARD_TENSORS, *BACKWARD_WRITES),
            BACKWARD_WRITES,
            BACKWARD,
            no_spills(),
            NO_ATOMICS,
            limits=(reads(3, *"rkwv", "do"), reads(1, "ds1", "kept"), writes(1, *BACKWARD_WRITES)),
            blocks=BLOCKS,
        ),
        symptoms={
            "by hand": "With one token and no states, G after it is 0, so dk and dv get nothing "
            "through it, and ds0 is r·do.",
            "last": "dk sums G over values, axis 1; dv sums it over keys, axis 0. Then G decays "
            "along the keys, and r·do is added.",
            "state": "dk[t] and dv[t] use the G after token t, and so does the sum of S·G after "
            "the last token of a chunk. The last token comes first.",
            "mask": "The tokens are T-1, T-2, … 0. If the fault is at the end of a tensor: the "
            "last block extends past it, so mask its surplus lanes, in loads and in stores.",
            "blocks": "Partial sums: dk_s_parts[i_v] and a_parts[i_v] for a block of values, "
            "dv_s_parts[i_k] for one of keys.",
            "never written": "Every token has its dk and dv. Every chunk has its sum of S·G, "
            "also the last one, which may be shorter. ds0 is stored after the loop.",
            "batch": "Token t of row i_b and head i_h is row (i_b·T + t)·H + i_h; its chunk "
            "(i_b·chunks + t // C)·H + i_h, with tl.cdiv(T, C) chunks.",
        },
    ),
    "bonus_gradients": Exercise(
        minutes=4,
        difficulty=1,
        afterwards=Afterwards(
            why={
                "dr, dk, du = u * k * v_do, u * r * v_do, (r * k * v_do).sum(1)": "It contains "
                "no state, so all tokens are computed at once.",
                "dv = (r * u * k).sum(-1, keepdim=True) * do": "One number per token and head, "
                "times do.",
            },
            instead={
                "Inside the sweeps": "needs no extra pass over the tensors, but two more sums at "
                "every token.",
            },
            stretch="torch runs this as several kernels. Fuse them into one Triton kernel: how "
            "many bytes does it save?",
        ),
        hints=(
            "The bonus adds Σ_i r_i·u_i·k_i · v_j to o. Take the derivative by each of the four.",
            "v_do is Σ_j v_j·do_j: dr, dk and du are products with it. du is a sum over tokens.",
            "dr = u * k * v_do, dk = u * r * v_do, du = (r * k * v_do).sum(1), "
            "dv = (r * u * k).sum(-1, keepdim=True) * do.",
        ),
        evidence=(wkv6_function(("r", "k", "v", "u", "do"), ("dr", "dk", "dv", "du"), BACKWARD),),
        symptoms={
            "by hand": "With one token and an empty state, dr, dk, dv and du come from the bonus "
            "alone.",
            "state": "Σ_i is a sum over the last axis; keepdim=True keeps that axis, so that it "
            "can multiply do.",
        },
    ),
    "decay_gradient": Exercise(
        minutes=8,
        difficulty=3,
        afterwards=Afterwards(
            why={
                "b_dw = b_a[None, :] + tl.cumsum(b_rdr - b_kdk, 0, reverse=True)": "Lesson 09's "
                "loop as one scan: what is read from t on, minus what was put in; then token t's "
                "own reading is removed.",
            },
            instead={
                "A loop over the chunk": "takes C dependent steps instead of a scan in log2(C).",
            },
            stretch="Where rdr and kdk nearly cancel, their difference is noise. Which order of "
            "sums loses least?",
        ),
        hints=(
            "dw[t] = A after t − k·dk. From one token to the one before it, A changes by r·dr − "
            "k·dk. Where is the sum over all later tokens of the chunk?",
            "tl.cumsum(x, 0, reverse=True) gives at t the sum over t and all later tokens of the "
            "chunk. Of token t itself, k·dk belongs to dw and r·dr does not.",
            "b_a[None, :] + tl.cumsum(b_rdr - b_kdk, 0, reverse=True) - b_rdr",
        ),
        evidence=wkv6_triton_kernel(
            launch_chunks,
            DECAY_TENSORS,
            ("dw",),
            BACKWARD,
            no_spills(),
            NO_ATOMICS,
            limits=(reads(1, *DECAY_TENSORS[:-1]), writes(1, "dw"), exps(0)),
            blocks=BLOCKS,
        ),
        symptoms={
            "by hand": "This token finds no state, so its decay multiplies zeros and dw is 0.",
            "last": "With one token in the chunk, dw = a − k·dk: its own r·dr does not count.",
            "state": "The sum over later tokens includes r·dr − k·dk of each.",
            "mask": "Tokens past the end count as zeros in the sum: what do masked lanes hold?",
        },
    ),
    "through_states": Exercise(
        minutes=6,
        difficulty=2,
        afterwards=Afterwards(
            why={
                "dr_parts, dk_parts = s0.new_empty(2, NV, *r.shape)": "One partial sum for each "
                "block of values, because the sum runs over values. In float32, like s0.",
                "(x.sum(0) for x in (dr_parts, dk_parts, dv_parts, a_parts))": "Four more "
                "kernels that only move bytes.",
            },
            instead={
                "Partial sums in the type of r": "takes half the bytes in bfloat16, but dw is a "
                "difference of them and keeps few digits.",
            },
            stretch="Add dr's partial sums before the second sweep, and reuse their memory for "
            "dk's. What does it save?",
        ),
        hints=(
            "The sweeps write six tensors. What is the first axis of each, and how long is it?",
            "dr_s_parts, dk_s_parts: [NV, B, T, H, K]; dv_s_parts: [NK, B, T, H, V]; kept: [B, "
            "chunks, H, K, V]; a_parts: [NV, B, chunks, H, K]; ds0 like s0. All are float32: "
            "s0.new_empty(…). Pass tensors in the order of the signatures, then **constants.",
            "dr_parts, dk_parts = s0.new_empty(2, NV, *r.shape)\n"
            "dv_parts, ds0 = s0.new_empty(…, *v.shape), torch.empty_like(s0)\n"
            "kept, a_parts = s0.new_empty(B, chunks, H, K, V), s0.new_empty(…, B, chunks, H, K)\n"
            "forward_sweep[grid](k, v, w, s0, do, dr_parts, kept, **constants)\n"
            "backward_sweep[grid](r, k, v, w, ds1, do, kept, …, **constants)\n"
            "dr_s, dk_s, dv_s, a = (x.sum(0) for x in (dr_parts, dk_parts, dv_parts, a_parts))",
        ),
        evidence=(
            launches(
                KERNELS,
                states_call("one tile", 1, 3, 1, 16, 16),
                states_call("more keys than a tile", 1, 3, 1, 40, 16),
                states_call("more values than a tile", 1, 3, 1, 16, 40),
                states_call("two chunks", 1, 66, 1, 4, 4),
                states_call("batch rows and heads", 2, 3, 3, 10, 7),
                states_call("bfloat16", 1, 5, 2, 10, 7, dtype=torch.bfloat16),
            ),
            launchable(KERNELS, states_call("batch rows and heads", 2, 75, 4, 100, 100)),
            launches_gpu(KERNELS, states_call("batch rows and heads", 2, 75, 4, 100, 100)),
        ),
        symptoms={
            "one tile": "The second sweep starts from ds1; each result is the sum of its partial "
            "sums.",
            "more keys than a tile": "Each block of keys has a partial sum of dv: NK of them.",
            "more values than a tile": "Each block of values has a partial sum of dr, dk and a: "
            "NV of them.",
            "two chunks": "kept has a state for every chunk, also for the last one: `chunks`.",
            "bfloat16": "Partial sums, states and their gradients are float32, whatever r is.",
            "grid": "Are programs missing? Both sweeps use `grid`. Or has a tensor more partial "
            "sums than there are blocks to write them?",
            "launch": "Pass tensors in the order of the signature, then **constants. Outputs are "
            "new memory; partial sums and states are float32.",
            "sizes": "An output is too small: count the blocks, NV or NK, and the chunks.",
            "programs": "Two programs wrote the same element: does each block have its own "
            "partial sum?",
        },
    ),
}
