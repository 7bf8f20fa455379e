"""What a check says of a wrong answer is its cause, in words of the lesson."""

import textwrap
import types

import numpy as np
import pytest

from rwkv_lessons.lab.course import exercises, stand_in
from rwkv_lessons.lab.course.check import FAILED, evaluate, rows_of
from rwkv_lessons.lab.course.hints import HINTS
from rwkv_lessons.lab.course.wrong_answers import edit, instead
from rwkv_lessons.lab.evidence import kernels
from rwkv_lessons.lab.evidence.compare import Difference, SwappedAxes, compare
from rwkv_lessons.lab.evidence.verdicts import explained
from warplens.faults import EndlessLoop

SHARED, NAIVE = "10_time_x.shared", "10_time_x.naive"
WITHIN = "20_products_in_flight.within"


def said(id, *edits):
    """The failed rows of the solution after these edits, as one text."""
    text = exercises.solved(id) + "\n"
    for change in edits:
        text = change.apply(text)
    return told(id, exercises.defined(id, text, f"<{id} {hash(text)}>"))


def told(id, function):
    return "\n".join(str(row) for row in evaluate(id, function).rows if row.verdict == FAILED)


def test_an_endless_loop_gets_no_hint_on_races():
    exercise = types.SimpleNamespace(symptoms={"order": "Two threads meet."})
    trouble = EndlessLoop("still looping")
    assert explained(trouble, exercise, "own")[-1] == f"hint: {HINTS['endless']}"
    assert kernels.why(trouble, exercise)[-1] == f"hint: {HINTS['endless']}"


@pytest.mark.parametrize(
    "id, right, wrong",
    [
        ("00_start_here.double", "y[i] =", "y[i // 2] ="),
        ("04_drop_the_atomics.kernel", "thread % N\n", "thread % 32\n"),
    ],
)
def test_a_race_is_told_once_with_the_wrong_number(id, right, wrong):
    text = said(id, edit(right, wrong))
    assert text.count("in no fixed order") == 1 and text.count("hint") == 1
    assert text.index("first difference") < text.index("in no fixed order") < text.index("hint")
    assert "overwrite each other" in text or "Two threads write" in text


def test_sizes_that_a_case_changes_are_named():
    text = said(SHARED, edit("w_t, u = s_w[TILE - x :], 0", "w_t, u = s_w[1024 - x :], 0"))
    assert "In this case TILE is 32 and WINDOW is 64" in text
    text = said(SHARED, edit("first = T", "for n in range(0, 4, TILE // 64):\n    pass\nfirst = T"))
    assert "the step of a loop is 0" in text and "TILE is 32" in text and "arg 3" not in text


def test_a_negative_index_is_what_numba_makes_of_it():
    text = said(NAIVE, edit("* k[b, c, u]", "* k[b, c, u - 1]"))
    assert "k[0, 0, -1] is out of bounds (numba counts a negative index from the end)" in text


def test_a_vector_in_front_of_its_array_is_not_said_to_come_from_the_end():
    text = said("10_time_x.four", edit("load4(s_k, (u,))", "load4(s_k, (u - 4,))"))
    assert "s_k[-4] is out of bounds (a vector starts where its index says)" in text


def test_shared_memory_that_nobody_fills_is_named():
    text = said(SHARED, edit("s_w[i] = w[c, first + i]", "i = i"))
    assert "s_w[0] is read before anything was written to it" in text
    assert "NaN" not in text and "products" not in text


def test_factors_of_two_types_are_named_and_no_register_is_blamed():
    text = said(WITHIN, edit("b_a.to(gl.bfloat16), LEFT", "b_a.to(gl.float16), LEFT"))
    assert "a product of float16 and bfloat16: its factors have one type" in text
    assert "hint" not in text


def test_a_sum_along_the_wrong_axis_does_not_fit_and_no_decay_is_blamed():
    text = said("22_delta_rule.kernel", edit("b_a[:, None] * b_s, 0", "b_a[:, None] * b_s, 1"))
    assert "incompatible dimensions" in text and "decay" not in text
    assert f"hint: {HINTS['shapes']}" in text


@pytest.mark.parametrize(
    "id, change, message, symptom",
    [
        ("29_train_and_generate.shifted", ("before[:, None]", "before"), "number of dimensions",
         "shapes"),
        ("24_chunked_rwkv7.chunk", ("last.exp().mT * s", "last.exp() * s"), "must match the size",
         "shapes"),
        ("24_chunked_rwkv7.kernel", ("b_right_b = tl.trans((b_b * b_right).to(b_v.dtype))",
         "b_right_b = (b_b * b_right).to(b_v.dtype)"), "equal reduction dimensions", "shapes"),
        ("24_chunked_rwkv7.kernel",
         ("b_row = tl.sum(tl.where(o_c[:, None] == i, b_ab, 0), 0)", "b_row = b_ab[i]"),
         "TypeError", "index of a tile"),
        ("24_chunked_rwkv7.by_blocks", ("by_blocks(torch.stack([A[..., :h, :h], A[..., h:, h:]]))",
         "by_blocks(A)"), "recursion", "endless recursion"),
    ],
)  # fmt: skip
def test_what_python_raises_has_a_hint(id, change, message, symptom):
    text = said(id, edit(*change))
    assert message in text and text.count("hint") == 1 and f"hint: {HINTS[symptom]}" in text
    assert "called as" in text or id.endswith(".kernel")


def test_a_missing_result_is_counted_and_named():
    text = said("24_chunked_rwkv7.chunk", edit("return o, last", "return last"))
    assert "returns 1 thing, want 2: o, s" in text
    rate = "return times, weight_decay if matrix else 0.0"
    text = said("29_train_and_generate.learns", edit(rate, "return times"))
    assert "returns 1 thing, want 2" in text and "axes" not in text
    tensor = "-6 + 5 * n ** (0.7 + 1.3 * depth)"
    text = said("29_train_and_generate.rates", edit(tensor, f"list({tensor})"))
    assert "returns a list, needs a tensor of torch" in text


@pytest.mark.parametrize(
    "id, change, shape, symptom",
    [
        ("24_chunked_rwkv7.by_doubling", ("return inverse", "return inverse[0]"), "[1, 1]",
         "leading axes"),
        ("24_chunked_rwkv7.chunk", ("return o, last", "return o.mT, last"), "o: shape [1, 3, 1]",
         "axes"),
        ("24_chunked_rwkv7.chunk", ("return o, last", "return o[:, :0], last"),
         "o: shape [1, 0, 3]", "shape"),
    ],
)  # fmt: skip
def test_a_wrong_shape_goes_before_the_hint_of_its_case(id, change, shape, symptom):
    text = said(id, edit(*change))
    assert "want" in text and shape in text
    assert text.count("hint") == 1 and f"hint: {HINTS[symptom]}" in text


def test_swapped_axes_are_named_whatever_the_case_is_about():
    want = np.arange(24.0).reshape(1, 2, 3, 4)
    swapped = np.ascontiguousarray(want.swapaxes(2, 3)).reshape(want.shape)
    with pytest.raises(
        SwappedAxes, match=r"differ\nWith its axes i and j swapped it is right"
    ) as e:
        compare(swapped, want, "bhij")
    exercise = types.SimpleNamespace(symptoms={"decay": "The decay."})
    assert explained(e.value, exercise, "decay")[-1] == f"hint: {HINTS['axes']}"
    with pytest.raises(Difference) as e:
        compare(swapped + 1, want, "bhij")
    assert explained(e.value, exercise, "decay")[-1] == "hint: The decay."


def test_an_output_that_nobody_writes_is_named():
    text = said("04_drop_the_atomics.kernel", edit("o[b, t, h, j] = o_j", "o_j += 0"))
    assert "none of its 192 elements is ever written" in text
    assert f"hint: {HINTS['never written']}" in text


@pytest.mark.parametrize(
    "id, change",
    [
        ("04_drop_the_atomics.kernel", ("o[b, t, h, j] = o_j", "o[b, t, h, j] += o_j")),
        ("04_drop_the_atomics.kernel",
         ("o[b, t, h, j] = o_j", "cuda.atomic.add(o, (b, t, h, j), o_j)")),
        (NAIVE, ("o[b, c, t] = o_t", "o[b, c, t] += o_t")),
    ],
    ids=["sum", "atomic", "time-x"],
)  # fmt: skip
def test_sums_that_are_added_to_fresh_memory_are_named(id, change):
    text = said(id, edit(*change))
    assert "o: right if it held zeros before the launch" in text and "ever written" not in text
    assert text.count("hint") == 1 and f"hint: {HINTS['adds to memory']}" in text


def test_a_bfloat16_result_is_named():
    text = said("30_many_gpus.compose", instead("return (A1 * A2).bfloat16(), B1"))
    assert "A: got bfloat16, with 8 bits of each number; want float32" in text


def test_naive_gets_no_hint_on_tiles():
    text = said(NAIVE, edit("while t < T", "if t < T"), edit("t += cuda.blockDim.x"))
    assert "cuda.blockDim.x until T" in text and "u0" not in text


def test_objects_of_the_simulator_are_not_named():
    def gather(function, exercise):
        raise TypeError("Machine.warpgroup_mma() missing 1 required positional argument: 'acc'")

    known = types.SimpleNamespace(id="01_five_loops.flops", reference=said, evidence=(gather,))
    (row,) = rows_of(known, lambda id, *edits: 1)
    assert row.text == "TypeError: warpgroup_mma() missing 1 required positional argument: 'acc'"


def test_a_name_that_a_cell_binds_is_not_called_a_stand_in(monkeypatch):
    monkeypatch.setattr(stand_in, "_references", {})
    reference = exercises.load("12_first_tiles.softmax").reference
    stand_in.stands_in("12_first_tiles.softmax", reference)
    names = {"softmax": reference}
    assert stand_in.used("print(softmax)", names)
    assert not stand_in.used("softmax = torch.softmax(x, -1)\nprint(softmax)", names)
    assert not stand_in.used("from torch import softmax\nprint(softmax)", names)
    recursion = "def softmax(x):\n    return x if len(x) < 2 else softmax(x[1:])\n"
    assert not stand_in.used(textwrap.dedent(recursion), names)


def test_a_tensor_that_a_gpu_would_not_have_is_named():
    text = said("26_fused_prefill.prefill", edit(", device=latent.device", ""))
    assert "o of kernel is made without a device" in text and "x.new_empty" in text
