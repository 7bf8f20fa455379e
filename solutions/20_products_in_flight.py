"""Products in flight: the four products of a chunk of RWKV-6, started together on Hopper."""

from functools import partial

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from rwkv_lessons.lab.course.exercises import Afterwards, Exercise
from rwkv_lessons.lab.course.wrong_answers import edit
from rwkv_lessons.lab.evidence.functions import function_cases
from rwkv_lessons.lab.lessons.lessons_19_21 import hopper
from rwkv_lessons.lab.lessons.lessons_19_21.evidence import (
    Case,
    answer,
    at_least,
    described,
    gpu,
    hidden,
    in_flight,
    machine_code,
    most,
    no_spills,
    waits,
)
from rwkv_lessons.lab.lessons.lessons_19_21.hopper import alone, variants

C = gl.constexpr(64)  # tokens of a chunk, channels of a head
BYTES = gl.constexpr(64 * 64 * 2)  # of a tile in bfloat16
TILE = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))  # how it lies in shared memory
BAR = gl.constexpr(mbarrier.MBarrierLayout())
SUMS = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))  # of a product
LEFT = gl.constexpr(
    gl.DotOperandLayout(0, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]), 2)
)
LOG2E = gl.constexpr(1.4426950408889634)


def holder(i, j):
    """Which warp, lane and register has element [i, j] of a product of 64 rows.

    A warp has 16 rows. Of 16 rows × 8 columns a lane has four elements: two neighbours in row
    lane // 4, columns 2·(lane % 4) and the next, and the two 8 rows below. Its registers count
    along these four, the upper two first, and then on with the next 8 columns.
    """
    ### BEGIN SOLUTION
    warp, lane = i // 16, i % 8 * 4 + j % 8 // 2
    return warp, lane, j // 8 * 4 + i % 16 // 8 * 2 + j % 2
    ### END SOLUTION


@gluon.jit
def within(r, k, v, o):
    """o = (r kᵀ, of this token and earlier ones) v: a chunk of a head a program, no state.

    All are descriptors of [tokens, heads·64] in bfloat16, their tiles 64 × 64; grid (tokens / 64,
    heads).
    """
    at = [gl.program_id(0) * C, gl.program_id(1) * C]
    s_r = gl.allocate_shared_memory(gl.bfloat16, [C, C], TILE)
    s_k = gl.allocate_shared_memory(gl.bfloat16, [C, C], TILE)
    s_v = gl.allocate_shared_memory(gl.bfloat16, [C, C], TILE)
    ready = gl.allocate_shared_memory(gl.int64, [1], BAR)
    mbarrier.init(ready, count=1)
    fence_async_shared()
    mbarrier.expect(ready, 3 * BYTES)
    tma.async_copy_global_to_shared(r, at, ready, s_r)
    tma.async_copy_global_to_shared(k, at, ready, s_k)
    tma.async_copy_global_to_shared(v, at, ready, s_v)
    row = gl.arange(0, C, gl.SliceLayout(1, SUMS))[:, None]
    col = gl.arange(0, C, gl.SliceLayout(0, SUMS))[None, :]
    zeros = gl.full([C, C], 0.0, gl.float32, SUMS)
    mbarrier.wait(ready, 0)
    ### BEGIN SOLUTION
    b_a = warpgroup_mma(s_r, s_k.permute((1, 0)), zeros, use_acc=False, is_async=True)
    b_a = warpgroup_mma_wait(0, deps=(b_a,))
    b_a = gl.where(row >= col, b_a, 0.0)
    b_a = gl.convert_layout(b_a.to(gl.bfloat16), LEFT)
    b_o = warpgroup_mma(b_a, s_v, zeros, use_acc=False, is_async=True)
    b_o, b_a = warpgroup_mma_wait(0, deps=(b_o, b_a))
    ### END SOLUTION
    s_r.store(b_o.to(gl.bfloat16))
    fence_async_shared()
    tma.async_copy_shared_to_global(o, at, s_r)
    tma.store_wait(0)


@gluon.jit
def fetch(x, tile, ready, row, column, there):
    """Starts copying a tile, if it is there."""
    tma.async_copy_global_to_shared(x, [row, column], ready, tile, pred=there)


@gluon.jit
def kernel(r, k, v, w, u, s0, o, s1, T, H: gl.constexpr):
    """RWKV-6, a head of a batch row a program, grid (B·H,); it walks through chunks of 64 tokens.

    r, k, v, w, o are descriptors of [B·T, H·64] in bfloat16, their tiles 64 × 64, w the log decay;
    u is [H, 64], s0 and s1 are [B, H, 64, 64], keys × values, in float32. T is a multiple of 64,
    and w of a channel sums up to no less than -69 in a chunk.
    """
    i_h = gl.program_id(0) % H
    first, column = gl.program_id(0) // H * T, i_h * C
    s_r = gl.allocate_shared_memory(gl.bfloat16, [2, C, C], TILE)
    s_k = gl.allocate_shared_memory(gl.bfloat16, [2, C, C], TILE)
    s_v = gl.allocate_shared_memory(gl.bfloat16, [2, C, C], TILE)
    s_w = gl.allocate_shared_memory(gl.bfloat16, [2, C, C], TILE)
    s_later = gl.allocate_shared_memory(gl.bfloat16, [C, C], TILE)
    s_state = gl.allocate_shared_memory(gl.bfloat16, [C, C], TILE)
    ready = gl.allocate_shared_memory(gl.int64, [2, 1], BAR)
    mbarrier.init(ready.index(0), count=1)
    mbarrier.init(ready.index(1), count=1)
    row = gl.arange(0, C, gl.SliceLayout(1, SUMS))[:, None]
    col = gl.arange(0, C, gl.SliceLayout(0, SUMS))[None, :]
    s_later.store((col > row).to(gl.bfloat16))
    fence_async_shared()
    mbarrier.expect(ready.index(0), 4 * BYTES)
    fetch(r, s_r.index(0), ready.index(0), first, column, 0 < T)
    fetch(k, s_k.index(0), ready.index(0), first, column, 0 < T)
    fetch(v, s_v.index(0), ready.index(0), first, column, 0 < T)
    fetch(w, s_w.index(0), ready.index(0), first, column, 0 < T)

    b_u = gl.load(u + i_h * C + col)
    o_s = gl.program_id(0) * C * C + row * C + col
    b_s = gl.load(s0 + o_s)
    zeros = gl.full([C, C], 0.0, gl.float32, SUMS)
    for t in range(0, T, C):
        i = t // C % 2
        mbarrier.wait(ready.index(i), t // C // 2 % 2)
        b_later = warpgroup_mma(s_later, s_w.index(i), zeros, use_acc=False, is_async=True)
        b_r = s_r.index(i).load(SUMS).to(gl.float32)
        b_k = s_k.index(i).load(SUMS).to(gl.float32)
        b_w = s_w.index(i).load(SUMS).to(gl.float32)
        b_bonus = gl.sum(b_r * b_k * b_u, 1)[:, None]
        b_total = gl.convert_layout(gl.sum(b_w, 0), gl.SliceLayout(1, SUMS))[:, None]
        tma.store_wait(0)  # o of the chunk before has left the stage of the next
        behind = first + t + C
        more = t + C < T
        mbarrier.expect(ready.index(1 - i), 4 * BYTES, pred=more)
        fetch(r, s_r.index(1 - i), ready.index(1 - i), behind, column, more)
        fetch(k, s_k.index(1 - i), ready.index(1 - i), behind, column, more)
        fetch(v, s_v.index(1 - i), ready.index(1 - i), behind, column, more)
        fetch(w, s_w.index(1 - i), ready.index(1 - i), behind, column, more)
        b_later = warpgroup_mma_wait(0, deps=(b_later,))  # of w, after each token of the chunk
        b_k *= gl.exp2(b_later * LOG2E)
        b_r *= gl.exp2((-b_later - b_w) * LOG2E)
        b_s *= gl.exp2(b_total * LOG2E)
        s_k.index(i).store(b_k.to(gl.bfloat16))
        s_state.store(b_s.to(gl.bfloat16))
        fence_async_shared()
        b_r = gl.convert_layout(b_r.to(gl.bfloat16), LEFT)
        k_by_channel = s_k.index(i).permute((1, 0))
        ### BEGIN SOLUTION
        b_a = warpgroup_mma(b_r, k_by_channel, zeros, use_acc=False, is_async=True)
        b_o = warpgroup_mma(b_r, s_state, zeros, use_acc=False, is_async=True)
        b_s = warpgroup_mma(k_by_channel, s_v.index(i), b_s, is_async=True)
        b_a, b_r = warpgroup_mma_wait(2, deps=(b_a, b_r))
        ### END SOLUTION
        b_a = gl.where(row > col, b_a, gl.where(row == col, b_bonus, 0.0))
        b_a = gl.convert_layout(b_a.to(gl.bfloat16), LEFT)
        ### BEGIN SOLUTION
        b_o = warpgroup_mma(b_a, s_v.index(i), b_o, is_async=True)
        b_o, b_s, b_a, b_r = warpgroup_mma_wait(0, deps=(b_o, b_s, b_a, b_r))
        ### END SOLUTION
        s_r.index(i).store(b_o.to(gl.bfloat16))
        fence_async_shared()
        tma.async_copy_shared_to_global(o, [first + t, column], s_r.index(i))
    tma.store_wait(0)
    gl.store(s1 + o_s, b_s)


def launch(B, T, H):
    """The grid and the sizes of `kernel`."""
    return (B * H,), {"T": T, "H": H}


def forward(r, k, v, w, u, s0, kernel=kernel, **options):
    """o and s1 on a Hopper GPU.

    r, k, v, w are [B, T, H, 64] in bfloat16, T a multiple of 64; u [H, 64] and s0 [B, H, 64, 64] in
    float32. options: more of Triton's.
    """
    B, T, H, N = r.shape
    o, s1 = torch.empty_like(v), torch.empty_like(s0)
    grid, sizes = launch(B, T, H)
    tiles = [described(x, H * N) for x in (r, k, v, w)]
    kernel[grid](*tiles, u, s0, described(o, H * N), s1, **sizes, num_warps=4, **options)
    return o, s1


# In `kernel`: right, and slower. Lesson 19's rungs wait so.
A_WAIT_BEHIND_EACH = edit(
    """
    b_a = warpgroup_mma(b_r, k_by_channel, zeros, use_acc=False, is_async=True)
    b_o = warpgroup_mma(b_r, s_state, zeros, use_acc=False, is_async=True)
    b_s = warpgroup_mma(k_by_channel, s_v.index(i), b_s, is_async=True)
    b_a, b_r = warpgroup_mma_wait(2, deps=(b_a, b_r))
    """,
    """
    b_a = warpgroup_mma(b_r, k_by_channel, zeros, use_acc=False, is_async=True)
    b_a, b_r = warpgroup_mma_wait(0, deps=(b_a, b_r))
    b_o = warpgroup_mma(b_r, s_state, zeros, use_acc=False, is_async=True)
    b_o, b_r = warpgroup_mma_wait(0, deps=(b_o, b_r))
    b_s = warpgroup_mma(k_by_channel, s_v.index(i), b_s, is_async=True)
    b_s = warpgroup_mma_wait(0, deps=(b_s,))
    """,
)


def rungs():
    """{rung of the ladder: a function like `forward`}."""
    return {"together": partial(forward, kernel=kernel)}


def scores_through_shared_memory():
    """`within` with the scores stored as a tile for the second product."""
    stored = edit(
        "b_a = gl.convert_layout(b_a.to(gl.bfloat16), LEFT)",
        """
        s_k.store(b_a.to(gl.bfloat16))
        fence_async_shared()
        """,
    )
    from_tile = edit("warpgroup_mma(b_a, s_v", "warpgroup_mma(s_k, s_v")
    return variants("20_products_in_flight.within", stored=(stored, from_tile))["stored"]


chunks = partial(hopper.chunks, launch)
COUNTED = partial(chunks, 1, 256, 1)  # four chunks
TENSOR_CORES = at_least(8, "HGMMA", text="products of four warps (HGMMA)")
ASKED = {
    "wait": "What comes out of warpgroup_mma is a promise. Its numbers come out of "
    "warpgroup_mma_wait, if it names the product among deps.",
    "in flight": "A left factor in registers has to stay until its product is done: name it in "
    "deps of that wait.",
    "overwritten": "A product reads its tiles until somebody has waited for it.",
    "left": "The last wait is for all: warpgroup_mma_wait(0, …).",
    "programs": "Programs run in any order.",
    "head": "Everything of a head comes from its own tiles: the solution's tiles do that.",
    "not a number": "Which tile or which sum has nobody written?",
    "idle": "Start all products whose factors are there; wait only before a line that reads a "
    "result.",
}

EXERCISES = {
    "holder": Exercise(
        minutes=10,
        difficulty=2,
        afterwards=Afterwards(
            why={
                "warp, lane = i // 16, i % 8 * 4 + j % 8 // 2": "Four lanes share a row of 8 "
                "columns, two neighbours each: 4 bytes, once they are bfloat16.",
                "return warp, lane, j // 8 * 4 + i % 16 // 8 * 2 + j % 2": "64 columns are 8 times "
                "four registers: 32.",
            },
            instead={
                "Through shared memory": "any layout becomes any other, for a store, a barrier and "
                "a load.",
            },
            stretch="Sums over a row: which lanes have to exchange numbers, and in how many "
            "rounds? And over a column?",
        ),
        hints=(
            "Four questions: which 16 rows, which of 8 rows in there and which pair of columns, "
            "upper or lower half, left or right of the pair.",
            "warp = i // 16. lane = 4 · (i % 8) + the number of the pair, j % 8 // 2. Of the four "
            "registers, 2 for the lower half and 1 for the right one.",
            "return i // 16, i % 8 * 4 + j % 8 // 2, j // 8 * 4 + i % 16 // 8 * 2 + j % 2",
        ),
        evidence=(
            function_cases(
                ("the first element", (0, 0), (0, 0, 0)),
                ("its neighbour", (0, 1), (0, 0, 1)),
                ("the next lane", (0, 2), (0, 1, 0)),
                ("the next row", (1, 0), (0, 4, 0)),
                ("8 rows below", (8, 0), (0, 0, 2)),
                ("8 columns to the right", (0, 8), (0, 0, 4)),
                ("the next warp", (16, 0), (1, 0, 0)),
                ("the last element", (63, 63), (3, 31, 31)),
                ("somewhere", (42, 27), (2, 9, 15)),
                more=[(i, j) for i in range(64) for j in range(i % 5, 64, 5)],
                whole=True,
            ),
        ),
        symptoms={
            "its neighbour": "Two neighbours belong to one lane.",
            "the next lane": "Four lanes to a row of 8 columns.",
            "8 rows below": "The same lane, two registers later.",
            "8 columns to the right": "The same lane, four registers later.",
        },
    ),
    "within": Exercise(
        minutes=15,
        difficulty=2,
        afterwards=Afterwards(
            why={
                "b_a = gl.convert_layout(b_a.to(gl.bfloat16), LEFT)": "A thread already has what "
                "it needs as a left factor: no number moves.",
                "b_o, b_a = warpgroup_mma_wait(0, deps=(b_o, b_a))": "The product reads the "
                "registers of b_a while it runs: they may not be given to anybody else before.",
            },
            instead={
                "Scores through shared memory": "8 KB, a store, a fence and a barrier, between two "
                "products that wait for each other.",
            },
            stretch="The second half of the tokens reads all 64, the first half only 32: which "
            "products of 64 × 32 would do, and what would they save?",
        ),
        hints=(
            "Product, wait, mask, round, product, wait. Which factor is a tile, and which is in "
            "registers?",
            "s_k.permute((1, 0)) is kᵀ, without moving a byte. After the wait b_a is a tile in "
            "registers: gl.where, .to(gl.bfloat16), gl.convert_layout(…, LEFT).",
            "b_a = warpgroup_mma(s_r, s_k.permute((1, 0)), zeros, use_acc=False, is_async=True); "
            "b_a = warpgroup_mma_wait(0, deps=(b_a,)); b_a = gl.where(row >= col, b_a, 0.0); …; "
            "b_o = warpgroup_mma(b_a, s_v, zeros, use_acc=False, is_async=True); b_o, b_a = "
            "warpgroup_mma_wait(0, deps=(b_o, b_a)).",
        ),
        evidence=(
            answer(
                Case("one chunk", "chunk", partial(alone, 1, 64, 1)),
                Case("two heads", "head", partial(alone, 1, 64, 2)),
                Case("in any order", "programs", partial(alone, 2, 128, 1), reverse=True),
            ),
            in_flight(partial(alone, 1, 128, 2), waits("product", 2, 4)),
            machine_code(partial(alone, 1, 128, 2), TENSOR_CORES, no_spills()),
            gpu(partial(alone, 2, 512, 64)),
        ),
        symptoms=ASKED
        | {"chunk": "Row t of the scores: r[t]·k[s] for s ≤ t, else 0. Then times v."},
    ),
    "kernel": Exercise(
        minutes=25,
        difficulty=3,
        afterwards=Afterwards(
            why={
                "b_s = warpgroup_mma(k_by_channel, s_v.index(i), b_s, is_async=True)": "It adds to "
                "the state where it is, in registers. Nobody needs it before the next chunk.",
                "b_a, b_r = warpgroup_mma_wait(2, deps=(b_a, b_r))": "Products end in their order: "
                "this lets the last two go on while the scores are masked and rounded.",
                "b_o, b_s, b_a, b_r = warpgroup_mma_wait(0, deps=(b_o, b_s, b_a, b_r))": "b_r as "
                "well: r S, started second, has read it until now.",
            },
            instead={
                "A wait after each product": "what tl.dot does: five waits a chunk, and nothing "
                "beside them.",
                "r in two pieces of bfloat16": "16 bits of r instead of 8: three products more, "
                "and most of o's error is gone. The library does it.",
            },
            stretch="The next chunk's scores need no state. Could they be started before this "
            "chunk's last wait? What would that take in registers?",
        ),
        hints=(
            "Three of the four products have all their factors before the first of them starts. "
            "Which result is needed first, and by whom?",
            "Start r kᵀ, r S and S + kᵀ v, in this order, all with is_async=True. Wait so that "
            "two may go on. Mask. Start scores v on top of r S. Wait for all.",
            "b_a = warpgroup_mma(b_r, k_by_channel, zeros, use_acc=False, is_async=True); b_o = "
            "warpgroup_mma(b_r, s_state, zeros, use_acc=False, is_async=True); b_s = warpgroup_mma"
            "(k_by_channel, s_v.index(i), b_s, is_async=True); b_a, b_r = warpgroup_mma_wait(2, "
            "deps=(b_a, b_r)); … b_o = warpgroup_mma(b_a, s_v.index(i), b_o, is_async=True); "
            "b_o, b_s, b_a, b_r = warpgroup_mma_wait(0, deps=(b_o, b_s, b_a, b_r)).",
        ),
        evidence=(
            answer(
                Case("a chunk, no decay, no state", "chunk", partial(chunks, 1, 64, 1, "none", 0)),
                Case("a chunk that decays", "chunk", partial(chunks, 1, 64, 1, "some", 0)),
                Case("a chunk and a state", "state in", partial(chunks, 1, 64, 1)),
                Case("three chunks", "state", partial(chunks, 1, 192, 1)),
                Case("the strongest decay", "decay", partial(chunks, 1, 128, 1, "most")),
                Case("two heads", "head", partial(chunks, 1, 64, 2)),
                Case("in any order", "programs", partial(chunks, 2, 64, 2), reverse=True),
            ),
            in_flight(COUNTED, waits("product", 3, 4), most("product", 3), hidden("copy in", 0.7)),
            machine_code(
                partial(chunks, 1, 64, 2),
                at_least(20, "HGMMA", text="five products of 64 × 64 × 64 (20 HGMMA)"),
                at_least(1, "UTMALDG", text="tiles by TMA (UTMALDG)"),
                no_spills(),
            ),
            gpu(partial(chunks, 2, 512, 64)),
        ),
        symptoms=ASKED
        | {
            "chunk": "o is r S, and scores times v on top of it; s1 is S and kᵀ v on top.",
            "state in": "o reads s_state, the state as it was before the chunk.",
            "state": "b_s goes from chunk to chunk: the product adds to it.",
            "decay": "All factors are decayed already: nothing is left to multiply.",
        },
    ),
}
