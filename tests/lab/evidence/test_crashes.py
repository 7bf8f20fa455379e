"""A learner's kernel that crashes or never ends has a verdict, in a process that lives on."""

import pytest

from rwkv_lessons.lab.course.check import evaluate
from rwkv_lessons.lab.course.exercises import defined, load
from warplens import time_limit
from warplens.compiled.assembly import CompileError

WITHIN = "20_products_in_flight.within"


def test_a_kernel_that_aborts_the_compiler_is_refused_with_its_line_and_the_likely_cause():
    pytest.importorskip("triton")
    exercise = load(WITHIN)
    left = "gl.convert_layout(b_a.to(gl.bfloat16), LEFT)"
    kernel = defined(WITHIN, exercise.solution.replace(left, "b_a.to(gl.bfloat16)"), "<left out>")
    (machine_code,) = (x for x in exercise.evidence if getattr(x, "kind", "") == "machine code")
    row = machine_code(kernel, exercise)
    said = "\n".join(row.details)
    assert row.verdict == "FAILED" and "crashed (SIGABRT)" in said, row
    assert "b_o = warpgroup_mma(b_a" in said and "gl.convert_layout" in said
    assert "not available" not in said and CompileError.__name__ not in said


def test_an_endless_kernel_of_lesson_00_is_not_traced_again_after_its_verdict(monkeypatch):
    monkeypatch.setattr(time_limit.time_limit, "__defaults__", (1, time_limit.BYTES))
    id = "00_start_here.histogram"
    text = "@cuda.jit\ndef histogram(x, counts):\n    i = 0\n    while i >= 0:\n        i += 1\n"
    text += "        cuda.atomic.add(counts, 0, 1)\n"
    result = evaluate(id, defined(id, text, "<endless>"))
    assert [row.kind for row in result.rows] == ["answer"] and "still looping" in str(result)
