"""Every way of computing WKV-6, and every gradient, against the recurrence in float64."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import simulated
from support.wkv6_cases import (
    DECAY,
    DECAYS,
    GPU_SHAPES,
    HALF,
    NAMES,
    SINGLE,
    gradients_given,
    in_float64,
    make,
    near,
    results,
)

from rwkv_lessons.wkv5 import wkv5_reference
from rwkv_lessons.wkv6 import METHODS, wkv6, wkv6_cuda, wkv6_doubling, wkv6_reference
from rwkv_lessons.wkv6.cuda.tiles import TOKENS, WEAK
from warplens.cuda.trace import trace

SHAPES = [(1, 1, 1, 4, 4), (2, 2, 2, 4, 6), (1, 17, 3, 8, 5), (2, 54, 1, 5, 12), (1, 100, 2, 4, 4)]


# The torch paths.


def test_reference_with_one_decay_is_wkv5():
    r, k, v, w, u, s0 = make(2, 9, 2, 4, 6)
    w[:] = w[:1, :1]
    for a, b in zip(wkv6_reference(r, k, v, w, u, s0), wkv5_reference(r, k, v, w[0, 0], u, s0),
                    strict=True):  # fmt: skip
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("w", DECAYS)
def test_reference_is_the_sum(w):
    """One scalar at a time, each product of decays multiplied out: no state, no recurrence."""
    r, k, v, w, u, s0 = make(1, 4, 1, 2, 3, w)
    o, d = wkv6_reference(r, k, v, w, u, s0)[0], w.exp()
    for t, j in ((0, 0), (1, 2), (3, 1)):
        want = 0.0
        for i in range(2):
            seen = s0[0, 0, i, j] * d[0, :t, 0, i].prod()
            for s in range(t):
                seen += k[0, s, 0, i] * v[0, s, 0, j] * d[0, s + 1 : t, 0, i].prod()
            now = u[0, i] * k[0, t, 0, i] * v[0, t, 0, j]
            want += r[0, t, 0, i] * (now + seen)
        torch.testing.assert_close(o[0, t, 0, j], want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("w", DECAYS)
@pytest.mark.parametrize("shape", SHAPES)
def test_doubling_has_the_values_and_gradients_of_the_reference(shape, w):
    x = make(*shape, w)
    for name, a, b in zip(NAMES, results(wkv6_doubling, x), in_float64(x), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}")


@settings(max_examples=25, deadline=None)
@given(
    B=st.integers(1, 3), T=st.integers(1, 140), H=st.integers(1, 3), K=st.integers(1, 9),
    V=st.integers(1, 9), w=st.sampled_from(DECAYS), state=st.booleans(),
)  # fmt: skip
def test_doubling_at_any_shape(B, T, H, K, V, w, state):
    x = make(B, T, H, K, V, w)
    x[5] = x[5] if state else None
    for a, b in zip(results(wkv6_doubling, x), in_float64(x), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("T", [1, 3, 6])
def test_gradcheck(T):
    x = [y.requires_grad_() for y in make(1, T, 2, 2, 3, -0.7)]
    assert torch.autograd.gradcheck(wkv6_doubling, x)


def test_a_sequence_in_two_parts_is_the_sequence():
    *x, u, s0 = make(2, 75, 2, 4, 6)
    o, s1 = wkv6(*x, u, s0)
    first, middle = wkv6(*(y[:, :30] for y in x), u, s0)
    second, last = wkv6(*(y[:, 30:] for y in x), u, middle)
    torch.testing.assert_close(torch.cat([first, second], 1), o)
    torch.testing.assert_close(last, s1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_rounded_once(dtype):
    """Sums are float32, so only the rounding of o is left: half a unit of the last place."""
    x = make(1, 60, 2, 8, 8, dtype=dtype)
    o, s1 = wkv6(*x)
    assert (o.dtype, s1.dtype) == (dtype, torch.float32)
    near((o, s1), in_float64(x), {"o": HALF[dtype], "": SINGLE})


# The kernels, on the CPU.

KERNELS = [  # B, T, H, K, V, threads of a block along its values or keys, sizes
    (2, 1, 2, 8, 8, 1, {}),
    (1, 17, 1, 9, 20, 2, {}),
    (2, 11, 2, 5, 7, 1, {}),
    (1, 9, 1, 20, 24, 1, {}),  # several blocks a head
    (1, 19, 1, 12, 9, 2, {"tile": (4, 8)}),
    (1, 70, 1, 8, 4, 1, {"tile": (8, 4), "tokens": 4}),  # across a checkpoint
]


@pytest.mark.parametrize("w", DECAYS)
@pytest.mark.parametrize("B, T, H, K, V, groups, sizes", KERNELS)
def test_kernels_on_the_cpu(B, T, H, K, V, groups, sizes, w):
    x = make(B, T, H, K, V, w, torch.float32)
    want, limit = in_float64(x), SINGLE + T * DECAY
    for reverse in (False, True):
        o, s1, _ = simulated.forward(x, groups, sizes=sizes, reverse=reverse)
        grads, _ = simulated.backward(
            x, *gradients_given(x), groups=groups, sizes=sizes, reverse=reverse
        )
        near([o, s1, *grads], want, limit)


def test_kernels_on_the_cpu_with_groups_of_strong_decays_between_others():
    """Which go over the tokens in another loop: a whole group if one key of one token is strong."""
    x = make(1, 45, 1, 9, 8, -0.99 * WEAK / TOKENS, torch.float32)
    x[3][:, TOKENS : 2 * TOKENS] *= 1.02  # just too strong
    x[3][:, 3 * TOKENS + 2, :, 4] = -math.inf
    x[3][:, -1, :, 8] = -20
    o, s1, _ = simulated.forward(x)
    grads, _ = simulated.backward(x, *gradients_given(x))
    near([o, s1, *grads], in_float64(x), SINGLE)


def test_kernels_on_the_cpu_keep_what_is_not_a_number_from_earlier_tokens():
    x = make(1, 21, 1, 8, 8, -0.5, torch.float32)
    x[3][:, 13, :, 2] = math.nan
    o, s1, _ = simulated.forward(x)
    assert o[:, :13].isfinite().all() and o[:, 14:].isnan().all() and s1.isnan().any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("w_dtype", [None, torch.float32])
def test_kernels_on_the_cpu_in_half_precision(dtype, w_dtype):
    x = make(1, 10, 1, 9, 8, "mixed", dtype, w_dtype)
    o, s1, _ = simulated.forward(x)
    grads, _ = simulated.backward(x, *gradients_given(x))
    assert grads[3].dtype == (w_dtype or dtype)
    half = dict.fromkeys(("o", "dr", "dk", "dv"), HALF[dtype])
    near([o, s1, *grads], in_float64(x), half | {"dw": HALF[x[3].dtype] + SINGLE, "": SINGLE})


def test_kernels_on_the_cpu_without_states():
    *x, _ = make(1, 11, 2, 6, 9, dtype=torch.float32)
    x.append(None)
    do, ds1 = gradients_given(x)
    want = results(wkv6_reference, [y if y is None else y.double() for y in x], do, 0 * ds1)
    o, s1, _ = simulated.forward(x)
    grads, _ = simulated.backward(x, do, None)
    near([o, s1, *grads], want, SINGLE)


@settings(max_examples=20, deadline=None)
@given(
    T=st.integers(1, 20), K=st.integers(1, 18), V=st.integers(1, 18), groups=st.integers(1, 2),
    w=st.sampled_from(DECAYS), tile=st.sampled_from([(8, 8), (4, 8), (8, 4)]),
)  # fmt: skip
def test_kernels_at_any_shape(T, K, V, groups, w, tile):
    x = make(1, T, 2, K, V, w, torch.float32)
    o, s1, _ = simulated.forward(x, groups, sizes={"tile": tile})
    grads, _ = simulated.backward(x, *gradients_given(x), groups=groups, sizes={"tile": tile})
    near([o, s1, *grads], in_float64(x), SINGLE + T * DECAY)


def test_kernels_have_no_races():
    for T in (18, 70):  # the second meets a checkpoint in the middle
        x = make(1, T, 1, 16, 16, dtype=torch.float32)
        _, _, forward = simulated.forward(x, 2, go=trace)
        for t in (forward, *_traced_backward(x)):
            assert t.races == [] and t.faults == []


def _traced_backward(x):
    """`trace` works on copies: the second kernel gets what a plain run of the first left."""
    found = []

    def go(kernel, grid, block, *arguments):
        found.append(trace(kernel, grid, block, *arguments))
        simulated.run(kernel, grid, block, *arguments)

    simulated.backward(x, *gradients_given(x), groups=2, go=go)
    return found


# What may be given.


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "name, change, error, message",
    [
        ("r", lambda x: x[0], ValueError, r"r must be \[B, T, H, K\] .* got \[3, 2, 4\]"),
        ("r", lambda x: x[:, :0], ValueError, "r must be .* sizes of at least 1"),
        ("k", lambda x: x[..., :3], ValueError, r"k must be \[B, T, H, K\] = \[2, 3, 2, 4\], got"),
        ("v", lambda x: x[:, :2], ValueError, r"v must be \[B, T, H, V\] = \[2, 3, 2, V"),
        ("w", lambda x: x[0, 0], ValueError, r"w must be \[B, T, H, K\] = .* got \[2, 4\]"),
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
    for compute in (METHODS[method], wkv6):
        with pytest.raises(error, match=message):
            compute(**x)


def test_cuda_names_what_it_needs():
    with pytest.raises(ValueError, match="r must be on a CUDA device, got cpu; wkv6 works on any"):
        wkv6_cuda(*make(1, 2, 1, 4, 4, dtype=torch.float32))
    with pytest.raises(TypeError, match="r must be one of float32, float16, bfloat16, got"):
        wkv6_cuda(*make(1, 2, 1, 4, 4))


@pytest.mark.parametrize("T", [1, 17])
def test_autocast_does_not_cost_digits(T):
    """It would round the factors of torch's products to 16 bits: an error of 2e-3."""
    x = make(2, T, 2, 4, 6, dtype=torch.float32)
    one = [*(y[:1] for y in x[:4]), *x[4:]]
    ends = torch.tensor([0, T // 2, T])
    with torch.autocast("cpu", torch.bfloat16):
        got, packed = wkv6(*x), wkv6(*one, cu_seqlens=ends)
    near(got, in_float64(x), SINGLE + T * DECAY)
    for a, b in zip(packed, wkv6(*one, cu_seqlens=ends), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)  # the same computation


def test_compiled_without_a_graph_break():
    x = make(1, 5, 1, 4, 4, dtype=torch.float32)
    compiled = torch.compile(wkv6, fullgraph=True, backend="eager")
    for got, want in zip(compiled(*x), wkv6(*x), strict=True):
        torch.testing.assert_close(got, want)


# On a GPU.


@pytest.mark.gpu
@pytest.mark.parametrize("w", DECAYS)
@pytest.mark.parametrize("T", [1, 2, 17, 54, 100, 1000])
def test_cuda_is_the_reference(T, w):
    x = make(2, T, 3, 64, 64, w, torch.float32, device="cuda")
    near(results(wkv6_cuda, x), in_float64(x), SINGLE + min(T, 400) * DECAY)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", GPU_SHAPES)
def test_cuda_at_odd_shapes(shape):
    x = make(*shape, dtype=torch.float32, device="cuda")
    near(results(wkv6_cuda, x), in_float64(x), SINGLE)
    x[5] = None
    near(results(wkv6_cuda, x), in_float64(x), SINGLE)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("w_dtype", [None, torch.float32])
@pytest.mark.parametrize("w", [-0.3, "mixed"])
def test_cuda_in_half_precision(dtype, w_dtype, w):
    x = make(2, 100, 80, 64, 64, w, dtype, w_dtype, device="cuda")
    half = dict.fromkeys(("o", "dr", "dk", "dv"), HALF[dtype])
    limit = SINGLE + 10 * DECAY
    near(results(wkv6_cuda, x), in_float64(x), half | {"dw": HALF[x[3].dtype] + limit, "": limit})


@pytest.mark.gpu
def test_cuda_takes_views_streams_threads_and_graphs():
    x = make(2, 50, 4, 64, 64, dtype=torch.float32, device="cuda")
    do, ds1 = gradients_given(x)
    want = results(wkv6_cuda, x)
    assert all(torch.equal(a, b) for a, b in zip(results(wkv6_cuda, x), want, strict=True))
    views = [y.transpose(1, 2).contiguous().transpose(1, 2) for y in x[:4]] + x[4:]
    assert all(torch.equal(a, b) for a, b in zip(results(wkv6_cuda, views), want, strict=True))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        elsewhere = results(wkv6_cuda, x)
    stream.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(elsewhere, want, strict=True))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = results(wkv6_cuda, x, do, ds1)
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(replayed, want, strict=True))


@pytest.mark.gpu
def test_cuda_in_torch_compile_and_opcheck():
    x = make(2, 20, 2, 64, 64, dtype=torch.float32, device="cuda")
    compiled = torch.compile(wkv6, fullgraph=True)
    near(results(compiled, x), in_float64(x), SINGLE)
    do, ds1 = gradients_given(x)
    for s0 in (x[5], None):
        leaves = [y if y is None else y.clone().requires_grad_() for y in (*x[:5], s0)]
        torch.library.opcheck(torch.ops.rwkv_lessons.wkv6_forward.default, leaves)
        given = (*x[:5], s0, do, ds1)
        torch.library.opcheck(torch.ops.rwkv_lessons.wkv6_backward.default, given)


@pytest.mark.gpu
def test_cuda_refuses_heads_that_are_too_large_and_wkv6_takes_them():
    x = make(1, 3, 1, 1025, 8, dtype=torch.float32, device="cuda")
    with pytest.raises(ValueError, match="r must have K ≤ 1024, got K = 1025"):
        wkv6_cuda(*x)
    near(results(wkv6, x), in_float64(x), SINGLE)


@pytest.mark.parametrize("operation", ["wkv5", "wkv6"])
def test_one_token_on_the_cpu_takes_the_short_way(operation, monkeypatch):
    """Decoding on a CPU: no chunks to make of one token, and the same answer and gradients."""
    import importlib

    package = importlib.import_module(f"rwkv_lessons.{operation}")
    r, k, v = (torch.randn(2, 1, 3, n) for n in (8, 8, 5))
    w = -torch.rand(3, 8) if operation == "wkv5" else -torch.rand(2, 1, 3, 8)
    w.view(-1)[0] = -torch.inf
    u, s0 = torch.randn(3, 8), torch.randn(2, 3, 8, 5)
    given = [x.requires_grad_() for x in (r, k, v, w, u, s0)]
    products = {"wkv5": "chunked", "wkv6": "doubling"}[operation]
    want = package.METHODS[products](*given)
    monkeypatch.setattr(package, f"{operation}_{products}", None)
    got = getattr(package, operation)(*given)
    grads = [torch.randn_like(x) for x in want]
    want += torch.autograd.grad(want, given, grads)
    got += torch.autograd.grad(got, given, grads)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)  # a few roundings of 6e-8
