"""What the checks of lessons 10 and 11 refuse, what they let pass, and what they say of it."""

import types

import pytest
import torch
from numba import cuda

from rwkv_lessons.lab.course.check import PASSED
from rwkv_lessons.lab.evidence import timex, timex_budgets
from rwkv_lessons.timex.cuda import backward, forward

NAIVE, SHARED, DW = "10_time_x.naive", "10_time_x.shared", "11_time_x_gradients.dw_naive"
BUDGETS = (  # as of `grouped`; but many of their products are with zeros in so short a row
    timex_budgets.global_reads(0.05),
    timex_budgets.shared_reads(0.4),
    timex_budgets.conflicts(),
    timex_budgets.no_atomics(),
)


def library_forward():
    kernel, _, _ = forward.build.__wrapped__(torch.float32, 1)

    @cuda.jit
    def convolve(w, k, o):
        B, C, T = k.shape
        kernel(w.reshape(w.size), k.reshape(k.size), o.reshape(o.size), 0.0, B, C, T)

    return convolve, lambda B, C, T: forward.blocks_for(B, C, T, 1), "o"


def library_backward():
    kernel, _, distances = backward.build.__wrapped__(torch.float32, 4)

    @cuda.jit
    def correlate(k, do, dw):
        B, C, T = k.shape
        kernel(do.reshape(do.size), k.reshape(k.size), dw.reshape(dw.size), B, C, T)

    return correlate, lambda B, C, T: backward.blocks_for(C, T, distances), "dw"


@pytest.mark.parametrize("build", [library_forward, library_backward])
def test_the_librarys_kernels_pass_the_checks_of_the_lessons(build, monkeypatch):
    kernel, blocks, written = build()
    exercise = types.SimpleNamespace(reference=kernel, symptoms={})
    monkeypatch.setattr(timex, "sizes", lambda *_: {})  # a tile of theirs is 128 or 256
    small = [case for case in timex.CASES if case.shape[0] < 20 and max(case.shape) < 80]
    monkeypatch.setattr(timex, "CASES", small)
    launch = lambda B, C, T, tile=backward.THREADS: (blocks(B, C, T), tile)  # noqa: E731
    for row in timex.timex_judged(launch, (written,), *BUDGETS, traced=timex.TRACED_FOUR):
        verdict = row(kernel, exercise)
        assert verdict.verdict == PASSED, str(verdict)
