"""RWKV-7 token by token: a state that a token reads, corrects and decays."""

from itertools import product

import torch
import triton
import triton.language as tl

from rwkv_lessons.lab.course.exercises import Afterwards, Exercise
from rwkv_lessons.lab.evidence.cuda import ATOMICS, at_most
from rwkv_lessons.lab.evidence.functions import function_cases
from rwkv_lessons.lab.evidence.triton import exps, no_spills, reads, writes
from rwkv_lessons.lab.evidence.wkv7 import FORWARD, wkv7_triton_kernel
from rwkv_lessons.lab.evidence.wkv7_functions import calls, exact_loop, one_head
from rwkv_lessons.runtime.launch_numba import ceil_div


def loop(r, w, k, v, a, b, s):
    """The outputs of one head's tokens, and the state after them.

    r, w, k, a, b are [T, K], with w the log decay; v is [T, V]; s is [K, V], keys × values. Returns
    o, [T, V], and the last state.
    """
    o = torch.empty_like(v)
    ### BEGIN SOLUTION
    for t in range(len(r)):
        z = a[t] @ s
        s = w[t].exp()[:, None] * s + torch.outer(b[t], z) + torch.outer(k[t], v[t])
        o[t] = r[t] @ s
    ### END SOLUTION
    return o, s


def tile(K, V, elements=1024):
    """BK, BV: the tile of the state that a program of one warp holds, both powers of two.

    BK covers all keys. BV is as large as `elements` allow, at least 1, and no larger than needed
    to cover V values.
    """
    ### BEGIN SOLUTION
    BK = triton.next_power_of_2(K)
    return BK, max(1, min(triton.next_power_of_2(V), elements // BK))
    ### END SOLUTION


@triton.jit
def kernel(
    r, w, k, v, a, b, s0, o, s1,
    T, H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """One program for BV values and all keys of one head of a batch row; grid (NV, B·H).

    r, w, k, a, b are [B, T, H, K], with w the log decay; v, o are [B, T, H, V]; s0, s1 are
    [B, H, K, V]; all float32. BK ≥ K.
    """
    ### BEGIN SOLUTION
    i_v, i_bh = tl.program_id(0), tl.program_id(1)
    o_k, o_v = tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    m_k, m_v = o_k < K, o_v < V
    m_s = m_k[:, None] & m_v[None, :]
    o_s = i_bh * K * V + o_k[:, None] * V + o_v[None, :]  # [BK, BV]
    b_s = tl.load(s0 + o_s, m_s, 0)
    for t in range(T):
        i_t = (i_bh // H * T + t) * H + i_bh % H
        b_r = tl.load(r + i_t * K + o_k, m_k, 0)
        b_w = tl.load(w + i_t * K + o_k, m_k, 0)
        b_k = tl.load(k + i_t * K + o_k, m_k, 0)
        b_a = tl.load(a + i_t * K + o_k, m_k, 0)
        b_b = tl.load(b + i_t * K + o_k, m_k, 0)
        b_v = tl.load(v + i_t * V + o_v, m_v, 0)
        b_z = tl.sum(b_a[:, None] * b_s, 0)  # [BV]
        b_s = tl.exp(b_w)[:, None] * b_s + b_b[:, None] * b_z[None, :]
        b_s += b_k[:, None] * b_v[None, :]
        tl.store(o + i_t * V + o_v, tl.sum(b_r[:, None] * b_s, 0), m_v)
    tl.store(s1 + o_s, b_s, m_s)
    ### END SOLUTION


def launch(B, T, H, K, V, BK=None, BV=None, num_warps=1):
    """The grid, and the kernel's sizes; the tile is `tile`'s, if none is given."""
    BK, BV = (BK, BV) if BK else tile(K, V)
    sizes = {"T": T, "H": H, "K": K, "V": V, "BK": BK, "BV": BV}
    return (ceil_div(V, BV), B * H), sizes | {"num_warps": num_warps}


def forward(r, w, k, v, a, b, s0):
    """o and s1 on a GPU, all float32."""
    o, s1 = torch.empty_like(v), torch.empty_like(s0)
    programs, constants = launch(*r.shape, v.shape[-1])
    kernel[programs](r, w, k, v, a, b, s0, o, s1, **constants)
    return o, s1


TENSORS = ("r", "w", "k", "v", "a", "b", "s0", "o", "s1")
WRITES = ("o", "s1")


def small(K):
    """Blocks in the interpreter: all keys, so that tiny sizes have several blocks of values."""
    return {"BK": triton.next_power_of_2(K), "BV": 4}


def _head(*shape, **choice):
    return lambda: one_head(*shape, **choice)


EXERCISES = {
    "loop": Exercise(
        minutes=8,
        difficulty=1,
        afterwards=Afterwards(
            why={
                "z = a[t] @ s": "Reads the state as the token finds it, before it decays.",
                "o[t] = r[t] @ s": "Reads the state after the token. There is no bonus, and none "
                "is needed.",
            },
            instead={
                "(diag(exp(w)) + outer(b, a)) @ s": "is the same as one K × K matrix. It costs "
                "K²·V multiply-adds per token instead of 2·K·V.",
            },
            stretch="Suppose two heads shared a state. What would a token of one head overwrite "
            "for the other?",
        ),
        hints=(
            "Three lines per token: what a reads, the next state with its three terms, what r "
            "reads.",
            "a[t] @ s is a row of V values. b[t] times this row, and k[t] times v[t], are outer "
            "products, K × V. The decay multiplies rows: [:, None].",
            "z = a[t] @ s; s = w[t].exp()[:, None] * s + torch.outer(b[t], z) + "
            "torch.outer(k[t], v[t]); o[t] = r[t] @ s.",
        ),
        evidence=(
            calls(
                exact_loop,
                (("o", "tj"), ("s", "ij")),
                ("one token, no state", "by hand", _head(1, 3, 2, states=False)),
                ("one token and a state", "one token", _head(1, 4, 3)),
                ("three tokens", "state", _head(3, 4, 4)),
                ("decay 0 forgets, decay 1 keeps", "decay", _head(5, 8, 4, decay="edge")),
                ("40 tokens, more keys than values", "state", _head(40, 9, 5)),
                ("300 tokens", "long", _head(300, 2, 3, decay="slow")),
            ),
        ),
        symptoms={
            "by hand": "With an empty state z is 0, the new state is the outer product of k and "
            "v, and o is r times that.",
            "one token": "With a state, check three things: z = a @ s uses the state before it "
            "decays; exp(w) and b go along the rows (keys); r reads the state after the token.",
            "state": "Each token starts from the state that the token before it left.",
        },
    ),
    "tile": Exercise(
        minutes=5,
        difficulty=1,
        afterwards=Afterwards(
            why={
                "BK = triton.next_power_of_2(K)": "Takes all keys: z has to be complete before "
                "any key can continue.",
            },
            instead={
                "More warps for a larger tile": "loads r, w, k, a and b less often, but each sum "
                "over keys goes through shared memory.",
            },
            stretch="Your GPU has 132 SMs and 8 heads to compute. Which BV fills it, and how "
            "many more reads does that cost?",
        ),
        hints=(
            "Which of the two sizes is not yours to choose?",
            "BK is the power of two that covers K. Divide the elements by BK to get BV. V may "
            "need fewer, and 1 is the least.",
            "BK = triton.next_power_of_2(K); "
            "return BK, max(1, min(triton.next_power_of_2(V), elements // BK))",
        ),
        evidence=(
            function_cases(
                ("64 keys, 64 values", (64, 64), (64, 16)),
                ("100 keys, 100 values", (100, 100), (128, 8)),
                ("256 keys", (256, 256, 1024), (256, 4)),
                ("few values", (64, 3, 1024), (64, 4)),
                ("more keys than elements", (2000, 8, 1024), (2048, 1)),
                ("a tile of four warps", (64, 64, 4096), (64, 64)),
                ("a small state", (5, 9, 4096), (8, 16)),
                more=list(product((1, 17, 64, 65, 500), (1, 9, 64, 100, 300), (256, 1024, 8192))),
                whole=True,
            ),
        ),
        symptoms={
            "100 keys, 100 values": "Both are powers of two: 128 keys leave room for 8 values.",
            "few values": "No more values than needed: 4 cover 3.",
            "more keys than elements": "All keys stay in the tile, whatever it costs; BV is at "
            "least 1.",
            "a tile of four warps": "elements may be larger than 1,024: use the parameter.",
            "a small state": "BV is the next power of two above V, even if more would fit.",
        },
    ),
    "kernel": Exercise(
        minutes=30,
        difficulty=3,
        afterwards=Afterwards(
            why={
                "b_z = tl.sum(b_a[:, None] * b_s, 0)  # [BV]": "Sums over all keys inside the "
                "program, so it needs no other program.",
                "b_s = tl.exp(b_w)[:, None] * b_s + b_b[:, None] * b_z[None, :]": "The sum has "
                "to be finished first. This is the wait in every token.",
                "i_t = (i_bh // H * T + t) * H + i_bh % H": "The row of token t in [B, T, H, …].",
            },
            instead={
                "r·S from parts": "r·S⁺ = (r·exp(w))·S + (r·b)·z + (r·k)·v. Both long sums read "
                "the same state and can run side by side, at the price of three short ones.",
                "One program for all values": "reads each row once. But at 64 × 64 one warp "
                "needs 128 registers per thread for the state alone.",
            },
            stretch="Write the first of these two. How many rounds of SHFL does a token wait for "
            "now?",
        ),
        hints=(
            "Start from lesson 13's kernel and change four things: no blocks of keys, so no "
            "shares of o; no bonus; two more rows, a and b; and o reads the state after the "
            "token.",
            "In order: i_v, i_bh; o_k, o_v and masks; the tile of s0. In the loop: six loads; z, "
            "a sum over axis 0; the new tile, three terms; o, another sum over axis 0. After the "
            "loop: the store of s1.",
            "o_k = tl.arange(0, BK); o_v = i_v * BV + tl.arange(0, BV); o_s = i_bh * K * V + "
            "o_k[:, None] * V + o_v[None, :]; i_t = (i_bh // H * T + t) * H + i_bh % H; b_z = "
            "tl.sum(b_a[:, None] * b_s, 0); b_s = tl.exp(b_w)[:, None] * b_s + b_b[:, None] * "
            "b_z[None, :] + b_k[:, None] * b_v[None, :].",
        ),
        evidence=wkv7_triton_kernel(
            launch,
            TENSORS,
            WRITES,
            FORWARD,
            no_spills(),
            at_most(0, *ATOMICS, text="no atomics"),
            limits=(
                reads(3, *"rwkab"),
                reads(1, "v", "s0"),
                writes(1, *WRITES),
                exps(2 * 8 * 6 * 16),
            ),
            blocks=small,
        ),
        symptoms={
            "by hand": "With an empty state s1 is the outer product of k and v, and o reads the "
            "state after the token: r times s1.",
            "one token": "With a state, check three things: z sums over axis 0 (keys) of the "
            "tile before it decays; b and exp(w) multiply rows, [:, None]; z and v are columns, "
            "[None, :].",
            "state": "Each token starts from the tile that the token before it left.",
            "blocks": "A program's values start at program_id(0) · BV, and it holds all keys. Rows "
            "of v and o have V elements, the other rows K.",
            "decay": "Each row of the tile, a key, is multiplied by its own exp(w): [:, None].",
        },
    ),
}
