"""WKV-7 in torch against its definition: values, every gradient, options, and what is refused."""

import math

import pytest
import torch
import torch._dynamo
from support.wkv7_cases import (
    DECAYS,
    SINGLE,
    gradients_given,
    in_float64,
    make,
    near,
    packed,
    results,
    with_raw,
)
from torch._dynamo.testing import CompileCounter

from rwkv_lessons.inputs import rwkv7_inputs
from rwkv_lessons.runtime import devices
from rwkv_lessons.wkv6 import wkv6_reference
from rwkv_lessons.wkv7 import METHODS, method_for, wkv7, wkv7_reference, wkv7_wy

TOKENS = [1, 15, 16, 17, 100]


@pytest.mark.parametrize("w", DECAYS)
def test_reference_is_the_step_of_other_projects_in_their_layout(w):
    """With a state of values × keys and column vectors, as wind_rwkv and RWKV-LM write it."""
    x = make(2, 5, 3, 4, 6, w)
    r, w, k, v, a, b, s0 = x
    o, s1 = wkv7_reference(*x)
    s, column = s0.mT, lambda y, t: y[:, t, :, :, None]
    for t in range(5):
        s = s * w[:, t].exp()[:, :, None, :] + s @ column(a, t) @ column(b, t).mT
        s = s + column(v, t) @ column(k, t).mT
        torch.testing.assert_close(o[:, t], (s @ column(r, t))[..., 0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(s1, s.mT, rtol=1e-12, atol=1e-12)


def test_without_a_correction_it_is_wkv6_that_reads_the_state_after_the_token():
    r, w, k, v, a, b, s0 = make(2, 9, 2, 4, 6)
    o, s1 = wkv7_reference(r, w, k, v, a, torch.zeros_like(b), s0)
    zeros = torch.zeros_like(r[:, :1])
    shifted = torch.cat([zeros, r], 1)  # wkv6's r reads the state before its token
    more = [torch.cat([y, torch.zeros_like(y[:, :1])], 1) for y in (k, v, w)]
    want, s = wkv6_reference(shifted, *more, torch.zeros_like(r[0, 0]), s0)
    torch.testing.assert_close(o, want[:, 1:])
    torch.testing.assert_close(s1, s)


@pytest.mark.parametrize("w", DECAYS)
@pytest.mark.parametrize("T", TOKENS)
def test_wy_has_the_values_and_gradients_of_the_reference(T, w):
    x = make(2, T, 2, 5, 7, w)
    near(results(wkv7_wy, x), in_float64(x), 1e-13)


@pytest.mark.parametrize("w", DECAYS)
def test_wy_of_a_thousand_tokens(w):
    x = make(1, 1000, 1, 4, 3, w)
    near(results(wkv7_wy, x), in_float64(x), 1e-13)


@pytest.mark.parametrize("w", DECAYS)
def test_wy_in_float32_is_right_to_float32(w):
    x = make(2, 100, 2, 16, 12, w, torch.float32)
    near(results(wkv7_wy, x), in_float64(x), SINGLE)


def test_gradients_of_gradients():
    x = [y.requires_grad_() for y in make(1, 5, 1, 2, 3, -0.7)]
    assert torch.autograd.gradcheck(wkv7_wy, x)
    assert torch.autograd.gradgradcheck(wkv7_wy, x)


def test_a_gradient_of_the_state_alone_and_none_of_s0():
    x = make(1, 20, 1, 3, 4)
    leaves = [y.requires_grad_() for y in x[:6]]
    ds1 = gradients_given(x)[1].double()
    for method in (wkv7_reference, wkv7_wy):
        _, s1 = method(*leaves)
        found = torch.autograd.grad(s1, leaves, ds1, materialize_grads=True)
        if method is wkv7_reference:
            want = found
    near(found, want, 1e-13, "dr dw dk dv da db".split())


@pytest.mark.parametrize("decay", ["raw", "clamp"])
@pytest.mark.parametrize("method", ["reference", "wy"])
def test_a_parameter_for_w_is_its_log_decay_and_has_its_own_gradient(method, decay):
    def by_hand(r, x, *others):
        log = -x.clamp(max=7).exp() if decay == "raw" else -math.exp(-0.5) * x.sigmoid()
        return wkv7_reference(r, log, *others)

    x = with_raw(make(2, 20, 2, 5, 6), decay)
    near(results(METHODS[method], x, decay=decay), results(by_hand, x), 1e-12)


@pytest.mark.parametrize("method", ["reference", "wy"])
def test_packed_sequences_do_not_see_each_other(method):
    x, cu_seqlens = packed()
    got = results(METHODS[method], x, cu_seqlens=cu_seqlens, scale=0.3)
    near(got, in_float64(x, cu_seqlens=cu_seqlens, scale=0.3), 1e-13)
    ends = cu_seqlens.tolist()
    for n, (start, end) in enumerate(zip(ends[:-1], ends[1:], strict=True)):
        s0 = x[6][n : n + 1]
        if start == end:
            assert torch.equal(got[1][n : n + 1], s0)
            continue
        o, s1 = wkv7_reference(*(y[:, start:end] for y in x[:6]), s0, scale=0.3)
        near([got[0][:, start:end], got[1][n : n + 1]], [o, s1], 1e-13)


def test_scale_multiplies_r():
    x = make(2, 20, 2, 4, 6)
    r, *others = x
    near(wkv7(*x, scale=0.3), wkv7_reference(0.3 * r, *others), 1e-13)


def test_a_sequence_in_two_parts_is_the_sequence():
    *x, s0 = make(2, 75, 2, 4, 6)
    o, s1 = wkv7(*x, s0)
    first, middle = wkv7(*(y[:, :30] for y in x), s0)
    second, last = wkv7(*(y[:, 30:] for y in x), middle)
    near([torch.cat([first, second], 1), last], [o, s1], 1e-13)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_computed_in_float32_and_rounded_once(dtype):
    x = make(2, 40, 2, 8, 6, "mixed", dtype)
    o, s1 = wkv7(*x)
    want, state = wkv7_reference(*(y.double() for y in x))
    assert o.dtype == dtype and s1.dtype == torch.float32
    near([o], [want], {"": torch.finfo(dtype).eps / 2})
    near([s1], [state], SINGLE, ["s1"])


def test_autocast_changes_nothing():
    x = make(2, 20, 2, 8, 6, "mixed", torch.float32)
    want = wkv7(*x)
    with torch.autocast("cpu", torch.bfloat16):
        got = wkv7(*x)
    assert all(torch.equal(y, z) for y, z in zip(got, want, strict=True))


def test_a_graph_without_breaks():
    x, cu_seqlens = packed(torch.float32)
    compiled = torch.compile(wkv7, backend="aot_eager", fullgraph=True)
    for options in ({}, {"cu_seqlens": cu_seqlens}):
        given = [*x[:6], x[6] if options else None]
        near(results(compiled, given, **options), results(wkv7, given, **options), 0)


def test_a_graph_without_breaks_where_nothing_learns():
    x = make(2, 70, 2, 5, 6, "mixed", torch.float32)
    compiled = torch.compile(wkv7, backend="aot_eager", fullgraph=True)
    near(compiled(*x), wkv7(*x), 0)


def test_the_projects_inputs_are_what_a_model_gives():
    r, w, k, v, a, b = rwkv7_inputs(2, 20, 2, 16)
    assert w.max() < 0 and w.min() >= -math.exp(-0.5)
    torch.testing.assert_close(a.norm(dim=-1), torch.ones(2, 20, 2))
    rate = -b / a
    assert rate.min() > 0 and rate.max() < 1
    assert rwkv7_inputs(1, 9, 2, 16, dtype=torch.bfloat16).b.dtype == torch.bfloat16


WRONG = {
    "w": (lambda x: {"w": x["w"][:, :1]}, ValueError, r"w must be \[B, T, H, K\]"),
    "v": (lambda x: {"v": x["v"][0]}, ValueError, r"v must be \[B, T, H, V\]"),
    "a dtype": (lambda x: {"a": x["a"].float()}, TypeError, "a must have r's dtype"),
    "b": (lambda x: {"b": None}, TypeError, "b must be a tensor"),
    "k": (lambda x: {"k": x["k"].long()}, TypeError, "k must be one of float32"),
    "s0": (lambda x: {"s0": x["s0"].mT}, ValueError, r"s0 must be \[B, H, K, V\]"),
    "r": (lambda x: {"r": x["r"][0]}, ValueError, r"r must be \[B, T, H, K\]"),
    "scale": (lambda x: {"scale": "1"}, TypeError, "scale must be a number"),
    "decay": (lambda x: {"decay": "exp"}, ValueError, "decay must be one of log, raw, clamp"),
    "B": (
        lambda x: {"cu_seqlens": torch.tensor([0, 4])},
        ValueError,
        "r must have B = 1",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_is_named(name):
    change, error, message = WRONG[name]
    given = dict(zip(("r", "w", "k", "v", "a", "b", "s0"), make(2, 4, 2, 3, 5), strict=True))
    for method in (wkv7, wkv7_wy):
        with pytest.raises(error, match=message):
            method(**(given | change(given)))


@pytest.mark.parametrize("ends", [[0, 3], [0, 5, 3, 4], [1, 4]])
def test_wrong_ends_are_refused(ends):
    x = make(1, 4, 1, 2, 2)
    with pytest.raises(ValueError, match="cu_seqlens must increase from 0 to T = 4"):
        wkv7(*x[:6], cu_seqlens=torch.tensor(ends))


def test_a_step_and_packed_sequences_are_good_operators():
    *x, state = make(2, 1, 2, 4, 5, dtype=torch.float32)
    torch.library.opcheck(torch.ops.rwkv_lessons.wkv7_step.default, (*x, state, 0.5, "log"))
    x, cu_seqlens = packed(torch.float32, ends=[0, 2, 3])
    given = ("wkv7_wy", *(y.requires_grad_() for y in x), cu_seqlens)
    torch.library.opcheck(torch.ops.rwkv_lessons.wkv7_packed.default, given)


@pytest.mark.usefixtures("on_an_h200")
def test_the_rule_is_the_table_of_its_docstring():
    pytest.importorskip("triton")
    rows = [line.split("|")[1:-1] for line in method_for.__doc__.splitlines() if "|" in line]
    named = {cells[3].strip() for cells in rows[2:]}
    found = {
        method_for(device, dtype, T, heads, size, gradients)
        for device in ("cpu", "cuda")
        for dtype in (torch.float64, torch.float32, torch.bfloat16)
        for T in (1, 4, 16, 64, 65)
        for heads in (4, 512)
        for size in (64, 256, 300)
        for gradients in (False, True)
    }
    assert named == found == set(METHODS)
    assert method_for("cuda", torch.bfloat16, 4096, 512, 64, True) == "fused"
    assert method_for("cuda", torch.bfloat16, 1024, 8, 64, True) == "chunked"
    assert method_for("cuda", torch.bfloat16, 16, 512, 64, False) == "recurrent"


@pytest.mark.parametrize("gradients", [False, True])
def test_calls_of_any_length_are_compiled_a_few_times(gradients):
    """torch.compile gives up at 8, by default."""
    pytest.importorskip("triton")

    def chosen(x):
        B, T, H, N = x.shape
        call = "cuda", torch.bfloat16, T, B * H, N, gradients, devices.H200
        return x + sorted(METHODS).index(method_for.unchecked(*call))

    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(chosen, backend=counter, fullgraph=True, dynamic=True)
    for T in (10, 100, 512, 640, 1000, 1024, 2048, 4095, 4096, 5632, 6016, 8192, 16384, 32768):
        compiled(torch.empty(1, T, 4, 64, device="meta"))
    assert counter.frame_count <= 5


@pytest.mark.usefixtures("on_an_h200")
def test_one_launch_is_for_hopper_and_enough_heads_in_bfloat16():
    pytest.importorskip("triton")
    call = {"device": "cuda", "dtype": torch.bfloat16, "T": 4096, "heads": 64, "size": 64}
    call |= {"gradients": False}
    assert method_for(**call) == "fused"
    others = {"dtype": torch.float16}, {"size": 192}, {"gradients": True, "heads": 2}
    for other in (*others, {"alike": False}, {"gpu": devices.gpu_like("sm_100")}):
        assert method_for(**call | other) == "chunked"
    assert method_for(**call | {"gpu": devices.gpu_like("sm_90")}) == "fused"
    # Measured on an H100: heads with which it is slower, and with which it is faster.
    forward = (256, 0, 1), (1024, 0, 1), (1000, 16, 24), (4096, 0, 1), (4095, 24, 48)
    both = (1024, 8, 12), (2048, 2, 8), (4096, 1, 4), (8192, 0, 1), (8191, 24, 48), (32768, 0, 1)
    for gradients, measured in ((False, forward), (True, both)):
        for T, few, enough in measured:
            this = call | {"T": T, "gradients": gradients}
            assert method_for(**this | {"heads": enough}) == "fused"
            assert not few or method_for(**this | {"heads": few}) == "chunked"
    assert method_for(**call | {"T": 32768, "heads": 32, "packed": True}) == "chunked"
    for gradients in (False, True):  # heads of 128
        wide = call | {"T": 4096, "size": 128, "gradients": gradients}
        assert method_for(**wide | {"heads": 64}) == "fused"
        assert method_for(**wide | {"heads": 32}) == "chunked"


@pytest.mark.parametrize("name, first", [("reference", 100), ("wy", 64)])
@pytest.mark.parametrize("argument", range(1, 6))
def test_a_nan_reaches_what_the_help_says(name, first, argument):
    x = make(2, 200, 2, 4, 3, -0.1, torch.float32)
    x[argument][0, 100, 1, 1] = torch.nan
    o, s1 = METHODS[name](*x)
    reached = o.isnan().any(-1)
    assert reached[0, :, 1].nonzero().flatten().tolist() == list(range(first, 200))
    assert not reached[1].any() and not reached[0, :, 0].any() and not s1[:, 0].isnan().any()
