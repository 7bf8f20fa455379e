"""Gradients of the chunked kernel: states kept at the chunks, then one reverse sweep."""

from dataclasses import replace
from functools import partial

import torch
import triton
import triton.language as tl

from rwkv_lessons.lab.course.exercises import Afterwards, Exercise
from rwkv_lessons.lab.evidence.cuda import ATOMICS, at_least, at_most
from rwkv_lessons.lab.evidence.launching import launchable, launches, launches_gpu
from rwkv_lessons.lab.evidence.triton import (
    answer,
    dot_flops,
    gpu,
    machine_code,
    reads,
    traffic,
    writes,
)
from rwkv_lessons.lab.evidence.wkv6_triton import Size, wkv6_call
from rwkv_lessons.lab.lessons.lesson_17 import evidence as chunked_gradients
from rwkv_lessons.lab.lessons.lesson_17.evidence import GRADIENTS
from rwkv_lessons.lab.lessons.lesson_17.evidence_decay import DecayChunk, chunk_answer
from rwkv_lessons.runtime.launch_numba import ceil_div


def decay_gradient(r, k, dr_s, dk_s, dr_c, dk_c, across):
    """Returns dw, the gradient of the log decay, for the tokens of one chunk: [C, N], in torch.

    r, k are [C, N], and so are the parts of their gradients: dr_s, dk_s, which come through the
    states, and dr_c, dk_c, which come within the chunk. across is [N]: exp(b_last)·Σ S·G, what goes
    from the state before the chunk to the state after it.
    """

    ### BEGIN SOLUTION
    def from_here_on(x):  # the sum over token t and all later ones
        return x.flip(0).cumsum(0).flip(0)

    put_in = (k * dk_s).cumsum(0) - k * dk_s
    taken_out = from_here_on(r * dr_s + r * dr_c) - r * dr_s - r * dr_c
    return across + put_in + taken_out - from_here_on(k * dk_c)
    ### END SOLUTION


@triton.jit
def checkpoints(
    k, v, w, s0, before,
    T, H: tl.constexpr, N: tl.constexpr, BT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Forward sweep, one program per head of a batch row: keeps the state before every chunk.

    k, v, w are [B, T, H, N], w the log decay, N a power of 2; s0 is [B, H, N, N], keys × values;
    before is [B, chunks, H, N, N], for chunks of BT tokens; before[b, 0] is s0[b]. k, v, w may be
    bfloat16, the states are float32. Operands of tl.dot have the type of v; PRECISION is its
    input_precision.
    """
    ### BEGIN SOLUTION
    i_b, i_h = tl.program_id(0) // H, tl.program_id(0) % H
    o_n, o_c = tl.arange(0, N), tl.arange(0, BT)
    o_s = o_n[:, None] * N + o_n[None, :]
    b_s = tl.load(s0 + tl.program_id(0) * N * N + o_s)  # [N, N]
    for i_c in range(tl.cdiv(T, BT)):
        o_t = i_c * BT + o_c
        m_t = (o_t < T)[:, None]
        o_x = ((i_b * T + o_t) * H + i_h)[:, None] * N + o_n[None, :]  # [BT, N]
        b_k = tl.load(k + o_x, m_t, 0).to(tl.float32)
        b_v = tl.load(v + o_x, m_t, 0)
        b_w = tl.load(w + o_x, m_t, 0).to(tl.float32)
        ### BEGIN GAP
        i_s = (i_b * tl.cdiv(T, BT) + i_c) * H + i_h
        tl.store(before + i_s * N * N + o_s, b_s)
        b_last = tl.sum(b_w, 0)
        b_adds = (b_k * tl.exp(b_last[None, :] - tl.cumsum(b_w, 0))).to(b_v.dtype)
        b_s *= tl.exp(b_last)[:, None]
        b_s += tl.dot(tl.trans(b_adds), b_v, input_precision=PRECISION)
        ### END GAP
    ### END SOLUTION


@triton.jit
def backward_sweep(
    r, k, v, w, u, before, do, ds1, dr, dk, dv, dw, du, ds0,
    T, H: tl.constexpr, N: tl.constexpr, BT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Reverse sweep, one program per head of a batch row: the state's gradient in registers.

    r, k, v, w, do, dr, dk, dv, dw are [B, T, H, N]; u is [H, N], du [B, H, N]; before is
    [B, chunks, H, N, N], ds0, ds1 are [B, H, N, N], keys × values. Tensors with a token axis may be
    bfloat16, the others are float32. Operands of tl.dot have the type of v.
    """
    i_b, i_h = tl.program_id(0) // H, tl.program_id(0) % H
    o_n, o_c = tl.arange(0, N), tl.arange(0, BT)
    earlier = o_c[:, None] > o_c[None, :]  # column s before row t
    o_s = o_n[:, None] * N + o_n[None, :]
    b_g = tl.load(ds1 + tl.program_id(0) * N * N + o_s)  # [N, N], of the state after the chunk
    b_u = tl.load(u + i_h * N + o_n)[None, :]
    b_du = tl.zeros([N], tl.float32)
    for step in range(tl.cdiv(T, BT)):
        i_c = tl.cdiv(T, BT) - 1 - step
        o_t = i_c * BT + o_c
        m_t = (o_t < T)[:, None]
        o_x = ((i_b * T + o_t) * H + i_h)[:, None] * N + o_n[None, :]  # [BT, N]
        b_r = tl.load(r + o_x, m_t, 0).to(tl.float32)
        b_k = tl.load(k + o_x, m_t, 0).to(tl.float32)
        b_v = tl.load(v + o_x, m_t, 0)
        b_w = tl.load(w + o_x, m_t, 0).to(tl.float32)
        b_do = tl.load(do + o_x, m_t, 0)
        b_s = tl.load(before + ((i_b * tl.cdiv(T, BT) + i_c) * H + i_h) * N * N + o_s)
        b_after = tl.cumsum(b_w, 0)
        b_before = b_after - b_w
        b_last = tl.sum(b_w, 0)  # [N]
        b_middle = tl.sum(tl.where((o_c < BT // 2)[:, None], b_w, 0), 0)[None, :]
        b_start, b_end = tl.exp(b_before), tl.exp(b_last[None, :] - b_after)  # to either end
        # Through the states.
        ### BEGIN SOLUTION
        b_low_s, b_low_g = b_s.to(b_v.dtype), b_g.to(b_v.dtype)
        b_dr_s = b_start * tl.dot(b_do, tl.trans(b_low_s), input_precision=PRECISION)
        b_dk_s = b_end * tl.dot(b_v, tl.trans(b_low_g), input_precision=PRECISION)
        b_dv = tl.dot((b_k * b_end).to(b_v.dtype), b_low_g, input_precision=PRECISION)
        b_sg = tl.exp(b_last) * tl.sum(b_s * b_g, 1)  # [N]: the part of dw that crosses the chunk
        b_g *= tl.exp(b_last)[:, None]
        b_adds = (b_r * b_start).to(b_v.dtype)
        b_g += tl.dot(tl.trans(b_adds), b_do, input_precision=PRECISION)
        ### END SOLUTION
        # Within the chunk: the scores and their gradient.
        b_to, b_from = tl.exp(b_before - b_middle), tl.exp(b_middle - b_after)
        b_left, b_right = (b_r * b_to).to(b_v.dtype), (b_k * b_from).to(b_v.dtype)
        b_scores = tl.dot(b_left, tl.trans(b_right), input_precision=PRECISION)
        b_scores = tl.where(earlier, b_scores, 0).to(b_v.dtype)
        b_dscores = tl.dot(b_do, tl.trans(b_v), input_precision=PRECISION)
        b_dscores = tl.where(earlier, b_dscores, 0).to(b_v.dtype)
        ### BEGIN SOLUTION
        b_dr_c = b_to * tl.dot(b_dscores, b_right, input_precision=PRECISION)
        b_dk_c = b_from * tl.dot(tl.trans(b_dscores), b_left, input_precision=PRECISION)
        b_dv += tl.dot(tl.trans(b_scores), b_do, input_precision=PRECISION)
        ### END SOLUTION
        # The decay of token t: what comes from before it and is read, or left, after it.
        b_rdr, b_kdk = b_r * b_dr_c, b_k * b_dk_c
        b_dw = b_sg[None, :] + tl.cumsum(b_k * b_dk_s, 0) - b_k * b_dk_s
        b_dw += tl.cumsum(b_r * b_dr_s + b_rdr - b_kdk, 0, reverse=True) - b_r * b_dr_s - b_rdr
        # The bonus.
        b_vdo = tl.sum(b_v.to(tl.float32) * b_do, 1)[:, None]
        b_du += tl.sum(b_r * b_k * b_vdo, 0)
        b_dv += tl.sum(b_r * b_u * b_k, 1)[:, None] * b_do
        tl.store(dr + o_x, b_dr_s + b_dr_c + b_u * b_k * b_vdo, m_t)
        tl.store(dk + o_x, b_dk_s + b_dk_c + b_u * b_r * b_vdo, m_t)
        tl.store(dv + o_x, b_dv, m_t)
        tl.store(dw + o_x, b_dw, m_t)
    tl.store(ds0 + tl.program_id(0) * N * N + o_s, b_g)
    tl.store(du + tl.program_id(0) * N + o_n, b_du)


def launch(B, T, H, K, V, BT=16, PRECISION="tf32x3", num_warps=8):
    """The grid of either kernel, one program per head of a batch row, and its sizes."""
    sizes = {"T": T, "H": H, "N": K, "BT": BT, "PRECISION": PRECISION}
    return (B * H,), sizes | {"num_warps": num_warps}


def gradients(r, k, v, w, u, s0, do, ds1):
    """Returns dr, dk, dv, dw, du, ds0, from one launch of each kernel, on one device.

    r, k, v, w, do are [B, T, H, N], float32 or bfloat16, and their gradients have their type; u is
    [H, N]; s0, ds1 are [B, H, N, N]; these, du, ds0 and what is kept are float32.
    """
    ### BEGIN SOLUTION
    B, T, H, N = r.shape
    grid, constants = launch(B, T, H, N, N)
    before = s0.new_empty(B, ceil_div(T, constants["BT"]), H, N, N)
    dr, dk, dv, dw = (torch.empty_like(r) for _ in range(4))
    du, ds0 = s0.new_empty(B, H, N), torch.empty_like(s0)
    checkpoints[grid](k, v, w, s0, before, **constants)
    backward_sweep[grid](r, k, v, w, u, before, do, ds1, dr, dk, dv, dw, du, ds0, **constants)
    return dr, dk, dv, dw, du.sum(0), ds0
    ### END SOLUTION


COUNTED = Size((1, 32, 2, 8, 8))  # two chunks of 16
COMPILED_SIZE = Size((2, 75, 4, 64, 64))
COMPILED_IN_BFLOAT16 = replace(COMPILED_SIZE, dtype=torch.bfloat16)
keeping, sweeping = (
    partial(f, launch) for f in (chunked_gradients.keeping, chunked_gradients.sweeping)
)
keeping_much, sweeping_much = (
    partial(f, launch) for f in (chunked_gradients.keeping_much, chunked_gradients.sweeping_much)
)
all_gradients = partial(chunked_gradients.in_turn, launch)
KERNELS = {"checkpoints": (checkpoints, ("before",)), "backward_sweep": (backward_sweep, GRADIENTS)}


def gradients_call(name, *shape, **more):
    """A `Call` of `gradients` with tensors of B, T, H, K, V."""
    takes = ("r", "k", "v", "w", "u", "s0", "do", "ds1")
    return wkv6_call(name, takes, GRADIENTS, Size(shape, **more))


NO_ATOMICS = at_most(0, *ATOMICS, text="no atomics")
PRODUCTS = at_least(1, "HMMA", "HGMMA", text="products on the tensor cores")
EXERCISES = {
    "decay_gradient": Exercise(
        minutes=8,
        difficulty=2,
        afterwards=Afterwards(
            why={
                "put_in = (k * dk_s).cumsum(0) - k * dk_s": "What is put in before t. Token t's "
                "own k is added after its decay, so it is subtracted again.",
                "return across + put_in + taken_out - from_here_on(k * dk_c)": "Of the pairs "
                "that are read after t, those that were put in at t or later never met its decay.",
            },
            instead={
                "Lesson 09's running difference": "takes one sum instead of four, over all "
                "tokens, but its rounding errors grow with the length of the sequence.",
            },
            stretch="Write it with two cumulative sums instead of three: which terms can share "
            "one?",
        ),
        hints=(
            "One line for each row of the table. Which sums start at the chunk's first token, "
            "and which end at its last?",
            "x.cumsum(0) includes token t itself: Σ over s < t is x.cumsum(0) - x. A sum to the "
            "end is x.flip(0).cumsum(0).flip(0), which includes t as well.",
            "def from_here_on(x): return x.flip(0).cumsum(0).flip(0)\n"
            "put_in = (k * dk_s).cumsum(0) - …\n"
            "taken_out = from_here_on(r * dr_s + r * dr_c) - …\n"
            "return across + put_in + taken_out - from_here_on(…)",
        ),
        evidence=(
            chunk_answer(
                DecayChunk("one token", 1),
                DecayChunk("two tokens, no states", 2, states=False),
                DecayChunk("five tokens, no states", 5, states=False),
                DecayChunk("two tokens between states", 2),
                DecayChunk("seven tokens between states", 7, 4),
                DecayChunk("strong decays", 6, 4, decay=12.0),
            ),
        ),
        symptoms={
            "one token": "Only what goes from state to state crosses its decay: its own k is put "
            "in after the decay, its own r is taken out before.",
            "two tokens, no states": "Token 0 puts in, token 1 takes out, and neither of their "
            "decays lies in between.",
            "five tokens, no states": "All that is read after t, minus what was also put in at t "
            "or later.",
            "two tokens between states": "Before t: Σ over s < t, without t itself. After t: "
            "also without t itself.",
        },
    ),
    "checkpoints": Exercise(
        minutes=10,
        difficulty=1,
        afterwards=Afterwards(
            why={
                "tl.store(before + i_s * N * N + o_s, b_s)": "The state before the chunk, which "
                "the backward sweep needs for that chunk.",
                "b_s += tl.dot(tl.trans(b_adds), b_v, input_precision=PRECISION)": "Each token's "
                "contribution fades by the later decays: all exponents of b_adds are ≤ 0.",
            },
            instead={
                "Keeping them in the forward pass": "saves this kernel, but holds the memory "
                "until the backward pass.",
                "A state every few chunks": "takes fewer bytes, but the chunks in between are "
                "computed again.",
            },
            stretch="Keep only every fourth state. Where does the sweep get the other three?",
        ),
        hints=(
            "Lesson 16's kernel without the lines for o: the same indices and tiles, the state, "
            "and a store before the state's update. Where is the state before chunk i_c of head "
            "i_h of row i_b stored?",
            "before is [B, chunks, H, N, N]: matrix number (i_b · chunks + i_c) · H + i_h, with "
            "tl.cdiv(T, BT) chunks. Store first, then update the state: the old one fades by exp "
            "of all log decays of the chunk, token s's k·v by those after s.",
            "tl.store(before + i_s * N * N + o_s, b_s); b_s = exp(b_last)[:, None]·b_s + "
            "tl.dot(tl.trans(b_k·exp(b_last - tl.cumsum(b_w, 0))), b_v), the operand "
            ".to(b_v.dtype).",
        ),
        evidence=(
            answer(*chunked_gradients.cases(keeping, keeping_much)),
            traffic(
                partial(keeping, COUNTED, BT=16),
                reads(1, "k", "v", "w", "s0"),
                writes(1, "before"),
                dot_flops(2 * 2 * 2 * 16 * 8 * 8),
            ),
            machine_code(
                partial(keeping, COMPILED_IN_BFLOAT16),
                PRODUCTS,
                NO_ATOMICS,
            ),
            gpu(partial(keeping, COMPILED_SIZE)),
        ),
        symptoms={
            "by hand": "The state before the first chunk is s0: here, zeros.",
            "last": "The state before the first chunk is s0: store first, then update.",
            "pairs": "With one chunk, s0 is the only state to keep.",
            "state": "Over a chunk the old state fades by exp(b_last), and token s's k·v by the "
            "later decays: b_last - its sum.",
            "head": "The matrices of one chunk are stored head after head, those of a row chunk "
            "after chunk.",
            "batch": "Row i_b starts i_b · chunks · H matrices into `before`.",
        },
    ),
    "backward_sweep": Exercise(
        minutes=18,
        difficulty=3,
        afterwards=Afterwards(
            why={
                "b_dk_s = b_end * tl.dot(b_v, tl.trans(b_low_g), input_precision=PRECISION)": "G "
                "still belongs to the state after the chunk: use it first, then update it.",
                "b_dr_c = b_to * tl.dot(b_dscores, b_right, input_precision=PRECISION)": "A "
                "decay that multiplied a factor also multiplies its gradient.",
                "b_sg = tl.exp(b_last) * tl.sum(b_s * b_g, 1)": "The part of dw that crosses the "
                "whole chunk; the rest are sums of r·dr and k·dk.",
            },
            instead={
                "A program per chunk, with the G after each chunk kept": "runs in parallel over "
                "chunks, but G is kept in memory like the states.",
            },
            stretch="Split the kernel in two: first the gradients of the states, then all chunks "
            "at once. Count the bytes.",
        ),
        hints=(
            "Each product x @ y of the forward pass leads to two: dx = d @ y.mT and dy = x.mT @ "
            "d. A decay that multiplied a factor multiplies its gradient.",
            "Through the states: o = (r·b_start) @ S gives dr and a part of b_g; S⁺ = "
            "(k·b_end).mT @ v gives dk and dv from b_g before its update. Within the chunk: "
            "multiply the scores' gradient with b_right and b_left, and the scores with do.",
            "b_dr_s = b_start·dot(b_do, b_sᵀ); b_dk_s = b_end·dot(b_v, b_gᵀ); b_dv = "
            "dot(b_k·b_end, b_g); b_sg = exp(b_last)·Σ b_s·b_g; then b_g = exp(b_last)·b_g + "
            "dot((b_r·b_start)ᵀ, b_do). b_dr_c = b_to·dot(b_dscores, b_right), b_dk_c = "
            "b_from·dot(b_dscoresᵀ, b_left), b_dv += dot(b_scoresᵀ, b_do). Operands that are "
            "float32 need .to(b_v.dtype).",
        ),
        evidence=(
            answer(*chunked_gradients.cases(sweeping, sweeping_much)),
            traffic(
                partial(sweeping, COUNTED, BT=16),
                reads(1, *"rkvw", "do", "ds1", "before"),
                writes(1, *GRADIENTS),
                # Half of the pairs will do.
                dot_flops(2 * 2 * (4 * 2 * 16 * 8 * 8 + 5 * 16 * 16 * 8)),
            ),
            machine_code(
                partial(sweeping, COMPILED_IN_BFLOAT16),
                PRODUCTS,
                NO_ATOMICS,
            ),
            gpu(partial(sweeping, COMPILED_SIZE)),
        ),
        symptoms={
            "by hand": "With one token and no states, only the bonus is left, which is given. "
            "All else is 0.",
            "last": "dr needs the state before the chunk; dk and dv need b_g before its update. "
            "With one token, dw is exp(w)·Σ S·G over values, and nothing else.",
            "pairs": "Row t, column s: the rows of the scores belong to r and do, their columns "
            "to k and v. In dw no token counts its own r·dr.",
            "state": "From chunk to chunk, b_g fades by exp(b_last), and (r·b_start).mT @ do is "
            "added.",
        },
    ),
    "gradients": Exercise(
        minutes=5,
        difficulty=1,
        afterwards=Afterwards(
            why={
                'before = s0.new_empty(B, ceil_div(T, constants["BT"]), H, N, N)': "One state "
                "for every chunk, also for the last one; float32, like s0.",
                "return dr, dk, dv, dw, du.sum(0), ds0": "Each program writes du for its own "
                "batch row.",
            },
            instead={
                "before in bfloat16": "takes half the bytes, but every state is rounded once.",
            },
            stretch="How many bytes does `before` take at the ladder's shape, compared with r?",
        ),
        hints=(
            "Seven tensors are new, and one of them is not returned: which, and how large is it?",
            "before is [B, chunks, H, N, N] with chunks = ceil_div(T, BT), du is [B, H, N]: both "
            "float32, s0.new_empty(…). Each of the others is like the tensor whose gradient it "
            "is.",
            "B, T, H, N = r.shape\n"
            "grid, constants = launch(B, T, H, N, N)\n"
            "before = s0.new_empty(B, ceil_div(…, constants['BT']), H, N, N)\n"
            "dr, dk, dv, dw = (torch.empty_like(r) for _ in range(4))\n"
            "du, ds0 = s0.new_empty(…), torch.empty_like(s0)\n"
            "checkpoints[grid](k, v, w, s0, …, **constants)\n"
            "backward_sweep[grid](r, k, v, w, u, …, do, ds1, …, **constants)\n"
            "return dr, dk, dv, dw, du.sum(…), ds0",
        ),
        evidence=(
            launches(
                KERNELS,
                gradients_call("one head", 1, 3, 1, 16, 16),
                gradients_call("a chunk and a bit", 1, 19, 1, 16, 16),
                gradients_call("batch rows and heads", 2, 3, 2, 8, 8),
                gradients_call("five chunks", 1, 70, 1, 8, 8),
                gradients_call("40 heads of batch rows", 4, 2, 10, 4, 4),
                gradients_call("bfloat16", 1, 18, 1, 16, 16, dtype=torch.bfloat16),
                exact=True,
            ),
            launchable(KERNELS, gradients_call("bfloat16", 1, 75, 2, 64, 64, dtype=torch.bfloat16)),
            launches_gpu(KERNELS, gradients_call("batch rows and heads", 2, 75, 4, 64, 64)),
        ),
        symptoms={
            "one head": "du is summed over the batch rows: [H, N].",
            "a chunk and a bit": "checkpoints(k, v, w, s0, before): is that your order?",
            "grid": "Which programs are missing? Both kernels need one for each head of each row.",
            "launch": "Pass tensors in the order of the signatures, then **constants. Outputs "
            "are new memory; those with a token axis have the type of r, the others are float32.",
            "sizes": "An output is too small: before has a state for every chunk, also for the "
            "last one, and du a row for each head of each batch row.",
            "programs": "Two programs wrote the same element: du has a row for each batch row.",
            "input_precision": 'PRECISION is "tf32x3" or "ieee" for float32.',
        },
    ),
}
