"""RWKV-6 in Triton, one token after another: tiles of the state, one program each."""

import torch
import triton
import triton.language as tl

from rwkv_lessons.lab.course.exercises import Afterwards, Exercise
from rwkv_lessons.lab.evidence.cuda import ATOMICS, at_most
from rwkv_lessons.lab.evidence.functions import function_cases
from rwkv_lessons.lab.evidence.triton import exps, no_spills, reads, writes
from rwkv_lessons.lab.evidence.wkv6_triton import FORWARD, wkv6_triton_kernel
from rwkv_lessons.runtime.launch_numba import ceil_div


@triton.jit
def kernel(
    r, k, v, w, u, s0, o_parts, s1,
    B, T, H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """One program per tile of BK keys × BV values of a head's state; grid (NV, NK, B·H).

    r, k, w are [B, T, H, K], w the log decay; v is [B, T, H, V]; u is [H, K]; s0, s1 are
    [B, H, K, V]; all float32. o_parts, [NK, B, T, H, V], gets each block of keys' share of o.
    """
    i_v, i_k, i_bh = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i_b, i_h = i_bh // H, i_bh % H
    ### BEGIN SOLUTION
    o_k, o_v = i_k * BK + tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    m_k, m_v = o_k < K, o_v < V
    ### END SOLUTION
    o_s = i_bh * K * V + o_k[:, None] * V + o_v[None, :]  # [BK, BV]
    m_s = m_k[:, None] & m_v[None, :]
    b_s = tl.load(s0 + o_s, m_s, 0)
    b_u = tl.load(u + i_h * K + o_k, m_k, 0)
    for t in range(T):
        i_t = (i_b * T + t) * H + i_h
        b_r = tl.load(r + i_t * K + o_k, m_k, 0)
        b_k = tl.load(k + i_t * K + o_k, m_k, 0)
        b_w = tl.load(w + i_t * K + o_k, m_k, 0)
        b_v = tl.load(v + i_t * V + o_v, m_v, 0)
        ### BEGIN SOLUTION
        b_kv = b_k[:, None] * b_v[None, :]
        b_o = tl.sum(b_r[:, None] * (b_u[:, None] * b_kv + b_s), 0)
        b_s = tl.exp(b_w)[:, None] * b_s + b_kv
        ### END SOLUTION
        tl.store(o_parts + (i_k * B * T * H + i_t) * V + o_v, b_o, m_v)
    tl.store(s1 + o_s, b_s, m_s)


def grid(B, H, K, V, BK, BV):
    """How many programs, along the values, along the keys, and over batch rows and heads."""
    ### BEGIN SOLUTION
    return ceil_div(V, BV), ceil_div(K, BK), B * H
    ### END SOLUTION


def launch(B, T, H, K, V, BK=32, BV=32):
    """The grid, and the kernel's sizes. One warp per program."""
    sizes = {"B": B, "T": T, "H": H, "K": K, "V": V, "BK": BK, "BV": BV}
    return grid(B, H, K, V, BK, BV), sizes | {"num_warps": 1}


def forward(r, k, v, w, u, s0):
    """o and s1 on a GPU, all float32."""
    B, T, H, K = r.shape
    V = v.shape[-1]
    programs, constants = launch(B, T, H, K, V)
    o_parts = v.new_empty(programs[1], B, T, H, V)
    s1 = torch.empty_like(s0)
    kernel[programs](r, k, v, w, u, s0, o_parts, s1, **constants)
    return o_parts.sum(0), s1


TENSORS = ("r", "k", "v", "w", "u", "s0", "o_parts", "s1")
WRITES = ("o_parts", "s1")

EXERCISES = {
    "grid": Exercise(
        minutes=5,
        difficulty=1,
        afterwards=Afterwards(
            why={
                "return ceil_div(V, BV), ceil_div(K, BK), B * H": "A program per tile. The values "
                "run fastest: neighbours in time share r, k and w in the cache.",
            },
            instead={
                "All keys in a tile": "no partial sums, and fewer programs with more registers "
                "each.",
            },
            stretch="B·H may pass 65,535, the limit of the second and third axis of a grid. What "
            "would you change?",
        ),
        hints=(
            "How many tiles does it take to cover the state of one head?",
            "Along the keys: K in steps of BK, rounded up. Along the values the same with V, BV.",
            "ceil_div(V, BV), ceil_div(K, BK), B * H",
        ),
        evidence=(
            function_cases(
                ("tiles that fit", (8, 64, 64, 64, 32, 32), (2, 2, 512)),
                ("100 keys and values", (4, 4, 100, 100, 32, 32), (4, 4, 16)),
                ("less than one tile", (1, 1, 16, 16, 32, 32), (1, 1, 1)),
                ("more keys than values", (1, 2, 100, 33, 32, 16), (3, 4, 2)),
                whole=True,
            ),
        ),
        symptoms={
            "tiles that fit": "Every batch row has heads of its own.",
            "100 keys and values": "The last tile reaches past the end: round up.",
            "more keys than values": "The values come first: (NV, NK, B·H).",
        },
    ),
    "kernel": Exercise(
        minutes=20,
        difficulty=2,
        afterwards=Afterwards(
            why={
                "m_k, m_v = o_k < K, o_v < V": "A block has a power of two of lanes; the mask "
                "stops those past the end.",
                "b_o = tl.sum(b_r[:, None] * (b_u[:, None] * b_kv + b_s), 0)": "Axis 0 are the "
                "keys. The state is read before it moves on.",
                "b_s = tl.exp(b_w)[:, None] * b_s + b_kv": "One decay per key: a row of the tile.",
            },
            instead={
                "The bonus as b_v · Σ r·u·k": "a sum over BK numbers and BV products instead of "
                "BK·BV multiply-adds.",
                "tl.atomic_add into one o": "no partial sums to add up, but o has to be zeroed, "
                "and the last digits change from run to run.",
            },
            stretch="Load the next token's r, k, w and v at the end of the loop. Mind the last "
            "token.",
        ),
        hints=(
            "It is the loop of lesson 08 without the loops over i and j: a line works on all keys "
            "and values of the tile at once.",
            "b_k[:, None] * b_v[None, :] is the tile of k·v. Use the state first, then move it on. "
            "tl.sum(x, 0) sums over the keys.",
            "o_k = i_k * BK + tl.arange(0, BK), m_k = o_k < K; b_o = tl.sum(b_r[:, None] * "
            "(b_u[:, None] * b_kv + b_s), 0); b_s = tl.exp(b_w)[:, None] * b_s + b_kv.",
        ),
        evidence=wkv6_triton_kernel(
            launch,
            TENSORS,
            WRITES,
            FORWARD,
            no_spills(),
            at_most(0, *ATOMICS, text="no atomics"),
            limits=(reads(3, *"rkvw"), reads(1, "s0"), writes(1, *WRITES), exps(2 * 8 * 9 * 4)),
        ),
        symptoms={
            "by hand": "One token, empty state: o is Σ r·u·k·v over keys, axis 0 of a tile; "
            "it leaves k·v behind, undecayed.",
            "decay": "Each row of the tile, a key, is multiplied by its own exp(w): [:, None].",
        },
    ),
}
