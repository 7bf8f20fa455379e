"""The numba kernels of time-x: on the CPU in the simulator, and on a GPU."""

import math

import pytest
import torch
from support.timex_cases import GPU_SHAPES, HALF, expected, make, near, results

from rwkv_lessons.runtime.launch_numba import bfloat16_to_float32, float32_to_bfloat16
from rwkv_lessons.timex import timex, timex_cuda
from rwkv_lessons.timex.cuda import backward, forward
from rwkv_lessons.timex.cuda.in_memory import IN_MEMORY
from warplens.cuda.trace import run, trace

SIZES = [(1, 1, 1), (5, 2, 9), (2, 1, 133), (1, 1, 260)]


def flat(x):
    """A numpy view: the kernel writes into the tensor."""
    return (x.view(torch.uint16) if x.dtype == torch.bfloat16 else x).reshape(-1).numpy()


def convolve(w, k, eps=0.0, backwards=False, go=run, **options):
    B, C, T = k.shape
    rows, o = forward.rows_for(B), torch.full_like(k, math.nan)
    kernel, _, threads = forward.build.__wrapped__(k.dtype, rows, backwards)
    blocks = forward.blocks_for(B, C, T, rows)
    found = go(kernel, blocks, threads, flat(w.float()), flat(k), flat(o), eps, B, C, T, **options)
    return o, found


def correlate(do, k, go=run, **options):
    B, C, T = k.shape
    dw = torch.full((C, T), math.nan)
    kernel, _, tile = backward.build.__wrapped__(k.dtype, backward.row_lanes_for(B))
    blocks = backward.blocks_for(C, T, tile)
    arrays = flat(do), flat(k), flat(dw)
    found = go(kernel, blocks, backward.THREADS, *arrays, B, C, T, **options)
    return dw, found


@pytest.mark.parametrize("reverse", [False, True], ids=["in order", "reversed"])
@pytest.mark.parametrize("shape", SIZES)
def test_kernels_on_the_cpu(shape, reverse):
    w, k, do = make(*shape, torch.float32)
    how = {"reverse": reverse}
    o, dk = convolve(w, k, 0.5, **how)[0], convolve(w, do, 0.0, True, **how)[0]
    near((o, correlate(do, k, **how)[0], dk), expected(w, k, do, 0.5))


def test_every_choice_of_lanes_along_the_batch():
    for B in (3, 9, 33):
        w, k, do = make(B, 1, 5, torch.float32)
        near((convolve(w, k)[0], correlate(do, k)[0]), expected(w, k, do)[:2])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_kernels_on_the_cpu_in_16_bits(dtype, monkeypatch):
    if dtype == torch.bfloat16:
        twins = bfloat16_to_float32.in_python, float32_to_bfloat16.in_python
        monkeypatch.setitem(IN_MEMORY, dtype, (IN_MEMORY[dtype][0], *twins))
    w, k, do = make(2, 1, 20, dtype)
    o, dw, dk = expected(w, k, do)
    near((convolve(w, k)[0], convolve(w, do, backwards=True)[0]), (o, dk), HALF[dtype])
    near((correlate(do, k)[0],), (dw,))


def test_nobody_races_and_nothing_is_added_by_atomics():
    w, k, do = make(2, 1, 40, torch.float32)
    for counts in (convolve(w, k, go=trace)[1], correlate(do, k, go=trace)[1]):
        assert not counts.races and not counts.faults
        assert counts.requests("global", "atomic") == 0


def test_every_block_has_as_many_products_as_every_other(monkeypatch):
    """Tiles are paired, the shortest with the longest."""
    monkeypatch.setattr(forward, "WARPS", 1)
    monkeypatch.setattr(forward, "TILE", 64)
    w, k, _ = make(1, 1, 64 * 4, torch.float32)
    counts = [convolve(w, k, go=trace, blocks=[block])[1] for block in range(2)]
    assert counts[0].requests("shared", "load") == counts[1].requests("shared", "load")


def test_cuda_names_the_device_it_needs():
    w, k, _ = make(1, 2, 3, torch.float32)
    with pytest.raises(ValueError, match="k must be on a CUDA device, got cpu; timex works on any"):
        timex_cuda(w, k)
    with pytest.raises(TypeError, match="w must be one of float32, float16, bfloat16, got"):
        timex_cuda(w.double(), k)


def test_shapes_without_values():
    w, k = (torch.empty(s, device="meta") for s in ((3, 5), (2, 3, 5)))
    operators = torch.ops.rwkv_lessons
    assert operators.timex_cuda_forward(w, k.mT.contiguous().mT, 0.0).is_contiguous()
    dw, dk = operators.timex_cuda_backward(w, k, k)
    assert dw.shape == w.shape and dk.shape == k.shape


# On a GPU.


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", GPU_SHAPES)
def test_cuda_is_the_sum(shape, dtype):
    w, k, do = make(*shape, dtype, "cuda")
    near(results(timex_cuda, w, k, do, 0.5), expected(w, k, do, 0.5), HALF[dtype])


@pytest.mark.gpu
def test_cuda_takes_views_streams_and_graphs():
    w, k, do = make(5, 6, 70, torch.float32, "cuda")
    want = results(timex_cuda, w, k, do)
    views = [x.mT.contiguous().mT for x in (w, k, do)]
    assert all(torch.equal(a, b) for a, b in zip(results(timex_cuda, *views), want, strict=True))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        elsewhere = results(timex_cuda, w, k, do)
    stream.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(elsewhere, want, strict=True))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = timex_cuda(w, k)
    k.mul_(2)
    graph.replay()
    torch.testing.assert_close(replayed, 2 * want[0])


@pytest.mark.gpu
def test_cuda_in_torch_compile_and_opcheck():
    w, k, do = make(2, 3, 40, torch.float32, "cuda")
    compiled = torch.compile(lambda *x: timex(*x) * 2, fullgraph=True)
    torch.testing.assert_close(compiled(w, k), 2 * timex(w, k))
    leaves = [x.clone().requires_grad_() for x in (w, k)]
    torch.library.opcheck(torch.ops.rwkv_lessons.timex_cuda_forward.default, (*leaves, 0.5))
    torch.library.opcheck(torch.ops.rwkv_lessons.timex_cuda_backward.default, (w, k, do))
    o = timex_cuda(*leaves)
    (dw,) = torch.autograd.grad(o, leaves[:1], do, create_graph=True)
    with pytest.raises(RuntimeError, match="second gradients"):
        dw.sum().backward()
