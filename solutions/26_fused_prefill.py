"""MLA's attention in one kernel: scores stay on the chip, W_V comes last."""

import torch
import triton
import triton.language as tl

from rwkv_lessons.lab.course.exercises import Afterwards, Exercise
from rwkv_lessons.lab.evidence.cuda import at_least
from rwkv_lessons.lab.evidence.functions import function_cases
from rwkv_lessons.lab.evidence.launching import launchable, launches, launches_gpu
from rwkv_lessons.lab.evidence.triton import no_spills, reads, writes
from rwkv_lessons.lab.lessons.lessons_25_28.evidence import (
    LatentCase,
    LatentSizes,
    block_by_block,
    nothing_larger,
)
from rwkv_lessons.lab.lessons.lessons_26_27.evidence import call, mla_launch, triton_kernel
from rwkv_lessons.runtime.launch_numba import ceil_div


def online(s, latent, BN):
    """softmax(s) @ latent, reading the columns of s once, BN at a time, and no block again.

    s [rows, N] are scores, latent is [N, R]; N need not be a multiple of BN. Returns [rows, R].
    """
    rows, N = s.shape
    m = torch.full((rows,), -torch.inf, dtype=s.dtype)  # the largest score so far
    total = torch.zeros(rows, dtype=s.dtype)  # the sum of exp(score − m) so far
    acc = torch.zeros(rows, latent.shape[1], dtype=s.dtype)  # and that of exp(score − m) · latent
    for n in range(0, N, BN):
        block = s[:, n : n + BN]
        ### BEGIN SOLUTION
        larger = torch.maximum(m, block.max(1).values)
        p, shrink = torch.exp(block - larger[:, None]), torch.exp(m - larger)
        total = shrink * total + p.sum(1)
        acc = shrink[:, None] * acc + p @ latent[n : n + BN]
        m = larger
        ### END SOLUTION
    return acc / total[:, None]


@triton.jit
def kernel(
    q_latent, q_rope, latent, k_rope, w_v, o,
    M, N, scale, H: tl.constexpr, P: tl.constexpr, V: tl.constexpr, R: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """One program per BM queries of a head; grid (M/BM rounded up, B·H).

    q_latent [B, M, H, R], q_rope [B, M, H, P]; latent [B, N, R], k_rope [B, N, P]; w_v [H, V, R];
    o [B, M, H, V]. Query m is token N − M + m and sees the tokens up to its own; M ≤ N.
    P, V and R are powers of two. All tensors have one type; sums are float32. scale multiplies the
    scores, dots of q_latent with latent plus dots of q_rope with k_rope.
    """
    ### BEGIN SOLUTION
    i_m, i_bh = tl.program_id(0), tl.program_id(1)
    i_b, i_h = i_bh // H, i_bh % H
    o_m, o_p, o_r = i_m * BM + tl.arange(0, BM), tl.arange(0, P), tl.arange(0, R)
    m_m = o_m[:, None] < M
    row = (i_b * M + o_m[:, None]) * H + i_h  # [BM, 1]
    b_q = tl.load(q_latent + row * R + o_r, m_m, 0)  # [BM, R]
    b_q_rope = tl.load(q_rope + row * P + o_p, m_m, 0)
    own = N - M + o_m  # the token that each query is
    b_max = tl.full([BM], -float("inf"), tl.float32)
    b_sum = tl.zeros([BM], tl.float32)
    b_acc = tl.zeros([BM, R], tl.float32)
    for n in range(0, tl.minimum(N, N - M + (i_m + 1) * BM), BN):
        o_n = n + tl.arange(0, BN)
        token, m_n = i_b * N + o_n[:, None], o_n[:, None] < N
        b_latent = tl.load(latent + token * R + o_r, m_n, 0)  # [BN, R]
        b_k_rope = tl.load(k_rope + token * P + o_p, m_n, 0)
        ### BEGIN GAP
        b_s = tl.dot(b_q, tl.trans(b_latent)) + tl.dot(b_q_rope, tl.trans(b_k_rope))
        b_s = tl.where(o_n[None, :] <= own[:, None], b_s * scale, -float("inf"))
        larger = tl.maximum(b_max, tl.max(b_s, 1))
        b_p, shrink = tl.exp(b_s - larger[:, None]), tl.exp(b_max - larger)
        b_sum = shrink * b_sum + tl.sum(b_p, 1)
        b_acc = shrink[:, None] * b_acc + tl.dot(b_p.to(b_latent.dtype), b_latent)
        b_max = larger
        ### END GAP
    o_v = tl.arange(0, V)
    b_w = tl.load(w_v + (i_h * V + o_v[None, :]) * R + o_r[:, None])  # [R, V]
    ### BEGIN GAP
    b_o = tl.dot((b_acc / b_sum[:, None]).to(b_w.dtype), b_w)
    ### END GAP
    tl.store(o + row * V + o_v, b_o.to(b_w.dtype), m_m)
    ### END SOLUTION


def prefill(q_latent, q_rope, latent, k_rope, w_v, scale):
    """o [B, M, H, V], by one launch of `kernel`; in the type of w_v, on the device of latent.

    q_latent [B, M, H, R], q_rope [B, M, H, P]; latent [B, N, R], k_rope [B, N, P]; w_v [H, V, R].
    """
    ### BEGIN SOLUTION
    (B, M, H, R), (N, P), V = q_latent.shape, k_rope.shape[1:], w_v.shape[1]
    o = torch.empty(B, M, H, V, dtype=w_v.dtype, device=latent.device)
    grid = ceil_div(M, 64), B * H
    sizes = {"H": H, "P": P, "V": V, "R": R, "BM": 64, "BN": 64, "num_warps": 8}
    kernel[grid](q_latent, q_rope, latent, k_rope, w_v, o, M, N, scale, **sizes)
    return o
    ### END SOLUTION


def launch(sizes, scale, BM=64, BN=64):
    """The grid, and the kernel's sizes. Eight warps: a tile of 64 rows keeps 64 × R sums."""
    B, M, N, H, _, P, V, R = sizes
    numbers = {"M": M, "N": N, "scale": scale, "H": H, "P": P, "V": V, "R": R, "BM": BM, "BN": BN}
    return (ceil_div(M, BM), B * H), numbers | {"num_warps": 8, "num_stages": 2}


INPUTS = ("q_latent", "q_rope", "latent", "k_rope", "w_v")
KERNELS = {"kernel": (kernel, ("o",))}
SMALL = {"BM": 4, "BN": 4}  # blocks in the interpreter, so that tiny sizes have several
COUNTED = LatentSizes(M=8, N=8, H=3, K=4, P=2, V=4, R=8)
OWN = LatentSizes(B=2, M=70, N=140, H=3, K=64, P=32, V=64, R=128)
CLOSE = LatentSizes(M=3, N=20)
COMPILED_SIZE = LatentSizes(B=1, M=200, N=300, H=4, K=64, P=32, V=64, R=256)


def make(sizes, dtype=torch.float16, scores="tame", small=False):
    """A launch of this lesson's kernel, in small blocks or in its own.

    Several sequences have blocks that are not square: there a row is not as long as a column.
    """
    blocks = SMALL | ({"BN": 2} if sizes.B > 1 else {}) if small else {}
    return mla_launch(launch, INPUTS, sizes, dtype=dtype, scores=scores, **blocks)


def scores(rows, N, low=-3.0, high=3.0, falling=False, apart=0, R=8):
    """Scores [rows, N] and a latent [N, R] for `online`, each row `apart` above the last."""
    generator = torch.Generator().manual_seed(N)
    s = low + (high - low) * torch.rand(rows, N, generator=generator)
    s = s.sort(1, falling).values  # so that the largest score grows from block to block
    return s + apart * torch.arange(rows)[:, None], torch.randn(N, R, generator=generator)


def online_case(name, rows, N, BN, **options):
    s, latent = scores(rows, N, **options)
    return name, (s, latent, BN), lambda: s.double().softmax(1) @ latent.double()


EXERCISES = {
    "online": Exercise(
        minutes=8,
        difficulty=2,
        afterwards=Afterwards(
            why={
                "p, shrink = torch.exp(block - larger[:, None]), torch.exp(m - larger)": "The "
                "old sums were divided by exp(m), so they are rescaled to the new maximum.",
                "acc = shrink[:, None] * acc + p @ latent[n : n + BN]": "Both sums are rescaled "
                "alike; the division comes once, at the end.",
            },
            instead={
                "Two passes, the maximum first": "needs no rescaling, but every score is computed "
                "or read twice.",
            },
            stretch="Skip the rescaling while m grows only a little, and correct it at the end. "
            "When is that safe?",
        ),
        hints=(
            "Everything so far was divided by exp(m). If the largest score grows, by which "
            "factor do you multiply total and acc?",
            "larger is the maximum of m and the block's maximum, per row. Old sums are "
            "multiplied by exp(m − larger); new terms are exp(block − larger).",
            "shrink = torch.exp(m - larger); total = shrink * total + p.sum(1); acc = "
            "shrink[:, None] * acc + p @ latent[n : n + BN]; m = larger.",
        ),
        evidence=(
            function_cases(
                online_case("one block", 2, 4, 8),
                online_case("two blocks of equal scores", 2, 8, 4, low=1.0, high=1.0),
                online_case("two blocks", 2, 8, 4),
                online_case("the last block is shorter", 3, 37, 8),
                # Differences of float32s between 60 and 110 are exact.
                online_case("scores around 90", 3, 21, 4, low=60.0, high=110.0),
                online_case("scores around -150", 3, 21, 4, low=-170.0, high=-130.0),
                online_case("the largest score comes first", 1, 21, 4, low=-100.0, falling=True),
                online_case("the largest score grows by 200", 1, 21, 4, low=-200.0, high=0.0),
                online_case("rows of their own", 3, 21, 4, apart=100),
                online_case("a long row", 2, 1500, 16, R=70),
            ),
            block_by_block(lambda: (*scores(4, 100), 8)),
            # Room for a block beside the sums, not for a row or for the latent.
            nothing_larger(lambda: (*scores(4, 100), 8), 3 * 4 * 8, "three times rows × BN"),
        ),
        symptoms={
            "one block": "p is exp(score − largest), total is its sum, and acc is p @ latent. The "
            "old sums are multiplied by exp(m − larger), which is 0 at first.",
            "two blocks of equal scores": "The maximum does not grow, so exp(m − larger) is 1 for "
            "the second block, if m was set to larger after the first. Each block adds to both "
            "sums.",
            "two blocks": "The second block may have a larger maximum. Then multiply the old "
            "sums, total and acc, by exp(m − larger).",
            "the last block is shorter": "N need not be a multiple of BN: block has as many "
            "columns as are left, and its latents as many rows.",
            "scores around 90": "exp(90) overflows in float32: subtract the largest score first.",
            "the largest score comes first": "m is the largest score of all blocks so far. A "
            "block with only smaller scores leaves it unchanged.",
            "the largest score grows by 200": "exp(score − m) overflows unless m is the largest "
            "score so far, this block's included.",
            "a long row": "It is right for few blocks. Is there a number where N or R belongs?",
            "rows of their own": "Each row has its own maximum; rows can be far apart.",
            "scores around -150": "m starts below every score, at -inf, because exp(-150) is 0 "
            "in float32.",
            "block by block": "Use only `block`: later scores are not available yet, and earlier "
            "ones no longer.",
            "largest": "Use only `block`: nothing may be as wide as the sequence.",
        },
    ),
    "prefill": Exercise(
        minutes=5,
        difficulty=1,
        afterwards=Afterwards(
            why={
                "grid = ceil_div(M, 64), B * H": "Blocks of queries first: programs that run at "
                "the same time belong to one head and read the same latents.",
                "o = torch.empty(B, M, H, V, dtype=w_v.dtype, device=latent.device)": "Not "
                "initialized: the kernel writes every element.",
            },
            instead={
                "Four warps": "makes each thread hold twice as many of the 64 × R sums. With R = "
                "512 that is more than its registers.",
                "Blocks of 128 queries": "halves the reads of the latent, and the number of "
                "programs.",
            },
            stretch="A prompt's last block of queries reads the most. To start it first, what "
            "changes in the kernel?",
        ),
        hints=(
            "One output, a grid with two axes, and the right tensors for M, N, H, P, V, R.",
            "A program has BM queries of one head, so the grid is (M/BM rounded up, B·H). The "
            "widest product takes blocks of 64 rows, and 8 warps share their sums.",
            "o = torch.empty(B, M, H, V, dtype=…, device=…)\n"
            "kernel[(ceil_div(…, 64), …)](\n"
            "    q_latent, q_rope, latent, k_rope, w_v, o, M, N, scale,\n"
            "    H=H, P=P, V=V, R=R, BM=64, BN=64, num_warps=8,\n"
            ")\n"
            "return o",
        ),
        evidence=(
            launches(
                KERNELS,
                call("two queries", LatentSizes(M=2, N=4), INPUTS),
                call("many queries", LatentSizes(M=150, N=150), INPUTS),
                call("an earlier part in the cache", LatentSizes(M=3, N=75, H=2), INPUTS),
                call(
                    "batch rows and heads", LatentSizes(B=2, M=5, N=9, H=3, P=4, V=8, R=16), INPUTS
                ),
            ),
            launchable(KERNELS, call("whole", COMPILED_SIZE, INPUTS)),
            launches_gpu(KERNELS, call("whole", COMPILED_SIZE, INPUTS)),
        ),
        symptoms={
            "two queries": "The kernel's sizes are those of the tensors: R is the last axis of "
            "q_latent, P that of q_rope, V the second of w_v. There are M queries but N tokens. "
            "scale is passed on as it is. o has the type of w_v.",
            "many queries": "Take as many blocks of queries as needed to cover all M.",
            "an earlier part in the cache": "There are M queries but N tokens.",
            "batch rows and heads": "There is a program for each head of each batch row: B·H.",
            "grid": "Programs are missing. The grid is (M/BM rounded up, B·H).",
            "idle": "There are more programs than blocks. The grid is (M/BM rounded up, B·H).",
            "launch": "kernel[grid](…) takes the tensors in the order of the signature, then M, "
            "N, scale, then the sizes by name. o is newly allocated, in the type of w_v.",
            "sizes": "The kernel masks everything past the end, so it got sizes larger than the "
            "tensors, or a program number that does not exist: is the grid (blocks of queries, "
            "B·H), in this order?",
        },
    ),
    "kernel": Exercise(
        minutes=25,
        difficulty=3,
        afterwards=Afterwards(
            why={
                'b_s = tl.where(o_n[None, :] <= own[:, None], b_s * scale, -float("inf"))': "A "
                "query sees the tokens up to its own.",
                "tl.dot(b_p.to(b_latent.dtype), b_latent)": "The tile of latents is keys and "
                "values at once: read once, used twice.",
                "b_o = tl.dot((b_acc / b_sum[:, None]).to(b_w.dtype), b_w)": "w_v comes last, "
                "once per program.",
            },
            instead={
                "Compute the values early, per tile": "takes fewer operations if more than V / "
                "(1 − V/R) rows share them: lesson 25's count.",
                "exp2, with log2(e) in the scale": "saves one multiplication per exp.",
            },
            stretch="Blocks that are entirely below the diagonal need no mask: split the loop in "
            "two.",
        ),
        hints=(
            "Before the loop: the queries, two tiles. Inside it: two tiles of tokens, and your "
            "`online` with a score of two parts and a mask. After it: one product with w_v, and "
            "a store.",
            "Query m of row b and head h is row (b·M + m)·H + h of q_latent, q_rope and o; token "
            "n is row b·N + n of latent and k_rope. tl.dot(b_q, tl.trans(b_latent)) is [BM, BN]; "
            "tl.where puts −inf where a query must not look: beyond its own token, N − M + m. "
            "The tile of latents is used again as the values. The loop may end where the block's "
            "last query does.",
            "b_acc = shrink[:, None] * b_acc + tl.dot(b_p.to(b_latent.dtype), b_latent); at the "
            "end b_o = tl.dot((b_acc / b_sum[:, None]).to(b_w.dtype), b_w).",
        ),
        evidence=triton_kernel(
            make,
            (
                LatentCase(
                    "one query, 4 tokens, all alike", "values", LatentSizes(N=4), scores="alike"
                ),
                LatentCase("one query, 4 equal scores", "sees", LatentSizes(N=4), scores="equal"),
                LatentCase("one query, 4 tokens: one block", "by hand", LatentSizes(N=4)),
                LatentCase(
                    "20 equal scores: five blocks", "loop", LatentSizes(N=20), scores="equal"
                ),
                LatentCase("one query, 20 tokens: five blocks", "blocks", LatentSizes(N=20)),
                LatentCase("one query, 5 tokens in blocks of 4", "tail", LatentSizes(N=5)),
                LatentCase("queries see the past only", "causal", LatentSizes(M=8, N=8)),
                LatentCase("3 queries at the end of 11 tokens", "position", LatentSizes(M=3, N=11)),
                LatentCase("heads share a latent", "head", LatentSizes(M=5, N=5, H=3)),
                LatentCase("scores around 95", "overflow", LatentSizes(M=6, N=6), scores="high"),
                LatentCase("scores around -150", "underflow", LatentSizes(M=6, N=9), scores="low"),
                LatentCase(
                    "later tokens far louder", "future", LatentSizes(M=9, N=11), scores="rising"
                ),
                LatentCase(
                    "many quiet tokens", "sums", LatentSizes(M=2, N=200), torch.float16, "one loud"
                ),
                LatentCase("large scores, close together", "scores", CLOSE, torch.float16, "close"),
                LatentCase(
                    "many equal tokens", "large", LatentSizes(M=2, N=230), torch.float16, "even"
                ),
                LatentCase("132 queries", "many", LatentSizes(M=132, N=132, K=1, P=2, V=2, R=2)),
                LatentCase(
                    "260 heads of batch rows", "many", LatentSizes(B=13, H=20, K=1, P=2, V=2, R=2)
                ),
                LatentCase("float16", "half", LatentSizes(M=5, N=9, H=2, P=4, R=16), torch.float16),
                LatentCase(
                    "odd sizes", "batch", LatentSizes(B=2, M=7, N=13, H=3, K=8, P=4, V=8, R=16)
                ),
            ),
            OWN,
            COUNTED,
            COMPILED_SIZE,
            at_least(1, "HGMMA", text="the wide tensor-core products (HGMMA)"),
            no_spills(),
            # A head's first block of queries sees half of the sequence, its second block all of it.
            limits=(reads(3 * 1.5, "latent", "k_rope"), reads(1, "q_latent"), writes(1, "o")),
        ),
        symptoms={
            "values": "The four latents are the same, so their average is that latent, whatever "
            "the weights are. Divide by b_sum before w_v, whose element [r, v] is number "
            "(i_h·V + v)·R + r.",
            "sees": "Four equal scores: each token counts a quarter. The query is token own = N − "
            "M + m = 3 and sees the tokens up to its own, all four.",
            "by hand": "A score has two parts, from the latent and from rope; their sum is "
            "multiplied by scale.",
            "loop": "The maximum never grows here. Are all blocks read? The last query of a "
            "program is token N − M + (i_m + 1)·BM − 1, or N − 1. Does each block add to both "
            "sums, and is larger kept as b_max?",
            "blocks": "When the maximum grows, multiply both sums, b_sum and b_acc, by exp(b_max "
            "− larger).",
            "tail": "The last block extends past the end of the sequence. Those columns hold "
            "zeros, so their score is 0, and exp(0 − m) is added to the sum.",
            "mask": "Mask queries past M and tokens past N in loads, and queries in the store. "
            "w_v of a head is [V, R] and needs no mask.",
            "never written": "Store o once, after the loop: [BM, V], query m of head h in row "
            "(b·M + m)·H + h.",
            "causal": "Query m must not see a token after its own: use −inf before you take the "
            "maximum.",
            "position": "Query m is token N − M + m, not m.",
            "head": "Query m of head h is row (b·M + m)·H + h of q_latent, q_rope and o. w_v "
            "belongs to head i_h; the latent belongs to all heads.",
            "overflow": "Subtract the row's maximum before the exp.",
            "underflow": "All scores may be −150: start the maximum at −inf, and keep hidden "
            "tokens out of it.",
            "future": "Mask first, then take the maximum: hidden tokens must not affect it.",
            "sums": "Keep sums in float32: adding 0.0002 to 1 changes nothing in float16.",
            "scores": "Keep scores in float32: in float16 a score of 1,000 is off by up to 0.25.",
            "large": "230 of 300 latents add up to more than float16's 65,504: divide the sum by "
            "b_sum before you convert it to an operand.",
            "half": "tl.dot needs both operands in one type: b_p.to(b_latent.dtype).",
            "batch": "Maximum and sum run along a row, over tokens: axis 1. Row b has its own "
            "queries and tokens.",
        },
    ),
}
