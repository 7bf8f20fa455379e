"""What kernels may write of Gluon for Hopper is what Triton has, by its names and its order."""

import inspect

import pytest
import torch

triton = pytest.importorskip("triton")
from triton.experimental import gluon  # noqa: E402
from triton.experimental.gluon import language as gl  # noqa: E402
from triton.experimental.gluon.language.nvidia import hopper  # noqa: E402
from triton.experimental.gluon.language.nvidia.hopper import (  # noqa: E402
    warpgroup_mma,
    warpgroup_mma_wait,
)

from warplens.faults import Unsupported  # noqa: E402
from warplens.gluon import OnCPU, trace  # noqa: E402
from warplens.gluon.run import Machine  # noqa: E402

COMPILERS = {"_semantic", "_generator", "self"}  # parameters that the compiler fills in


def parameters(function):
    function = getattr(function, "fn", function)
    params = inspect.signature(function).parameters.values()
    return [(x.name, x.kind, x.default is x.empty) for x in params if x.name not in COMPILERS]


def pairs():
    machine = Machine()
    places = {"gl": (gl, machine), "hopper": (hopper, machine), "tma": (hopper.tma, machine)}
    places["mbarrier"] = hopper.mbarrier, machine.mbarrier
    places["async_copy"] = hopper.async_copy, machine.async_copy
    for where, (real, simulated) in places.items():
        for name in dir(real):
            value = getattr(real, name)
            function = inspect.isfunction(getattr(value, "fn", value))
            builtin = getattr(value, "__module__", "").startswith("triton")
            if function and builtin and not name.startswith("_"):
                try:
                    yield f"{where}.{name}", value, getattr(simulated, name)
                except Unsupported as fault:
                    assert f"{name} is not simulated" in str(fault)


PAIRS = {name: both for name, *both in pairs()}


@pytest.mark.parametrize("name", PAIRS)
def test_a_function_takes_what_tritons_own_takes(name):
    of_triton, simulated = PAIRS[name]
    assert parameters(simulated) == parameters(of_triton)


def test_what_the_lessons_use_is_there():
    assert {"gl.static_assert", "gl.assume", "gl.cast", "hopper.warpgroup_mma"} <= set(PAIRS)
    assert {"tma.store_wait", "mbarrier.expect", "async_copy.wait_group"} <= set(PAIRS)
    assert len(PAIRS) >= 60


@gluon.jit
def spelled(x, y, n, BLOCK: gl.constexpr):
    gl.static_assert(BLOCK % 2 == 0, "an even block")
    gl.assume(n > 0)
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    o = gl.arange(start=0, end=BLOCK, layout=layout)
    b_x = gl.load(pointer=x + o, mask=o < n, other=0.0)
    half = gl.cast(input=b_x, dtype=gl.bfloat16)
    gl.store(
        pointer=y + (o >> 1 << 1) + o % 2, value=gl.fma(half.to(gl.float32), 2.0, b_x), mask=o < n
    )


def test_named_arguments_shifts_casts_and_assertions_are_what_they_are_in_triton():
    x, y = torch.arange(8.0), torch.zeros(8)
    OnCPU(spelled)[(1, 1, 1)](x, y, 8, 8, num_warps=1)
    assert torch.equal(y, 3 * x)


@gluon.jit
def unknown(x):
    gl.histogram(gl.arange(0, 4), 4)


def test_what_is_not_simulated_is_refused_by_its_name_and_line():
    with pytest.raises(Unsupported, match="gl.histogram is not simulated(.|\n)*line"):
        trace(unknown, 1, torch.zeros(4))


@gluon.jit
def too_few(x):
    o = gl.arange(0, 4)
    gl.store(x + o)


def test_a_call_that_lacks_an_argument_is_told_without_our_names():
    (fault,) = trace(too_few, 1, torch.zeros(4)).faults
    assert "store() missing 1 required positional argument: 'value'" in str(fault)
    assert "Machine" not in str(fault) and fault.line


@gluon.jit
def two_layouts(x):
    one: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    other: gl.constexpr = gl.BlockedLayout([2], [32], [4], [0])
    b_x = gl.full([256], 1.0, gl.float32, one)
    b_y = gl.full([256], 1.0, gl.float32, other)
    gl.store(x + gl.arange(0, 256, one), b_x + b_y)


def test_tiles_of_two_layouts_that_meet_are_told():
    (fault,) = trace(two_layouts, 1, torch.zeros(256)).faults
    assert "layouts differ" in str(fault) and "gl.convert_layout" in str(fault)
    assert "b_x + b_y" in str(fault)


@gluon.jit
def unconverted(x, CONVERTS: gl.constexpr):
    sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    shared: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    zeros = gl.full([64, 64], 0.0, gl.float32, sums)
    left = zeros.to(gl.bfloat16)
    tile = gl.allocate_shared_memory(gl.bfloat16, [64, 64], shared, left)
    hopper.fence_async_shared()
    if CONVERTS:
        left = gl.convert_layout(left, gl.DotOperandLayout(0, sums, 2))
    b_y = warpgroup_mma(left, tile, zeros, use_acc=False, is_async=True)
    b_y, left = warpgroup_mma_wait(0, deps=(b_y, left))
    o_i = gl.arange(0, 64, gl.SliceLayout(1, sums))[:, None]
    o_j = gl.arange(0, 64, gl.SliceLayout(0, sums))[None, :]
    gl.store(x + o_i * 64 + o_j, b_y)


def test_a_left_factor_in_the_wrong_registers_is_told_before_any_compiler():
    assert not trace(unconverted, 1, torch.ones(64, 64), CONVERTS=True).faults
    (fault,) = trace(unconverted, 1, torch.ones(64, 64), CONVERTS=False).faults
    assert "the left factor is not laid out" in str(fault) and "DotOperandLayout" in str(fault)
