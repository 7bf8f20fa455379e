"""Products of 16-bit numbers: their operands have 16 bits, their sums and scores 32."""

from dataclasses import replace

import pytest
import torch

from rwkv_lessons.lab.course import exercises
from rwkv_lessons.lab.course.check import evaluate
from rwkv_lessons.lab.course.wrong_answers import _edited, edit
from rwkv_lessons.lab.evidence.triton import Case, answer
from rwkv_lessons.lab.evidence.wkv6_triton import Size, in_bfloat16
from rwkv_lessons.lab.lessons.lesson_17 import evidence as chunked_gradients

pytest.importorskip("triton")

PREFILL, PARTIAL = "26_fused_prefill.kernel", "27_split_decode.partial"
COMBINE, ATTENTION = "27_split_decode.combine", "28_inside_a_model.attention"
SCORES = "b_s = tl.dot(b_q, tl.trans(b_latent)) + tl.dot(b_q_rope, tl.trans(b_k_rope))"
LAST = "tl.dot((b_acc / b_sum[:, None]).to(b_w.dtype), b_w"
SUMMED = "a tl.dot sums in float16"
WRONG = {
    "scores that add up in float16": (
        PREFILL, [edit("tl.trans(b_latent))", "tl.trans(b_latent), out_dtype=tl.float16)")],
        SUMMED, "acc of float32",
    ),
    "a product added to one in another type": (
        PARTIAL,
        [edit("tl.trans(b_latent))", "tl.trans(b_latent), tl.zeros([BH, BN], tl.float16))")],
        "acc.type.element_ty == out_dtype", "line b_s =",
    ),
    "the last product in float16": (
        COMBINE, [edit(f"{LAST})", f"{LAST}, out_dtype=tl.float16)")], SUMMED, "acc of float32",
    ),
    "scores rounded before they are weights": (
        PREFILL, [edit(SCORES, SCORES.replace("= ", "= (") + ").to(b_q.dtype)")],
        "large scores, close together", "Keep scores in float32",
    ),
    "a mask that is a choice": (
        ATTENTION, [edit("+ attention_mask", "- 1e30 * (attention_mask < 0)")],
        "a mask of other numbers", "Add the mask, whatever its numbers",
    ),
    "the mask of the first batch row": (
        ATTENTION, [edit("+ attention_mask", "+ attention_mask[:1]")],
        "a mask of other numbers", "Every batch row has its own",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_has_too_few_bits_or_another_mask_is_rejected_for_its_reason(name):
    id, edits, what, why = WRONG[name]
    kernel = exercises.defined(id, _edited(exercises.load(id), name, edits), f"<{name}>")
    said = str(evaluate(id, kernel).rows[0])
    assert what in said and all(word in said for word in why.split()), said


CHUNKED, KEPT = "16_the_chunked_kernel", "17_chunked_gradients"
LOW = Size((1, 3, 1, 4, 4))
WIDE, MIXED = "a tl.dot multiplies fp32, want bf16", "operands must be same dtype"


def chunked():
    return in_bfloat16(exercises.solutions(CHUNKED).sized(LOW, BT=4))


def kept():
    size = replace(LOW, dtype=torch.bfloat16)
    return chunked_gradients.keeping(exercises.solutions(KEPT).launch, size, BT=4)


@pytest.mark.parametrize(
    "id, launch, old, new, why",
    [
        (f"{CHUNKED}.kernel", chunked, "b_scores.to(b_v.dtype), b_v,",
         "b_scores, b_v.to(tl.float32),", WIDE),
        (f"{KEPT}.checkpoints", kept, "tl.trans(b_adds), b_v,",
         "tl.trans(b_adds).to(tl.float32), b_v.to(tl.float32),", WIDE),
        (f"{KEPT}.checkpoints", kept, "tl.trans(b_adds), b_v,",
         "tl.trans(b_adds).to(tl.float32), b_v,", MIXED),
    ],
    ids=["of lesson 16", "of lesson 17", "one of them only"],
)  # fmt: skip
def test_operands_of_float32_are_refused_where_v_is_bfloat16(id, launch, old, new, why):
    exercise = exercises.load(id)
    text = _edited(exercise, "wide", [edit(old, new)])
    gather = answer(Case("bfloat16", "16 bits", launch))
    row = gather(exercises.defined(id, text, f"<wide {hash(text)}>"), exercise)
    said = "\n".join(row.details)
    assert row.verdict == "FAILED" and why in said and "Both operands of tl.dot have" in said, row
    assert gather(exercise.reference, exercise).verdict == "passed"
