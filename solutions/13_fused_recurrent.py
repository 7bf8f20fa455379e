"""RWKV-6 in Triton, one token after another: tiles of the state, one program each."""

from itertools import product

import torch
import triton
import triton.language as tl

from rwkv_lessons.lab.course.exercises import Afterwards, Exercise
from rwkv_lessons.lab.evidence.cuda import ATOMICS, at_most
from rwkv_lessons.lab.evidence.functions import function_cases
from rwkv_lessons.lab.evidence.launching import launchable, launches, launches_gpu
from rwkv_lessons.lab.evidence.triton import exps, no_spills, reads, writes
from rwkv_lessons.lab.evidence.wkv6_triton import FORWARD, Size, wkv6_call, wkv6_triton_kernel
from rwkv_lessons.runtime.launch_numba import ceil_div


@triton.jit
def kernel(
    r, k, v, w, u, s0, o_parts, s1,
    B, T, H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """One program per tile of BK keys × BV values of a head's state; grid (NV, NK, B·H).

    r, k, w are [B, T, H, K], w the log decay; v is [B, T, H, V]; u is [H, K]; s0, s1 are
    [B, H, K, V]. o_parts, [NK, B, T, H, V], gets the partial sum of o of each block of keys. r, k,
    v, w and o_parts may be bfloat16; the others are float32, and so is all arithmetic.
    Token t reads Σ_i r_i (u_i k_i v_j + S_ij); then S_ij becomes exp(w_i) S_ij + k_i v_j.
    """
    ### BEGIN SOLUTION
    i_v, i_k, i_bh = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i_b, i_h = i_bh // H, i_bh % H
    ### BEGIN GAP
    o_k, o_v = i_k * BK + tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    m_k, m_v = o_k < K, o_v < V
    ### END GAP
    o_s = i_bh * K * V + o_k[:, None] * V + o_v[None, :]  # [BK, BV]
    m_s = m_k[:, None] & m_v[None, :]
    b_s = tl.load(s0 + o_s, m_s, 0)
    b_u = tl.load(u + i_h * K + o_k, m_k, 0)
    for t in range(T):
        i_t = (i_b * T + t) * H + i_h
        b_r = tl.load(r + i_t * K + o_k, m_k, 0).to(tl.float32)
        b_k = tl.load(k + i_t * K + o_k, m_k, 0).to(tl.float32)
        b_w = tl.load(w + i_t * K + o_k, m_k, 0).to(tl.float32)
        b_v = tl.load(v + i_t * V + o_v, m_v, 0).to(tl.float32)
        ### BEGIN GAP
        b_kv = b_k[:, None] * b_v[None, :]
        b_o = tl.sum(b_r[:, None] * (b_u[:, None] * b_kv + b_s), 0)
        b_s = tl.exp(b_w)[:, None] * b_s + b_kv
        ### END GAP
        tl.store(o_parts + (i_k * B * T * H + i_t) * V + o_v, b_o, m_v)
    tl.store(s1 + o_s, b_s, m_s)
    ### END SOLUTION


def grid(B, H, K, V, BK, BV):
    """The number of programs along the values, along the keys, and over heads of batch rows."""
    ### BEGIN SOLUTION
    return ceil_div(V, BV), ceil_div(K, BK), B * H
    ### END SOLUTION


def launch(B, T, H, K, V, BK=32, BV=32):
    """The grid, and the kernel's sizes. One warp per program."""
    sizes = {"B": B, "T": T, "H": H, "K": K, "V": V, "BK": BK, "BV": BV}
    return grid(B, H, K, V, BK, BV), sizes | {"num_warps": 1}


def forward(r, k, v, w, u, s0):
    """Returns o [B, T, H, V] and s1 [B, H, K, V], from one launch of `kernel`, on one device.

    r, k, w are [B, T, H, K], v is [B, T, H, V], u is [H, K], s0 is [B, H, K, V]. u, s0 and s1 are
    float32; r, k, v, w may be bfloat16, and o has their type.
    """
    ### BEGIN SOLUTION
    B, T, H, K = r.shape
    V = v.shape[-1]
    programs, constants = launch(B, T, H, K, V)
    o_parts = v.new_empty(programs[1], B, T, H, V)
    s1 = torch.empty_like(s0)
    kernel[programs](r, k, v, w, u, s0, o_parts, s1, **constants)
    return o_parts.sum(0), s1
    ### END SOLUTION


TENSORS = ("r", "k", "v", "w", "u", "s0", "o_parts", "s1")
WRITES = ("o_parts", "s1")
KERNELS = {"kernel": (kernel, WRITES)}


def forward_call(name, *shape, **more):
    """A `Call` of `forward` with tensors of B, T, H, K, V."""
    return wkv6_call(name, TENSORS[:6], ("o", "s1"), Size(shape, **more))


EXERCISES = {
    "grid": Exercise(
        minutes=3,
        difficulty=1,
        afterwards=Afterwards(
            why={
                "return ceil_div(V, BV), ceil_div(K, BK), B * H": "One program per tile. The "
                "values are the first axis: programs that run at the same time share r, k and w "
                "in the cache.",
            },
            instead={
                "All keys in a tile": "needs no partial sums, but gives fewer programs, with "
                "more registers each.",
            },
            stretch="B·H may exceed 65,535, the limit of the second and third axis of a grid. "
            "What would you change?",
        ),
        hints=(
            "How many tiles cover the state of one head?",
            "Along the keys: K in steps of BK, rounded up. The same along the values, with V and "
            "BV.",
            "ceil_div(V, BV), ceil_div(K, BK), B * H",
        ),
        evidence=(
            function_cases(
                ("tiles that fit", (8, 64, 64, 64, 32, 32), (2, 2, 512)),
                ("100 keys and values", (4, 4, 100, 100, 32, 32), (4, 4, 16)),
                ("less than one tile", (1, 1, 16, 16, 32, 32), (1, 1, 1)),
                ("more keys than values", (1, 2, 100, 33, 32, 16), (3, 4, 2)),
                more=list(product((1, 3), (1, 40), (7, 64, 300), (16, 130), (16, 64), (8, 32)))
                + [(257, 129, 64, 64, 32, 32)],  # more heads than 16 bits count
                whole=True,
            ),
        ),
        symptoms={
            "tiles that fit": "Every batch row has its own heads.",
            "100 keys and values": "The last tile extends past the end: round up.",
            "more keys than values": "The values come first: (NV, NK, B·H).",
        },
    ),
    "forward": Exercise(
        minutes=5,
        difficulty=1,
        afterwards=Afterwards(
            why={
                "o_parts = v.new_empty(programs[1], B, T, H, V)": "One partial sum of o for each "
                "block of keys, the grid's second number. It is on v's device and not filled, "
                "because the kernel writes all of it.",
                "return o_parts.sum(0), s1": "A second kernel, torch's, reads all partial sums "
                "once more.",
            },
            instead={
                "torch.zeros": "gives the same answer, but one more kernel writes every byte for "
                "nothing.",
            },
            stretch="BK = 16, BV = 64 gives as many programs for 64 keys and values. Which "
            "tensors are read more often, which less?",
        ),
        hints=(
            "You need two results, but the kernel sums only over its own keys. Which output "
            "needs one more axis than the result?",
            "grid(B, H, K, V, BK, BV) is (NV, NK, B·H): o_parts is [NK, B, T, H, V]. s1 is like "
            "s0. Pass the tensors in the order of the kernel's signature, then the sizes.",
            "B, T, H, K = r.shape\n"
            "V = v.shape[-1]\n"
            "programs, constants = launch(B, T, H, K, V)\n"
            "o_parts = v.new_empty(…, B, T, H, V)\n"
            "s1 = torch.empty_like(…)\n"
            "kernel[programs](r, k, v, w, u, s0, …, …, **constants)\n"
            "return o_parts.sum(…), s1",
        ),
        evidence=(
            launches(
                KERNELS,
                forward_call("one tile", 1, 2, 1, 32, 32),
                forward_call("more keys than a tile", 1, 2, 1, 70, 16),
                forward_call("more values than keys", 1, 2, 2, 16, 70),
                forward_call("batch rows and heads", 3, 3, 2, 10, 7),
                forward_call("bfloat16", 1, 3, 2, 40, 7, dtype=torch.bfloat16),
            ),
            launchable(KERNELS, forward_call("batch rows and heads", 2, 3, 4, 100, 100)),
            launches_gpu(KERNELS, forward_call("batch rows and heads", 2, 75, 4, 100, 100)),
        ),
        symptoms={
            "one tile": "o is the sum of o_parts over its first axis; s1 is what the kernel wrote.",
            "more keys than a tile": "o_parts has an entry for each block of keys: NK, the "
            "grid's second number.",
            "more values than keys": "K is the last axis of r, V that of v.",
            "batch rows and heads": "The third number of the grid is B·H.",
            "bfloat16": "o has v's type, and its partial sums may have it too; states are float32.",
            "grid": "Which programs are missing? The grid is (NV, NK, B·H).",
            "launch": "kernel[programs](…): pass the tensors in the order of the signature, then "
            "the sizes by name. Outputs are new memory.",
            "sizes": "The kernel masks what is past the end, so it was passed sizes larger than "
            "the tensor. Do the sizes match the tensors, and does o_parts match the grid?",
            "programs": "Two programs wrote the same element: o_parts needs B·T·H·V elements for "
            "each block of keys.",
            "idle": "There are more programs than tiles: the grid is (NV, NK, B·H).",
        },
    ),
    "kernel": Exercise(
        minutes=22,
        difficulty=2,
        afterwards=Afterwards(
            why={
                "m_k, m_v = o_k < K, o_v < V": "The number of lanes is a power of two; the mask "
                "stops those past the end.",
                "b_o = tl.sum(b_r[:, None] * (b_u[:, None] * b_kv + b_s), 0)": "Axis 0 is the "
                "keys. The state is read before it is updated.",
                "b_s = tl.exp(b_w)[:, None] * b_s + b_kv": "One decay per key, which is a row of "
                "the tile.",
            },
            instead={
                "The bonus as b_v · Σ r·u·k": "takes a sum over BK elements and BV products "
                "instead of BK·BV multiply-adds.",
                "tl.atomic_add into one o": "needs no partial sums, but o has to be zeroed, and "
                "the last digits change from run to run.",
            },
            stretch="Load the next token's r, k, w and v at the end of the loop. What about the "
            "last token?",
        ),
        hints=(
            "In this order: who am I (three indices), which keys and values are mine (offsets, "
            "masks), the tile of s0; then a loop over t with four loads, three lines of "
            "arithmetic and a store; after it, s1. The arithmetic is lesson 08's without the "
            "loops over i and j.",
            "i_b = i_bh // H, i_h = i_bh % H; keys o_k = i_k * BK + tl.arange(0, BK). Token t of "
            "head i_h is row (i_b·T + t)·H + i_h: times K for r, k, w, times V for v. The tile's "
            "offsets are o_k[:, None] * V + o_v[None, :], from i_bh·K·V on; b_k[:, None] * "
            "b_v[None, :] is the tile of k·v. Use the state first, then move it on.",
            "what a token does is b_o = tl.sum(b_r[:, None] * (b_u[:, None] * b_kv + b_s), 0), "
            "then b_s = tl.exp(b_w)[:, None] * b_s + b_kv.",
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
            "by hand": "With one token and an empty state, o is Σ r·u·k·v over keys, axis 0 of "
            "the tile, and the new state is k·v, undecayed.",
            "decay": "Each row of the tile, a key, is multiplied by its own exp(w): [:, None].",
            "head": "Element [b, t, h, i] has the index ((b·T + t)·H + h)·K + i: compute b and h "
            "from b·H + h first. u has no batch axis.",
            "blocks": "A program's keys start at i_k · BK, its values at i_v · BV. Its partial "
            "sum of o goes to o_parts[i_k], which starts i_k · B·T·H·V elements into o_parts.",
            "state in": "The tile starts from its own part of s0[b, h]: keys from o_k, values "
            "from o_v; the next key is V elements later.",
        },
    ),
}
