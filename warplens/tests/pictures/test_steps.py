"""A warp's requests, one after the other."""

import json
import re

import numpy as np
import pytest
from numba import cuda, float32

from warplens.cuda.trace import trace
from warplens.pictures.steps import stepper


@cuda.jit
def column(x, y):
    s = cuda.shared.array((32, 32), float32)
    t = cuda.threadIdx.x
    if t < 32:
        for n in range(2):
            s[n, t] = x[n, t]
        s[t, 5] = 1
    y[t] = x[t, 3]


@pytest.fixture(scope="module")
def column_trace():
    return trace(column, 2, 64, np.ones((64, 32), "f4"), np.zeros(64, "f4"))


def test_requests_come_in_the_order_of_execution(column_trace):
    shown = stepper(column_trace)
    captions = [step["said"].partition(": ")[2] for step in shown.steps]
    assert captions == [
        "32 lanes read 4 bytes each, 4 sectors, 128 of 128 bytes",
        "32 lanes write 4 bytes each, 1 wavefront, 0 conflicts",
        "32 lanes read 4 bytes each, 4 sectors, 128 of 128 bytes",
        "32 lanes write 4 bytes each, 1 wavefront, 0 conflicts",
        "32 lanes write 4 bytes each, 32 wavefronts, 31 conflicts",
        "32 lanes read 4 bytes each, 32 sectors, 128 of 1024 bytes",
        "32 lanes write 4 bytes each, 4 sectors, 128 of 128 bytes",
    ]
    assert shown.steps[2]["lanes"][1] == (1, 132) and shown.steps[2]["sectors"] == [4, 5, 6, 7]
    passes = shown.steps[4]["passes"]
    assert passes[0] == [{5: 0}, False] and passes[31] == [{5: 31}, True]
    assert str(shown).splitlines()[4].startswith("5. line ") and "7 requests" in repr(shown)


def test_another_warp_and_another_block(column_trace):
    assert [step["op"] for step in stepper(column_trace, block=1, warp=1).steps] == [
        "load",
        "store",
    ]
    assert stepper(column_trace, block=1).steps == stepper(column_trace).steps
    assert len(stepper(column_trace, most=3).steps) == 3
    with pytest.raises(ValueError, match="warp 2 of block 0 asks for nothing"):
        stepper(column_trace, warp=2)


def test_the_page_has_the_steps_and_what_it_says_without_a_script(column_trace):
    shown = stepper(column_trace)
    page = shown._repr_html_()
    data = json.loads(re.search(r"json\">(.*?)</script>", page, re.S)[1])
    assert [step["said"] for step in data["steps"]] == [step["said"] for step in shown.steps]
    assert "<noscript><pre>1. line" in page and 'aria-label="requests of a warp of column' in page
