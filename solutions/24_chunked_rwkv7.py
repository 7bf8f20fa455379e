"""RWKV-7 in chunks: one triangular system for what all tokens of a chunk read, then products."""

from functools import partial

import torch
import triton
import triton.language as tl

from rwkv_lessons.lab.course.exercises import Afterwards, Exercise
from rwkv_lessons.lab.evidence.cuda import ATOMICS, at_least, at_most
from rwkv_lessons.lab.evidence.triton import (
    Case,
    answer,
    dot_flops,
    exps,
    gpu,
    machine_code,
    no_spills,
    reads,
    traffic,
    writes,
)
from rwkv_lessons.lab.evidence.wkv7 import Size, in_bfloat16, much_in_the_state, wkv7_launch
from rwkv_lessons.lab.evidence.wkv7_functions import (
    calls,
    exact_loop,
    few_calls,
    heads,
    in_a_row,
    readings,
    unit_triangular_inverse,
)


def by_doubling(A):
    """(I − A)⁻¹ for strictly lower triangular A, [..., C, C], as (I + A)(I + A²)(I + A⁴) …"""
    ### BEGIN SOLUTION
    eye = torch.eye(A.shape[-1])
    inverse, power, L = eye + A, A, 2
    while L < A.shape[-1]:
        power, L = power @ power, 2 * L
        inverse = inverse @ (eye + power)
    return inverse
    ### END SOLUTION


def by_blocks(A):
    """(I − A)⁻¹ from halves: [[left, 0], [right @ low @ left, right]]; C is a power of two."""
    ### BEGIN SOLUTION
    h = A.shape[-1] // 2
    if h == 0:
        return torch.ones_like(A)
    left, right = by_blocks(torch.stack([A[..., :h, :h], A[..., h:, h:]]))
    low = right @ A[..., h:, :h] @ left
    upper = torch.cat([left, torch.zeros_like(low)], -1)
    return torch.cat([upper, torch.cat([low, right], -1)], -2)
    ### END SOLUTION


def chunk(r, w, k, v, a, b, s):
    """The outputs of a chunk's tokens, and the state after it, by matrix products, without a loop.

    r, w, k, a, b are [..., C, K], with w the log decay, C a power of two up to 64 and w ≥ -0.6065.
    v is [..., C, V]; s is [..., K, V], the state before the chunk. Returns o, [..., C, V], and the
    state after it.
    """
    total = w.cumsum(-2)  # log decay from the chunk's start, with the token's own
    before, last = total - w, total[..., -1:, :]
    ### BEGIN SOLUTION
    a_start, r_start = a * before.exp(), r * total.exp()
    b_start, k_start = b * (-total).exp(), k * (-total).exp()
    inverse = by_blocks((a_start @ b_start.mT).tril(-1))
    z = inverse @ (a_start @ s + (a_start @ k_start.mT).tril(-1) @ v)
    o = r_start @ s + (r_start @ b_start.mT).tril() @ z + (r_start @ k_start.mT).tril() @ v
    b_end, k_end = b * (last - total).exp(), k * (last - total).exp()
    return o, last.exp().mT * s + b_end.mT @ z + k_end.mT @ v
    ### END SOLUTION


def chunked(r, w, k, v, a, b, s, C=64):
    """All tokens, [..., T, K]; C divides T."""
    o = []
    for given in zip(*(x.split(C, -2) for x in (r, w, k, v, a, b)), strict=True):
        o_c, s = chunk(*given, s)
        o.append(o_c)
    return torch.cat(o, -2), s


@triton.jit
def kernel(
    r, w, k, v, a, b, s0, o, s1,
    T, H: tl.constexpr, N: tl.constexpr, BT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program per head of a batch row, grid (B·H,), in chunks of BT tokens.

    r, w, k, v, a, b, o are [B, T, H, N], with w the log decay, N a power of 2; s0, s1 are
    [B, H, N, N], float32, keys × values; r, w, k, v, a, b may be bfloat16. Operands of products
    have the type of v; sums, the inverse and the state are float32. PRECISION is the
    input_precision of every tl.dot.
    """
    i_b, i_h = tl.program_id(0) // H, tl.program_id(0) % H
    o_n, o_c = tl.arange(0, N), tl.arange(0, BT)
    earlier, own = o_c[:, None] > o_c[None, :], o_c[:, None] == o_c[None, :]
    o_s = tl.program_id(0) * N * N + o_n[:, None] * N + o_n[None, :]
    b_s = tl.load(s0 + o_s)  # [N, N], keys × values
    for i_c in range(tl.cdiv(T, BT)):
        o_t = i_c * BT + o_c
        m_t = (o_t < T)[:, None]
        o_x = ((i_b * T + o_t) * H + i_h)[:, None] * N + o_n[None, :]  # [BT, N]
        b_r = tl.load(r + o_x, m_t, 0).to(tl.float32)
        b_k = tl.load(k + o_x, m_t, 0).to(tl.float32)
        b_a = tl.load(a + o_x, m_t, 0).to(tl.float32)
        b_b = tl.load(b + o_x, m_t, 0).to(tl.float32)
        b_v = tl.load(v + o_x, m_t, 0)
        b_w = tl.load(w + o_x, m_t, 0).to(tl.float32) * 1.4426950408889634  # log2 of the decay
        b_total = tl.cumsum(b_w, 0)
        b_before, b_last = b_total - b_w, tl.sum(b_w, 0)
        b_middle = tl.sum(tl.where((o_c < BT // 2)[:, None], b_w, 0), 0)[None, :]
        # Scores: a reads b and k of earlier tokens; r reads those of its own token, too.
        b_left_a = (b_a * tl.exp2(b_before - b_middle)).to(b_v.dtype)
        b_left_r = (b_r * tl.exp2(b_total - b_middle)).to(b_v.dtype)
        b_right = tl.exp2(b_middle - b_total)
        ### BEGIN SOLUTION
        b_right_b = tl.trans((b_b * b_right).to(b_v.dtype))
        b_right_k = tl.trans((b_k * b_right).to(b_v.dtype))
        b_ab = tl.dot(b_left_a, b_right_b, input_precision=PRECISION)
        b_ab = tl.where(earlier, b_ab, 0)
        b_ak = tl.dot(b_left_a, b_right_k, input_precision=PRECISION)
        b_ak = tl.where(earlier, b_ak, 0).to(b_v.dtype)
        b_rb = tl.dot(b_left_r, b_right_b, input_precision=PRECISION)
        b_rb = tl.where(earlier | own, b_rb, 0).to(b_v.dtype)
        b_rk = tl.dot(b_left_r, b_right_k, input_precision=PRECISION)
        b_rk = tl.where(earlier | own, b_rk, 0).to(b_v.dtype)
        ### END SOLUTION
        # (I - b_ab)⁻¹: row i has a 1 of its own, plus b_ab[i, j] times each row j above it.
        b_inverse = tl.where(own, 1.0, 0.0)
        ### BEGIN SOLUTION
        for i in range(1, BT):
            b_row = tl.sum(tl.where(o_c[:, None] == i, b_ab, 0), 0)  # [BT]
            b_sum = tl.sum(b_row[:, None] * b_inverse, 0)
            b_inverse += tl.where(o_c[:, None] == i, b_sum[None, :], 0)
        ### END SOLUTION
        # z, o and the state after the chunk.
        b_end = tl.exp2(b_last[None, :] - b_total)
        ### BEGIN SOLUTION
        b_state, b_a_reads = b_s.to(b_v.dtype), (b_a * tl.exp2(b_before)).to(b_v.dtype)
        b_y = tl.dot(b_a_reads, b_state, input_precision=PRECISION)
        b_y += tl.dot(b_ak, b_v, input_precision=PRECISION)
        b_inverse, b_y = b_inverse.to(b_v.dtype), b_y.to(b_v.dtype)
        b_z = tl.dot(b_inverse, b_y, input_precision=PRECISION).to(b_v.dtype)
        b_r_reads = (b_r * tl.exp2(b_total)).to(b_v.dtype)
        b_o = tl.dot(b_r_reads, b_state, input_precision=PRECISION)
        b_o += tl.dot(b_rb, b_z, input_precision=PRECISION)
        b_o += tl.dot(b_rk, b_v, input_precision=PRECISION)
        b_b_adds, b_k_adds = (b_b * b_end).to(b_v.dtype), (b_k * b_end).to(b_v.dtype)
        b_s *= tl.exp2(b_last)[:, None]
        b_s += tl.dot(tl.trans(b_b_adds), b_z, input_precision=PRECISION)
        b_s += tl.dot(tl.trans(b_k_adds), b_v, input_precision=PRECISION)
        ### END SOLUTION
        tl.store(o + o_x, b_o, m_t)
    tl.store(s1 + o_s, b_s)


def launch(B, T, H, K, V, BT=16, PRECISION="tf32x3", num_warps=8):
    """The grid, one program per head of a batch row, and the kernel's sizes; K and V are N."""
    sizes = {"T": T, "H": H, "N": K, "BT": BT, "PRECISION": PRECISION}
    return (B * H,), sizes | {"num_warps": num_warps}


def forward(r, w, k, v, a, b, s0):
    """o, in v's type, and s1 in float32, on a GPU."""
    o, s1 = torch.empty_like(v), torch.empty_like(s0)
    programs, constants = launch(*r.shape, v.shape[-1])
    kernel[programs](r, w, k, v, a, b, s0, o, s1, **constants)
    return o, s1


TENSORS = ("r", "w", "k", "v", "a", "b", "s0", "o", "s1")
WRITES = ("o", "s1")
COUNTED = Size((1, 32, 2, 8, 8))  # two chunks of 16
OWN_BLOCKS = Size((1, 37, 2, 32, 32))
SAME = Size((1, 33, 1, 8, 8), decay="slow")
LOW = Size((1, 35, 2, 16, 16))
COMPILED_SIZE = Size((2, 75, 4, 64, 64))


def sized(size, **more):
    """A `Launch` of the kernel."""
    return wkv7_launch(launch, TENSORS, WRITES, size, **more)


CASES = tuple(
    Case(name, symptom, partial(sized, size, BT=BT), symptom == "programs")
    for name, symptom, size, BT in (
        # N is not BT: an operand that is not transposed does not fit.
        ("one token, no state", "by hand", Size((1, 1, 1, 8, 8), states=False), 4),
        ("a chunk of two tokens", "two", Size((1, 2, 1, 8, 8), states=False), 2),
        ("a chunk of four tokens", "chunk", Size((1, 4, 1, 8, 8), states=False), 4),
        ("one token and a state", "state in", Size((1, 1, 1, 8, 8)), 4),
        ("a chunk and a state", "state in", Size((1, 4, 1, 8, 8)), 4),
        ("two chunks", "state", Size((1, 8, 1, 8, 8)), 4),
        ("every head has its own state", "head", Size((1, 3, 2, 8, 8)), 4),
        ("every batch row has its own tokens and states", "batch", Size((2, 5, 2, 4, 4)), 4),
        ("17 tokens, the last chunk has one", "mask", Size((1, 17, 3, 4, 4)), 8),
        ("the strongest decay of RWKV-7", "decay", Size((1, 17, 1, 8, 8), decay="most"), 16),
        ("300 tokens", "long", Size((1, 300, 1, 2, 2), decay="slow"), 4),
        ("a chunk of 32 tokens", "steps", Size((1, 32, 1, 4, 4), decay="slow"), 32),
        ("260 heads of batch rows", "many", Size((13, 2, 20, 2, 2)), 2),
        ("the order of the programs does not matter", "programs", Size((2, 6, 3, 4, 4)), 4),
    )
) + (
    Case("32 tokens, all alike", "alike", partial(sized, SAME, BT=32, alike=True)),
    Case("37 tokens, the lesson's own blocks", "own blocks", partial(sized, OWN_BLOCKS)),
    Case("bfloat16", "16 bits", lambda: in_bfloat16(sized(LOW, BT=16))),
    Case("alike, in bfloat16", "16 bits", lambda: in_bfloat16(sized(SAME, BT=16, alike=True))),
    Case("a large state in bfloat16", "16 bits", lambda: much_in_the_state(sized(LOW, BT=4))),
)

EXERCISES = {
    "by_doubling": Exercise(
        minutes=6,
        difficulty=1,
        afterwards=Afterwards(
            why={
                "inverse = inverse @ (eye + power)": "(I + A)(I + A²) = I + A + A² + A³: each "
                "factor doubles the number of terms.",
                "while L < A.shape[-1]:": "A to the power C is 0, so the sum ends by itself and "
                "nothing is left out.",
            },
            instead={
                "Row by row": "takes C − 1 steps that wait for each other, and half of the "
                "arithmetic of one product.",
            },
            stretch="Count the multiply-adds of both ways for C = 16 and 64. Which would you "
            "choose on tensor cores?",
        ),
        hints=(
            "1/(1 − x) = 1 + x + x² + … also holds for matrices, and here the sum ends. How many "
            "factors (1 + x)(1 + x²)(1 + x⁴) … give all powers below C?",
            "Keep two matrices: the product so far, and the latest power, which you square each "
            "time. Stop when the powers reach C.",
            "inverse = eye + A; power = A; L = 2; while L < C: power = power @ power; inverse = "
            "inverse @ (eye + power); L = 2 * L.",
        ),
        evidence=(
            calls(
                unit_triangular_inverse,
                (("inverse", "hts"),),
                ("one token", "one", partial(readings, 1)),
                ("two tokens", "two", partial(readings, 2)),
                ("five tokens", "few", partial(readings, 5, N=4)),
                ("16 tokens", "few", partial(readings, 16, N=4)),
                ("64 tokens", "few", partial(readings, 64)),
                ("100 tokens that read the one before", "long", partial(in_a_row, 100)),
            ),
            few_calls(partial(readings, 64), 100, "64 tokens"),
        ),
        symptoms={
            "one": "One token reads nothing, so A is 0 and the result is [[1]] for every matrix "
            "in the batch. Check the shape first: it must be that of A.",
            "two": "With two tokens the result is I + A, because A² is 0.",
            "few": "All powers below C must be in the sum, each once.",
            "long": "It is right for few tokens: does the number of factors grow with C?",
            "loop over tokens": "Double the number of powers with each product.",
            "products": "Compute powers of a matrix with @.",
        },
    ),
    "by_blocks": Exercise(
        minutes=10,
        difficulty=2,
        afterwards=Afterwards(
            why={
                "left, right = by_blocks(torch.stack([A[..., :h, :h], A[..., h:, h:]]))": "Inverts "
                "both halves at once, stacked along a new first axis: log2(C) steps.",
                "low = right @ A[..., h:, :h] @ left": "Reads from the first half to the second: "
                "within the first, across, within the second.",
            },
            instead={
                "torch.linalg.solve_triangular": "gives the same digits, but a kernel has no "
                "such function.",
                "by_doubling": "takes as many steps, with products of C × C, and powers whose "
                "entries may grow to 10¹⁷.",
            },
            stretch="In a kernel tl.dot sums over at least 16 elements. Which of the three ways "
            "suits the blocks on the diagonal?",
        ),
        hints=(
            "The first half of the tokens reads nothing of the second, so one block is 0. Two of "
            "the other three are inverses of the halves.",
            "(I − A) times [[left, 0], [x, right]] is I. Write out the lower left block: "
            "−low·left + (I − A of the second half)·x = 0.",
            "x = right @ A[..., h:, :h] @ left. For C = 1 return ones. torch.cat puts the four "
            "blocks together.",
        ),
        evidence=(
            calls(
                unit_triangular_inverse,
                (("inverse", "hts"),),
                ("one token", "one", partial(readings, 1)),
                ("two tokens", "two", partial(readings, 2)),
                ("four tokens", "few", partial(readings, 4, N=4)),
                ("16 tokens", "few", partial(readings, 16, N=4)),
                ("64 tokens that are all alike", "alike", partial(readings, 64, alike=True)),
            ),
            few_calls(partial(readings, 64), 1000, "64 tokens", side=32),
        ),
        symptoms={
            "one": "One token: the result is [[1]] for every matrix in the batch. Check the "
            "shape first: it must be that of A.",
            "two": "With two tokens the result is [[1, 0], [A[1, 0], 1]].",
            "few": "Read right @ low @ left from the right: first within the first half, then "
            "across, then within the second half.",
            "alike": "Use no power of A: only blocks, and inverses of blocks.",
            "products": "The lower left block is two matrix products.",
        },
    ),
    "chunk": Exercise(
        minutes=15,
        difficulty=3,
        afterwards=Afterwards(
            why={
                "z = inverse @ (a_start @ s + (a_start @ k_start.mT).tril(-1) @ v)": "Computes z "
                "of all tokens at once, from the state *before* the chunk.",
                "b_start, k_start = b * (-total).exp(), k * (-total).exp()": "With RWKV-7's "
                "bound and 64 tokens, these factors are at most e^39 = 2⁵⁶, which fits a float32.",
            },
            instead={
                "Measure from the middle": "halves the exponents: chunks of 64 in float32 even "
                "with decays twice as strong.",
                "Runs of 1, 2, 4, … tokens": "keeps all exponents ≤ 0, which is right for any "
                "decay; the library's `wkv7_wy` does it.",
            },
            stretch="o = R s + … is linear in s. Which matrix takes a state through a whole "
            "chunk? With it you could combine chunks as in a parallel sum.",
        ),
        hints=(
            "Compute four factors from the chunk's start: a with `before`, r with `total`, b and "
            "k with -total. Four products of them are the scores.",
            "a reads strictly earlier tokens: .tril(-1). r reads its own as well: .tril(). Then "
            "z from the inverse, o from s, z and v, and the state as in lesson 15, plus b with z.",
            "z = by_blocks(ab) @ (a_start @ s + ak @ v); o = r_start @ s + rb @ z + rk @ v; "
            "last.exp().mT * s + (b·exp(last - total)).mT @ z + (k·exp(last - total)).mT @ v.",
        ),
        evidence=(
            calls(
                exact_loop,
                (("o", "htj"), ("s", "hij")),
                ("one token, no state", "by hand", partial(heads, 1, 1, 4, 3, states=False)),
                ("one token and a state", "state in", partial(heads, 1, 1, 4, 3)),
                ("two tokens", "two", partial(heads, 1, 2, 4, 3, states=False)),
                ("four tokens and a state", "few", partial(heads, 1, 4, 4, 5)),
                ("every head has its own tokens", "head", partial(heads, 3, 8, 8, 5)),
                (
                    "64 tokens of the strongest decay",
                    "decay",
                    partial(heads, 2, 64, 8, 5, decay="most"),
                ),
                (
                    "64 tokens that are all alike",
                    "alike",
                    partial(heads, 2, 64, 8, 5, alike=True),
                ),
            ),
            few_calls(partial(heads, 2, 64, 8, 8), 250, "64 tokens", by_blocks=by_blocks),
        ),
        symptoms={
            "by hand": "One token, no state: z is 0, o = (r·k) v, and the state is the outer "
            "product of k and v.",
            "state in": "With a state, check three things: a reads the state before the token's "
            "decay and r after it; decays go along the keys, the state's rows; and r also reads "
            "b·z.",
            "two": "a of token 1 reads token 0 undecayed; r of token 1 reads token 0 with one "
            "decay.",
            "few": "z of a token is part of what later tokens read. The inverse is there for that.",
            "decay": "Take differences of sums first and exp last. The state's rows are keys: .mT.",
            "alike": "Powers of A_ab grow to 10¹⁷ for such keys: use by_blocks, not by_doubling.",
            "products": "Sums over channels and over tokens are matrix products.",
            "solver": "Multiply by by_blocks(A_ab), which you have written.",
        },
    ),
    "kernel": Exercise(
        minutes=25,
        difficulty=3,
        afterwards=Afterwards(
            why={
                "b_row = tl.sum(tl.where(o_c[:, None] == i, b_ab, 0), 0)  # [BT]": "Selects a "
                "row of a tile with a mask and a sum; a tile cannot be indexed.",
                "b_z = tl.dot(b_inverse, b_y, input_precision=PRECISION).to(b_v.dtype)": "Computes "
                "z of the whole chunk. RWKV-6 has no such product.",
            },
            instead={
                "by_doubling on 16 × 16": "takes six small products instead of 15 pairs of sums. "
                "With tokens that are all alike it loses three digits.",
                "Chunks of 64 from blocks of 16": "takes a quarter of the steps; the inverse is "
                "put together as in by_blocks.",
            },
            stretch="Which products need no state? Start the next chunk's while this chunk's "
            "state is being updated.",
        ),
        hints=(
            "Three gaps: the four products for the scores, the rows of the inverse, and chunk's "
            "last four lines. tl.dot is @, tl.trans is .mT, tl.where is .tril. Both operands of a "
            "tl.dot have the type of v.",
            "Rows: select row i of b_ab with a mask and a sum over axis 0. Multiply it with the "
            "rows of b_inverse and sum: that is what you add to row i. Then z, o and the state. "
            "Use b_s before you update it. Round with .to(b_v.dtype) where a tile enters a "
            "product; b_ab and b_s themselves stay float32.",
            "b_ab = where(earlier, dot(b_left_a, trans(b_b * b_right)), 0), b_rb with earlier | "
            "own | for i in range(1, BT): b_row = sum(where(o_c[:, None] == i, b_ab, 0), 0); "
            "b_inverse += where(o_c[:, None] == i, sum(b_row[:, None] * b_inverse, 0)[None, :], 0) "
            "| b_z = dot(b_inverse, dot(b_a * exp2(b_before), b_s) + dot(b_ak, b_v)); b_o from "
            "b_s, b_z, b_v; b_s from b_b * b_end with b_z, b_k * b_end with b_v. Every factor, "
            "also b_ak, b_rb, b_rk, b_inverse and b_z, gets .to(b_v.dtype).",
        ),
        evidence=(
            answer(*CASES),
            traffic(
                partial(sized, COUNTED, BT=16),
                reads(1, *"rwkvab", "s0"),
                writes(1, *WRITES),
                # 2 heads, 2 chunks: four products each way between tokens, four with the state.
                dot_flops(2 * 2 * 2 * (7 * 16 * 16 * 8 + 4 * 16 * 8 * 8)),
                exps(2 * 2 * (7 * 16 * 8 + 8)),
            ),
            machine_code(
                partial(sized, COMPILED_SIZE),
                at_least(1, "HMMA", "HGMMA", text="products on the tensor cores"),
                no_spills(),
                at_most(0, *ATOMICS, text="no atomics"),
            ),
            gpu(partial(sized, COMPILED_SIZE)),
        ),
        symptoms={
            "by hand": "One token, no state: z is 0, o = (r·k) v without decay, and the state is "
            "the outer product of k and v.",
            "two": "Row 1 of the inverse is [b_ab[1, 0], 1].",
            "chunk": "Check three things: scores of a have only earlier tokens (row > column), "
            "those of r their own too; row i of the inverse is built from row i of b_ab; z is the "
            "inverse times everything that a reads.",
            "state in": "With a state, check three things: the state is read before it is "
            "updated; a reads it with exp2(b_before) and r with exp2(b_total); the state's rows "
            "are keys.",
            "state": "The old state decays by b_last along its rows, the keys. b·z and k·v decay "
            "by b_last − b_total.",
            "steps": "It is right for short chunks. BT tokens need BT − 1 rows of the inverse, "
            "or log2(BT) factors.",
            "alike": "Powers of b_ab lose digits here. Row by row, no value becomes large.",
            "decay": "Each exponent is measured from b_middle, b_before or b_last. Do both "
            "factors of a product use the same one?",
        },
    ),
}
