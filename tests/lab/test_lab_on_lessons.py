"""The lab for kernels of one's own, put to a lesson's kernel and a GPU's recorded ceilings."""

import pytest
import torch

from rwkv_lessons.lab import banks, machine_code, races, roofline, timeline, trace
from rwkv_lessons.lab.course.exercises import solutions
from rwkv_lessons.lab.lessons.lessons_19_21.evidence import described
from rwkv_lessons.records.lookup import record


def test_a_kernel_of_gluon():
    lesson = solutions("19_copies_in_flight")
    raw, w = torch.randn(128, 64).bfloat16(), torch.zeros(128, 64).bfloat16()
    launch = lesson.kernel, 1, described(raw, 64), described(w, 64), 128, 1
    seen = trace(*launch, num_warps=4, num_stages=1)
    assert not seen.faults and not w.any()  # it was a copy
    assert seen.bytes("copy in") == 2 * 8192
    assert str(timeline(seen)) == str(timeline(*launch)) != ""
    for look, said in ((races, "barriers"), (banks, "shared memory")):
        with pytest.raises(TypeError, match=said):
            look(seen)
    with pytest.raises(ValueError, match="bytes="):
        roofline(seen, flops=1)
    with pytest.raises(TypeError, match="missing"):
        trace(*launch[:-1])
    code = machine_code(*launch[:1], *launch[2:], num_warps=4)
    assert code.count("UTMALDG") == 2 and "tile copies" in str(code)


def test_the_roof_is_the_one_that_was_measured():
    roof, ceilings = roofline(bytes=4e12, flops=1), record("ceilings")
    assert f"on NVIDIA H200, {ceilings.provenance.date}" in str(roof)
    assert roof.floor_ms == pytest.approx(4e15 / ceilings.ceilings["copy_bytes_per_s"])
