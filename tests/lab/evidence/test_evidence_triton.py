"""The evidence for Triton kernels: it passes what is right and says what is wrong."""

import ast
import dataclasses
import linecache

import pytest
import torch

from rwkv_lessons.lab.course.exercises import Exercise, ids, load, solutions
from rwkv_lessons.lab.evidence import triton as evidence
from rwkv_lessons.lab.evidence import wkv6_triton as wkv6
from rwkv_lessons.wkv6.reference import wkv6_reference
from warplens.compiled.assembly import can_compile, what_is_missing

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402


@triton.jit
def sums(x, y, y_parts, B, N: tl.constexpr, BN: tl.constexpr):
    i_n, i_b = tl.program_id(0), tl.program_id(1)
    o_n = i_n * BN + tl.arange(0, BN)
    b_x = tl.load(x + i_b * N + o_n, o_n < N, 0)
    tl.store(y + i_b * N + o_n, tl.exp(b_x), o_n < N)
    tl.store(y_parts + i_n * B + i_b, tl.sum(b_x))


@triton.jit
def unmasked(x, y, y_parts, B, N: tl.constexpr, BN: tl.constexpr):
    i_n, i_b = tl.program_id(0), tl.program_id(1)
    o_n = i_n * BN + tl.arange(0, BN)
    b_x = tl.load(x + i_b * N + o_n)
    tl.store(y + i_b * N + o_n, tl.exp(b_x), o_n < N)
    tl.store(y_parts + i_n * B + i_b, tl.sum(b_x))


@triton.jit
def a_row_too_far(x, y, y_parts, B, N: tl.constexpr, BN: tl.constexpr):
    i_n, i_b = tl.program_id(0), tl.program_id(1)
    o_n = i_n * BN + tl.arange(0, BN)
    b_x = tl.load(x + (i_b + 1) * N + o_n, o_n < N, 0)
    tl.store(y + i_b * N + o_n, tl.exp(b_x), o_n < N)
    tl.store(y_parts + i_n * B + i_b, tl.sum(b_x))


@triton.jit
def into_its_neighbour(x, y, y_parts, B, N: tl.constexpr, BN: tl.constexpr):
    i_n, i_b = tl.program_id(0), tl.program_id(1)
    o_n = i_n * BN + tl.arange(0, BN)
    b_x = tl.load(x + i_b * N + o_n, o_n < N, 0)
    tl.store(y + i_b * N + o_n, tl.exp(b_x), i_b * N + o_n < B * N)
    tl.store(y_parts + i_n * B + i_b, tl.sum(b_x))


@triton.jit
def changes_its_input(x, y, y_parts, B, N: tl.constexpr, BN: tl.constexpr):
    i_n, i_b = tl.program_id(0), tl.program_id(1)
    o_n = i_n * BN + tl.arange(0, BN)
    b_x = tl.load(x + i_b * N + o_n, o_n < N, 0)
    tl.store(y + i_b * N + o_n, tl.exp(b_x), o_n < N)
    tl.store(y_parts + i_n * B + i_b, tl.sum(b_x))
    tl.store(x + i_b * N + o_n, b_x + 1, o_n < N)


@triton.jit
def nothing(x, y, y_parts, B, N: tl.constexpr, BN: tl.constexpr):
    pass


@triton.jit
def zeros(x, y, y_parts, B, N: tl.constexpr, BN: tl.constexpr):
    i_n, i_b = tl.program_id(0), tl.program_id(1)
    o_n = i_n * BN + tl.arange(0, BN)
    tl.store(y + i_b * N + o_n, tl.zeros([BN], tl.float32), o_n < N)
    tl.store(y_parts + i_n * B + i_b, 0.0)


@triton.jit
def does_not_compile(x, y, y_parts, B, N: tl.constexpr, BN: tl.constexpr):
    tl.store(y + tl.arange(0, N), 0.0)


def launch(B=2, N=6, BN=4, **changes):
    x = torch.randn(B, N, generator=torch.Generator().manual_seed(0))
    tiles = triton.cdiv(N, BN)
    given = evidence.Launch(
        grid=(tiles, B),
        inputs={"x": x},
        outputs={"y": (B, N), "y_parts": (tiles, B)},
        wants={"y": x.double().exp(), "sum": x.double().sum(1)},
        constants={"B": B, "N": N, "BN": BN, "num_warps": 1},
        finish=lambda out: {"y": out["y"], "sum": out["y_parts"].sum(0)},
        letters={"y": "bi"},
        size=f"B={B} N={N}",
    )
    return dataclasses.replace(given, **changes)


exercise = Exercise(5, 1, ("", "", ""), (), symptoms={"mine": "my hint"})
answer = evidence.answer(
    evidence.Case("whole tiles", "mine", lambda: launch(N=8)),
    evidence.Case("a tail", "mask", launch),
    evidence.Case("in reverse", "programs", launch, reverse=True),
)


def test_a_right_kernel_passes():
    row = answer(sums, exercise)
    assert (row.kind, row.verdict) == ("answer", "passed") and "3 cases" in row.text


@pytest.mark.parametrize(
    "kernel, words",
    [
        (
            nothing,
            "whole tiles (B=2 N=8) y: [b=0, i=0] never written 16 of its 16",
        ),
        (zeros, "whole tiles y: first difference [b=0, i=0]: 0, want my hint"),
        (unmasked, "a tail (B=2 N=6) program (1, 1, 0) reads element 12 of x hint: The last"),
        (a_row_too_far, "whole tiles element 16 of x 4 of its 4 unmasked hint: None of its lanes"),
        (
            into_its_neighbour,
            "a tail element 6 of y: touched by program tl.store hint: Program instances run in any",
        ),
        (changes_its_input, "changed its input x"),
    ],
)
def test_a_wrong_one_is_told_where(kernel, words):
    row = answer(kernel, exercise)
    text = " ".join([row.text, *row.details])
    assert row.verdict == "FAILED"
    assert all(word in text for word in words.split()), text


def test_a_tolerance_and_a_scale_are_kept():
    near = launch()
    near = launch(wants={"y": near.wants["y"] * (1 + 1e-3)})
    case = [evidence.Case("near", "mine", lambda: near)]
    assert evidence.answer(*case)(sums, exercise).verdict == "FAILED"
    for looser in ({"tolerance": 2e-3}, {"scales": {"y": 1e4}}):
        case = [evidence.Case("near", "mine", lambda: dataclasses.replace(near, **looser))]  # noqa: B023
        assert evidence.answer(*case)(sums, exercise).verdict == "passed"


def test_traffic():
    limits = (evidence.reads(1, "x"), evidence.writes(1, "y", "y_parts"), evidence.exps(16))
    row = evidence.traffic(launch, *limits)(sums, exercise)
    assert row.verdict == "passed"
    assert row.text == "x read 1× · y y_parts written 1× · 16 exps · 4 programs, no race"
    row = evidence.traffic(launch, evidence.exps(12))(sums, exercise)
    assert (row.verdict, row.text) == ("FAILED", "16 exps, want at most 12")
    assert row.details[0].startswith("16 in line ") and row.details[1] == "counted at B=2 N=6"
    assert evidence.traffic(launch, evidence.exps(13))(sums, exercise).verdict == "passed"  # room
    row = evidence.traffic(launch, evidence.dots(at_least=1))(sums, exercise)
    assert row.text == "0 tl.dot, want at least 1"


def test_traffic_finds_faults_and_races():
    row = evidence.traffic(launch)(unmasked, exercise)
    assert row.verdict == "FAILED" and "of x" in row.details[0]
    row = evidence.traffic(launch)(into_its_neighbour, exercise)
    assert row.verdict == "FAILED" and "element 6 of y" in row.details[0]
    assert "any order" in row.details[-1]


@pytest.mark.skipif(not can_compile(sums), reason=str(what_is_missing(sums)))
def test_machine_code():
    def full():
        return launch(N=100, BN=128)

    row = evidence.machine_code(full, evidence.at_least(1, "MUFU.EX2"), evidence.no_spills())(
        sums, exercise
    )
    assert row.verdict == "passed" and "registers" in row.text and " 0 " not in f" {row.text} "
    row = evidence.machine_code(full, evidence.registers(8))(sums, exercise)
    assert row.verdict == "FAILED" and row.text == "want at most 8 registers"
    row = evidence.machine_code(full)(does_not_compile, exercise)
    assert (row.verdict, row.text) == ("FAILED", "does not compile")


def test_no_gpu_is_said():
    row = evidence.gpu(launch)(sums, exercise)
    assert row.verdict == ("passed" if torch.cuda.is_available() else "not available here")


def test_results():
    given = launch()
    found = evidence.results(sums, given)
    torch.testing.assert_close(found["sum"].double(), given.wants["sum"])


# WKV-6.


@pytest.mark.parametrize("shape", [(1, 5, 2, 10, 7), (2, 3, 1, 4, 6)])
def test_a_problem_of_wkv6_with_keys_and_values_apart(shape):
    lesson = solutions("13_fused_recurrent")
    size = wkv6.Size(shape)
    given = wkv6.wkv6_launch(lesson.launch, lesson.TENSORS, lesson.WRITES, size, BK=4, BV=4)
    B, T, H, K, V = shape
    assert given.inputs["s0"].shape == (B, H, K, V) and given.inputs["v"].shape == (B, T, H, V)
    assert given.outputs["o_parts"] == (-(-K // 4), B, T, H, V)
    o, s1 = wkv6_reference(*(given.inputs[x].double() for x in ("r", "k", "v", "w", "u", "s0")))
    torch.testing.assert_close(o, given.wants["o"], rtol=0, atol=1e-5)
    torch.testing.assert_close(s1, given.wants["s1"], rtol=0, atol=1e-5)


def test_partial_sums_of_gradients_have_the_blocks_of_what_is_summed():
    def launch(B, T, H, K, V, BK=4, BV=4):
        return (1,), {"BK": BK, "BV": BV}

    names = ("dk_parts", "dv_parts", "du_parts", "ds0", "dw")
    given = wkv6.wkv6_launch(launch, names, names, wkv6.Size((1, 2, 1, 10, 3)))
    assert given.outputs["dk_parts"] == (1, 1, 2, 1, 10)  # a sum over 3 values
    assert given.outputs["dv_parts"] == (3, 1, 2, 1, 3)  # a sum over 10 keys
    assert given.outputs["du_parts"] == (1, 1, 1, 10)
    assert given.outputs["ds0"] == (1, 1, 10, 3)
    assert set(given.wants) == {"dk", "dv", "du", "ds0", "dw"} and "dw" in given.scales
    parts = {"dk_parts": torch.ones(2, 3), "ds0": torch.ones(2)}
    assert given.finish(parts)["dk"].tolist() == [2, 2, 2]


def test_the_order_case_runs_in_reverse():
    lesson = solutions("13_fused_recurrent")
    found = wkv6.cases(lesson.launch, lesson.TENSORS, lesson.WRITES, wkv6.FORWARD)
    assert [case.name for case in found if case.reverse] == [wkv6.FORWARD[-1][0]]


TRITON_KERNELS = [id for id in ids() if load(id).source.startswith("@triton.jit")]


@pytest.mark.parametrize("id", TRITON_KERNELS)
def test_no_lesson_lets_an_empty_kernel_pass(id):
    exercise = load(id)
    first = ast.parse(exercise.solution).body[0].body[0]
    head = exercise.solution.splitlines()[: first.lineno - 1]
    text = "\n".join([*head, "    pass\n"])
    linecache.cache["<empty>"] = len(text), None, text.splitlines(keepends=True), "<empty>"
    namespace = {"triton": triton, "tl": tl}
    exec(compile(text, "<empty>", "exec"), namespace)
    empty = namespace[id.split(".")[1]]
    row = exercise.evidence[0](empty, exercise)
    assert row.verdict == "FAILED" and "never written (NaN in fresh" in row.details[0]


def test_a_learners_kernel_is_read_through_its_decorator():
    assert "@triton.jit" in load("13_fused_recurrent.kernel").source
    assert "raise NotImplementedError" in load("13_fused_recurrent.kernel").stub


def test_lesson_13s_kernels_one_after_another():
    lesson = solutions("14_recurrent_gradients")
    errors = wkv6.one_after_another(lesson.STEPS, wkv6.Size((2, 11, 1, 6, 5)), BK=4, BV=4, C=4)
    assert set(errors) >= {"dr_s", "dk_s", "dv_s", "ds0", "dw"}
    assert max(errors.values()) < 1e-5
    steps = [(nothing_happens, *step[1:]) if step[-1] == ("dw",) else step for step in lesson.STEPS]
    found = wkv6.one_after_another(steps, wkv6.Size((1, 3, 1, 4, 4)), BK=4, BV=4, C=4)
    assert found["dw"] != found["dw"]  # NaN


@triton.jit
def nothing_happens(
    r, k, dr_s, dk_s, a, dw, T, H: tl.constexpr, K: tl.constexpr, BK: tl.constexpr, C: tl.constexpr
):
    pass
