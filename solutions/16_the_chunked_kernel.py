"""WKV-6 in chunks, in one Triton kernel: the state stays in registers, four products a chunk."""

from functools import partial

import torch
import triton
import triton.language as tl

from rwkv_lessons.lab.course.exercises import Afterwards, Exercise
from rwkv_lessons.lab.evidence.cuda import ATOMICS, at_least, at_most
from rwkv_lessons.lab.evidence.launching import launchable, launches, launches_gpu
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
from rwkv_lessons.lab.evidence.wkv6_triton import (
    Size,
    in_bfloat16,
    much_in_the_state,
    quick_decays,
    wkv6_call,
    wkv6_launch,
)


@triton.jit
def kernel(
    r, k, v, w, u, s0, o, s1,
    T, H: tl.constexpr, N: tl.constexpr, BT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program per head of a batch row, grid (B·H,); it goes through chunks of BT tokens.

    r, k, v, w, o are [B, T, H, N], w the log decay, N a power of 2; u is [H, N]; s0, s1 are
    [B, H, N, N], float32, keys × values; r, k, v, w may be bfloat16. Operands of products have the
    type of v; sums and the state are float32; PRECISION is the input_precision of every tl.dot.
    """
    ### BEGIN SOLUTION
    i_b, i_h = tl.program_id(0) // H, tl.program_id(0) % H
    o_n, o_c = tl.arange(0, N), tl.arange(0, BT)
    o_s = tl.program_id(0) * N * N + o_n[:, None] * N + o_n[None, :]
    b_s = tl.load(s0 + o_s)  # [N, N], keys × values
    b_u = tl.load(u + i_h * N + o_n)
    for i_c in range(tl.cdiv(T, BT)):
        o_t = i_c * BT + o_c
        m_t = (o_t < T)[:, None]
        o_x = ((i_b * T + o_t) * H + i_h)[:, None] * N + o_n[None, :]  # [BT, N]
        b_r = tl.load(r + o_x, m_t, 0).to(tl.float32)
        b_k = tl.load(k + o_x, m_t, 0).to(tl.float32)
        b_v = tl.load(v + o_x, m_t, 0)
        b_w = tl.load(w + o_x, m_t, 0).to(tl.float32)
        b_after = tl.cumsum(b_w, 0)
        b_before = b_after - b_w
        b_last = tl.sum(b_w, 0)  # [N]: the log decay of the whole chunk
        b_middle = tl.sum(tl.where((o_c < BT // 2)[:, None], b_w, 0), 0)[None, :]
        # What the tokens read of the state before the chunk.
        ### BEGIN GAP
        b_reads = (b_r * tl.exp(b_before)).to(b_v.dtype)
        b_o = tl.dot(b_reads, b_s.to(b_v.dtype), input_precision=PRECISION)
        ### END GAP
        # What they read of each other, and of themselves.
        b_left = (b_r * tl.exp(b_before - b_middle)).to(b_v.dtype)
        ### BEGIN GAP
        b_right = (b_k * tl.exp(b_middle - b_after)).to(b_v.dtype)
        b_scores = tl.dot(b_left, tl.trans(b_right), input_precision=PRECISION)
        b_scores = tl.where(o_c[:, None] > o_c[None, :], b_scores, 0)
        b_itself = tl.sum(b_r * b_u[None, :] * b_k, 1)[:, None]
        b_scores = tl.where(o_c[:, None] == o_c[None, :], b_itself, b_scores)
        ### END GAP
        b_o += tl.dot(b_scores.to(b_v.dtype), b_v, input_precision=PRECISION)
        # The state after the chunk.
        ### BEGIN GAP
        b_adds = (b_k * tl.exp(b_last[None, :] - b_after)).to(b_v.dtype)
        b_s *= tl.exp(b_last)[:, None]
        b_s += tl.dot(tl.trans(b_adds), b_v, input_precision=PRECISION)
        ### END GAP
        tl.store(o + o_x, b_o, m_t)
    tl.store(s1 + o_s, b_s)
    ### END SOLUTION


def launch(B, T, H, K, V, BT=16, PRECISION="tf32x3", num_warps=4):
    """The grid, one program per head of a batch row, and the kernel's sizes; K and V are N."""
    sizes = {"T": T, "H": H, "N": K, "BT": BT, "PRECISION": PRECISION}
    return (B * H,), sizes | {"num_warps": num_warps}


def forward(r, k, v, w, u, s0):
    """Returns o [B, T, H, N] and s1 [B, H, N, N], from one launch of `kernel`, on one device.

    r, k, v, w are [B, T, H, N], float32 or bfloat16, and o has their type; u is [H, N]; s0 is
    [B, H, N, N]; u, s0 and s1 are float32. Float32 products keep all their bits.
    """
    ### BEGIN SOLUTION
    B, T, H, N = r.shape
    o, s1 = torch.empty_like(v), torch.empty_like(s0)
    sizes = {"T": T, "H": H, "N": N, "BT": 16, "PRECISION": "tf32x3"}
    kernel[(B * H,)](r, k, v, w, u, s0, o, s1, **sizes, num_warps=4)
    return o, s1
    ### END SOLUTION


TENSORS = ("r", "k", "v", "w", "u", "s0", "o", "s1")
WRITES = ("o", "s1")
COUNTED = Size((1, 32, 2, 8, 8))  # two chunks of 16
OWN_BLOCKS = Size((2, 70, 2, 64, 64))
LOW = Size((1, 35, 2, 16, 16))
COMPILED_SIZE = Size((2, 75, 4, 64, 64))
KERNELS = {"kernel": (kernel, WRITES)}


def forward_call(name, *shape, **more):
    """A `Call` of `forward` with tensors of B, T, H, K, V."""
    return wkv6_call(name, TENSORS[:6], WRITES, Size(shape, **more))


def sized(size, **more):
    """A `Launch` of the kernel."""
    return wkv6_launch(launch, TENSORS, WRITES, size, **more)


CASES = tuple(
    Case(name, symptom, partial(sized, size, BT=BT), symptom == "programs")
    for name, symptom, size, BT in (
        ("one token", "by hand", Size((1, 1, 1, 4, 4), states=False), 4),
        ("a chunk of two tokens", "chunk", Size((1, 2, 1, 4, 4), states=False), 2),
        ("a chunk of four tokens", "chunk", Size((1, 4, 1, 4, 4), states=False), 4),
        ("one token and a state", "state in", Size((1, 1, 1, 4, 4)), 4),
        ("a chunk and a state", "state in", Size((1, 4, 1, 4, 4)), 4),
        ("two chunks", "state", Size((1, 8, 1, 8, 8)), 4),
        ("every head has its own state, decay and bonus", "head", Size((1, 3, 2, 8, 8)), 4),
        ("every batch row has its own tokens and states", "batch", Size((2, 5, 2, 4, 4)), 4),
        ("17 tokens, the last chunk has one", "mask", Size((1, 17, 3, 4, 4)), 8),
        ("strong decays", "decay", Size((1, 17, 1, 8, 8), decay="strong"), 16),
        ("300 tokens", "long", Size((1, 300, 1, 2, 2)), 4),
        ("260 heads of batch rows", "many", Size((13, 2, 20, 2, 2)), 2),
        ("the order of the programs does not matter", "programs", Size((2, 6, 3, 4, 4)), 4),
    )
) + (
    Case("70 tokens, the lesson's own blocks", "own blocks", partial(sized, OWN_BLOCKS)),
    Case("bfloat16", "16 bits", lambda: in_bfloat16(sized(LOW, BT=16))),
    Case("quick decays in bfloat16", "16 bits", lambda: quick_decays(sized(LOW, BT=16))),
    Case("a large state in bfloat16", "16 bits", lambda: much_in_the_state(sized(LOW, BT=4))),
)

EXERCISES = {
    "forward": Exercise(
        minutes=4,
        difficulty=1,
        afterwards=Afterwards(
            why={
                "o, s1 = torch.empty_like(v), torch.empty_like(s0)": "empty_like does not fill "
                "the memory, and copies the type: o has v's type, s1 is float32. There are no "
                "partial sums.",
                "kernel[(B * H,)](r, k, v, w, u, s0, o, s1, **sizes, num_warps=4)": "One program "
                "for each head of each batch row. Four warps hold the 64 × 64 elements of the "
                "state.",
            },
            instead={
                "BT = 32": "halves the steps and doubles the scores of a token; the machine code "
                "below shows the effect on registers.",
            },
            stretch="Choose num_warps from N. What would you look at, without a GPU?",
        ),
        hints=(
            "Over which axes are programs independent? Each combination of their indices gets a "
            "program.",
            "The grid is (B · H,), a tuple. Pass the tensors in the order of the kernel's "
            "signature, then the sizes by name. `tl.dot` needs at least 16 elements to sum over.",
            "B, T, H, N = r.shape\n"
            "o, s1 = torch.empty_like(…), torch.empty_like(…)\n"
            "sizes = {'T': T, 'H': H, 'N': N, 'BT': …, 'PRECISION': 'tf32x3'}\n"
            "kernel[(…,)](r, k, v, w, u, s0, o, s1, **sizes, num_warps=4)\n"
            "return o, s1",
        ),
        evidence=(
            launches(
                KERNELS,
                forward_call("one head", 1, 5, 1, 16, 16),
                forward_call("a chunk and a bit", 1, 75, 1, 16, 16),
                forward_call("batch rows and heads", 3, 3, 2, 8, 8),
                forward_call("bfloat16", 1, 18, 2, 16, 16, dtype=torch.bfloat16),
                exact=True,
            ),
            launchable(KERNELS, forward_call("bfloat16", 2, 75, 4, 64, 64, dtype=torch.bfloat16)),
            launches_gpu(KERNELS, forward_call("batch rows and heads", 2, 75, 4, 64, 64)),
        ),
        symptoms={
            "one head": "Return both tensors that the kernel wrote, o first.",
            "a chunk and a bit": "T is the number of tokens, not of chunks: the kernel divides.",
            "batch rows and heads": "Program p computes batch row p // H and head p % H, so "
            "there are B·H programs.",
            "bfloat16": "o has v's type; the states are float32.",
            "grid": "Which programs or which tokens are missing? There are B·H programs, and "
            "each processes T tokens.",
            "launch": "kernel[(B * H,)](…): pass the tensors in the order of the signature, then "
            "the sizes by name. Outputs are new memory; o has v's type.",
            "sizes": "Do the sizes match the tensors, is N the last axis of r, and are there B·H "
            "programs?",
            "programs": "Two programs wrote the same element: a head of a batch row needs "
            "exactly one program.",
            "idle": "There are more programs than heads of batch rows: the grid is (B·H,).",
            "input_precision": "tl.dot truncates float32 operands to TF32 unless PRECISION is "
            '"tf32x3" or "ieee".',
        },
    ),
    "kernel": Exercise(
        minutes=32,
        difficulty=3,
        afterwards=Afterwards(
            why={
                "b_reads = (b_r * tl.exp(b_before)).to(b_v.dtype)": "Operands have the type of "
                "v; sums and the state stay float32.",
                "b_scores = tl.where(o_c[:, None] > o_c[None, :], b_scores, 0)": "A token reads "
                "only earlier ones; the bonus goes on the diagonal.",
                "b_s += tl.dot(tl.trans(b_adds), b_v, input_precision=PRECISION)": "The state is "
                "updated once a chunk, not once a token.",
            },
            instead={
                "Two kernels, states first and then all chunks at once": "gives far more "
                "programs when heads are few, but states go to memory and back.",
                "Longer chunks": "takes fewer steps, but more arithmetic for the scores and more "
                "registers, and the factors overflow sooner.",
            },
            stretch="Use lesson 15's `blocks` so that the factors are safe for any decay. What "
            "does it cost?",
        ),
        hints=(
            "Put lesson 15's functions into lesson 13's kernel: indices, the tile of s0, a loop "
            "over chunks with four loads of tiles, sums of b_w. Then the first line of "
            "`with_state`, `product` with the bonus, the second line of `with_state`, and a "
            "store. Store s1 after the loop.",
            "A tile's offsets are ((i_b·T + o_t)·H + i_h)[:, None] * N + o_n[None, :], its mask "
            "(o_t < T)[:, None]. b_after = tl.cumsum(b_w, 0), b_before = b_after - b_w, b_last = "
            "tl.sum(b_w, 0); the middle is the sum of the first BT // 2 rows. Every factor is a "
            "tile [BT, N] times tl.exp of a difference, then .to(b_v.dtype). Scores: keep those "
            "where o_c[:, None] > o_c[None, :], put the bonus on the diagonal. Use b_s before you "
            "move it on.",
            "b_o = tl.dot(b_r·exp(b_before), b_s); scores = tl.dot(b_r·exp(b_before - b_middle), "
            "tl.trans(b_k·exp(b_middle - b_after))), masked with tl.where; b_o += tl.dot(scores, "
            "b_v); b_s = exp(b_last)[:, None]·b_s + tl.dot(tl.trans(b_k·exp(b_last - b_after)), "
            "b_v); input_precision=PRECISION in each.",
        ),
        evidence=(
            answer(*CASES),
            traffic(
                partial(sized, COUNTED, BT=16),
                reads(1, *"rkvw", "s0"),
                writes(1, *WRITES),
                dot_flops(2 * 2 * (4 * 16 * 8 * 8 + 2 * 16 * 16 * 8)),  # half of the pairs will do
                exps(2 * 2 * (6 * 16 * 8 + 8)),  # for pairs it would be 16 tiles
            ),
            machine_code(
                lambda: in_bfloat16(sized(COMPILED_SIZE)),
                at_least(1, "HMMA", "HGMMA", text="products on the tensor cores"),
                no_spills(),
                at_most(0, *ATOMICS, text="no atomics"),
            ),
            gpu(partial(sized, COMPILED_SIZE)),
        ),
        symptoms={
            "by hand": "With one token and an empty state, o is Σ r·u·k·v, and the new state is "
            "k·v, undecayed.",
            "chunk": "A token reads the earlier ones, column s < row t, and itself with the bonus. "
            "What it reads has faded up to the token before it: b excludes its own w, which a "
            "includes.",
            "state in": "The tokens read the state as it was before the chunk, faded by "
            "exp(b_before). The state itself fades along the keys: exp(b_last)[:, None].",
            "state": "After a chunk the old state has faded by exp(b_last), and token s's k·v by "
            "exp(b_last - b_after).",
            "decay": "Is every exponent of the scores counted from the middle of the chunk?",
            "mask": "The last chunk may have fewer than BT tokens: mask loads and stores of a "
            "tile with (o_t < T)[:, None]. A masked w has to be 0.",
            "batch": "Token t of row i_b and head i_h is row (i_b·T + t)·H + i_h; program p has "
            "row p // H and head p % H.",
            "not a number": "A masked w has to be 0: with −∞, a difference of sums is −∞ − (−∞), "
            "which is NaN.",
            "never written": "Store o once in each chunk, inside the loop, and s1 once, after it.",
        },
    ),
}
