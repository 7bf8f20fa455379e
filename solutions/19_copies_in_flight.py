"""Copies in flight: the tensor memory accelerator moves tiles while threads compute."""

from functools import partial

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from rwkv_lessons.lab.course import exercises
from rwkv_lessons.lab.course.exercises import Afterwards, Exercise
from rwkv_lessons.lab.course.wrong_answers import edit
from rwkv_lessons.lab.evidence.functions import function_cases
from rwkv_lessons.lab.lessons.lessons_19_21.evidence import (
    Case,
    GluonLaunch,
    answer,
    at_least,
    at_most,
    described,
    gpu,
    hidden,
    in_flight,
    machine_code,
    no_spills,
)
from rwkv_lessons.lab.lessons.lessons_19_21.hopper import variants

C = gl.constexpr(64)  # rows and columns of a tile
BYTES = gl.constexpr(64 * 64 * 2)  # of a tile in bfloat16
TILE = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))  # how it lies in shared memory
ROWS = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))  # in registers: 16 B a thread
BAR = gl.constexpr(mbarrier.MBarrierLayout())


def stage_and_phase(t, stages):
    """The stage that tile number t uses, out of `stages`, and the phase to wait for.

    Tiles use the stages in turn. The first wait on a barrier is for phase 0, the next for phase 1,
    then 0 again.
    """
    ### BEGIN SOLUTION
    return t % stages, t // stages % 2
    ### END SOLUTION


@gluon.jit
def one_tile(raw, w):
    """w = -exp(raw): one tile of 64 tokens × 64 channels per program, grid (tokens / 64, heads).

    raw and w are descriptors of [tokens, heads·64] in bfloat16, with tiles of 64 × 64.
    """
    at = [gl.program_id(0) * C, gl.program_id(1) * C]  # the first row and column of the tile
    s_x = gl.allocate_shared_memory(gl.bfloat16, [C, C], TILE)
    ready = gl.allocate_shared_memory(gl.int64, [1], BAR)
    mbarrier.init(ready, count=1)
    fence_async_shared()
    ### BEGIN SOLUTION
    mbarrier.expect(ready, BYTES)
    tma.async_copy_global_to_shared(raw, at, ready, s_x)
    mbarrier.wait(ready, 0)
    b_x = s_x.load(ROWS).to(gl.float32)
    ### END SOLUTION
    b_w = -gl.exp(b_x)
    ### BEGIN SOLUTION
    s_x.store(b_w.to(gl.bfloat16))
    fence_async_shared()
    tma.async_copy_shared_to_global(w, at, s_x)
    tma.store_wait(0)
    ### END SOLUTION


@gluon.jit
def kernel(raw, w, T, H: gl.constexpr):
    """w = -exp(raw) for all T tokens of a head: one program per head of a batch row, grid (B·H,).

    raw and w are descriptors of [B·T, H·64] in bfloat16, with tiles of 64 × 64; T is a multiple of
    64. While a tile is worked on, the copy of the next one is in flight.
    """
    row, column = gl.program_id(0) // H * T, gl.program_id(0) % H * C  # of the first tile
    s_x = gl.allocate_shared_memory(gl.bfloat16, [2, C, C], TILE)
    s_w = gl.allocate_shared_memory(gl.bfloat16, [C, C], TILE)
    ready = gl.allocate_shared_memory(gl.int64, [2, 1], BAR)
    mbarrier.init(ready.index(0), count=1)
    mbarrier.init(ready.index(1), count=1)
    fence_async_shared()
    ### BEGIN SOLUTION
    mbarrier.expect(ready.index(0), BYTES)
    tma.async_copy_global_to_shared(raw, [row, column], ready.index(0), s_x.index(0))
    ### END SOLUTION
    for t in range(0, T, C):
        i, phase = t // C % 2, t // C // 2 % 2
        ### BEGIN SOLUTION
        more = t + C < T
        after = [row + t + C, column]
        mbarrier.expect(ready.index(1 - i), BYTES, pred=more)
        tma.async_copy_global_to_shared(raw, after, ready.index(1 - i), s_x.index(1 - i), pred=more)
        mbarrier.wait(ready.index(i), phase)
        b_x = s_x.index(i).load(ROWS).to(gl.float32)
        ### END SOLUTION
        b_w = -gl.exp(b_x)
        ### BEGIN SOLUTION
        tma.store_wait(0)
        s_w.store(b_w.to(gl.bfloat16))
        fence_async_shared()
        tma.async_copy_shared_to_global(w, [row + t, column], s_w)
        ### END SOLUTION
    tma.store_wait(0)


def launch(B, T, H):
    """The grid and the size arguments of `kernel`."""
    return (B * H,), {"T": T, "H": H}


def forward(raw):
    """w = -exp(raw) of [B, T, H, 64] in bfloat16 on a Hopper GPU; T is a multiple of 64."""
    B, T, H, N = raw.shape
    w = torch.empty_like(raw)
    grid, sizes = launch(B, T, H)
    kernel[grid](described(raw, H * N), described(w, H * N), **sizes, num_warps=4)
    return w


def rungs():
    """{rung of the ladder: a function (r, k, v, w, u, s0) → o, s1}, both RWKV-6 kernels.

    They are lesson 20's kernel with a wait after each product. One fetches the four tiles of a
    chunk and waits for them; the other fetches them while it works on the chunk before.
    """
    of_20 = exercises.solutions("20_products_in_flight")
    steps = {"two_stages": [of_20.A_WAIT_BEHIND_EACH], "one_stage": ONE_STAGE}
    kernels = variants("20_products_in_flight.kernel", **steps)
    return {name: partial(of_20.forward, kernel=kernel) for name, kernel in kernels.items()}


ONE_STAGE = (
    edit(
        """
        mbarrier.expect(ready.index(0), 4 * BYTES)
        fetch(r, s_r.index(0), ready.index(0), first, column, 0 < T)
        fetch(k, s_k.index(0), ready.index(0), first, column, 0 < T)
        fetch(v, s_v.index(0), ready.index(0), first, column, 0 < T)
        fetch(w, s_w.index(0), ready.index(0), first, column, 0 < T)
        """
    ),
    edit(
        """
        i = t // C % 2
        mbarrier.wait(ready.index(i), t // C // 2 % 2)
        """,
        """
        i = 0
        tma.store_wait(0)
        mbarrier.expect(ready.index(i), 4 * BYTES)
        fetch(r, s_r.index(i), ready.index(i), first + t, column, t < T)
        fetch(k, s_k.index(i), ready.index(i), first + t, column, t < T)
        fetch(v, s_v.index(i), ready.index(i), first + t, column, t < T)
        fetch(w, s_w.index(i), ready.index(i), first + t, column, t < T)
        mbarrier.wait(ready.index(i), t // C % 2)
        """,
    ),
    edit(
        """
        tma.store_wait(0)  # o of the chunk before has left the stage of the next
        behind = first + t + C
        more = t + C < T
        mbarrier.expect(ready.index(1 - i), 4 * BYTES, pred=more)
        fetch(r, s_r.index(1 - i), ready.index(1 - i), behind, column, more)
        fetch(k, s_k.index(1 - i), ready.index(1 - i), behind, column, more)
        fetch(v, s_v.index(1 - i), ready.index(1 - i), behind, column, more)
        fetch(w, s_w.index(1 - i), ready.index(1 - i), behind, column, more)
        """
    ),
)


def decays(B, T, H, whole=False):
    """A `GluonLaunch` of `kernel`, or of `one_tile`."""
    raw = 2 * torch.randn(B, T, H, 64, generator=torch.Generator().manual_seed(T)).bfloat16()
    grid, sizes = launch(B, T, H)
    return GluonLaunch(
        (B * T // 64, H, 1) if whole else grid,
        {"raw": raw},
        {"w": raw.shape},
        {"w": -raw.double().exp()},
        {} if whole else sizes,
        letters={"w": "bthi"},
        dtype=torch.bfloat16,
        tolerance=2**-8.5,  # w is rounded to bfloat16
        size=f"B={B} T={T} H={H} N=64",
        described={"raw": H * 64, "w": H * 64},
    )


TILES = partial(decays, whole=True)
COPIED = at_least(1, "UTMALDG", text="tiles loaded by the tensor memory accelerator (UTMALDG)")
STORED = at_least(1, "UTMASTG", text="tiles stored by the tensor memory accelerator (UTMASTG)")
NOTHING_ELSE = at_most(0, "LDG", "STG", text="no loads or stores by threads (LDG, STG)")
FLIGHTS = {
    "hang": "Announce each tile exactly once, with its bytes, before you wait for it.",
    "wait": "Between starting a copy and reading its tile, wait on the tile's barrier, with the "
    "phase that belongs to this use of the stage.",
    "fence": "The order is: threads write, then the fence, then the copy that reads what they "
    "wrote.",
    "overwritten": "Is it a copy in? Then the next tile belongs in the other stage, 1 - i, with "
    "its own barrier. A copy out? store_wait(0) waits until it has read the tile.",
    "left": "At the end nothing may be in flight: no store, and no tile that is never used.",
    "tile": "Copy one tile, at [row, column]: the output is -exp of the input.",
    "head": "Head h is in columns 64·h to 64·h + 63 of a row.",
    "batch": "Batch row b starts at row b·T and ends before the next batch row.",
    "tiles": "Tile t starts at row + t. Which stage is it in, and which tile do you fetch next?",
    "programs": "Programs run in any order and must not depend on each other.",
    "idle": "Start the copy of the next tile before the work on this one, not after it.",
}

EXERCISES = {
    "stage_and_phase": Exercise(
        minutes=5,
        difficulty=1,
        afterwards=Afterwards(
            why={
                "return t % stages, t // stages % 2": "How often the stage was used before, "
                "reduced to even or odd, because a barrier keeps one bit.",
            },
            instead={
                "A counter that flips": "phase ^= 1 whenever the stage is 0 again. It costs one "
                "operation and a variable that lives through the loop.",
            },
            stretch="With one bit, phase 2 looks like phase 0. What must never happen, so that "
            "the two are not confused?",
        ),
        hints=(
            "Write down t, stage and phase for six tiles and two stages.",
            "A stage comes back every `stages` tiles. The phase is the number of times it has "
            "come back, modulo 2.",
            "return t % stages, t // stages % 2",
        ),
        evidence=(
            function_cases(
                ("the first tile", (0, 2), (0, 0)),
                ("the second tile", (1, 2), (1, 0)),
                ("a stage for the second time", (2, 2), (0, 1)),
                ("a stage for the third time", (5, 2), (1, 0)),
                ("three stages", (4, 3), (1, 1)),
                ("one stage", (3, 1), (0, 1)),
                ("tile 63 of four stages", (63, 4), (3, 1)),
                more=[(t, stages) for t in range(40) for stages in range(1, 8)],
                whole=True,
            ),
        ),
        symptoms={
            "the second tile": "Use the stages in turn: 0, 1, 0, 1, … The second tile is the "
            "first in stage 1, so it waits for phase 0.",
            "a stage for the second time": "On its second use a barrier is in phase 1.",
            "a stage for the third time": "On its third use a barrier is in phase 0 again.",
            "three stages": "Tiles 0, 1, 2 use the three stages for the first time, tiles 3, 4, "
            "5 for the second.",
        },
    ),
    "one_tile": Exercise(
        minutes=12,
        difficulty=1,
        afterwards=Afterwards(
            why={
                "mbarrier.expect(ready, BYTES)": "The phase ends when this announcement *and* "
                "that many bytes have arrived. Without the number it could end with half a tile.",
                "fence_async_shared()": "The copy reads shared memory through a different path "
                "than the threads write it. The fence makes their writes visible to it.",
                "tma.store_wait(0)": "When this program ends, its shared memory goes to the next "
                "one. The copy must have read it by then.",
            },
            instead={
                "gl.load and gl.store": "needs no barrier and no fence, but every thread "
                "computes addresses, and the tile in flight occupies registers.",
            },
            stretch="The whole copy is one instruction of one thread. What do the other 127 "
            "threads do until the wait?",
        ),
        hints=(
            "In: announce, start, wait, read. Out: write, fence, start, wait.",
            "mbarrier.expect(barrier, bytes); tma.async_copy_global_to_shared(descriptor, at, "
            "barrier, tile); mbarrier.wait(barrier, phase); tile.load(layout). Back: tile.store("
            "value), fence_async_shared(), tma.async_copy_shared_to_global(descriptor, at, tile), "
            "tma.store_wait(0).",
            "mbarrier.expect(ready, BYTES); tma.async_copy_global_to_shared(raw, at, ready, s_x); "
            "mbarrier.wait(ready, 0); b_x = s_x.load(ROWS).to(gl.float32) … "
            "s_x.store(b_w.to(gl.bfloat16)).",
        ),
        evidence=(
            answer(
                Case("one tile", "tile", partial(TILES, 1, 64, 1)),
                Case("two heads", "head", partial(TILES, 1, 64, 2)),
                Case("four tiles of tokens", "batch", partial(TILES, 2, 128, 1)),
                Case("in any order", "programs", partial(TILES, 1, 128, 2), reverse=True),
            ),
            machine_code(partial(TILES, 1, 128, 2), COPIED, STORED, NOTHING_ELSE, no_spills()),
            gpu(partial(TILES, 8, 1024, 64)),
        ),
        symptoms=FLIGHTS,
    ),
    "kernel": Exercise(
        minutes=25,
        difficulty=2,
        afterwards=Afterwards(
            why={
                "mbarrier.expect(ready.index(1 - i), BYTES, pred=more)": "The next tile goes "
                "into the other stage, which the threads finished with one iteration ago. After "
                "the last tile there is none, and announcing it would leave the barrier waiting "
                "for bytes that never come.",
                "tma.store_wait(0)": "The previous iteration's copy out has had all this time, "
                "so the wait is short.",
            },
            instead={
                "Write w into the stage that raw arrived in": "saves 8 KB. But no tile may "
                "arrive in this stage until the copy out has read it, so the store's wait moves to "
                "before the next copy in.",
                "Three stages": "keeps two tiles in flight, for 8 KB more.",
            },
            stretch="Suppose one warp starts all copies and the other warps only compute. Who "
            "waits for whom then, and which barriers do the two sides need?",
        ),
        hints=(
            "Before the loop, start the first tile as in one_tile. In the loop, start the next "
            "tile, then wait for this one. What must be true of the next tile's stage by then?",
            "Next tile: expect and copy with ready.index(1 - i), s_x.index(1 - i), pred=t + C < "
            "T. This tile: wait(ready.index(i), phase), load. Out: store_wait(0) before s_w is "
            "written again.",
            "mbarrier.expect(ready.index(1 - i), BYTES, pred=more); tma.async_copy_global_to_shared"
            "(raw, [row + t + C, column], ready.index(1 - i), s_x.index(1 - i), pred=more); "
            "mbarrier.wait(ready.index(i), phase); … tma.store_wait(0); s_w.store(…); "
            "fence_async_shared(); tma.async_copy_shared_to_global(w, [row + t, column], s_w).",
        ),
        evidence=(
            answer(
                Case("one tile", "tile", partial(decays, 1, 64, 1)),
                Case("two tiles", "tiles", partial(decays, 1, 128, 1)),
                Case("five tiles", "tiles", partial(decays, 1, 320, 1)),
                Case("two heads", "head", partial(decays, 1, 128, 2)),
                Case("two batch rows", "batch", partial(decays, 2, 192, 1)),
                Case("in any order", "programs", partial(decays, 2, 128, 2), reverse=True),
            ),
            in_flight(partial(decays, 1, 512, 2), hidden("copy in", 0.8)),
            machine_code(
                partial(decays, 1, 512, 2),
                COPIED,
                STORED,
                at_least(2, "SYNCS", text="barriers that count bytes (SYNCS)"),
                NOTHING_ELSE,
                no_spills(),
            ),
            gpu(partial(decays, 8, 1024, 64)),
        ),
        symptoms=FLIGHTS,
    ),
}
