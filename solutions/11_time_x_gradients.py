"""The gradients of time-x: one is the same sum backwards, the other a sum along diagonals."""

import torch
from numba import cuda, float32

from rwkv_lessons.lab.course.exercises import Afterwards, Exercise
from rwkv_lessons.lab.evidence.claims import at_least, in_registers
from rwkv_lessons.lab.lessons.lessons_10_11.budgets import (
    conflicts,
    global_reads,
    imbalance,
    no_atomics,
    shared_reads,
)
from rwkv_lessons.lab.lessons.lessons_10_11.evidence import PART_OF_A_TILE, fits, timex_kernel
from rwkv_lessons.runtime.launch_numba import as_array, ceil_div, load4, stream

TILE = 1024  # outputs of a block at a time, and tokens that it keeps in shared memory
WINDOW = 2 * TILE  # what can meet these: weights, or tokens of k
ROWS = 8  # batch rows of a block, for dk


@cuda.jit(launch_bounds=(TILE, 2))
def dk_naive(w, do, dk):
    """dk[b, c, u] = Σ_{t ≥ u} w[c, T-1-(t-u)] do[b, c, t], one thread per output.

    w is [C, T]; do, dk are [B, C, T]; all float32. Block n computes row n of the B·C rows; its
    thread x computes the outputs x, x + cuda.blockDim.x, ….
    """
    ### BEGIN SOLUTION
    _, C, T = do.shape
    b, c, u = cuda.blockIdx.x // C, cuda.blockIdx.x % C, cuda.threadIdx.x
    while u < T:
        do_u, w_d = do[b, c, u:], w[c, ::-1]  # by distance: output u + d has token u with w_d[d]
        dk_u, d = float32(0), 0
        while d < T - u:
            dk_u += w_d[d] * do_u[d]
            d += 1
        dk[b, c, u] = dk_u
        u += cuda.blockDim.x
    ### END SOLUTION


@cuda.jit(launch_bounds=(TILE, 2))
def dw_naive(k, do, dw):
    """dw[c, T-1-d] = Σ_b Σ_{t ≥ d} do[b, c, t] k[b, c, t-d], one thread per distance d.

    k, do are [B, C, T]; dw is [C, T]; all float32. Block n computes channel n; its thread x
    computes the distances x, x + cuda.blockDim.x, …, each for all batch rows.
    """
    ### BEGIN SOLUTION
    B, _, T = k.shape
    c, d = cuda.blockIdx.x, cuda.threadIdx.x
    while d < T:
        dw_d = float32(0)
        for b in range(B):
            do_d, u = do[b, c, d:], 0  # do_d[u] is d tokens after u
            while u < T - d:
                dw_d += do_d[u] * k[b, c, u]
                u += 1
        dw[c, T - 1 - d] = dw_d
        d += cuda.blockDim.x
    ### END SOLUTION


@cuda.jit(launch_bounds=(TILE, 2))
def dw_shared(k, do, dw):
    """`dw_naive`, from shared memory: TILE distances at a time, TILE tokens u at a time.

    k, do are [B, C, T]; dw is [C, T]; all float32. Block n computes channel n; its thread x
    computes distance x of each tile.
    """
    ### BEGIN SOLUTION
    B, _, T = k.shape
    c, x, threads = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
    s_k = cuda.shared.array(TILE, float32)
    s_do = cuda.shared.array(WINDOW, float32)
    for d0 in range(0, T, TILE):
        dw_d = float32(0)
        for b in range(B):
            for u0 in range(0, T - d0, TILE):
                cuda.syncthreads()  # everyone has read what is overwritten now
                i = x
                while i < min(TILE, T - u0):
                    s_k[i] = k[b, c, u0 + i]
                    i += threads
                i, first = x, u0 + d0  # s_do[i] is d0 + i tokens after u0
                while i < min(WINDOW, T - first):
                    s_do[i] = do[b, c, first + i]
                    i += threads
                cuda.syncthreads()  # everything is there
                do_d, end, u = s_do[x:], min(TILE, T - d0 - x - u0), 0
                while u < end:
                    dw_d += do_d[u] * s_k[u]
                    u += 1
        if d0 + x < T:
            dw[c, T - 1 - (d0 + x)] = dw_d
    ### END SOLUTION


@cuda.jit(launch_bounds=(TILE // 8, 1))
def dk_balanced(w, do, dk):
    """Lesson 10's `balanced` with time running backwards: groups of batch rows, equal work.

    w is [C, T]; do, dk are [B, C, T]; all float32. Blocks and threads as in lesson 10's `balanced`.
    """
    ### BEGIN SOLUTION
    B, C, T = do.shape
    b0, c = cuda.blockIdx.x // C * ROWS, cuda.blockIdx.x % C
    x, threads = cuda.threadIdx.x, cuda.blockDim.x
    s_do = cuda.shared.array((ROWS, TILE), float32, alignment=16)
    s_w = cuda.shared.array(WINDOW, float32, alignment=16)
    sums = cuda.local.array((ROWS, 4), float32)
    for t0 in range(0, T, TILE):  # t and u count from the end
        last = (min(TILE, T - t0) + 3) // 4 - 1
        for u0 in range(0, t0 + 1, TILE):
            cuda.syncthreads()
            for i in range(x, min(TILE, T - u0 + 3), threads):
                for r in range(ROWS):
                    there = b0 + r < B and u0 + i < T
                    s_do[r, i] = do[b0 + r, c, T - 1 - (u0 + i)] if there else float32(0)
            near, far = min(WINDOW, TILE + 4 + t0 - u0), max(0, TILE - T - 3)
            for i in range(far + x, near, threads):  # weights that a group meets
                at = T - 1 - (t0 - u0) + i - TILE
                s_w[i] = w[c, at] if 0 <= at and at < T else float32(0)
            cuda.syncthreads()
            for part in range(2):
                t = 4 * (last - x) if part == 0 else 4 * x
                end = min(TILE, t0 - u0 + t + 4) if 2 * x + part <= last else 0
                for r in range(ROWS):
                    for n in range(4):
                        there = end > 0 and u0 > 0 and b0 + r < B and t0 + t + n < T
                        so_far = dk[b0 + r, c, T - 1 - (t0 + t + n)] if there else float32(0)
                        sums[r, n] = so_far
                for u in range(0, end, 4):
                    first = TILE - t + u - 4
                    w8 = load4(s_w, (first,)) + load4(s_w, (first + 4,))
                    for r in range(ROWS):
                        do4 = load4(s_do, (r, u))
                        for m in range(4):
                            for n in range(4):
                                sums[r, n] += w8[4 + m - n] * do4[m]
                for r in range(ROWS):
                    for n in range(4):
                        if end > 0 and b0 + r < B and t0 + t + n < T:
                            dk[b0 + r, c, T - 1 - (t0 + t + n)] = sums[r, n]
    ### END SOLUTION


@cuda.jit(launch_bounds=(TILE // 8, 1))
def dw_balanced(k, do, dw):
    """`dw_shared`, with equal work: a thread has a short and a long group of four distances.

    k, do are [B, C, T]; dw is [C, T]; all float32. Block n computes channel n. Its thread x
    computes the x-th group of four from the start of each tile of distances and the x-th from the
    end, where a tile ends at T if T comes first.
    """
    ### BEGIN SOLUTION
    B, _, T = k.shape
    c, x, threads = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
    s_do = cuda.shared.array(TILE, float32, alignment=16)
    s_k = cuda.shared.array(WINDOW, float32, alignment=16)
    near = cuda.local.array(4, float32)
    far = cuda.local.array(4, float32)
    for d0 in range(0, T, TILE):
        last = (min(TILE, T - d0) + 3) // 4 - 1
        d_near, d_far = 4 * x, 4 * (last - x)  # from d0 on
        for n in range(4):
            near[n], far[n] = 0, 0
        for b in range(B):
            for t0 in range(d0, T, TILE):
                cuda.syncthreads()
                for i in range(x, TILE, threads):
                    s_do[i] = do[b, c, t0 + i] if t0 + i < T else float32(0)
                for i in range(x, WINDOW, threads):
                    u = t0 - d0 + i - TILE
                    s_k[i] = k[b, c, u] if 0 <= u and u < T else float32(0)
                cuda.syncthreads()
                end = min(TILE, T - t0)
                if d_near <= d_far:
                    for i in range(d_near if t0 == d0 else 0, end, 4):
                        do4, first = load4(s_do, (i,)), TILE + i - d_near - 4
                        k8 = load4(s_k, (first,)) + load4(s_k, (first + 4,))
                        for m in range(4):
                            for n in range(4):
                                near[n] += do4[m] * k8[4 + m - n]
                if d_near < d_far:
                    for i in range(d_far if t0 == d0 else 0, end, 4):
                        do4, first = load4(s_do, (i,)), TILE + i - d_far - 4
                        k8 = load4(s_k, (first,)) + load4(s_k, (first + 4,))
                        for m in range(4):
                            for n in range(4):
                                far[n] += do4[m] * k8[4 + m - n]
        for n in range(4):
            if d_near <= d_far and d0 + d_near + n < T:
                dw[c, T - 1 - (d0 + d_near + n)] = near[n]
            if d_near < d_far and d0 + d_far + n < T:
                dw[c, T - 1 - (d0 + d_far + n)] = far[n]
    ### END SOLUTION


def launch(B, C, T, outputs=1, rows=1, tile=TILE):
    """How many blocks, of how many threads: lesson 10's."""
    return ceil_div(B, rows) * C, 32 * ceil_div(min(T, tile), 32 * outputs)


def launch_dk(B, C, T, tile=TILE):
    """Of `dk_balanced`."""
    return launch(B, C, T, outputs=8, rows=ROWS, tile=tile)


def launch_dw(B, C, T, tile=TILE):
    """Of `dw_naive` and `dw_shared`: a block has a channel of all batch rows."""
    return launch(B, C, T, rows=B, tile=tile)


def launch_dw_balanced(B, C, T, tile=TILE):
    """Of `dw_balanced`."""
    return launch(B, C, T, outputs=8, rows=B, tile=tile)


def one_thread(w, k, do):
    """dw and dk on a GPU, the first rung: float32."""
    return _both(dk_naive, launch, dw_naive, launch_dw, w, k, do)


def from_shared(w, k, do):
    """The second: dw from shared memory, dk as balanced as o."""
    return _both(dk_balanced, launch_dk, dw_shared, launch_dw, w, k, do)


def balanced(w, k, do):
    """The third: both."""
    return _both(dk_balanced, launch_dk, dw_balanced, launch_dw_balanced, w, k, do)


def _both(of_k, sizes_k, of_w, sizes_w, w, k, do):
    dw, dk = torch.empty_like(w), torch.empty_like(k)
    grid, block = sizes_k(*k.shape)
    of_k[grid, block, stream()](*map(as_array, (w, do, dk)))
    grid, block = sizes_w(*k.shape)
    of_w[grid, block, stream()](*map(as_array, (k, do, dw)))
    return dw, dk


# What a case that fails may mean.
DK = {
    "by hand": "With ones, dk[u] is T - u: that many outputs read token u.",
    "distance": "Output t read token u with the weight of their distance, w[c, T - 1 - (t - u)].",
    "channel": "w, do and dk have a row for each channel. Which channel does this block compute?",
    "batch": "Which batch row does this block compute? All of them use the same w.",
    "causal": "Token u affects the outputs from u on, and no earlier one.",
    "tail": "Which outputs and which tokens exist? Read and write nothing at T or beyond.",
    "tile": "Each tile also adds everything up to the end of the row: loop over u0 for each t0.",
    "group": "The last group may have fewer batch rows than ROWS.",
}
DW = {
    "by hand": "With ones, dw[T-1-d] is B · (T - d): that many pairs of tokens are d apart.",
    "distance": "The last weight belongs to distance 0: dw[c, T - 1 - d].",
    "channel": "Every channel has its own dw, k and do. Which channel does this block compute?",
    "batch": "dw has no batch axis: every batch row adds to the same sum.",
    "group": "dw has no batch axis: every batch row adds to the same sum.",
    "causal": "At distance d, t starts at d: earlier there is no token t - d.",
    "tail": "Which distances and which tokens exist? Read and write nothing at T or beyond.",
    "tile": "A tile of distances meets all tokens, chunk by chunk, and the window moves with them.",
}
GOES_ON = {  # of one thread an output
    "tile": "A block may have fewer threads than outputs: each continues in steps of "
    "cuda.blockDim.x.",
    "group": "A block has one row, however many there are: is there a number where B or C belongs?",
    "order": "Each output belongs to one thread, which writes it once.",
}
WIDE = at_least(1, "LDS.128", text="16-byte reads of shared memory (LDS.128)")

EXERCISES = {
    "dk_naive": Exercise(
        minutes=5,
        difficulty=1,
        hints=(
            "In lesson 10 output t reads the tokens u ≤ t. Which outputs read token u?",
            "t from u to T - 1, with the same weight that k[u] had in o[t].",
            "By distance: do_u, w_d, d = do[b, c, u:], w[c, ::-1], 0; while d < T - u: dk_u += "
            "w_d[d] * do_u[d]; d += 1.",
        ),
        evidence=timex_kernel(dk_naive, launch, ("dk",), most=(no_atomics(),), strided=True),
        symptoms=DK | GOES_ON,
        afterwards=Afterwards(
            why={
                "while d < T - u:": "Forward, a token affects later outputs; backward, it "
                "collects their gradients."
            },
            instead={
                "Reverse do, call the forward kernel, reverse dk": "computes the same sums, but "
                "makes two copies, unless an index counts from the end."
            },
            stretch="Which thread of a block takes longest now?",
        ),
    ),
    "dw_naive": Exercise(
        minutes=10,
        difficulty=2,
        hints=(
            "Which pairs (t, u) have distance d? And which batch rows share a weight?",
            "Two loops: over b, and over t from d on. One thread owns the sum, so there are no "
            "atomics and nothing is left to add in Python.",
            "dw_d += do[b, c, t] * k[b, c, t - d]; dw[c, T - 1 - d] = dw_d",
        ),
        evidence=timex_kernel(dw_naive, launch_dw, ("dw",), most=(no_atomics(),), strided=True),
        symptoms=DW | GOES_ON | {"group": DW["group"]},
        afterwards=Afterwards(
            why={
                "for b in range(B):": "The sum over the batch stays in a register. The original "
                "writes a dw for every batch row and adds them in Python."
            },
            instead={
                "A block per row, and atomic sums": "gives 32 times as many blocks, but another "
                "order of the additions in every run."
            },
            stretch="768 channels give 768 blocks. Is that enough for 132 SMs?",
        ),
    ),
    "dw_shared": Exercise(
        minutes=20,
        difficulty=3,
        hints=(
            "For TILE distances from d0 on and TILE tokens from u0 on: which tokens t = u + d do "
            "you need?",
            "2·TILE of them, from u0 + d0 on, as far as they exist: s_do[(u - u0) + (d - d0)].",
            "do[b, c, u0 + d0 + i] fills s_do[i]; dw_d += s_do[x + u] * s_k[u] for u from 0 to "
            "min(TILE, T - d0 - x - u0).",
        ),
        evidence=timex_kernel(
            dw_shared,
            launch_dw,
            ("dw",),
            fits(),
            most=(
                global_reads(0.2),
                shared_reads(2.3),
                conflicts(),
                conflicts("store"),
                no_atomics(),
            ),
        ),
        symptoms=DW,
        afterwards=Afterwards(
            why={
                "i, first = x, u0 + d0  # s_do[i] is d0 + i tokens after u0": "A tile of "
                "distances and a chunk of tokens u need a window of do that moves with both.",
                "do_d, end, u = s_do[x:], min(TILE, T - d0 - x - u0), 0": "All lanes read the "
                "same s_k[u] and neighbouring elements of s_do, so there are no bank conflicts.",
            },
            instead={
                "A thread per token, and sums along d in shared memory": "makes every thread "
                "add to T sums, all of them shared."
            },
            stretch="Stage two batch rows at a time: that halves the barriers.",
        ),
    ),
    "dk_balanced": Exercise(
        minutes=10,
        difficulty=2,
        hints=(
            "Take your last float32 kernel of lesson 10. Where does it read k, and where does it "
            "write o?",
            "Let t and u count from the end: only the addresses of do and dk change.",
            "Fill shared memory from do[b0 + r, c, T - 1 - (u0 + i)] and write the sums to dk[b0 "
            "+ r, c, T - 1 - (t0 + t + n)]; the weights stay as they are.",
        ),
        evidence=timex_kernel(
            dk_balanced,
            launch_dk,
            ("dk",),
            WIDE,
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
        symptoms=DK,
        afterwards=Afterwards(
            why={
                "s_do[r, i] = do[b0 + r, c, T - 1 - (u0 + i)] if there else float32(0)": "Reading "
                "backwards costs nothing: a warp still reads 32 neighbours."
            },
            instead={
                "A second kernel with the loops reversed": "is more code to write and to "
                "test, for the same products."
            },
            stretch="Write one kernel for o and dk, with a constant for the direction of time.",
        ),
    ),
    "dw_balanced": Exercise(
        minutes=25,
        difficulty=3,
        hints=(
            "Distance d has T - d pairs of tokens. Which group of four balances the x-th?",
            "The x-th from the end, with its own sums; run both loops between the same barriers. "
            "Four tokens and four distances need eight elements of k: two load4.",
            "do4, first = load4(s_do, (i,)), TILE + i - d_near - 4; near[n] += do4[m] * k8[4 + m "
            "- n]; the same for d_far = 4 * (last - x), if d_near < d_far.",
        ),
        evidence=timex_kernel(
            dw_balanced,
            launch_dw_balanced,
            ("dw",),
            WIDE,
            fits(),
            in_registers(),
            most=(
                global_reads(0.1),
                shared_reads(0.4),
                imbalance(1.1),
                conflicts(),
                conflicts("store"),
                no_atomics(),
            ),
            traced=PART_OF_A_TILE,
        ),
        symptoms=DW
        | {
            "divergent": "Threads past the middle have no distances, but they still fill shared "
            "memory and reach every barrier."
        },
        afterwards=Afterwards(
            why={
                "d_near, d_far = 4 * x, 4 * (last - x)  # from d0 on": "About T - 4x pairs of "
                "tokens in one group and 4x in the other: the same sum for every x."
            },
            instead={
                "16 distances and 16 tokens at a time": "takes 12 reads for 256 products, as in "
                "the library, with batch rows on different lanes."
            },
            stretch="Do that. How many registers does it take?",
        ),
    ),
}
