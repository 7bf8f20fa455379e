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
    """The warp, lane and register that hold element [i, j] of a product of 64 rows.

    A warp has 16 rows. In 16 rows × 8 columns a lane has four elements: two neighbours in row
    lane // 4, at columns 2·(lane % 4) and the next, and the two elements 8 rows below. Registers
    0 to 3 are these four, the upper two first; registers 4 to 7 are those of the next 8 columns.
    """
    ### BEGIN SOLUTION
    warp, lane = i // 16, i % 8 * 4 + j % 8 // 2
    return warp, lane, j // 8 * 4 + i % 16 // 8 * 2 + j % 2
    ### END SOLUTION


@gluon.jit
def within(r, k, v, o):
    """o = (r kᵀ, for this token and earlier ones) v: one chunk of a head per program, no state.

    All four are descriptors of [tokens, heads·64] in bfloat16, with tiles of 64 × 64; the grid is
    (tokens / 64, heads).
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
    """Starts to copy a tile, if `there`."""
    tma.async_copy_global_to_shared(x, [row, column], ready, tile, pred=there)


@gluon.jit
def kernel(r, k, v, w, u, s0, o, s1, T, H: gl.constexpr):
    """RWKV-6: one head of a batch row per program, grid (B·H,), in chunks of 64 tokens.

    r, k, v, w, o are descriptors of [B·T, H·64] in bfloat16, with tiles of 64 × 64; w is the log
    decay. u is [H, 64], s0 and s1 are [B, H, 64, 64], keys × values, in float32. T is a multiple of
    64, and within a chunk w of a channel sums to no less than -69.
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
    "wait": "The registers that warpgroup_mma returns are not valid yet. Use the values that "
    "warpgroup_mma_wait returns, and name the product among its deps.",
    "in flight": "A left factor in registers must not change until its product is done: name it "
    "in deps of that wait.",
    "overwritten": "A product reads its tiles until a wait has covered it.",
    "left": "The last wait must cover all products: warpgroup_mma_wait(0, …).",
    "programs": "Programs run in any order and must not depend on each other.",
    "head": "A program must read only the tiles of its own head.",
    "not a number": "A tile or a sum is used that was never written. Which one?",
    "idle": "Start all products whose factors are ready, and wait only before a line that reads "
    "a result.",
}

EXERCISES = {
    "holder": Exercise(
        minutes=10,
        difficulty=2,
        afterwards=Afterwards(
            why={
                "warp, lane = i // 16, i % 8 * 4 + j % 8 // 2": "Four lanes share a row of 8 "
                "columns, two neighbouring elements each, which are 4 bytes in bfloat16.",
                "return warp, lane, j // 8 * 4 + i % 16 // 8 * 2 + j % 2": "64 columns are 8 "
                "groups of four registers: 32.",
            },
            instead={
                "Through shared memory": "any layout can become any other, for a store, a "
                "barrier and a load.",
            },
            stretch="For a sum over a row, which lanes have to exchange values, and in how many "
            "steps? And for a sum over a column?",
        ),
        hints=(
            "Answer four questions: which group of 16 rows, which of its 8 rows and which pair "
            "of columns, upper or lower half, left or right of the pair.",
            "warp = i // 16. lane = 4 · (i % 8) + the number of the pair, j % 8 // 2. Among the "
            "four registers, add 2 for the lower half and 1 for the right element.",
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
            "its neighbour": "Two neighbouring elements belong to the same lane.",
            "the next lane": "Four lanes share a row of 8 columns.",
            "8 rows below": "8 rows below is the same lane, two registers later.",
            "8 columns to the right": "8 columns to the right is the same lane, four registers "
            "later.",
        },
    ),
    "within": Exercise(
        minutes=15,
        difficulty=2,
        afterwards=Afterwards(
            why={
                "b_a = gl.convert_layout(b_a.to(gl.bfloat16), LEFT)": "Each thread already has "
                "the elements it needs as a left factor, so no data moves.",
                "b_o, b_a = warpgroup_mma_wait(0, deps=(b_o, b_a))": "The product reads the "
                "registers of b_a while it runs, so they must not be reused before.",
            },
            instead={
                "Scores through shared memory": "costs 8 KB, a store, a fence and a barrier, "
                "between two products of which the second needs the first.",
            },
            stretch="The second half of the tokens reads all 64 tokens, the first half only 32. "
            "Which products of 64 × 32 would be enough, and what would they save?",
        ),
        hints=(
            "The order is product, wait, mask, round, product, wait. Which factor is a tile, and "
            "which is in registers?",
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
        | {"chunk": "Row t of the scores is r[t]·k[s] for s ≤ t, else 0. Multiply it by v."},
    ),
    "kernel": Exercise(
        minutes=25,
        difficulty=3,
        afterwards=Afterwards(
            why={
                "b_s = warpgroup_mma(k_by_channel, s_v.index(i), b_s, is_async=True)": "Adds to "
                "the state where it is, in registers. Nothing needs the result before the next "
                "chunk.",
                "b_a, b_r = warpgroup_mma_wait(2, deps=(b_a, b_r))": "Products finish in order: "
                "this lets the last two run while the scores are masked and rounded.",
                "b_o, b_s, b_a, b_r = warpgroup_mma_wait(0, deps=(b_o, b_s, b_a, b_r))": "Names "
                "b_r as well, because r S, which was started second, may still be reading it.",
            },
            instead={
                "A wait after each product": "is what tl.dot does: five waits per chunk, and no "
                "work beside the products.",
                "Split r into two bfloat16 parts": "keeps 16 bits of r instead of 8. It costs "
                "three more products and removes most of o's error. The library does it.",
            },
            stretch="The next chunk's scores need no state. Could they be started before this "
            "chunk's last wait? How many registers would that take?",
        ),
        hints=(
            "Three of the four products have all their factors before the first of them starts. "
            "Which result is needed first, and for what?",
            "Start r kᵀ, r S and S + kᵀ v, in this order, all with is_async=True. Wait so that "
            "two may keep running. Mask. Start scores · v, added to r S. Wait for all.",
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
            in_flight(
                COUNTED,
                waits("product", 3, 4),
                most("product", 3),
                hidden("product", 0.3),  # wait(2) hides 12 of 20, wait(1) 8, wait(0) 4
                hidden("copy in", 0.7),
            ),
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
            "chunk": "o is r S plus scores · v; s1 is S′ plus kᵀ v.",
            "state in": "o reads s_state, the state before this chunk.",
            "state": "b_s carries over from chunk to chunk: the product adds to it.",
            "decay": "All factors are already decayed; do not multiply by a decay again.",
        },
    ),
}
