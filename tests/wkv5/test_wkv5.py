"""Every way of computing WKV-5 against the sum it stands for, in float64."""

import math

import numpy as np
import pytest
import torch

from rwkv_lessons.runtime.launch_numba import bfloat16_to_float32, float32_to_bfloat16
from rwkv_lessons.wkv5 import METHODS, wkv5, wkv5_chunked, wkv5_cuda, wkv5_reference
from rwkv_lessons.wkv5 import cuda as finished
from warplens.cuda.trace import run

NAMES = "o s1 dr dk dv dw du ds0".split()
SHAPES = [(1, 1, 1, 4, 4), (2, 2, 2, 4, 6), (1, 17, 3, 8, 5), (2, 54, 1, 5, 12), (1, 100, 2, 4, 4)]
DECAYS = [None, -math.inf, -50.0, -1e-4]
# A float32 decay is right to 2^-25 of itself; that counts once for every token the state remembers.
SINGLE = {"rtol": 1e-4, "atol": 1e-5}


def make(B, T, H, K, V, w=None, dtype=torch.float64, device="cpu"):
    g = torch.Generator().manual_seed(B * T + K)
    r, k, v = (torch.randn(B, T, H, n, generator=g, dtype=torch.float64) for n in (K, K, V))
    # The published range of decays, from a memory of 400 tokens to one of three.
    w = -torch.exp(-6 + 5 * torch.rand(H, K, generator=g)) if w is None else torch.full((H, K), w)
    u, s0 = torch.randn(H, K, generator=g), torch.randn(B, H, K, V, generator=g)
    state = dtype if dtype == torch.float64 else torch.float32
    parts = [(x, dtype) for x in (r, k, v)] + [(x, state) for x in (w, u, s0)]
    return [x.to(device, kind) for x, kind in parts]


def by_hand(r, k, v, w, u, s0):
    """The closed sum, one scalar at a time: no state, no recurrence."""
    B, T, H, K = r.shape
    o, s1 = torch.zeros_like(v), torch.zeros_like(s0)
    for b, t, h, j in np.ndindex(*v.shape):
        for i in range(K):
            d = math.exp(w[h, i])
            before = d**t * s0[b, h, i, j]
            before += sum(d ** (t - 1 - p) * k[b, p, h, i] * v[b, p, h, j] for p in range(t))
            o[b, t, h, j] += r[b, t, h, i] * (u[h, i] * k[b, t, h, i] * v[b, t, h, j] + before)
            s1[b, h, i, j] = d * before + k[b, t, h, i] * v[b, t, h, j]
    return o, s1


@pytest.mark.parametrize("w", DECAYS)
def test_reference_is_the_sum(w):
    x = make(2, 3, 2, 2, 3, w)
    for got, want in zip(wkv5_reference(*x), by_hand(*x), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("w", DECAYS)
@pytest.mark.parametrize("shape", SHAPES)
def test_chunked_has_the_values_and_gradients_of_the_reference(shape, w):
    x = [y.requires_grad_() for y in make(*shape, w)]
    got, want = wkv5_chunked(*x), wkv5_reference(*x)
    given = [torch.randn_like(y) for y in want]
    got += torch.autograd.grad(got, x, given)
    want += torch.autograd.grad(want, x, given)
    for name, a, b in zip(NAMES, got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}")


def test_chunked_without_a_state_starts_from_zeros():
    *x, s0 = make(2, 70, 2, 4, 3)
    for got, want in zip(wkv5_chunked(*x), wkv5_chunked(*x, 0 * s0), strict=True):
        torch.testing.assert_close(got, want)


def test_chunked_gradients_with_every_decay_at_its_limit():
    x = [y.requires_grad_() for y in make(1, 130, 1, 4, 4, -math.inf, torch.float32)]
    o, s1 = wkv5_chunked(*x)
    for grad in torch.autograd.grad(o.sum() + s1.sum(), x):
        assert torch.isfinite(grad).all()


def test_a_sequence_in_two_parts_is_the_sequence():
    r, k, v, w, u, s0 = make(2, 75, 2, 4, 6)
    o, s1 = wkv5(r, k, v, w, u, s0)
    first, middle = wkv5(*(x[:, :30] for x in (r, k, v)), w, u, s0)
    second, last = wkv5(*(x[:, 30:] for x in (r, k, v)), w, u, middle)
    torch.testing.assert_close(torch.cat([first, second], 1), o)
    torch.testing.assert_close(last, s1)


@pytest.mark.parametrize("dtype, unit", [(torch.float16, 2**-11), (torch.bfloat16, 2**-8)])
def test_half_precision_is_rounded_once(dtype, unit):
    """Sums are float32, so only the rounding of o is left: half a unit of the last place."""
    x = make(1, 60, 2, 8, 8, dtype=dtype)
    o, s1 = wkv5(*x)
    want, state = wkv5_reference(*(y.double() for y in x))
    assert (o.dtype, s1.dtype) == (dtype, torch.float32)
    torch.testing.assert_close(o.double(), want, rtol=unit, atol=1e-4)
    torch.testing.assert_close(s1.double(), state, **SINGLE)


# The kernel, on the CPU.


def simulate(x, dtype=torch.float32, values=8, **options):
    """The finished kernel through the CPU run; o and s1 start as NaN."""
    r, k, v, w, u, s0 = x
    B, T, H, K = r.shape
    V = v.shape[-1]
    kernel, _, threads, blocks = finished.build.__wrapped__(K, V, dtype, values, **options)
    o = torch.full(v.shape, math.nan).to(dtype)
    s1 = torch.full((B, H, K, V), math.nan)
    state = s1 if s0 is None else s0
    args = [_flat(y) for y in (r, k, v, w, u, state)], [_flat(y) for y in (o, s1)]
    for reverse in (False, True):
        run(kernel, B * H * blocks, threads, *args[0], int(s0 is not None), *args[1], T, H,
            reverse=reverse)  # fmt: skip
        yield o, s1


def _flat(x):
    return (x.view(torch.uint16) if x.dtype == torch.bfloat16 else x).reshape(-1).numpy()


@pytest.mark.parametrize("w", DECAYS)
@pytest.mark.parametrize("B, T, H, K, V", [(2, 1, 2, 8, 8), (1, 17, 1, 9, 20), (1, 9, 2, 5, 7)])
def test_kernel_on_the_cpu(B, T, H, K, V, w):
    x = make(B, T, H, K, V, w, torch.float32)
    want = wkv5_reference(*(y.double() for y in x))
    for got in simulate(x):
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a.double(), b, **SINGLE)


def test_kernel_on_the_cpu_with_the_small_tile_and_no_state():
    x = make(1, 11, 2, 12, 9, dtype=torch.float32)
    x[5] = None
    want = wkv5_reference(*(y.double() for y in x[:5]))
    for got in simulate(x, values=4):
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a.double(), b, **SINGLE)


def test_kernel_on_the_cpu_with_several_blocks_a_head():
    x = make(1, 3, 1, 520, 20, dtype=torch.float32)  # 65 groups of keys: one of values per block
    want = wkv5_reference(*(y.double() for y in x))
    for got in simulate(x):
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-4)


def test_kernel_on_the_cpu_in_bfloat16(monkeypatch):
    memory, _, _ = finished.IN_MEMORY[torch.bfloat16]
    twins = bfloat16_to_float32.in_python, float32_to_bfloat16.in_python
    monkeypatch.setitem(finished.IN_MEMORY, torch.bfloat16, (memory, *twins))
    x = make(1, 10, 1, 8, 8, dtype=torch.bfloat16)
    want, state = wkv5_reference(*(y.double() for y in x))
    for o, s1 in simulate(x, torch.bfloat16):
        torch.testing.assert_close(o.double(), want, rtol=2**-8, atol=1e-4)
        torch.testing.assert_close(s1.double(), state, **SINGLE)


def test_bfloat16_is_rounded_as_torch_rounds():
    x = torch.randn(500) * 10.0 ** torch.randint(-38, 38, (500,))
    ties = (torch.arange(64, dtype=torch.int32) << 15 | 0x3F800000).view(torch.float32)
    x = torch.cat([x, -x, ties, torch.tensor([0.0, -0.0, math.inf, -math.inf, 3.4e38, 1e-45])])
    want = x.bfloat16().view(torch.uint16).tolist()
    assert [float32_to_bfloat16.in_python(y) for y in x.numpy()] == want
    back = [bfloat16_to_float32.in_python(bits) for bits in want]
    assert back == x.bfloat16().float().tolist()
    assert math.isnan(bfloat16_to_float32.in_python(float32_to_bfloat16.in_python(math.nan)))


# What may be given.


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "name, change, error, message",
    [
        ("r", lambda x: x[0], ValueError, r"r must be \[B, T, H, K\] .* got \[3, 2, 4\]"),
        ("r", lambda x: x[:, :0], ValueError, "r must be .* sizes of at least 1"),
        ("k", lambda x: x[..., :3], ValueError, r"k must be \[B, T, H, K\] = \[2, 3, 2, 4\], got"),
        ("v", lambda x: x[:, :2], ValueError, r"v must be \[B, T, H, V\] = \[2, 3, 2, V"),
        ("w", lambda x: x[0], ValueError, r"w must be \[H, K\] = \[2, 4\], got \[4\]"),
        ("u", lambda x: x.T, ValueError, r"u must be \[H, K\] = \[2, 4\], got \[4, 2\]"),
        ("s0", lambda x: x.mT, ValueError, r"s0 must be .* = \[2, 2, 4, 5\], got \[2, 2, 5, 4\]"),
        ("k", lambda x: x.half(), TypeError, "k must have r's dtype torch.float32, got"),
        ("w", lambda x: x.int(), TypeError, "w must be one of float32.* got torch.int32"),
        ("u", lambda x: x.tolist(), TypeError, "u must be a tensor, got list"),
        ("v", lambda x: x.to("meta"), ValueError, "v must be on r's device cpu, got meta"),
    ],
)
def test_what_is_wrong_is_named(method, name, change, error, message):
    x = dict(zip("r k v w u s0".split(), make(2, 3, 2, 4, 5, dtype=torch.float32), strict=True))
    x[name] = change(x[name])
    for compute in (METHODS[method], wkv5):
        with pytest.raises(error, match=message):
            compute(**x)


def test_cuda_names_the_device_it_needs():
    with pytest.raises(ValueError, match="r must be on a CUDA device, got cpu; wkv5 works on any"):
        wkv5_cuda(*make(1, 2, 1, 4, 4, dtype=torch.float32))
    with pytest.raises(TypeError, match="r must be one of float32, float16, bfloat16, got"):
        wkv5_cuda(*make(1, 2, 1, 4, 4))


def test_compiled_without_a_graph_break():
    x = make(1, 5, 1, 4, 4, dtype=torch.float32)
    compiled = torch.compile(wkv5, fullgraph=True, backend="eager")
    for got, want in zip(compiled(*x), wkv5(*x), strict=True):
        torch.testing.assert_close(got, want)


# On a GPU.

GPU_SHAPES = [(1, 1, 1, 64, 64), (2, 17, 3, 100, 100), (2, 33, 3, 5, 7), (1, 13, 1, 1024, 24),
              (3, 54, 64, 64, 64), (1, 1, 70_000, 8, 4)]  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("w", DECAYS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", GPU_SHAPES)
def test_cuda_is_the_reference(shape, dtype, w):
    x = make(*shape, w, dtype, "cuda")
    unit = {torch.float32: 0, torch.float16: 2**-11, torch.bfloat16: 2**-8}[dtype]
    for given in (x, x[:5]):
        got, want = wkv5_cuda(*given), wkv5_reference(*(y.double() for y in given))
        for a, b, rounding in zip(got, want, (unit, 0), strict=True):
            # Relative to the whole tensor: sums over K cancel, and their rounding does not.
            assert (a.double() - b).norm() <= (rounding + 1e-5) * b.norm()


@pytest.mark.gpu
def test_cuda_takes_views_streams_and_graphs():
    x = make(2, 50, 4, 64, 64, dtype=torch.float32, device="cuda")
    want = wkv5_cuda(*x)
    views = [y.transpose(1, 2).contiguous().transpose(1, 2) for y in x[:3]] + x[3:]
    assert all(torch.equal(a, b) for a, b in zip(wkv5_cuda(*views), want, strict=True))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        elsewhere = wkv5_cuda(*x)
    stream.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(elsewhere, want, strict=True))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = wkv5_cuda(*x)
    x[0].mul_(2)
    graph.replay()
    torch.testing.assert_close(replayed[0], 2 * want[0])


@pytest.mark.gpu
def test_cuda_in_torch_compile_and_opcheck():
    x = make(2, 20, 2, 64, 64, dtype=torch.float32, device="cuda")
    got = torch.compile(lambda *y: wkv5(*y)[0] * 2, fullgraph=True)(*x)
    torch.testing.assert_close(got, 2 * wkv5(*x)[0])
    operator = torch.ops.rwkv_lessons.wkv5_forward.default
    for s0 in (x[5], None):
        torch.library.opcheck(operator, (*x[:5], s0))
