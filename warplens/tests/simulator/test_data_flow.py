"""Whether one launch of a Triton kernel decides every input of its shape."""

import pytest
import torch

pytest.importorskip("triton")
import planted  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from helpers import kernels_of_triton  # noqa: E402

from warplens import trace  # noqa: E402


@triton.jit
def kernel(x, index, y, n, HOW: tl.constexpr, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = o < n
    if HOW == "values":
        value = tl.load(x + o, inside, 0.0)
        total = tl.sum(tl.where(value > 0, tl.exp(value), value), 0)
        for k in range(tl.cdiv(n, 2)):
            total += k
        if tl.program_id(0) == 0:
            tl.store(y + o, total + value, inside)
    elif HOW == "block pointer":
        at = tl.make_block_ptr(x, (n,), (1,), (tl.program_id(0) * BLOCK,), (BLOCK,), (0,))
        value = tl.load(tl.advance(at, (0,)), boundary_check=(0,))
        tl.store(y + o, value, inside)
    elif HOW == "address":
        tl.store(y + o, tl.load(x + tl.load(index + o, inside, 0), inside), inside)  # depends
    elif HOW == "mask":
        value = tl.load(x + o, inside, 0.0)
        tl.store(y + o, value, inside & (value > 0))  # depends
    elif HOW == "branch":
        if tl.load(index) > 0:  # depends
            tl.store(y + o, 1.0, inside)
    elif HOW == "loop":
        for k in range(tl.load(index)):  # depends
            tl.store(y + k, 1.0)
    elif HOW == "sum":
        last = tl.sum(tl.load(index + o, inside, 0), 0)
        tl.store(y + last, 1.0)  # depends
    elif HOW == "atomic":
        slot = tl.atomic_add(index, 1)
        tl.store(y + slot, 1.0)  # depends
    elif HOW == "compare and swap":
        while tl.atomic_cas(index, 1, 1) == 0:  # depends
            pass
        tl.store(y + o, 1.0, inside)


def traced(how, x=None, index=None):
    x = torch.arange(20.0) if x is None else x
    index = torch.ones(20, dtype=torch.int32) if index is None else index
    return trace(kernel, 1 if how in ("loop", "sum", "atomic") else 2,
                 x, index, torch.zeros(40), 20, how, BLOCK=16)  # fmt: skip


@pytest.mark.parametrize("how", ["values", "block pointer"])
def test_values_that_are_read_may_be_stored_and_added_up(how):
    t = traced(how)
    assert t.for_all_inputs and not t.faults
    assert "so this holds for every input of this shape" in str(t)


DEPENDS = "address mask branch loop sum atomic".split() + ["compare and swap"]


@pytest.mark.parametrize("how", DEPENDS)
def test_an_address_that_depends_on_the_data_is_named_with_its_line(how):
    t = traced(how)
    assert not t.for_all_inputs and not t.faults
    assert t.depends.text.endswith("# depends"), str(t)
    assert f"this holds for one launch: {t.depends}" in str(t)


def accesses(t):
    return [(a.array, a.op, a.program, a.offsets.tolist()) for a in t.accesses]


def test_where_it_is_said_other_data_is_accessed_at_the_same_elements():
    launches = [(case.kernel, case.launch, case.options) for case in planted.every(["of_triton"])]
    launches = [x for x in launches if "triton.experimental" not in type(x[0]).__module__]
    launches.append((kernels_of_triton.softmax, (4, torch.ones(4, 9), torch.ones(4, 9), 9),
                     {"BLOCK": 16}))  # fmt: skip
    compared = 0
    for function, (grid, *args), options in launches:
        traces = []
        if not hasattr(function, "fn"):
            continue
        for _ in range(2):
            inputs = [torch.randn_like(a) if isinstance(a, torch.Tensor) else a for a in args]
            traces.append(trace(function, grid, *inputs, **options))
        assert all(x.for_all_inputs for x in traces)
        assert accesses(traces[0]) == accesses(traces[1])
        compared += 1
    assert compared >= 7


def test_other_data_may_be_accessed_elsewhere_where_it_is_not():
    several = [traced("mask", torch.randn(20)) for _ in range(2)]
    assert accesses(several[0]) != accesses(several[1])
