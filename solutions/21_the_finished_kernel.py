"""The finished kernel: high and low parts, and what the library's last steps are for."""

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

from rwkv_lessons.lab.course import exercises
from rwkv_lessons.lab.course.exercises import Afterwards, Exercise
from rwkv_lessons.lab.course.wrong_answers import edit
from rwkv_lessons.lab.evidence.functions import function_cases
from rwkv_lessons.lab.lessons.lessons_19_21 import hopper
from rwkv_lessons.lab.lessons.lessons_19_21.evidence import (
    Case,
    answer,
    at_least,
    gpu,
    hidden,
    high_and_low,
    in_flight,
    machine_code,
    most,
    waits,
)
from rwkv_lessons.lab.lessons.lessons_19_21.hopper import variants
from rwkv_lessons.wkv6.chunked.hopper.tiles import (  # noqa: F401  for the steps
    below_and_on_diagonal,
    rounded,
    widened,
)
from rwkv_lessons.wkv6.chunked.hopper.tiles import in_two as pairs_in_two  # noqa: F401  as well

C = gl.constexpr(64)  # tokens of a chunk, channels of a head
BYTES = gl.constexpr(64 * 64 * 2)  # of a tile in bfloat16
TILE = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))  # how it lies in shared memory
BAR = gl.constexpr(mbarrier.MBarrierLayout())
of_64_columns = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])  # wgmma, four warps
SUMS = gl.constexpr(of_64_columns)
LEFT = gl.constexpr(gl.DotOperandLayout(0, of_64_columns, 2))
LOG2E = gl.constexpr(1.4426950408889634)


def split(x):
    """high, low: two bfloat16 tensors whose sum has 16 of the 24 bits of a float32 tensor."""
    ### BEGIN SOLUTION
    high = x.bfloat16()
    return high, (x - high.float()).bfloat16()
    ### END SOLUTION


def let_go(started, needed):
    """How many products may keep running, at most, when a wait returns.

    started: the result that each product adds to, in starting order, such as ["a", "a", "o"].
    needed: the results that are read after the wait, such as ["a"]. If none of them was
    started, all products may keep running.
    """
    ### BEGIN SOLUTION
    last = max((n for n, name in enumerate(started, 1) if name in needed), default=0)
    return len(started) - last
    ### END SOLUTION


@gluon.jit
def in_two(x):
    """`split`, of a tile in registers."""
    high = x.to(gl.bfloat16)
    return high, (x - high.to(gl.float32)).to(gl.bfloat16)


@gluon.jit
def fetch(x, tile, ready, row, column, there):
    """Starts copying a tile, if it is there."""
    tma.async_copy_global_to_shared(x, [row, column], ready, tile, pred=there)


@gluon.jit
def kernel(r, k, v, w, u, s0, o, s1, T, H: gl.constexpr):
    """As in lesson 20, with r and k split into high and low parts in bfloat16.

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
    s_low = gl.allocate_shared_memory(gl.bfloat16, [C, C], TILE)  # of k
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
        ### BEGIN SOLUTION
        k_high, k_low = in_two(b_k)
        s_k.index(i).store(k_high)
        s_low.store(k_low)
        s_state.store(b_s.to(gl.bfloat16))
        fence_async_shared()
        r_high, r_low = in_two(b_r)
        r_high, r_low = gl.convert_layout(r_high, LEFT), gl.convert_layout(r_low, LEFT)
        ### END SOLUTION
        high, low = s_k.index(i).permute((1, 0)), s_low.permute((1, 0))  # of k, by channel
        ### BEGIN SOLUTION
        b_a = warpgroup_mma(r_high, high, zeros, use_acc=False, is_async=True)
        b_a = warpgroup_mma(r_low, high, b_a, is_async=True)
        b_a = warpgroup_mma(r_high, low, b_a, is_async=True)
        b_o = warpgroup_mma(r_high, s_state, zeros, use_acc=False, is_async=True)
        b_o = warpgroup_mma(r_low, s_state, b_o, is_async=True)
        b_s = warpgroup_mma(high, s_v.index(i), b_s, is_async=True)
        b_s = warpgroup_mma(low, s_v.index(i), b_s, is_async=True)
        b_a, r_high, r_low = warpgroup_mma_wait(2, deps=(b_a, r_high, r_low))
        ### END SOLUTION
        b_a = gl.where(row > col, b_a, gl.where(row == col, b_bonus, 0.0))
        b_a = gl.convert_layout(b_a.to(gl.bfloat16), LEFT)
        ### BEGIN SOLUTION
        b_o = warpgroup_mma(b_a, s_v.index(i), b_o, is_async=True)
        b_o, b_s, b_a = warpgroup_mma_wait(0, deps=(b_o, b_s, b_a))
        ### END SOLUTION
        s_r.index(i).store(b_o.to(gl.bfloat16))
        fence_async_shared()
        tma.async_copy_shared_to_global(o, [first + t, column], s_r.index(i))
    tma.store_wait(0)
    gl.store(s1 + o_s, b_s)


@gluon.jit
def produce(r, k, v, w, s_r, s_k, s_v, s_w, ready, free, first, column, T):
    """The producer, one warp: four tiles a chunk, as soon as their stage is free."""
    for t in range(0, T, C):
        i = t // C % 2
        mbarrier.wait(free.index(i), t // C // 2 % 2 ^ 1)  # at first both stages are
        mbarrier.expect(ready.index(i), 4 * BYTES)
        fetch(r, s_r.index(i), ready.index(i), first + t, column, t < T)
        fetch(k, s_k.index(i), ready.index(i), first + t, column, t < T)
        fetch(v, s_v.index(i), ready.index(i), first + t, column, t < T)
        fetch(w, s_w.index(i), ready.index(i), first + t, column, t < T)


@gluon.jit
def consume(
    u, s0, o, s1, s_r, s_k, s_v, s_w, s_later, s_mask, ready, free, first, column,
    T, H: gl.constexpr,
):  # fmt: skip
    """The consumers, four warps: `kernel` after its last step, but for the copies in."""
    s_low = gl.allocate_shared_memory(gl.bfloat16, [C, C], TILE)  # of k
    s_state = gl.allocate_shared_memory(gl.bfloat16, [C, C], TILE)
    s_o = gl.allocate_shared_memory(gl.bfloat16, [C, C], TILE)
    row = gl.arange(0, C, gl.SliceLayout(1, SUMS))[:, None]
    col = gl.arange(0, C, gl.SliceLayout(0, SUMS))[None, :]
    b_u = gl.load(u + gl.program_id(0) % H * C + col)
    o_s = gl.program_id(0) * C * C + row * C + col
    b_s = gl.load(s0 + o_s)
    zeros = gl.full([C, C], 0.0, gl.float32, SUMS)
    for t in range(0, T, C):
        i = t // C % 2
        mbarrier.wait(ready.index(i), t // C // 2 % 2)
        b_later = warpgroup_mma(s_later, s_w.index(i), zeros, use_acc=False, is_async=True)
        b_r = widened(s_r.index(i).load(SUMS))
        b_k = widened(s_k.index(i).load(SUMS))
        b_w = widened(s_w.index(i).load(SUMS))
        b_bonus = gl.sum(b_r * b_k * b_u, 1)[:, None]
        b_total = gl.convert_layout(gl.sum(b_w, 0), gl.SliceLayout(1, SUMS))[:, None]
        b_later = warpgroup_mma_wait(0, deps=(b_later,))
        b_k *= gl.exp2(b_later * LOG2E)
        b_r *= gl.exp2((-b_later - b_w) * LOG2E)
        b_s *= gl.exp2(b_total * LOG2E)
        k_high, k_low = pairs_in_two(b_k)
        s_k.index(i).store(k_high)
        s_low.store(k_low)
        s_state.store(rounded(b_s))
        fence_async_shared()
        r_high, r_low = pairs_in_two(b_r)
        r_high, r_low = gl.convert_layout(r_high, LEFT), gl.convert_layout(r_low, LEFT)
        high, low = s_k.index(i).permute((1, 0)), s_low.permute((1, 0))
        b_a = warpgroup_mma(r_high, high, zeros, use_acc=False, is_async=True)
        b_a = warpgroup_mma(r_low, high, b_a, is_async=True)
        b_a = warpgroup_mma(r_high, low, b_a, is_async=True)
        b_o = warpgroup_mma(r_high, s_state, zeros, use_acc=False, is_async=True)
        b_o = warpgroup_mma(r_low, s_state, b_o, is_async=True)
        b_s = warpgroup_mma(high, s_v.index(i), b_s, is_async=True)
        b_s = warpgroup_mma(low, s_v.index(i), b_s, is_async=True)
        b_a, r_high, r_low = warpgroup_mma_wait(2, deps=(b_a, r_high, r_low))
        b_a = below_and_on_diagonal(b_a, b_bonus.to(gl.bfloat16), s_mask.load(SUMS))
        b_a = gl.convert_layout(b_a, LEFT)
        b_o = warpgroup_mma(b_a, s_v.index(i), b_o, is_async=True)
        tma.store_wait(0)  # o of the chunk before has left
        b_o, b_s, b_a = warpgroup_mma_wait(0, deps=(b_o, b_s, b_a))
        mbarrier.arrive(free.index(i), count=1)
        s_o.store(rounded(b_o))
        fence_async_shared()
        tma.async_copy_shared_to_global(o, [first + t, column], s_o)
    tma.store_wait(0)
    gl.store(s1 + o_s, b_s)


@gluon.jit
def producer_and_consumer(r, k, v, w, u, s0, o, s1, T, H: gl.constexpr):
    """`kernel` with its copies in a warp of their own."""
    first, column = gl.program_id(0) // H * T, gl.program_id(0) % H * C
    s_r = gl.allocate_shared_memory(gl.bfloat16, [2, C, C], TILE)
    s_k = gl.allocate_shared_memory(gl.bfloat16, [2, C, C], TILE)
    s_v = gl.allocate_shared_memory(gl.bfloat16, [2, C, C], TILE)
    s_w = gl.allocate_shared_memory(gl.bfloat16, [2, C, C], TILE)
    s_later = gl.allocate_shared_memory(gl.bfloat16, [C, C], TILE)
    s_mask = gl.allocate_shared_memory(gl.int16, [C, C], TILE)
    ready = gl.allocate_shared_memory(gl.int64, [2, 1], BAR)
    free = gl.allocate_shared_memory(gl.int64, [2, 1], BAR)
    for stage in gl.static_range(2):
        mbarrier.init(ready.index(stage), count=1)
        mbarrier.init(free.index(stage), count=1)
    row = gl.arange(0, C, gl.SliceLayout(1, SUMS))[:, None]
    col = gl.arange(0, C, gl.SliceLayout(0, SUMS))[None, :]
    s_later.store((col > row).to(gl.bfloat16))
    s_mask.store(gl.where(row > col, -256, gl.where(row == col, 255, 0)).to(gl.int16))
    fence_async_shared()
    gl.warp_specialize(
        [
            (consume, (u, s0, o, s1, s_r, s_k, s_v, s_w, s_later, s_mask, ready, free, first,
                       column, T, H)),
            (produce, (r, k, v, w, s_r, s_k, s_v, s_w, ready, free, first, column, T)),
        ],
        [1], [24],
    )  # fmt: skip


def launch(B, T, H):
    """The grid and the sizes of `kernel`."""
    return (B * H,), {"T": T, "H": H}


def forward(r, k, v, w, u, s0, kernel=kernel, **options):
    """o and s1 on a Hopper GPU, as in lesson 20."""
    return exercises.solutions("20_products_in_flight").forward(
        r, k, v, w, u, s0, kernel=kernel, **options
    )


def steps():
    """{what has been changed: a kernel}, one more change each.

    The last lines of the library's ladder, in the lesson's kernel; but for the first, all compute
    the same.
    """
    first = exercises.solutions("20_products_in_flight").kernel
    return {"r and k not split": first} | variants("21_the_finished_kernel.kernel", **STEPS)


def rungs():
    """{rung of the ladder: a function like `forward`}, each with one change more."""
    _, *kernels = steps().values()
    made = {name: partial(forward, kernel=x) for name, x in zip(RUNGS, kernels, strict=True)}
    # 128 registers for each of 8 warps let two programs share an SM; the consumers get 232.
    return made | {"producer": partial(forward, kernel=producer_and_consumer, maxnreg=128)}


RUNGS = "two_pieces", "pairs", "masks"
STEPS = {
    "high and low parts": (),
    "packed conversions": (
        *(
            edit(f"s_{x}.index(i).load(SUMS).to(gl.float32)", f"widened(s_{x}.index(i).load(SUMS))")
            for x in "rkw"
        ),
        edit("in_two(b_k)", "pairs_in_two(b_k)"),
        edit("= in_two(b_r)", "= pairs_in_two(b_r)"),
        *(edit(f"b_{x}.to(gl.bfloat16)", f"rounded(b_{x})") for x in "soa"),
    ),
    "masks in shared memory": (
        edit(
            "s_later.store",
            """
            s_mask = gl.allocate_shared_memory(gl.int16, [C, C], TILE)
            s_mask.store(gl.where(row > col, -256, gl.where(row == col, 255, 0)).to(gl.int16))
            s_later.store""",
        ),
        edit(
            "b_a = gl.where(row > col, b_a, gl.where(row == col, b_bonus, 0.0))",
            "b_a = below_and_on_diagonal(b_a, b_bonus.to(gl.bfloat16), s_mask.load(SUMS))",
        ),
        edit("gl.convert_layout(rounded(b_a), LEFT)", "gl.convert_layout(b_a, LEFT)"),
    ),
}
chunks = partial(hopper.split_chunks, launch)
COUNTED = partial(chunks, 1, 256, 1)  # four chunks

EXERCISES = {
    "split": Exercise(
        minutes=5,
        difficulty=1,
        afterwards=Afterwards(
            why={
                "return high, (x - high.float()).bfloat16()": "x - high is exact in float32: the "
                "upper 8 bits cancel, 16 are left, and 8 of those fit.",
            },
            instead={
                "Cut off the lower 16 bits": "is one instruction and rounds nothing. But high "
                "can then be off by a whole unit in the last place, and low has to hold one bit "
                "more.",
                "TF32": "has 11 bits without a split, at half the rate of bfloat16 products.",
            },
            stretch="A third part would hold the last 8 bits. How many products would then be "
            "worth computing?",
        ),
        hints=(
            "What does rounding to bfloat16 remove, as a number?",
            "high is x rounded. The rest is x - high, in float32; round that as well.",
            "high = x.bfloat16(); return high, (x - high.float()).bfloat16()",
        ),
        evidence=(
            high_and_low(
                ("numbers that fit", torch.tensor([0.0, 1.0, -2.5, 2.0**60])),
                ("a few bits more", torch.tensor([1 + 2.0**-10, 3 - 2.0**-14, -1 - 2.0**-12])),
                ("any", torch.randn(100, generator=torch.Generator().manual_seed(0))),
                ("large and small", torch.logspace(-25, 25, 100)),
            ),
        ),
        symptoms={
            "numbers that fit": "Then low is 0.",
            "a few bits more": "low is the part that rounding removed: x - high.",
            "large and small": "Both parts have the exponent range of float32.",
        },
    ),
    "let_go": Exercise(
        minutes=6,
        difficulty=1,
        afterwards=Afterwards(
            why={
                "return len(started) - last": "Products finish in order: all those after the "
                "last one that is needed may keep running.",
            },
            instead={
                "0, always": "is correct, and it is what `tl.dot` does after each product.",
            },
            stretch="The library lets 2 of 7 keep running, although the scores alone would allow "
            "4. Which other products have to be done by then?",
        ),
        hints=(
            "Number the products. Which is the last that must be done?",
            "Find the last place in `started` whose name is needed. The products after it may "
            "keep running. If none is needed, all may.",
            "last = max((n for n, name in enumerate(started, 1) if name in needed), default=0); "
            "return len(started) - last",
        ),
        evidence=(
            function_cases(
                ("one product", (["a"], ["a"]), 0),
                ("lesson 20's first wait", (["a", "o", "s"], ["a"]), 2),
                ("its last wait", (["o", "s", "o"], ["o", "s"]), 0),
                ("several that add to one", (["a", "a", "a", "o", "o"], ["a"]), 2),
                ("one that is added to again later", (["a", "o", "a", "s"], ["a"]), 1),
                ("two are needed", (["a", "a", "o", "o", "s", "s"], ["a", "o"]), 2),
                ("none is needed", (["o", "s"], ["a"]), 2),
                more=[
                    ([names[n * n // 3 % 4] for n in range(count)], names[first:last])
                    for names in (["a", "o", "s", "dk"], ["x", "a", "y", "z"])
                    for count in (1, 4, 9, 30)
                    for first, last in ((0, 1), (1, 3), (3, 4), (0, 4))
                ]
                + [(["a", *40 * ["o"]], ["a"])],
                whole=True,
            ),
        ),
        symptoms={
            "one product": "A product that is needed must be done: none may keep running.",
            "lesson 20's first wait": "o and s were started after a, so they may keep running.",
            "its last wait": "o is started twice, the second time last, so nothing may keep "
            "running.",
            "two are needed": "Of all that are needed, the one that was started last counts.",
            "several that add to one": "All products that add to it must be done, so the last of "
            "them counts.",
            "one that is added to again later": "The last one counts, not the first.",
            "none is needed": "Nothing is needed, so all may keep running.",
        },
    ),
    "kernel": Exercise(
        minutes=25,
        difficulty=2,
        afterwards=Afterwards(
            why={
                "b_a = warpgroup_mma(r_low, high, b_a, is_async=True)": "Adds to the product "
                "before it, in the same registers; the tensor cores keep that order by "
                "themselves.",
                "b_a, r_high, r_low = warpgroup_mma_wait(2, deps=(b_a, r_high, r_low))": "r is "
                "done when r S is done: its 32 registers are free before the scores are rounded.",
            },
            instead={
                "r_low · low as well": "is a tenth product, for 2⁻¹⁶ of a score that is rounded "
                "to 2⁻⁹ right after.",
                "TF32": "has 11 bits without a split, at half the rate, and truncates where "
                "bfloat16 rounds.",
            },
            stretch="o is rounded to 8 bits anyway. Which of the remaining roundings would you "
            "remove next, and what would it cost?",
        ),
        hints=(
            "(r_high + r_low)(k_high + k_low) is four products, and the last is too small to "
            "matter. Which other products read r, and which read k?",
            "Scores: r_high·high, r_low·high, r_high·low. Output: r_high·S, r_low·S. State: "
            "high·v, low·v. Then wait as let_go says, for the scores and for r.",
            "k_high, k_low = in_two(b_k), into s_k.index(i) and s_low; S as before; the fence; "
            "r_high, r_low = in_two(b_r), both converted to LEFT; … "
            "b_a, r_high, r_low = warpgroup_mma_wait(2, deps=(b_a, r_high, r_low)); "
            "… b_o, b_s, b_a = warpgroup_mma_wait(0, deps=(b_o, b_s, b_a)).",
        ),
        evidence=(
            answer(
                Case("a chunk, no decay, no state", "chunk", partial(chunks, 1, 64, 1, "none", 0)),
                Case("a chunk and a state", "state in", partial(chunks, 1, 64, 1)),
                Case("three chunks", "parts", partial(chunks, 1, 192, 1)),
                Case("the strongest decay", "decay", partial(chunks, 1, 128, 1, "most")),
                Case("in any order", "programs", partial(chunks, 2, 64, 2), reverse=True),
            ),
            in_flight(COUNTED, waits("product", 3, 4), most("product", 6), hidden("copy in", 0.7)),
            machine_code(
                partial(chunks, 1, 64, 2),
                at_least(36, "HGMMA", text="nine products of 64 × 64 × 64 (36 HGMMA)"),
                at_least(1, "UTMALDG", text="tiles by TMA (UTMALDG)"),
            ),
            gpu(partial(chunks, 2, 512, 64)),
        ),
        symptoms={
            "wait": "The registers that warpgroup_mma returns are not valid yet. Use the values "
            "that the wait returns, and name the product among its deps.",
            "in flight": "Name r_high and r_low in deps of the wait that ends r S.",
            "fence": "Two tiles and S are written: the fence comes after the last of them.",
            "left": "The last wait must cover all products: warpgroup_mma_wait(0, …).",
            "chunk": "Every product that reads r needs both parts of r, and every product that "
            "reads k needs both parts of k.",
            "parts": "Somewhere r or k goes in with only 8 bits.",
            "state in": "Three products for the scores, two for r S, two for the state: is each "
            "there, with the right parts of r and k?",
            "programs": "Programs run in any order and must not depend on each other.",
            "idle": "Seven products have all their factors at once: start them all, then wait.",
        },
    ),
}
