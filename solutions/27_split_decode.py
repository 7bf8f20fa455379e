"""One query against a long sequence: heads as rows of a tile, tokens in splits, W_V in the join."""

from itertools import product

import torch
import triton
import triton.language as tl

from rwkv_lessons.lab.course.exercises import Afterwards, Exercise
from rwkv_lessons.lab.evidence.cuda import at_least
from rwkv_lessons.lab.evidence.functions import function_cases
from rwkv_lessons.lab.evidence.launching import launchable, launches, launches_gpu
from rwkv_lessons.lab.evidence.triton import no_spills, reads, writes
from rwkv_lessons.lab.lessons.lessons_25_28.evidence import LatentCase, LatentSizes
from rwkv_lessons.lab.lessons.lessons_26_27.evidence import (
    call,
    combine_launch,
    partial_launch,
    triton_kernel,
)
from rwkv_lessons.runtime.launch_numba import ceil_div


@triton.jit
def partial(
    q_latent, q_rope, latent, k_rope, parts, part_lse,
    N, SPLIT, scale, H: tl.constexpr, P: tl.constexpr, R: tl.constexpr,
    BH: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """One program per SPLIT tokens of a sequence, for BH heads; grid (splits, H/BH rounded up, B).

    q_latent [B, H, R], q_rope [B, H, P]; latent [B, N, R], k_rope [B, N, P]. Writes, in float32,
    parts [B, splits, H, R], the attention over the split's own tokens, before W_V, and
    part_lse [B, splits, H], the log of its Σ exp(score). SPLIT is a multiple of BN.
    """
    i_s, i_h, i_b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    ### BEGIN SOLUTION
    o_h = i_h * BH + tl.arange(0, BH)
    m_h = o_h < H
    start, end = i_s * SPLIT, tl.minimum(N, (i_s + 1) * SPLIT)
    ### END SOLUTION
    o_p, o_r = tl.arange(0, P), tl.arange(0, R)
    row = (i_b * H + o_h)[:, None]  # [BH, 1]
    b_q = tl.load(q_latent + row * R + o_r, m_h[:, None], 0)  # [BH, R]
    b_q_rope = tl.load(q_rope + row * P + o_p, m_h[:, None], 0)
    b_max = tl.full([BH], -float("inf"), tl.float32)
    b_sum = tl.zeros([BH], tl.float32)
    b_acc = tl.zeros([BH, R], tl.float32)
    for n in range(start, end, BN):
        o_n = n + tl.arange(0, BN)
        token, m_n = i_b * N + o_n[:, None], o_n[:, None] < end
        b_latent = tl.load(latent + token * R + o_r, m_n, 0)  # [BN, R], for all heads
        b_k_rope = tl.load(k_rope + token * P + o_p, m_n, 0)
        b_s = tl.dot(b_q, tl.trans(b_latent)) + tl.dot(b_q_rope, tl.trans(b_k_rope))
        b_s = tl.where(o_n[None, :] < end, b_s * scale, -float("inf"))
        larger = tl.maximum(b_max, tl.max(b_s, 1))
        b_p, shrink = tl.exp(b_s - larger[:, None]), tl.exp(b_max - larger)
        b_sum = shrink * b_sum + tl.sum(b_p, 1)
        b_acc = shrink[:, None] * b_acc + tl.dot(b_p.to(b_latent.dtype), b_latent)
        b_max = larger
    part = (i_b * tl.num_programs(0) + i_s) * H + o_h
    ### BEGIN SOLUTION
    b_part = b_acc / b_sum[:, None]
    b_lse = b_max + tl.log(b_sum)
    ### END SOLUTION
    tl.store(parts + part[:, None] * R + o_r, b_part, m_h[:, None])
    tl.store(part_lse + part, b_lse, m_h)


@triton.jit
def combine(
    parts, part_lse, w_v, o,
    B, S, H: tl.constexpr, V: tl.constexpr, R: tl.constexpr, BB: tl.constexpr,
):  # fmt: skip
    """One program per head, for BB sequences; grid (H, B/BB rounded up).

    Combines S splits: parts [B, S, H, R] and part_lse [B, S, H], float32; w_v [H, V, R];
    o [B, H, V], in the type of w_v. A part has weight exp(part_lse); w_v comes last. V, R and BB
    are powers of two; a GPU pads fewer than 16 rows.
    """
    ### BEGIN SOLUTION
    i_h, i_b = tl.program_id(0), tl.program_id(1)
    o_b, o_r, o_v = i_b * BB + tl.arange(0, BB), tl.arange(0, R), tl.arange(0, V)
    m_b = o_b < B
    b_max = tl.full([BB], -float("inf"), tl.float32)
    b_sum = tl.zeros([BB], tl.float32)
    b_acc = tl.zeros([BB, R], tl.float32)
    for s in range(S):
        part = (o_b * S + s) * H + i_h  # [BB]
        b_lse = tl.load(part_lse + part, m_b, 0)
        b_part = tl.load(parts + part[:, None] * R + o_r, m_b[:, None], 0)  # [BB, R]
        ### BEGIN GAP
        larger = tl.maximum(b_max, b_lse)
        weight, shrink = tl.exp(b_lse - larger), tl.exp(b_max - larger)
        b_sum = shrink * b_sum + weight
        b_acc = shrink[:, None] * b_acc + weight[:, None] * b_part
        b_max = larger
        ### END GAP
    b_w = tl.load(w_v + (i_h * V + o_v[None, :]) * R + o_r[:, None])  # [R, V]
    ### BEGIN GAP
    b_o = tl.dot((b_acc / b_sum[:, None]).to(b_w.dtype), b_w)
    ### END GAP
    tl.store(o + (o_b[:, None] * H + i_h) * V + o_v, b_o.to(b_w.dtype), m_b[:, None])
    ### END SOLUTION


def decode(q_latent, q_rope, latent, k_rope, w_v, scale, split):
    """o [B, H, V], by a launch of `partial` and one of `combine`; in the type of w_v.

    q_latent [B, H, R], q_rope [B, H, P]; latent [B, N, R], k_rope [B, N, P]; w_v [H, V, R]. split
    is how many tokens a program of `partial` takes, a multiple of 64.
    """
    ### BEGIN SOLUTION
    (B, H, R), (N, P), V = q_latent.shape, k_rope.shape[1:], w_v.shape[1]
    splits = ceil_div(N, split)
    parts = torch.empty(B, splits, H, R, device=latent.device)
    part_lse = torch.empty(B, splits, H, device=latent.device)
    o = torch.empty(B, H, V, dtype=w_v.dtype, device=latent.device)
    given = q_latent, q_rope, latent, k_rope, parts, part_lse, N, split, scale
    partial[splits, ceil_div(H, 64), B](*given, H=H, P=P, R=R, BH=64, BN=64, num_warps=4)
    combine[H, ceil_div(B, 16)](parts, part_lse, w_v, o, B, splits, H=H, V=V, R=R, BB=16)
    return o
    ### END SOLUTION


def tokens_per_split(B, tiles, N, BN, places):
    """The fewest tokens per split with which all programs of `partial` run at the same time.

    There are B sequences of N tokens and `tiles` tiles of heads per sequence; `places` is how many
    programs the GPU runs at a time. The result is a multiple of BN. If the sequences alone already
    exceed `places`, none is split.
    """
    ### BEGIN SOLUTION
    splits = max(1, places // (B * tiles))
    return ceil_div(ceil_div(N, splits), BN) * BN
    ### END SOLUTION


def launch_partial(sizes, scale, split=512, BH=64, BN=64):
    """The grid, and the kernel's sizes. 64 rows are what the widest tensor-core product takes."""
    B, _, N, H, _, P, _, R = sizes
    numbers = {"N": N, "SPLIT": split, "scale": scale, "H": H, "P": P, "R": R, "BH": BH, "BN": BN}
    return (ceil_div(N, split), ceil_div(H, BH), B), numbers | {"num_warps": 4, "num_stages": 2}


def launch_combine(sizes, split=512, BB=16):
    """The grid, and the kernel's sizes. 16 rows are one tile of HMMA; fewer would be padded."""
    B, _, N, H, _, _, V, R = sizes
    numbers = {"B": B, "S": ceil_div(N, split), "H": H, "V": V, "R": R, "BB": BB, "num_warps": 4}
    return (H, ceil_div(B, BB)), numbers


INPUTS = ("q_latent", "q_rope", "latent", "k_rope")
KERNELS = {"partial": (partial, ("parts", "part_lse")), "combine": (combine, ("o",))}
SMALL = {"split": 8, "BH": 4, "BN": 4}  # in the interpreter, so that tiny sizes have several
COUNTED = LatentSizes(N=24, H=4, K=4, P=2, V=4, R=8)
OWN = LatentSizes(B=18, N=1100, H=3, K=16, P=32, V=64, R=64)
COMPILED_SIZE = LatentSizes(B=4, N=3000, H=40, K=64, P=32, V=64, R=256)
CASES = (
    LatentCase("one sequence, one split", "by hand", LatentSizes(N=4)),
    LatentCase("five whole splits", "splits", LatentSizes(N=40)),
    LatentCase("the last split is shorter", "tail", LatentSizes(N=21)),
    LatentCase("heads share a tile", "heads", LatentSizes(N=8, H=4)),
    LatentCase("three heads in a tile of four", "mask", LatentSizes(N=9, H=3)),
    LatentCase("scores around 95", "overflow", LatentSizes(N=17, H=2), scores="high"),
    LatentCase("scores around -150", "underflow", LatentSizes(N=17, H=2), scores="low"),
    LatentCase("later tokens far louder", "overflow", LatentSizes(N=21, H=2), scores="rising"),
    LatentCase("many quiet tokens", "sums", LatentSizes(N=250), torch.float16, "one loud"),
    LatentCase("large scores, close together", "scores", LatentSizes(N=20), torch.float16, "close"),
    LatentCase("1,100 tokens: 138 splits", "many", LatentSizes(N=1100, K=1, P=2, V=2, R=2)),
    LatentCase("600 heads of a sequence", "many", LatentSizes(N=3, H=600, K=1, P=2, V=2, R=2)),
    LatentCase("300 sequences", "many", LatentSizes(B=300, N=3, K=1, P=2, V=2, R=2)),
    LatentCase("float16", "half", LatentSizes(N=19, H=2, P=4, R=16), torch.float16),
    LatentCase("odd sizes", "batch", LatentSizes(B=3, N=29, H=7, K=8, P=4, V=8, R=16)),
)


def make_partial(sizes, dtype=torch.float16, scores="tame", small=False):
    """A launch of `partial`, in small blocks or in its own."""
    blocks = SMALL if small else {}
    return partial_launch(launch_partial, INPUTS, sizes, dtype, scores, **blocks)


def make_combine(sizes, dtype=torch.float16, scores="tame", small=False):
    """A launch of `combine`, in small blocks or in its own."""
    split, blocks = (SMALL["split"], {"BB": 2}) if small else (512, {})
    return combine_launch(launch_combine, sizes, split, dtype, scores, **blocks)


def decode_call(name, sizes, split, scores="tame"):
    """A `Call` of `decode` with splits of so many tokens."""
    passed = {"partial": {"SPLIT": split}}
    return call(name, sizes, (*INPUTS, "w_v"), scores=scores, more=(split,), passed=passed)


EXERCISES = {
    "partial": Exercise(
        minutes=10,
        difficulty=2,
        afterwards=Afterwards(
            why={
                "start, end = i_s * SPLIT, tl.minimum(N, (i_s + 1) * SPLIT)": "Its own tokens. "
                "Without splits a sequence would keep one program busy, and the rest of the GPU "
                "idle.",
                "b_lse = b_max + tl.log(b_sum)": "Maximum and sum in one number: the weight of "
                "the part.",
            },
            instead={
                "Write maximum and sum, without the division": "needs no log and no division "
                "here, but writes two numbers, and the combination does the same work.",
            },
            stretch="Let the queries of several tokens share the tile, as in speculative "
            "decoding. What is the mask?",
        ),
        hints=(
            "The rows of the tile are heads: this program has the i_h-th group of BH. The "
            "columns are tokens: the i_s-th group of SPLIT.",
            "The last tile may have rows for heads that do not exist, and the last split ends at "
            "N. Log-sum-exp: Σ exp(score) is exp(b_max) · b_sum.",
            "o_h = i_h * BH + tl.arange(0, BH); start = i_s * SPLIT, end = tl.minimum(N, start + "
            "SPLIT); b_part = b_acc / b_sum[:, None]; b_lse = b_max + tl.log(b_sum).",
        ),
        evidence=triton_kernel(
            make_partial,
            CASES,
            OWN,
            COUNTED,
            COMPILED_SIZE,
            at_least(1, "HGMMA", text="the wide tensor-core products (HGMMA)"),
            no_spills(),
            limits=(reads(1, "latent", "k_rope"), reads(3, "q_latent"), writes(1, "parts")),
        ),
        symptoms={
            "by hand": "With one split, parts is b_acc over b_sum, and part_lse is the natural "
            "log of Σ exp(score). b_sum is Σ exp(score − b_max).",
            "splits": "Split i_s begins at token i_s · SPLIT and ends SPLIT tokens later.",
            "tail": "The last split ends at token N − 1.",
            "heads": "Row x of the tile is head i_h · BH + x.",
            "mask": "Leave out what does not exist: heads from H on, by m_h, and tokens from N "
            "on, by end.",
            "overflow": "The log of Σ exp(score) is the maximum plus the log of b_sum.",
            "underflow": "All scores may be −150: start the maximum at −inf, and keep hidden "
            "tokens out of it.",
            "sums": "Keep sums in float32: adding 0.0002 to 1 changes nothing in float16.",
            "scores": "Keep scores in float32: in float16 a score of 1,000 is off by up to 0.25.",
            "batch": "i_h counts tiles of heads, not heads.",
        },
    ),
    "combine": Exercise(
        minutes=14,
        difficulty=2,
        afterwards=Afterwards(
            why={
                "larger = tl.maximum(b_max, b_lse)": "Parts are combined like blocks of an "
                "online softmax.",
                "b_o = tl.dot((b_acc / b_sum[:, None]).to(b_w.dtype), b_w)": "w_v is linear, so "
                "it can wait until the parts are combined.",
            },
            instead={
                "Apply w_v in every split": "writes parts of V instead of R numbers, but every "
                "split reads the weights of H heads.",
            },
            stretch="Let the last program of a sequence that finishes combine its parts: one "
            "launch instead of two.",
        ),
        hints=(
            "It is the online softmax once more, with splits instead of blocks: the score is "
            "part_lse, the latent is parts. Rows are batch rows; the loop runs over splits.",
            "Split s of row b and head h is part number (b·S + s)·H + h: one element of "
            "part_lse, R of parts. larger = tl.maximum(b_max, b_lse); the new part counts "
            "exp(b_lse − larger), and the old sums are multiplied by exp(b_max − larger). After "
            "the loop divide, load w_v of the head as [R, V], one tl.dot, one store.",
            "b_acc = shrink[:, None] * b_acc + weight[:, None] * b_part; at the end "
            "b_o = tl.dot((b_acc / b_sum[:, None]).to(b_w.dtype), b_w).",
        ),
        evidence=triton_kernel(
            make_combine,
            CASES,
            OWN,
            COUNTED,
            COMPILED_SIZE,
            at_least(1, "HMMA", "HGMMA", text="products on the tensor cores"),
            no_spills(),
            # Twice: first for the largest, then for the weights.
            limits=(reads(1, "parts", "w_v"), reads(2, "part_lse"), writes(1, "o")),
        ),
        symptoms={
            "by hand": "A single part has weight 1, so o is w_v times it.",
            "splits": "A part counts exp(part_lse − the largest so far). Rescale the sums when "
            "the largest grows, and divide by b_sum at the end.",
            "tail": "Parts do not count the same: a shorter split has a smaller Σ exp(score).",
            "overflow": "Subtract the largest part_lse before the exp.",
            "underflow": "Start the maximum below any part_lse, at −inf: one may be −150.",
            "sums": "Keep sums in float32: adding 0.0002 to 1 changes nothing in float16.",
            "half": "tl.dot needs both operands in one type.",
            "heads": "A program has one head: in parts, in w_v and in o.",
            "mask": "Split s of row b and head h is part (b·S + s)·H + h. The last program may "
            "have rows past B: mask them in loads and in the store.",
            "batch": "Row b of the tile is batch row i_b · BB + b: its parts start at b·S·H.",
            "never written": "Store o once, after the loop: [BB, V], row b of head h at (b·H + "
            "h)·V.",
        },
    ),
    "decode": Exercise(
        minutes=6,
        difficulty=2,
        afterwards=Afterwards(
            why={
                "splits = ceil_div(N, split)": "Both kernels need this number: the first for its "
                "programs, the second for its iterations.",
                "part_lse = torch.empty(B, splits, H, device=latent.device)": "float32, whatever "
                "the inputs are: in float16 a value of 95 is off by up to 0.03, and its exp by 3 "
                "%.",
            },
            instead={
                "One launch": "combines the parts in the sequence's last program to finish. It "
                "needs a counter in memory, and an atomic.",
            },
            stretch="A server's sequences have different lengths. What would `partial` need to "
            "know, and what would idle programs do?",
        ),
        hints=(
            "Allocate three tensors: two between the kernels, one to return. How many splits are "
            "there?",
            "There are ceil_div(N, split) splits. parts [B, splits, H, R] and part_lse [B, "
            "splits, H] are float32. The grids are in the kernels' docstrings: (splits, H/BH "
            "rounded up, B) and (H, B/BB rounded up).",
            "partial[splits, ceil_div(H, 64), B](\n"
            "    q_latent, q_rope, latent, k_rope, parts, part_lse, N, split, scale,\n"
            "    H=H, P=P, R=R, BH=64, BN=64, num_warps=4,\n"
            ")\n"
            "combine[H, ceil_div(…, 16)](parts, part_lse, w_v, o, …, …, H=H, V=V, R=R, BB=16)",
        ),
        evidence=(
            launches(
                KERNELS,
                decode_call("one split", LatentSizes(N=5), 64),
                decode_call("three splits", LatentSizes(N=150, H=2), 64),
                decode_call("two whole splits", LatentSizes(N=128, H=2), 64),
                decode_call("loud scores", LatentSizes(N=200, H=3), 64, "high"),
                decode_call("more heads than a tile", LatentSizes(N=70, H=66), 64),
                decode_call("batch rows", LatentSizes(B=18, N=70, H=2, P=4, V=8, R=16), 64),
            ),
            launchable(KERNELS, decode_call("whole", COMPILED_SIZE, 512)),
            launches_gpu(KERNELS, decode_call("whole", COMPILED_SIZE, 512)),
        ),
        symptoms={
            "one split": "The sizes are those of the tensors: R is the last axis of q_latent, P "
            "that of q_rope, V the second of w_v.",
            "three splits": "SPLIT is the number of tokens per split; S is the number of splits.",
            "two whole splits": "128 tokens are two splits of 64; a third would be empty: 0/0, "
            "a NaN.",
            "SPLIT": "The caller chooses how many tokens a program of `partial` takes: pass "
            "split on.",
            "loud scores": "part_lse seems to have 16 bits. The tensors between the kernels are "
            "float32.",
            "more heads than a tile": "The tiles of heads are H/BH, rounded up.",
            "batch rows": "`combine` has BB batch rows per program: B/BB of them, rounded up.",
            "grid": "Programs are missing: the grids are (splits, H/BH rounded up, B) and (H, "
            "B/BB rounded up).",
            "idle": "There are more programs than work: the grids are (splits, H/BH rounded up, "
            "B) and (H, B/BB rounded up).",
            "launch": "Pass the tensors in the order of the signature, then the sizes by name. "
            "Allocate what a kernel writes.",
            "sizes": "The kernels mask everything past the end, so one got sizes larger than the "
            "tensors. Are the sizes those of the tensors?",
        },
    ),
    "tokens_per_split": Exercise(
        minutes=5,
        difficulty=2,
        afterwards=Afterwards(
            why={
                "splits = max(1, places // (B * tiles))": "Round down: one program more than "
                "fits would run almost alone.",
                "return ceil_div(ceil_div(N, splits), BN) * BN": "Whole blocks of tokens.",
            },
            instead={
                "More splits than fit at once": "evens out sequences of different lengths, but "
                "writes more parts and needs a second wave.",
            },
            stretch="For sequences of different lengths, choose the splits of each so that all "
            "programs end together.",
        ),
        hints=(
            "Without splits there are B · tiles programs. How many times does that fit?",
            "places // (B · tiles) splits, at least one. Divide N tokens by that, and round up "
            "to whole blocks.",
            "splits = max(1, places // (B * tiles)); return ceil_div(ceil_div(N, splits), BN) * BN",
        ),
        evidence=(
            function_cases(
                ("one sequence, four places", (1, 1, 1024, 64, 4), 256),
                ("whole blocks", (1, 1, 1000, 64, 4), 256),
                ("several sequences", (16, 1, 4096, 64, 264), 256),
                ("two tiles of heads", (4, 2, 4096, 64, 264), 128),
                ("places left over", (100, 1, 4096, 64, 264), 2048),
                ("more sequences than places", (300, 1, 512, 64, 264), 512),
                ("a short sequence", (1, 1, 10, 64, 264), 64),
                ("a token more than whole blocks", (1, 1, 257, 64, 4), 128),
                more=list(product((1, 5, 90), (1, 3), (1, 100, 4097, 10**5), (16, 128), (7, 900))),
                whole=True,
            ),
        ),
        symptoms={
            "one sequence, four places": "Four splits of a quarter each.",
            "whole blocks": "1000 / 4 is 250, rounded up to a multiple of BN.",
            "several sequences": "16 sequences share 264 places: 16 splits each, rounded down.",
            "two tiles of heads": "Every sequence has splits · tiles programs.",
            "a token more than whole blocks": "257 / 4 is more than 64: round up before you "
            "round to blocks.",
            "places left over": "With 264 places, 100 sequences get two splits each. With three, "
            "36 programs would wait for a second wave, and the GPU with them.",
            "more sequences than places": "Use at least one split, which then has all N tokens, "
            "in whole blocks.",
        },
    ),
}
