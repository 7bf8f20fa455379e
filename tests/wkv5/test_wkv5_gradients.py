"""The gradients of WKV-5 from the kernels of WKV-6, against the recurrence in float64."""

import math

import pytest
import torch
from support import simulated
from support.wkv6_cases import (
    DECAY,
    DECAYS,
    GPU_SHAPES,
    HALF,
    SINGLE,
    gradients_given,
    near,
    results,
)
from support.wkv6_cases import make as make_wkv6

from rwkv_lessons.wkv5 import wkv5, wkv5_cuda, wkv5_reference

NAMES = "dr dk dv dw du ds0".split()


def make(B, T, H, K, V, w="mixed", dtype=torch.float64, device="cpu"):
    """As for WKV-6, with the decay of the first token for all; w and u are float32."""
    r, k, v, w, u, s0 = make_wkv6(B, T, H, K, V, w, dtype, device=device)
    return [r, k, v, w[0, 0].to(u.dtype), u, s0]


def in_float64(x):
    do, ds1 = gradients_given(x)
    x = [None if y is None else y.double() for y in x]
    return results(wkv5_reference, x, do.double(), ds1.double())


@pytest.mark.parametrize("w", DECAYS)
@pytest.mark.parametrize(
    "B, T, H, K, V, groups", [(2, 1, 2, 8, 8, 1), (2, 17, 1, 9, 20, 2), (1, 70, 2, 5, 7, 1)]
)
def test_kernels_on_the_cpu(B, T, H, K, V, groups, w):
    x = make(B, T, H, K, V, w, torch.float32)
    want, limit = in_float64(x)[2:], SINGLE + T * DECAY
    for reverse in (False, True):
        got, _ = simulated.backward(x, *gradients_given(x), groups=groups, reverse=reverse)
        near(got, want, {"dw": 2 * limit, "": limit}, NAMES)  # dw: see below, 1.2 times was seen


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_kernels_on_the_cpu_in_half_precision(dtype):
    x = make(1, 10, 1, 9, 8, dtype=dtype)
    got, _ = simulated.backward(x, *gradients_given(x))
    half = dict.fromkeys(("dr", "dk", "dv"), HALF[dtype])
    near(got, in_float64(x)[2:], half | {"": SINGLE + 10 * DECAY}, NAMES)


def test_no_decay_left_has_no_gradient():
    x = make(1, 9, 1, 8, 8, -math.inf, torch.float32)
    assert simulated.backward(x, *gradients_given(x))[0][3].eq(0).all()


@pytest.mark.gpu
@pytest.mark.parametrize("w", DECAYS)
@pytest.mark.parametrize("T", [1, 2, 17, 54, 100, 1000])
def test_cuda_is_the_reference(T, w):
    x = make(2, T, 3, 64, 64, w, torch.float32, "cuda")
    limit = SINGLE + min(T, 400) * DECAY
    # dw is what is left of two sums, each rounded so far: 1.25 times that was seen.
    near(results(wkv5_cuda, x), in_float64(x), {"dw": 2 * limit, "": limit})


@pytest.mark.gpu
@pytest.mark.parametrize("shape", GPU_SHAPES)
def test_cuda_at_odd_shapes(shape):
    x = make(*shape, dtype=torch.float32, device="cuda")
    near(results(wkv5_cuda, x), in_float64(x), SINGLE + shape[1] * DECAY)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("w, remembered", [(-0.3, 10), ("mixed", 100)])  # tokens
def test_cuda_in_half_precision(dtype, w, remembered):
    x = make(2, 100, 80, 64, 64, w, dtype, "cuda")
    half = dict.fromkeys(("o", "dr", "dk", "dv"), HALF[dtype])
    near(results(wkv5_cuda, x), in_float64(x), half | {"": SINGLE + remembered * DECAY})


@pytest.mark.gpu
def test_cuda_in_graphs_torch_compile_and_opcheck():
    x = make(2, 20, 2, 64, 64, dtype=torch.float32, device="cuda")
    want, (do, ds1) = results(wkv5_cuda, x), gradients_given(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = results(wkv5_cuda, x, do, ds1)
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(replayed, want, strict=True))
    compiled = torch.compile(wkv5, fullgraph=True)
    near(results(compiled, x), in_float64(x), SINGLE + 20 * DECAY)
    leaves = [y.clone().requires_grad_() for y in x]
    torch.library.opcheck(torch.ops.rwkv_lessons.wkv5_forward.default, leaves)
    torch.library.opcheck(torch.ops.rwkv_lessons.wkv5_backward.default, (*x, do, ds1))
