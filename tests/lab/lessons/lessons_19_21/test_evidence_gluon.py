"""The evidence of the lessons in Gluon: answers of other shapes than ours, and what is told."""

import re

import pytest
import torch

pytest.importorskip("triton")
import triton  # noqa: E402

from rwkv_lessons.lab.course.check import PASSED, evaluate  # noqa: E402
from rwkv_lessons.lab.course.exercises import defined, load, solutions  # noqa: E402
from rwkv_lessons.lab.course.wrong_answers import wrong_answer  # noqa: E402
from rwkv_lessons.lab.lessons.lesson_21 import designs  # noqa: E402
from rwkv_lessons.lab.lessons.lessons_19_21 import hopper  # noqa: E402
from rwkv_lessons.lab.lessons.lessons_19_21.evidence import start, trace, watched  # noqa: E402
from rwkv_lessons.wkv6.chunked.hopper.forward import wkv6_hopper_kernel  # noqa: E402
from warplens.compiled.assembly import assembly
from warplens.pictures import in_flight  # noqa: E402

COPIES, PRODUCTS = "19_copies_in_flight", "20_products_in_flight"
FINISHED = "21_the_finished_kernel"
KERNELS = [f"{COPIES}.one_tile", f"{COPIES}.kernel", f"{PRODUCTS}.within", f"{PRODUCTS}.kernel"]
KERNELS.append(f"{FINISHED}.kernel")


def edited(id, *edits):
    """The solution with lines exchanged for others that do the same."""
    text = load(id).solution
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return defined(id, text, f"<{id}, another shape>")


READ = """        mbarrier.wait(ready.index(i), phase)
        b_x = s_x.index(i).load(ROWS).to(gl.float32)
"""
NEXT = """        mbarrier.expect(ready.index(1 - i), BYTES, pred=more)
        tma.async_copy_global_to_shared(raw, after, ready.index(1 - i), s_x.index(1 - i), pred=more)
"""
FIRST = """    mbarrier.expect(ready.index(0), BYTES)
    tma.async_copy_global_to_shared(raw, [row, column], ready.index(0), s_x.index(0))
"""
STATE = "        b_s = warpgroup_mma(k_by_channel, s_v.index(i), b_s, is_async=True)\n"
OUTPUT = "        b_o = warpgroup_mma(b_r, s_state, zeros, use_acc=False, is_async=True)\n"
LOW_STATE = [
    f"        b_s = warpgroup_mma({piece}, s_v.index(i), b_s, is_async=True)\n"
    for piece in ("high", "low")
]
LOW_OUTPUT = "        b_o = warpgroup_mma(r_high, s_state, zeros, use_acc=False, is_async=True)\n"
SCORES = "        b_a = warpgroup_mma(r_high, low, b_a, is_async=True)\n"
RIGHT = {
    "the next tile after this one is read": (
        f"{COPIES}.kernel",
        (READ, ""),
        ("        more = t", f"{READ}        more = t"),
    ),
    "a branch in place of a predicate": (
        f"{COPIES}.kernel",
        (
            NEXT,
            "        if more:\n" + NEXT.replace(", pred=more", "").replace("        ", " " * 12),
        ),
    ),
    "three stages": (
        f"{COPIES}.kernel",
        ("gl.bfloat16, [2, C, C]", "gl.bfloat16, [3, C, C]"),
        ("gl.int64, [2, 1], BAR)", "gl.int64, [3, 1], BAR)"),
        (
            "    mbarrier.init(ready.index(1), count=1)\n",
            "".join(f"    mbarrier.init(ready.index({n}), count=1)\n" for n in (1, 2)),
        ),
        (
            FIRST,
            FIRST
            + "    mbarrier.expect(ready.index(1), BYTES, pred=C < T)\n"
            + "    at = [row + C, column]\n    tma.async_copy_global_to_shared("
            + "raw, at, ready.index(1), s_x.index(1), pred=C < T)\n",
        ),
        ("t // C % 2, t // C // 2 % 2", "t // C % 3, t // C // 3 % 2"),
        ("more = t + C < T", "more = t + 2 * C < T"),
        ("after = [row + t + C, column]", "after = [row + t + 2 * C, column]"),
        (NEXT, NEXT.replace("1 - i", "(i + 2) % 3")),
    ),
    "in place": (
        f"{COPIES}.kernel",
        ("        more = t", "        tma.store_wait(0)\n        more = t"),
        ("        tma.store_wait(0)\n        s_w.store", "        s_w.store"),
        ("        s_w.store(b_w", "        s_x.index(i).store(b_w"),
        ("[row + t, column], s_w)", "[row + t, column], s_x.index(i))"),
    ),
    "the bytes after the copy is started": (
        f"{COPIES}.one_tile",
        ("    mbarrier.expect(ready, BYTES)\n", ""),
        ("    mbarrier.wait", "    mbarrier.expect(ready, BYTES)\n    mbarrier.wait"),
    ),
    "products that are waited for at once": (
        f"{PRODUCTS}.within",
        ("b_o = warpgroup_mma(b_a, s_v, zeros, use_acc=False, is_async=True)",
         "b_o = warpgroup_mma(b_a, s_v, zeros, use_acc=False)"),
    ),
    "the state before the output": (f"{PRODUCTS}.kernel", (STATE, ""), (OUTPUT, STATE + OUTPUT)),
    "scores and output waited for together": (
        f"{PRODUCTS}.kernel",
        ("warpgroup_mma_wait(2, deps=(b_a, b_r))", "warpgroup_mma_wait(1, deps=(b_a, b_r))"),
    ),
    "a factor that only the last wait names": (
        f"{PRODUCTS}.kernel",
        ("b_a, b_r = warpgroup_mma_wait(2, deps=(b_a, b_r))",
         "b_a = warpgroup_mma_wait(2, deps=(b_a,))"),
    ),
    "the state before the output, in two parts": (
        f"{FINISHED}.kernel",
        *((line, "") for line in LOW_STATE),
        (LOW_OUTPUT, "".join(LOW_STATE) + LOW_OUTPUT),
        ("warpgroup_mma_wait(2, deps=(b_a, r_high, r_low))", "warpgroup_mma_wait(4, deps=(b_a,))"),
        ("b_a, r_high, r_low = warp", "b_a = warp"),
        ("deps=(b_o, b_s, b_a))", "deps=(b_o, b_s, b_a, r_high, r_low))"),
        ("b_o, b_s, b_a = ", "b_o, b_s, b_a, r_high, r_low = "),
    ),
    "the fourth product of the scores as well": (
        f"{FINISHED}.kernel",
        (SCORES, SCORES + SCORES.replace("r_high, low", "r_low, low")),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_kernel_of_another_shape_is_accepted(name):
    id, *edits = RIGHT[name]
    result = evaluate(id, edited(id, *edits))
    assert result.passed, str(result)


def test_scores_through_shared_memory_are_accepted():
    result = evaluate(f"{PRODUCTS}.within", solutions(PRODUCTS).scores_through_shared_memory())
    assert result.passed, str(result)


@pytest.mark.parametrize(
    "id, name, said",
    [
        (f"{COPIES}.one_tile", "never_announced", "line 9: mbarrier.wait(ready, 0)"),
        (f"{COPIES}.one_tile", "half_announced", "announced 4,096 bytes, and the copies that"),
        (f"{COPIES}.kernel", "right_for_two_tiles", "named phase 0 of ready[0], whose current"),
        (f"{COPIES}.kernel", "overwritten_while_stored", "do: tma.store_wait(0)"),
        (f"{COPIES}.kernel", "one_after_another", "with nothing done between"),
        (
            f"{PRODUCTS}.kernel",
            "no_wait_for_scores",
            "b_a: a product is used before the wait for it",
        ),
        (f"{PRODUCTS}.kernel", "right_most_of_the_time", "a factor is not kept until the wait"),
        (f"{PRODUCTS}.kernel", "five_waits", "5 waits for products a chunk, want at most 3"),
    ],
)
def test_the_cause_is_told(id, name, said):
    assert said in str(evaluate(id, wrong_answer(id, name).function))


def test_the_decorator_has_to_be_gluons():
    def kernel(raw, w, T, H):
        pass

    for function, said in ((kernel, "plain Python"), (triton.jit(kernel), "of another kind")):
        (row,) = evaluate(f"{COPIES}.kernel", function).rows
        assert said in row.text and "@gluon.jit" in row.text


def test_what_is_counted_is_what_the_kernel_does():
    lesson = solutions(PRODUCTS)
    seen = trace(lesson.kernel, lesson.chunks(1, 192, 2))
    assert seen.bytes("copy in") == 4 * 192 * 2 * 64 * 2 and seen.bytes("copy out") == 192 * 256
    assert seen.flops == 2 * 3 * 5 * 2 * 64**3
    assert seen.waits("product") == 3 * 6 and seen.most("product") == 3
    (last,) = [x for x in seen.of("copy out", program=1)][-1:]
    assert last.end == seen.steps[-1].n and not seen.meanwhile(last, "compute")


def test_the_timeline_says_who_is_hidden():
    lesson = solutions(COPIES)
    picture = in_flight.timeline(trace(lesson.kernel, lesson.decays(1, 256, 1)))
    assert picture.text.splitlines()[0] == "4 copies in, 3 of them with work meanwhile, 4 waits"
    slow = wrong_answer(f"{COPIES}.kernel", "one_after_another").function
    picture = in_flight.timeline(trace(slow, lesson.decays(1, 256, 1)))
    assert picture.text.splitlines()[0] == "4 copies in, 0 of them with work meanwhile, 4 waits"


def test_holders_are_all_registers_of_all_lanes_once():
    holder = solutions(PRODUCTS).holder
    found = {holder(i, j) for i in range(64) for j in range(64)}
    assert found == {(w, lane, n) for w in range(4) for lane in range(32) for n in range(32)}


def test_scores_become_a_left_factor_where_they_are():
    """The layouts of the lesson, as the compiler understands them: nothing moves between lanes."""
    lesson = solutions(PRODUCTS)
    asm = assembly(lesson.within, **lesson.alone(1, 64, 1).options())
    assert asm.count("SHFL") == asm.count("LDS") == asm.count("LDSM") == 0


def test_the_steps_of_the_finished_kernel_compute_the_same():
    lesson = solutions(FINISHED)
    first, *others = lesson.steps().values()
    launch, found = lesson.chunks(1, 192, 2), []
    for kernel in others:
        tensors = launch.arguments()
        assert not watched(kernel, launch, tensors).faults
        launch.judge(tensors)
        found.append([tensors["o"], tensors["s1"]])
    assert all(torch.equal(x, y) for run in found[1:] for x, y in zip(run, found[0], strict=True))
    assert "s1: first difference" in str(evaluate(f"{FINISHED}.kernel", first))


def test_the_librarys_kernel_runs_as_the_lesson_shows_it():
    launch = hopper.library(1, 192, 2)
    tensors = launch.arguments()
    seen = watched(wkv6_hopper_kernel, launch, tensors)
    assert not seen.faults
    launch.judge(tensors)
    assert seen.waits("product") == 2 * 3 * 3 and len(seen.of("product")) == 2 * 3 * 10
    assert seen.most("product") == 7


def test_high_parts_may_be_cut_or_rounded():
    def cut(x):
        high = (x.view(torch.int32) & -65536).view(torch.float32)
        return high.bfloat16(), (x - high).bfloat16()

    assert evaluate(f"{FINISHED}.split", cut).passed
    said = str(evaluate(f"{FINISHED}.split", lambda x: (x.half(), x.half())))
    assert "a part is torch.float16, want torch.bfloat16" in said and "hint:" not in said
    said = str(evaluate(f"{FINISHED}.split", lambda x: cut(x)[::-1]))
    assert "the first part is smaller than the second, want high, low" in said


def test_the_ladder_is_that_of_the_designs_page():
    found = designs.rows()
    assert found[0]["ms"] == "1.135" and "kept" in found[-1]["design"] and len(found) > 10
    assert designs.forward_ladder().text.count("ms: ") == len(found)
    with pytest.raises(LookupError):
        designs.rows("Nowhere")


RUNGS = [(stem, name) for stem in (COPIES, PRODUCTS, FINISHED) for name in solutions(stem).rungs()]


@pytest.mark.parametrize(("stem", "name"), [x for x in RUNGS if x[1] != "producer"])
def test_every_rung_of_the_ladder_computes_the_same(stem, name):
    """But for the last one, whose warps do different things: the simulator has no such warps."""
    made, launch = solutions(stem).rungs()[name], solutions(PRODUCTS).chunks(1, 192, 1)
    seen = trace(made.keywords["kernel"], launch)
    tensors = launch.arguments()
    assert not watched(made.keywords["kernel"], launch, tensors).faults
    launch.judge(tensors)
    in_stages = name != "one_stage"
    assert (seen.hidden("copy in") > 0) == in_stages and seen.waits("product") / 3 == (
        5 if stem == COPIES else 3
    )


def test_a_warp_that_copies_leaves_room_for_two_programs():
    """232 registers a consumer, 24 a producer: 128 at the start, in two warpgroups."""
    rung = solutions(FINISHED).rungs()["producer"].keywords
    asm = assembly(
        rung["kernel"], **solutions(FINISHED).chunks(1, 128, 1).options(), maxnreg=rung["maxnreg"]
    )
    assert asm.registers * 2 * 256 <= 65_536 and asm.spill_stores == 0
    assert 2 * asm.shared_bytes <= 227 * 1024
    assert {"232", "24"} <= set(re.findall(r"setmaxnreg\S+\s+(\d+)", asm.ptx))


# On a Hopper GPU.

SIZES = {
    f"{COPIES}.one_tile": ("decays", [(1, 64, 1, True), (2, 1024, 64, True)]),
    f"{COPIES}.kernel": ("decays", [(1, 64, 1), (1, 320, 3), (2, 1024, 64)]),
    f"{PRODUCTS}.within": ("alone", [(1, 64, 1), (2, 1024, 64)]),
    f"{PRODUCTS}.kernel": (
        "chunks",
        [(1, 64, 1), (1, 320, 3), (2, 1024, 64), (1, 320, 3, "most"), (1, 320, 3, "none")],
    ),
}
SIZES[f"{FINISHED}.kernel"] = SIZES[f"{PRODUCTS}.kernel"]


@pytest.mark.gpu
@pytest.mark.parametrize("id", KERNELS)
def test_the_solution_is_right_on_a_hopper_gpu_and_the_same_every_time(id):
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("for Hopper")
    lesson, (name, sizes) = solutions(id.partition(".")[0]), SIZES[id]
    kernel = getattr(lesson, id.partition(".")[2])
    for size in sizes:
        launch = getattr(lesson, name)(*size)
        runs = []
        for _ in range(10):
            tensors = launch.arguments("cuda")
            start(kernel, launch, tensors)
            launch.judge(tensors)
            runs.append([tensors[x].clone() for x in launch.outputs])
        for run in runs[1:]:
            assert all(torch.equal(x, y) for x, y in zip(run, runs[0], strict=True)), size


@pytest.mark.gpu
@pytest.mark.parametrize("id", KERNELS)
def test_the_check_runs_on_a_hopper_gpu(id):
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("for Hopper")
    exercise = load(id)
    (gather,) = [x for x in exercise.evidence if getattr(x, "kind", "") == "this GPU"]
    row = gather(getattr(solutions(id.partition(".")[0]), id.partition(".")[2]), exercise)
    assert row.verdict == PASSED and " ms at " in row.text, str(row)


@pytest.mark.gpu
def test_the_steps_of_the_finished_kernel_are_right_on_a_hopper_gpu():
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("for Hopper")
    lesson = solutions(FINISHED)
    launch = lesson.chunks(2, 1024, 64)
    for name, kernel in list(lesson.steps().items())[1:]:
        tensors = launch.arguments("cuda")
        start(kernel, launch, tensors)
        try:
            launch.judge(tensors)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None


@pytest.mark.gpu
@pytest.mark.parametrize(("stem", "name"), RUNGS)
def test_the_rungs_of_the_ladder_are_right_on_a_hopper_gpu(stem, name):
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("for Hopper")
    launch = solutions(PRODUCTS).chunks(2, 1024, 64)
    tensors = launch.arguments("cuda")
    o, s1 = solutions(stem).rungs()[name](*(tensors[x] for x in ("r", "k", "v", "w", "u", "s0")))
    launch.judge(tensors | {"o": o, "s1": s1})
