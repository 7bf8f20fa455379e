"""The Toeplitz products of time-x: in Triton's interpreter, and on a GPU."""

import pytest
import torch
from support.timex_cases import GPU_SHAPES, HALF, expected, make, near, results

from rwkv_lessons.timex import timex, timex_fft, timex_toeplitz
from rwkv_lessons.timex.toeplitz import backward, forward

SIZES = [(1, 1, 1), (3, 2, 40), (20, 1, 130), (2, 2, 192), (70, 1, 65)]
# Three TF32 products leave out the last of four, 2^-22 of each product, and round their sums down.
THREE_TF32 = 5e-6

interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter is for CPUs")


def by_kernels(w, k, do, eps=0.0):
    """o, dw and dk of the kernels, where these are interpreted."""
    return (
        forward.convolve(w, k, eps, False),
        backward.correlate(do, k),
        forward.convolve(w, do, 0.0, True),
    )


@interpreted
@pytest.mark.parametrize("shape", SIZES)
def test_kernels_on_the_cpu(shape):
    w, k, do = make(*shape, torch.float32)
    near(by_kernels(w, k, do, 0.5), expected(w, k, do, 0.5))


@interpreted
def test_kernels_on_the_cpu_in_float16():
    w, k, do = make(3, 2, 80, torch.float16)
    near(by_kernels(w, k, do), expected(w, k, do), HALF[torch.float16])


@interpreted
def test_weights_of_another_dtype_are_not_rounded():
    w, k, do = make(3, 2, 80, torch.float32)
    k = k.half()
    want = expected(w, k, do)[0]
    near((forward.convolve(w, k, 0.0, False),), (want,), HALF[torch.float16])


@interpreted
def test_a_token_looks_at_none_that_come_later():
    w, k, _ = make(2, 1, 100, torch.float32)
    later = k.clone()
    later[..., 70:] = 7
    o, other = (forward.convolve(w, x, 0.0, False)[..., :70] for x in (k, later))
    assert torch.equal(o, other)


def test_elsewhere_it_is_a_product_of_spectra():
    w, k, do = make(2, 3, 50)
    assert torch.equal(timex_toeplitz(w, k, 0.5), timex_fft(w, k, 0.5))


def test_shapes_without_values():
    w, k = (torch.empty(s, device="meta") for s in ((3, 5), (2, 3, 5)))
    operators = torch.ops.rwkv_lessons
    assert timex_toeplitz and operators.timex_toeplitz_forward(w, k, 0.0).shape == k.shape
    dw, dk = operators.timex_toeplitz_backward(w, k, k)
    assert dw.shape == w.shape and dk.shape == k.shape


# On a GPU.


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", GPU_SHAPES)
def test_toeplitz_is_the_sum(shape, dtype):
    w, k, do = make(*shape, dtype, "cuda")
    near(results(timex_toeplitz, w, k, do, 0.5), expected(w, k, do, 0.5), HALF[dtype], THREE_TF32)


@pytest.mark.gpu
def test_toeplitz_takes_views_and_graphs_and_compiles():
    w, k, do = make(5, 6, 70, torch.float32, "cuda")
    want = results(timex_toeplitz, w, k, do)
    views = [x.mT.contiguous().mT for x in (w, k, do)]
    found = results(timex_toeplitz, *views)
    assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = timex_toeplitz(w, k)
    k.mul_(2)
    graph.replay()
    torch.testing.assert_close(replayed, 2 * want[0])
    compiled = torch.compile(timex, fullgraph=True)
    near(results(compiled, w, k, do), expected(w, k, do), single=THREE_TF32)
    leaves = [x.clone().requires_grad_() for x in (w, k)]
    torch.library.opcheck(torch.ops.rwkv_lessons.timex_toeplitz_forward.default, (*leaves, 0.5))
    torch.library.opcheck(torch.ops.rwkv_lessons.timex_toeplitz_backward.default, (w, k, do))
