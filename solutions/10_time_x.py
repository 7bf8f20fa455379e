"""Time-x: a convolution as long as the sequence, from one thread per output to balanced work."""

from functools import partial

import torch
from numba import cuda, float32

from rwkv_lessons.lab.course.exercises import Afterwards, Exercise
from rwkv_lessons.lab.evidence.claims import at_least, in_registers
from rwkv_lessons.lab.evidence.functions import function_cases
from rwkv_lessons.lab.evidence.triton import (
    Case,
    answer,
    dot_flops,
    gpu,
    machine_code,
    no_spills,
    reads,
    traffic,
    writes,
)
from rwkv_lessons.lab.lessons.lessons_10_11.budgets import (
    conflicts,
    global_reads,
    imbalance,
    no_atomics,
    shared_reads,
)
from rwkv_lessons.lab.lessons.lessons_10_11.evidence import (
    PART_OF_A_TILE,
    SYMPTOMS,
    TRACED_FOUR,
    fits,
    timex_kernel,
)
from rwkv_lessons.lab.lessons.lessons_10_11.evidence_triton import timex_launch
from rwkv_lessons.runtime.launch_numba import ceil_div, load4

try:
    import triton
    import triton.language as tl
except ImportError:  # on macOS: the kernels in numba run all the same
    from rwkv_lessons.lab.lessons.lessons_10_11.evidence_triton import tl, triton

TILE = 1024  # outputs t that a block takes at a time, and tokens u that it keeps in shared memory
WINDOW = 2 * TILE  # weights between the first u and the last t of these
ROWS = 8  # batch rows of a block, from the fourth rung on


def launch(B, C, T, outputs=1, rows=1, tile=TILE):
    """How many blocks, of how many threads.

    A block computes one channel of `rows` batch rows, `tile` outputs at a time. A thread computes
    `outputs` of these. Threads come in whole warps of 32, and there are no more warps than the
    outputs of a tile need, or than T outputs need if T is smaller.
    """
    ### BEGIN SOLUTION
    warps = ceil_div(min(T, tile), 32 * outputs)
    return ceil_div(B, rows) * C, 32 * warps
    ### END SOLUTION


@cuda.jit(launch_bounds=(TILE, 2))
def naive(w, k, o):
    """o[b, c, t] = Σ_{u ≤ t} w[c, T-1-(t-u)] k[b, c, u], one thread per output.

    w is [C, T]; k, o are [B, C, T]; all float32. Block n computes row n of the B·C rows; its
    thread x computes the outputs x, x + cuda.blockDim.x, ….
    """
    ### BEGIN SOLUTION
    _, C, T = k.shape
    b, c, t = cuda.blockIdx.x // C, cuda.blockIdx.x % C, cuda.threadIdx.x
    while t < T:
        w_t = w[c, T - 1 - t :]  # w_t[u] is the weight of token u
        o_t, u = float32(0), 0
        while u <= t:
            o_t += w_t[u] * k[b, c, u]
            u += 1
        o[b, c, t] = o_t
        t += cuda.blockDim.x
    ### END SOLUTION


@cuda.jit(launch_bounds=(TILE, 2))
def shared(w, k, o):
    """`naive`, from shared memory: TILE outputs at a time, TILE tokens u at a time.

    w is [C, T]; k, o are [B, C, T]; all float32. Block n computes row n; its thread x computes
    output x of each tile.
    """
    ### BEGIN SOLUTION
    _, C, T = k.shape
    b, c = cuda.blockIdx.x // C, cuda.blockIdx.x % C
    x, threads = cuda.threadIdx.x, cuda.blockDim.x
    s_k = cuda.shared.array(TILE, float32)
    s_w = cuda.shared.array(WINDOW, float32)
    for t0 in range(0, T, TILE):
        o_t = float32(0)
        for u0 in range(0, t0 + 1, TILE):
            cuda.syncthreads()  # everyone has read what is overwritten now
            i = x
            while i < min(TILE, T - u0):
                s_k[i] = k[b, c, u0 + i]
                i += threads
            ### BEGIN GAP
            first = T - 1 - (t0 - u0) - TILE  # s_w[TILE] is the weight of t0 - u0
            i = max(0, -first) + x
            while i < min(WINDOW, T - first):
                s_w[i] = w[c, first + i]
                i += threads
            ### END GAP
            cuda.syncthreads()  # everything is there
            ### BEGIN GAP
            w_t, u = s_w[TILE - x :], 0
            end = min(TILE, t0 - u0 + x + 1) if t0 + x < T else 0
            while u < end:
                o_t += w_t[u] * s_k[u]
                u += 1
            ### END GAP
        if t0 + x < T:
            o[b, c, t0 + x] = o_t
    ### END SOLUTION


@cuda.jit(launch_bounds=(TILE // 4, 1))
def four(w, k, o):
    """`shared`, with four neighbouring outputs per thread and 16-byte reads of shared memory.

    w is [C, T]; k, o are [B, C, T]; all float32. Block n computes row n; its thread x computes the
    outputs 4x … 4x + 3 of each tile.
    """
    ### BEGIN SOLUTION
    _, C, T = k.shape
    b, c = cuda.blockIdx.x // C, cuda.blockIdx.x % C
    x, threads = cuda.threadIdx.x, cuda.blockDim.x
    s_k = cuda.shared.array(TILE, float32, alignment=16)
    s_w = cuda.shared.array(WINDOW, float32, alignment=16)
    o_t = cuda.local.array(4, float32)
    for t0 in range(0, T, TILE):
        for n in range(4):
            o_t[n] = 0
        for u0 in range(0, t0 + 1, TILE):
            cuda.syncthreads()
            for i in range(x, TILE, threads):
                s_k[i] = k[b, c, u0 + i] if u0 + i < T else float32(0)
            for i in range(x, WINDOW, threads):
                ### BEGIN GAP
                at = T - 1 - (t0 - u0) + i - TILE
                s_w[i] = w[c, at] if 0 <= at and at < T else float32(0)  # 0 for u after t
                ### END GAP
            cuda.syncthreads()
            for u in range(0, min(TILE, t0 - u0 + 4 * x + 4), 4):
                ### BEGIN GAP
                k4 = load4(s_k, (u,))
                first = TILE - 4 * x + u - 4
                w8 = load4(s_w, (first,)) + load4(s_w, (first + 4,))
                for m in range(4):
                    for n in range(4):
                        o_t[n] += w8[4 + m - n] * k4[m]
                ### END GAP
        for n in range(4):
            if t0 + 4 * x + n < T:
                o[b, c, t0 + 4 * x + n] = o_t[n]
    ### END SOLUTION


@cuda.jit(launch_bounds=(TILE // 4, 1))
def grouped(w, k, o):
    """`four`, with ROWS batch rows per block and thread, which share the weights.

    w is [C, T]; k, o are [B, C, T]; all float32. Block n computes channel n % C of ROWS batch rows,
    from n // C · ROWS on; its thread x computes their outputs 4x … 4x + 3 of each tile.
    """
    ### BEGIN SOLUTION
    B, C, T = k.shape
    b0, c = cuda.blockIdx.x // C * ROWS, cuda.blockIdx.x % C
    x, threads = cuda.threadIdx.x, cuda.blockDim.x
    s_k = cuda.shared.array((ROWS, TILE), float32, alignment=16)
    s_w = cuda.shared.array(WINDOW, float32, alignment=16)
    o_t = cuda.local.array((ROWS, 4), float32)
    for t0 in range(0, T, TILE):
        for r in range(ROWS):
            for n in range(4):
                o_t[r, n] = 0
        for u0 in range(0, t0 + 1, TILE):
            cuda.syncthreads()
            for i in range(x, min(TILE, T - u0 + 3), threads):
                for r in range(ROWS):
                    ### BEGIN GAP
                    there = b0 + r < B and u0 + i < T
                    s_k[r, i] = k[b0 + r, c, u0 + i] if there else float32(0)
                    ### END GAP
            near, far = min(WINDOW, TILE + 4 + t0 - u0), max(0, TILE - T - 3)
            for i in range(far + x, near, threads):  # weights that a group meets
                at = T - 1 - (t0 - u0) + i - TILE
                s_w[i] = w[c, at] if 0 <= at and at < T else float32(0)
            cuda.syncthreads()
            for u in range(0, min(TILE, t0 - u0 + 4 * x + 4), 4):
                ### BEGIN GAP
                first = TILE - 4 * x + u - 4
                w8 = load4(s_w, (first,)) + load4(s_w, (first + 4,))
                for r in range(ROWS):
                    k4 = load4(s_k, (r, u))
                    for m in range(4):
                        for n in range(4):
                            o_t[r, n] += w8[4 + m - n] * k4[m]
                ### END GAP
        for r in range(ROWS):
            for n in range(4):
                if b0 + r < B and t0 + 4 * x + n < T:
                    o[b0 + r, c, t0 + 4 * x + n] = o_t[r, n]
    ### END SOLUTION


@cuda.jit(launch_bounds=(TILE // 8, 1))
def balanced(w, k, o):
    """`grouped`, with equal work for every thread: a short and a long group of four outputs.

    w is [C, T]; k, o are [B, C, T]; all float32. Block n computes channel n % C of ROWS batch rows,
    from n // C · ROWS on. Its thread x computes the x-th group of four from the start of each tile
    and the x-th from the end, where a tile ends at T if T comes first.
    """
    ### BEGIN SOLUTION
    B, C, T = k.shape
    b0, c = cuda.blockIdx.x // C * ROWS, cuda.blockIdx.x % C
    x, threads = cuda.threadIdx.x, cuda.blockDim.x
    s_k = cuda.shared.array((ROWS, TILE), float32, alignment=16)
    s_w = cuda.shared.array(WINDOW, float32, alignment=16)
    o_t = cuda.local.array((ROWS, 4), float32)
    for t0 in range(0, T, TILE):
        last = (min(TILE, T - t0) + 3) // 4 - 1  # group of four outputs in this tile
        for u0 in range(0, t0 + 1, TILE):
            cuda.syncthreads()
            for i in range(x, min(TILE, T - u0 + 3), threads):
                for r in range(ROWS):
                    there = b0 + r < B and u0 + i < T
                    s_k[r, i] = k[b0 + r, c, u0 + i] if there else float32(0)
            near, far = min(WINDOW, TILE + 4 + t0 - u0), max(0, TILE - T - 3)
            for i in range(far + x, near, threads):  # weights that a group meets
                at = T - 1 - (t0 - u0) + i - TILE
                s_w[i] = w[c, at] if 0 <= at and at < T else float32(0)
            cuda.syncthreads()
            for part in range(2):
                ### BEGIN GAP
                t = 4 * (last - x) if part == 0 else 4 * x
                end = min(TILE, t0 - u0 + t + 4) if 2 * x + part <= last else 0
                ### END GAP
                for r in range(ROWS):
                    for n in range(4):
                        ### BEGIN GAP
                        there = end > 0 and u0 > 0 and b0 + r < B and t0 + t + n < T
                        o_t[r, n] = o[b0 + r, c, t0 + t + n] if there else float32(0)
                        ### END GAP
                for u in range(0, end, 4):
                    first = TILE - t + u - 4
                    w8 = load4(s_w, (first,)) + load4(s_w, (first + 4,))
                    for r in range(ROWS):
                        k4 = load4(s_k, (r, u))
                        for m in range(4):
                            for n in range(4):
                                o_t[r, n] += w8[4 + m - n] * k4[m]
                for r in range(ROWS):
                    for n in range(4):
                        if end > 0 and b0 + r < B and t0 + t + n < T:
                            o[b0 + r, c, t0 + t + n] = o_t[r, n]
    ### END SOLUTION


@triton.jit
def toeplitz(
    w, k, o, B, C, T, L: tl.constexpr, BB: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The same sum as matrix products: L × L weights times L tokens of BB batch rows.

    w is [C, T]; k, o are [B, C, T]; all of one type, float32 or bfloat16. The grid is
    (C · ⌈T / L⌉, ⌈B / BB⌉). Program n of the first axis computes channel n // ⌈T / L⌉, and the L
    outputs from n % ⌈T / L⌉ · L on. Sums are float32; PRECISION is the input_precision of tl.dot.
    """
    ### BEGIN SOLUTION
    tiles, o_l = tl.cdiv(T, L), tl.arange(0, L)
    i_c, i_t = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    o_b = tl.program_id(1) * BB + tl.arange(0, BB)
    m_b = (o_b < B)[None, :]
    o_t = i_t * L + o_l
    rows = (o_b[None, :] * C + i_c) * T  # [1, BB]: where the row of k starts, and of o
    b_o = tl.zeros([L, BB], tl.float32)
    for i_u in range(i_t + 1):
        o_u = i_u * L + o_l
        ### BEGIN GAP
        distance = o_t[:, None] - o_u[None, :]  # [t, u]
        m_w = (distance >= 0) & (distance < T)
        b_w = tl.load(w + i_c * T + T - 1 - distance, m_w, 0)
        ### END GAP
        b_k = tl.load(k + rows + o_u[:, None], m_b & (o_u < T)[:, None], 0)  # [u, b]
        ### BEGIN GAP
        b_o += tl.dot(b_w, b_k, input_precision=PRECISION)
        ### END GAP
    tl.store(o + rows + o_t[:, None], b_o, m_b & (o_t < T)[:, None])
    ### END SOLUTION


def launch_toeplitz(B, C, T, L=64, BB=32, PRECISION="tf32x3"):
    """The grid of `toeplitz`, and its sizes."""
    sizes = {"B": B, "C": C, "T": T, "L": L, "BB": BB, "PRECISION": PRECISION}
    return (C * ceil_div(T, L), ceil_div(B, BB)), sizes | {"num_warps": 4}


def forward(w, k):
    """o, by one launch of `toeplitz` on a GPU."""
    o = torch.empty_like(k)
    grid, sizes = launch_toeplitz(*k.shape)
    toeplitz[grid](w, k, o, **sizes)
    return o


def launch_four(B, C, T, tile=TILE):
    """Of `four`."""
    return launch(B, C, T, outputs=4, tile=tile)


def launch_grouped(B, C, T, tile=TILE):
    """Of `grouped`."""
    return launch(B, C, T, outputs=4, rows=ROWS, tile=tile)


def launch_balanced(B, C, T, tile=TILE):
    """Of `balanced`."""
    return launch(B, C, T, outputs=8, rows=ROWS, tile=tile)


NAIVE = {
    "by hand": "With ones, o[t] is t + 1: u runs from 0 to t, and both count.",
    "distance": "Token u has the weight w[c, T - 1 - (t - u)]; token t itself has the last one.",
    "channel": "Block n has channel n % C, in w as in k. Its threads begin at t = "
    "cuda.threadIdx.x, whichever block it is.",
    "batch": "Block n has batch row n // C; w has no batch axis.",
    "causal": "The loop over u ends at t: no later token counts.",
    "tail": "Every output below T is written, and no other.",
    "tile": "A block may have fewer threads than the row has outputs: each continues with t + "
    "cuda.blockDim.x until T.",
    "group": "A block has one row, however many there are: is there a number where B or C belongs?",
    "order": "Each output belongs to one thread, which writes it once.",
}
GROUPS = {
    "group": "The last group may have fewer batch rows than ROWS: what do the missing rows read "
    "and write?"
}
ZEROS = "s_w holds 0 where the weight of a later token would be, so the loop may run past t."


def tiled(shape, *rest, L=16, BB=16, **more):
    """A `Launch` of `toeplitz` in small tiles."""
    return timex_launch(launch_toeplitz, shape, *rest, L=L, BB=BB, **more)


TOEPLITZ_CASES = tuple(
    Case(name, symptom, partial(tiled, *given), symptom == "programs")
    for name, symptom, *given in (
        ("three tokens of ones, computed by hand", "by hand", (1, 1, 3), "ones"),
        ("one token", "by hand", (1, 1, 1)),
        ("weights that differ", "distance", (1, 1, 5)),
        ("every channel has its own weights", "channel", (1, 3, 6)),
        ("every batch row has its own tokens", "batch", (3, 2, 6)),
        ("a token looks at none that come later", "causal", (1, 1, 9), "late"),
        ("32 tokens: two whole tiles", "tile", (1, 1, 32)),
        ("31 tokens, no multiple of 4", "tail", (2, 1, 31)),
        ("75 tokens in tiles of 16", "tile", (1, 2, 75)),
        ("19 batch rows in groups of 16", "group", (19, 1, 6)),
        ("the order of the programs does not matter", "programs", (17, 2, 20)),
        ("bfloat16", "16 bits", (2, 2, 40), "random", torch.bfloat16),
    )
) + (
    Case(
        "130 tokens, the lesson's own tiles",
        "own blocks",
        partial(timex_launch, launch_toeplitz, (33, 1, 130)),
    ),
)

EXERCISES = {
    "launch": Exercise(
        minutes=5,
        difficulty=1,
        hints=(
            "Two counts: how many pairs of a group of rows and a channel are there, and how many "
            "warps cover min(T, tile) outputs?",
            "A warp has 32 threads with `outputs` outputs each. Round up in both counts.",
            "return ceil_div(B, rows) * C, 32 * ceil_div(min(T, tile), 32 * outputs)",
        ),
        evidence=(
            function_cases(
                ("one row, one warp", (1, 1, 5), (1, 32)),
                ("the original's shape", (32, 768, 768), (24576, 768)),
                ("four outputs a thread", (32, 768, 768, 4), (24576, 192)),
                ("a last thread with fewer outputs", (1, 2, 129, 4), (2, 64)),
                ("fewer outputs than a thread computes", (1, 2, 3, 4), (2, 32)),
                ("groups of 8 rows", (11, 3, 768, 4, 8), (6, 192)),
                ("more than a tile", (2, 3, 5000, 8), (6, 128)),
                ("tiles of another size", (5, 5, 40, 1, 1, 32), (25, 32)),
                more=((3, 7, 33), (9, 2, 1025, 4, 8), (2, 2, 100, 8, 8), (2, 2, 257, 8, 8)),
            ),
        ),
        symptoms={
            "one row, one warp": "Return (blocks, threads). Threads come in whole warps: 32, 64, …",
            "groups of 8 rows": "11 rows make two groups of 8; the second has 3 rows.",
            "a last thread with fewer outputs": "129 outputs need 33 threads, so two warps.",
            "fewer outputs than a thread computes": "They still need a thread, so one warp.",
            "more than a tile": "A block has no more threads than the outputs of one tile need.",
            "tiles of another size": "Use the argument `tile`, not the constant TILE.",
        },
        afterwards=Afterwards(
            why={
                "warps = ceil_div(min(T, tile), 32 * outputs)": "A short row gets no idle warps, "
                "which would hold registers.",
            },
            instead={
                "T threads, one grid axis for C and one for B": "fails for long rows: a block "
                "has at most 1,024 threads, and the second axis of a grid at most 65,535 blocks.",
            },
            stretch="For T = 1,100 the second tile has 76 outputs for 1,024 threads. Which tile "
            "size would fit better?",
        ),
    ),
    "naive": Exercise(
        minutes=10,
        difficulty=1,
        hints=(
            "cuda.blockIdx.x gives the row and the channel, cuda.threadIdx.x the first t. Which "
            "output comes next?",
            "The thread computes outputs t, t + cuda.blockDim.x, … while t < T. Each output is a "
            "sum over u up to t.",
            "b, c, t = cuda.blockIdx.x // C, cuda.blockIdx.x % C, cuda.threadIdx.x; while t < T: "
            "w_t = w[c, T - 1 - t :]; while u <= t: o_t += w_t[u] * k[b, c, u]; u += 1. Start o_t "
            "from float32(0); t += cuda.blockDim.x.",
        ),
        evidence=timex_kernel(naive, launch, ("o",), most=(no_atomics(),), strided=True),
        symptoms=NAIVE,
        afterwards=Afterwards(
            why={
                "t += cuda.blockDim.x": "Works for any T: when outputs outnumber threads, each "
                "thread takes several.",
                "o_t += w_t[u] * k[b, c, u]": "The lanes of a warp differ in t, so they read the "
                "same k and neighbouring weights. A slice that starts at the first weight needs "
                "no check for negative indices.",
                "while u <= t:": "`for u in range(t + 1)` gives the same sum with four times as "
                "many instructions: numba keeps a separate counter for the range, which takes "
                "more registers and leaves room for fewer blocks.",
            },
            instead={
                "A thread per product and an atomic sum": "takes T/2 times as many threads, "
                "which all wait for the same address.",
            },
            stretch="Give thread x the output T - 1 - x. Which threads wait for which now?",
        ),
    ),
    "shared": Exercise(
        minutes=25,
        difficulty=3,
        hints=(
            "For the outputs from t0 on and the tokens from u0 on: which TILE tokens and which "
            "weights do you need? How many different values does T - 1 - (t - u) take?",
            "2·TILE weights, with the weight of (t, u) at s_w[TILE + (u - u0) - (t - t0)]. Fill "
            "both arrays in a loop that starts at x and steps by blockDim, stop where the row "
            "ends, and put a barrier before and after.",
            "s_w[i] = w[c, first + i] with first = T - 1 - (t0 - u0) - TILE, where 0 <= first + "
            "i < T. After the barrier, let u run to min(TILE, t0 - u0 + x + 1) and add s_w[TILE "
            "- x + u] * s_k[u], if there is an output t0 + x.",
        ),
        evidence=timex_kernel(
            shared,
            launch,
            ("o",),
            fits(),
            most=(
                global_reads(0.2),
                shared_reads(2.3),
                conflicts(),
                conflicts("store"),
                no_atomics(),
            ),
        ),
        symptoms=SYMPTOMS,
        afterwards=Afterwards(
            why={
                "first = T - 1 - (t0 - u0) - TILE  # s_w[TILE] is the weight of t0 - u0": "The "
                "window of weights shifts with t0 - u0.",
                "while u < end:": "All lanes read the same s_k[u] and neighbouring elements of "
                "s_w, so there are no bank conflicts.",
            },
            instead={
                "The whole row in shared memory": "needs no loop over u0, but limits T to the "
                "size of the array: the originals assert T ≤ 1024.",
            },
            stretch="Keep half of the window from one chunk to the next: those weights are "
            "already there.",
        ),
    ),
    "four": Exercise(
        minutes=20,
        difficulty=3,
        hints=(
            "Outputs 4x … 4x + 3 and tokens u … u + 3 make 16 products. How many different "
            "weights do these have?",
            "Seven, which two load4 of s_w cover: from TILE - 4x + u - 4 and the next four. T "
            "need not be a multiple of 4, so fill shared memory one float at a time, as in "
            "`shared`.",
            "w8 = load4(s_w, (first,)) + load4(s_w, (first + 4,)); o_t[n] += w8[4 + m - n] * "
            "k4[m] for m, n in range(4); u in steps of 4 up to min(TILE, t0 - u0 + 4 * x + 4).",
        ),
        evidence=timex_kernel(
            four,
            launch_four,
            ("o",),
            at_least(1, "LDS.128", text="16-byte reads of shared memory (LDS.128)"),
            fits(),
            in_registers(),
            most=(
                global_reads(0.1),
                shared_reads(0.4),
                conflicts(),
                conflicts("store"),
                no_atomics(),
            ),
            traced=TRACED_FOUR,
        ),
        symptoms=SYMPTOMS
        | {
            "causal": ZEROS,
            "alignment": "load4 needs arrays declared with alignment=16, and indices that are "
            "multiples of 4. Are TILE - 4x + u - 4 and u?",
        },
        afterwards=Afterwards(
            why={
                "w8 = load4(s_w, (first,)) + load4(s_w, (first + 4,))": "Eight weights for 16 "
                "products. For the next token, seven of them can be reused.",
                "for u in range(0, min(TILE, t0 - u0 + 4 * x + 4), 4):": "Past t, s_w holds "
                "zeros, so the triangle at the end of a row needs no code of its own.",
            },
            instead={
                "float4 reads of global memory as well": "needs T to be a multiple of 4: rows of "
                "767 floats are not aligned.",
            },
            stretch="With eight outputs a thread, how many reads are needed for how many products?",
        ),
    ),
    "grouped": Exercise(
        minutes=15,
        difficulty=2,
        hints=(
            "The weights do not depend on b. What do you need ROWS times, and what once?",
            "s_k and the sums get a first axis of size ROWS; w8 is read once, before the loop "
            "over rows.",
            "b0 = cuda.blockIdx.x // C * ROWS; s_k[r, i] = k[b0 + r, c, u0 + i] if b0 + r < B and "
            "u0 + i < T else float32(0); k4 = load4(s_k, (r, u)).",
        ),
        evidence=timex_kernel(
            grouped,
            launch_grouped,
            ("o",),
            at_least(1, "LDS.128", text="16-byte reads of shared memory (LDS.128)"),
            fits(),
            in_registers(),
            most=(
                global_reads(0.05),
                shared_reads(0.15),
                conflicts(),
                conflicts("store"),
                no_atomics(),
            ),
            traced=TRACED_FOUR,
        ),
        symptoms=SYMPTOMS | GROUPS | {"causal": ZEROS},
        afterwards=Afterwards(
            why={
                "w8 = load4(s_w, (first,)) + load4(s_w, (first + 4,))": "Read once for 8 rows: "
                "10 reads for 128 products.",
                "there = b0 + r < B and u0 + i < T": "The last group may have fewer rows: read "
                "zeros for the missing ones and write nothing.",
            },
            instead={
                "Rows in different warps": "stages w once, but every warp then reads it.",
            },
            stretch="The 32 sums take registers. With how many batch rows does a second block "
            "still fit on the SM? The machine code tells.",
        ),
    ),
    "balanced": Exercise(
        minutes=25,
        difficulty=3,
        hints=(
            "Group x of four outputs reads 4x + 4 tokens. Which second group makes the total the "
            "same for every x?",
            "Pair group x with group last - x, the x-th from the end of the tile. Compute both "
            "between the same two barriers, one after the other, so that no thread waits for a "
            "longer one.",
            "for part in range(2): t = 4 * (last - x) if part == 0 else 4 * x. The loop over u "
            "runs to 0 unless 2 * x + part <= last. Where u0 > 0, the sums continue from o.",
        ),
        evidence=timex_kernel(
            balanced,
            launch_balanced,
            ("o",),
            at_least(1, "LDS.128", text="16-byte reads of shared memory (LDS.128)"),
            fits(),
            in_registers(),
            most=(
                global_reads(0.05),
                shared_reads(0.15),
                imbalance(1.1),
                conflicts(),
                conflicts("store"),
                no_atomics(),
            ),
            traced=PART_OF_A_TILE,
        ),
        symptoms=SYMPTOMS
        | GROUPS
        | {
            "causal": ZEROS,
            "divergent": "Threads past the middle have no outputs, but they still fill shared "
            "memory and reach every barrier.",
        },
        afterwards=Afterwards(
            why={
                "t = 4 * (last - x) if part == 0 else 4 * x": "The x-th group from the end and "
                "the x-th from the start together read T + 4 tokens, for every x.",
                "end = min(TILE, t0 - u0 + t + 4) if 2 * x + part <= last else 0": "With an odd "
                "number of groups, the thread in the middle has one group, not the same one "
                "twice. Threads past it have none.",
            },
            instead={
                "Pairing tiles, as the library does": "makes all blocks equally long; the threads "
                "of a block then differ by at most one tile.",
            },
            stretch="Process both groups in one loop over u, so that each k4 is read once. "
            "Compare the registers.",
        ),
    ),
    "toeplitz": Exercise(
        minutes=20,
        difficulty=3,
        hints=(
            "A tile of outputs multiplies all tiles of tokens up to its own. Which elements of w "
            "are in one tile of weights, and which of them exist?",
            "For L outputs o_t and L tokens o_u, the distances are o_t[:, None] - o_u[None, :], "
            "[L, L]. Load the tile of weights with one tl.load at these offsets, where 0 ≤ "
            "distance < T. Tokens are the rows of k's tile, [L, BB], and batch rows its columns. "
            "Then b_o += tl.dot(…) for i_u in range(i_t + 1).",
            "rows = (o_b[None, :] * C + i_c) * T; b_w = tl.load(w + i_c * T + T - 1 - distance, "
            "(distance >= 0) & (distance < T), 0); b_k = tl.load(k + rows + o_u[:, None], …, 0); "
            "b_o += tl.dot(b_w, b_k, input_precision=PRECISION); one store at o + rows + "
            "o_t[:, None], for rows below B and outputs below T.",
        ),
        evidence=(
            answer(*TOEPLITZ_CASES),
            traffic(
                partial(tiled, (16, 2, 64)),  # four tiles of 16: a token has four of outputs
                reads(2.5, "k"),
                writes(1, "o"),
                dot_flops(2 * 2 * 16 * 64 * 64 // 2),
            ),
            machine_code(
                lambda: timex_launch(launch_toeplitz, (33, 3, 200), dtype=torch.bfloat16),
                at_least(1, "HMMA", "HGMMA", text="products on the tensor cores"),
                no_spills(),
            ),
            gpu(lambda: timex_launch(launch_toeplitz, (33, 20, 1100))),
        ),
        symptoms=SYMPTOMS
        | {
            "batch": "The columns of k's tile are batch rows: row b of channel c starts at (b · "
            "C + c) · T. All of them use the same w.",
            "causal": "A negative distance is a later token: its weight is 0.",
            "tile": "Tile i_t of outputs needs the products with tiles 0 … i_t of tokens.",
            "group": "The last group may have fewer than BB batch rows: mask the loads and the "
            "store.",
            "mask": "Three masks: distances from 0 to T - 1, tokens and outputs below T, batch "
            "rows below B.",
            "16 bits": "Give tl.dot its operands in the type they were loaded in, and keep sums "
            "in float32.",
            "input_precision": "tl.dot truncates float32 operands to TF32 unless it gets "
            "input_precision=PRECISION.",
        },
        afterwards=Afterwards(
            why={
                "distance = o_t[:, None] - o_u[None, :]  # [t, u]": "A column minus a row is a "
                "tile. Its L · L elements have only 2L - 1 different values, one for each "
                "diagonal.",
                "b_w = tl.load(w + i_c * T + T - 1 - distance, m_w, 0)": "The matrix W is never "
                "stored in memory. The mask makes the zeros above its diagonal.",
            },
            instead={
                "Several tiles of outputs in one program": "builds each tile of weights once for "
                "all pairs of tiles at the same distance, as the library does.",
            },
            stretch="A tile of weights depends only on i_t - i_u. Let a program compute two "
            "tiles of outputs and load each tile of weights once for both.",
        ),
    ),
}
