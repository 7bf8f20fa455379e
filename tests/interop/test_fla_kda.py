"""Kimi's delta attention and gated delta nets on `wkv7`, against their recurrence in float64."""

import math
from functools import partial
from importlib import import_module

import pytest
import torch
from support.wkv6_cases import HALF
from support.wkv7_cases import SINGLE, near
from torch.nn import functional as F

from rwkv_lessons.interop import fla_kda
from rwkv_lessons.interop.fla import (
    chunk_gated_delta_rule,
    chunk_kda,
    fused_recurrent_gated_delta_rule,
    fused_recurrent_kda,
)
from rwkv_lessons.runtime.packages import TRITON

NAMES = "o s1 dq dk dv dg dbeta ds0".split()
EXACT = 1e-12  # float64 on both sides; the chunks of wy divide by decays
KERNELS = [("chunked", chunk_kda), ("recurrent", chunk_gated_delta_rule)]
ENDS = [0, 3, 3, 70, 75]  # of packed sequences: an empty one, and one longer than a chunk


def make(T=70, H=2, HV=2, K=4, V=6, decay="mixed", most=1.0, ends=None, dtype=torch.float64):
    """q, k of length 1, v, g, beta up to `most`, and a state of each sequence."""
    B, T = (1, ends[-1]) if ends else (2, T)
    S = len(ends) - 1 if ends else B
    draw = torch.Generator().manual_seed(0)
    sizes = (B, T, H, K), (B, T, H, K), (B, T, HV, V), (S, HV, K, V)
    q, k, v, s0 = (torch.randn(*x, generator=draw, dtype=torch.float64) for x in sizes)
    rate = torch.rand(B, T, HV, K, generator=draw, dtype=torch.float64)
    beta = most * torch.rand(B, T, HV, generator=draw, dtype=torch.float64)
    if decay == "mixed":  # from a memory of 150 tokens to one of none
        g = (-torch.exp(-5 + 10 * rate)).masked_fill(rate > 0.97, -math.inf)
    else:
        g = torch.full_like(rate, decay)
    q, k, v = (x.to(dtype) for x in (F.normalize(q, dim=-1), F.normalize(k, dim=-1), v))
    return [q, k, v, g, beta, s0]


def definition(q, k, v, g, beta, s0, scale=None, ends=None):
    """S[t] = (I − β k kᵀ) diag(α) S[t-1] + β k vᵀ as matrices, one token at a time."""
    (B, T, H, K), HV = q.shape, v.shape[2]
    q, k = (x.repeat_interleave(HV // H, 2) for x in (q, k))
    ends = ends or [b * T for b in range(B + 1)]
    q, k, v, g, beta = (x.flatten(0, 1) for x in (q, k, v, g, beta))
    o, states = [], []
    for n, (start, end) in enumerate(zip(ends[:-1], ends[1:], strict=True)):
        s = s0[n]
        for t in range(start, end):
            rate, key = beta[t, :, None, None], k[t, :, :, None]
            keep = torch.eye(K, dtype=s.dtype) - rate * key @ key.mT
            s = keep @ torch.diag_embed(g[t].exp()) @ s + rate * key @ v[t, :, None]
            o.append((scale or K**-0.5) * (q[t, :, None] @ s)[:, 0])
        states.append(s)
    return torch.stack(o).view(B, T, HV, -1), torch.stack(states)


def results(f, x):
    """o, the states after and all gradients, for drawn gradients of both."""
    leaves = [y.detach().requires_grad_() for y in x]
    o, s1 = f(*leaves)
    draw = torch.Generator().manual_seed(7)
    given = [torch.randn(y.shape, generator=draw, dtype=torch.float64) for y in (o, s1)]
    given = [y.to(z.dtype) for y, z in zip(given, (o, s1), strict=True)]
    return o, s1, *torch.autograd.grad([o, s1], leaves, given)


def called(f, scale=None, ends=None, **options):
    def call(q, k, v, g, beta, s0):
        given = {"q": q, "k": k, "v": v, "g": g, "beta": beta, "initial_state": s0}
        ends_ = None if ends is None else torch.tensor(ends, device=q.device)
        return f(**given, scale=scale, output_final_state=True, cu_seqlens=ends_, **options)

    return call


@pytest.mark.parametrize(
    "shape, scale",
    [
        ({}, None),
        ({"T": 1}, 0.3),
        ({"K": 7, "V": 3, "most": 2.0}, 1.0),
        ({"ends": ENDS, "most": 2.0}, None),
        ({"decay": math.log(0.001)}, None),
        ({"decay": -math.inf, "T": 20}, None),
        ({"decay": 0.0, "most": 2.0}, None),
        ({"HV": 6, "ends": ENDS}, 0.3),
    ],
    ids=str,
)
def test_values_and_all_gradients_are_those_of_the_definition(shape, scale):
    x, ends = make(**shape), shape.get("ends")
    want = results(partial(definition, scale=scale, ends=ends), x)
    near(results(called(chunk_kda, scale, ends), x), want, EXACT, NAMES)


def test_the_recurrent_function_gives_the_same_gradients_among_them():
    x = make(HV=4, ends=ENDS, most=2.0)
    chunk, recurrent = (results(called(f, 0.3, ENDS), x) for f in (chunk_kda, fused_recurrent_kda))
    assert all(map(torch.equal, chunk, recurrent))


@pytest.mark.parametrize(
    "f, shape",
    [
        (chunk_gated_delta_rule, {"HV": 4, "ends": ENDS, "most": 2.0}),
        (fused_recurrent_gated_delta_rule, {}),
        (fused_recurrent_gated_delta_rule, {"T": 1}),
    ],
)
def test_a_gated_delta_net_has_one_decay_for_a_head(f, shape):
    q, k, v, g, beta, s0 = make(**shape)
    x, ends = [q, k, v, g[..., 0], beta, s0], shape.get("ends")

    def wanted(q, k, v, g, beta, s0):
        return definition(q, k, v, g[..., None].expand(*g.shape, 4), beta, s0, ends=ends)

    near(results(called(f, ends=ends), x), results(wanted, x), EXACT, NAMES)


def test_a_gated_delta_net_adds_the_decays_of_its_channels_and_needs_none():
    q, k, v, g, beta, s0 = make()
    both = called(fused_recurrent_gated_delta_rule, gk=g)
    want = definition(q, k, v, g + g[..., :1], beta, s0)
    near(both(q, k, v, g[..., 0], beta, s0), want, EXACT)
    without = called(fused_recurrent_gated_delta_rule)
    want = definition(q, k, v, torch.zeros_like(g), torch.ones_like(beta), s0)
    near(without(q, k, v, None, None, s0), want, EXACT)


@pytest.mark.parametrize(
    "f, doubled, lower_bound, with_A",
    [
        (chunk_kda, True, None, True),
        (chunk_kda, False, -5.0, True),
        (fused_recurrent_kda, False, -5.0, False),
        (fused_recurrent_kda, True, None, True),
    ],
)
def test_kda_as_its_layer_calls_it(f, doubled, lower_bound, with_A):
    """Lengths, decays and rates are made inside; states are values × keys; parameters learn."""
    q, k, v, _, _, s0 = make(T=20, HV=4)
    draw = torch.Generator().manual_seed(1)
    g, beta = (torch.randn(*s, generator=draw).double() for s in ((2, 20, 4, 4), (2, 20, 4)))
    A_log, dt_bias = (torch.randn(n, generator=draw).double() for n in (4, 16))
    x = [3 * q, 2 * k, v, g, beta, s0.mT.contiguous(), dt_bias, *[A_log] * with_A]

    def ours(q, k, v, g, beta, s0, dt_bias, A_log=None):
        options = {"A_log": A_log, "dt_bias": dt_bias, "lower_bound": lower_bound}
        options |= {"use_gate_in_kernel": True, "use_qk_l2norm_in_kernel": True}
        options |= {"use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": doubled}
        return called(f, state_v_first=True, **options)(q, k, v, g, beta, s0)

    def wanted(q, k, v, g, beta, s0, dt_bias, A_log=None):
        q, k = (y / (y.square().sum(-1, keepdim=True) + 1e-6).sqrt() for y in (q, k))
        size = 1 if A_log is None else A_log.exp()[:, None]
        g = g + dt_bias.view(4, 4)
        if lower_bound is None:
            g = -size * torch.log1p(g.exp())
        else:
            g = lower_bound * torch.sigmoid(size * g)
        rate = (2 if doubled else 1) * torch.sigmoid(beta)
        o, s1 = definition(q, k, v, g, rate, s0.mT)
        return o, s1.mT

    near(results(ours, x), results(wanted, x), EXACT, [*NAMES, "dt_bias", "A_log"])


@pytest.mark.parametrize("f", [chunk_gated_delta_rule, fused_recurrent_gated_delta_rule])
def test_a_gated_delta_net_as_its_layer_calls_it(f):
    q, k, v, _, _, s0 = make()
    g, beta = torch.randn(2, 2, 70, 2).double()
    A_log, dt_bias = torch.randn(2, 2).double()
    options = {"use_gate_in_kernel": True, "A_log": A_log, "dt_bias": dt_bias}
    options |= {"use_beta_sigmoid_in_kernel": True, "transpose_state_layout": True}
    o, s1 = called(f, use_qk_l2norm_in_kernel=True, **options)(3 * q, k, v, g, beta, s0.mT)
    decay = -A_log.exp() * torch.log1p((g + dt_bias).exp())
    lengths = [(x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (3 * q, k)]
    x = [3 * q / lengths[0], k / lengths[1], v, decay[..., None].expand(2, 70, 2, 4)]
    near([o, s1.mT], definition(*x, beta.sigmoid(), s0), EXACT)


def test_defaults_are_those_of_fla():
    *x, s0 = make()
    o, s1 = chunk_kda(*x)
    assert s1 is None
    near([o], definition(*x, torch.zeros_like(s0)), EXACT)
    assert fused_recurrent_kda(*x)[1] is None
    before = s0.clone()
    chunk_kda(*x, initial_state=s0)
    assert torch.equal(s0, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_dtypes(dtype):
    """o and gradients in 16 bits; a decay and a rate in float32 keep their bits."""
    x = make(dtype=dtype)
    x[3:] = [y.float() for y in x[3:]]
    got = results(called(chunk_kda), x)
    assert [y.dtype for y in got] == [dtype, torch.float32, *[dtype] * 3, *[torch.float32] * 3]
    want = results(definition, [y.double() for y in x])
    # α∘k and βk are rounded to 16 bits, and so are their gradients.
    limit = SINGLE if dtype == torch.float32 else 2 * HALF[dtype]
    near(got, want, limit, NAMES)


@pytest.mark.parametrize("decay", [-1.0025e-4, -1.0039e-3, -1.0039, -4.984])
def test_log_decays_are_rounded_to_bfloat16_at_no_visible_cost(decay):
    """Each the same way, by almost the most, at 1,024 tokens; not if the call needs gradients.

    ‖error‖ / ‖float64‖ of o and the state is 1.6 to 2.8e-3, with float32 1.6 to 2.3e-3.
    """
    x = make(T=1024, H=1, HV=1, K=32, V=32, decay=decay, dtype=torch.bfloat16)
    x = [y[:1] for y in x]
    x[3:] = [y.float() for y in x[3:]]
    assert x[3][0, 0, 0, 0].bfloat16() != x[3][0, 0, 0, 0]
    f = called(chunk_kda)
    want = results(f, [y.double() for y in x])
    near(f(*x), want[:2], 2**-8, NAMES[:2])
    limits = {"": 2 * HALF[torch.bfloat16], "o": 2**-8, "s1": 2**-8, "dg": 2**-8, "ds0": 2**-8}
    near(results(f, x), want, limits | {"dbeta": 2**-5}, NAMES)  # of two that nearly cancel


def test_what_would_have_no_effect_is_refused():
    x, size = make(T=3, H=1, HV=1, K=4, V=2)[:5], torch.zeros(1)
    with pytest.raises(ValueError, match="A_log and dt_bias need use_gate_in_kernel"):
        chunk_kda(*x, A_log=size)
    with pytest.raises(ValueError, match="A_log and dt_bias need use_gate_in_kernel"):
        chunk_gated_delta_rule(*x[:3], x[3][..., 0], x[4], dt_bias=size)
    with pytest.raises(ValueError, match="cu_seqlens_cpu needs cu_seqlens"):
        chunk_kda(*x, cu_seqlens_cpu=torch.tensor([0, 3]))


def test_second_gradients_are_those_of_the_definition():
    x = make(T=3, H=1, HV=1, K=3, V=2)
    f = called(chunk_kda)

    def twice(f):
        leaves = [y.detach().requires_grad_() for y in x]
        o, s1 = f(*leaves)
        first = torch.autograd.grad(o.square().sum() + s1.sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(y.square().sum() for y in first), leaves)

    x[3] = x[3].clamp(min=-3)  # the definition's powers of -inf are NaN
    near(twice(f), twice(definition), EXACT, NAMES[2:])


@pytest.mark.parametrize("lower_bound, safe_gate", [(-5, True), (-1e-3, True), (-5.5, False)])
def test_bounds_that_fla_takes_are_taken(lower_bound, safe_gate):
    x = make()
    o, _ = chunk_kda(*x[:5], use_gate_in_kernel=True, lower_bound=lower_bound, safe_gate=safe_gate)
    assert torch.equal(o, chunk_kda(*x[:3], lower_bound * x[3].sigmoid(), x[4])[0])


def test_sizes_and_hints_of_fla_are_accepted():
    x = make()
    hints = {"safe_gate": True, "disable_recompute": True, "chunk_size": 32, "max_num_seqs": 4}
    assert torch.equal(chunk_kda(*x[:5], **hints)[0], chunk_kda(*x[:5])[0])
    g = x[3][..., 0]
    got = chunk_gated_delta_rule(*x[:3], g, x[4], chunk_indices=torch.zeros(1), chunk_size=16)
    assert torch.equal(got[0], chunk_gated_delta_rule(*x[:3], g, x[4])[0])


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"cp_context": object()}, NotImplementedError, "cp_context is not supported"),
        ({"return_intermediate_states": True}, NotImplementedError, "return_intermediate_states"),
        ({"use_graph": True}, NotImplementedError, "use_graph is not supported"),
        ({"beta": torch.ones(2, 70, 2, 6)}, NotImplementedError, "a rate for each value channel"),
        ({"chunk_size": 48}, ValueError, "chunk_size must be 32 or 64, got 48"),
        ({"heads": 2}, TypeError, "no argument is called 'heads'"),
        ({"allow_neg_eigval": True}, ValueError, "needs use_beta_sigmoid_in_kernel"),
        ({"use_gate_in_kernel": True}, ValueError, "A_log is None"),
        (
            {"use_gate_in_kernel": True, "lower_bound": -5.0, "A_log": torch.zeros(3)},
            ValueError,
            r"A_log must be \[HV\] = \[2\], got \[3\]",
        ),
        (
            {"use_gate_in_kernel": True, "lower_bound": 5.0},
            ValueError,
            "lower_bound must be below 0, got 5.0",
        ),
        (
            {"use_gate_in_kernel": True, "lower_bound": -5.5, "safe_gate": True},
            ValueError,
            "lower_bound must be from -5 to below 0 with safe_gate, as in FLA, got -5.5: leave",
        ),
        (
            {"use_gate_in_kernel": True, "lower_bound": "5"},
            TypeError,
            "lower_bound must be a number, got str",
        ),
        ({"g": torch.zeros(2, 70, 2)}, ValueError, r"g must be \[B, T, HV, K\] = \[2, 70, 2, 4\]"),
        ({"beta": None}, TypeError, "beta must be a tensor, got NoneType"),
        ({"v": torch.zeros(2, 70, 3, 6)}, ValueError, "multiple of q's heads, H = 2, got HV = 3"),
        ({"k": torch.zeros(2, 70, 2, 5)}, ValueError, r"k must be \[B, T, H, K\]"),
        (
            {"initial_state": torch.zeros(2, 2, 4, 6), "state_v_first": True},
            ValueError,
            r"initial_state must be \[B, HV, V, K\] = \[2, 2, 6, 4\]",
        ),
        (
            {"state_v_first": True, "transpose_state_layout": True},
            ValueError,
            "the old name of state_v_first",
        ),
        (
            {"cu_seqlens": torch.tensor([0, 70])},
            ValueError,
            "q must have B = 1 if cu_seqlens is given",
        ),
        ({"cu_seqlens": torch.tensor(3)}, ValueError, r"cu_seqlens must be \[S \+ 1\]"),
    ],
)
def test_what_is_wrong_or_missing_is_named(change, error, message):
    x = dict(zip("q k v g beta".split(), make(dtype=torch.float32), strict=False))
    with pytest.raises(error, match=message):
        chunk_kda(**x | change)


def test_gated_delta_nets_refuse_decays_of_value_channels():
    q, k, v, g, beta, _ = make()
    with pytest.raises(NotImplementedError, match="gv is not supported: a decay for each value"):
        fused_recurrent_gated_delta_rule(q, k, v, g[..., 0], gv=torch.zeros_like(v), beta=beta)
    with pytest.raises(DeprecationWarning, match="head_first has been removed"):
        chunk_gated_delta_rule(q, k, v, g[..., 0], beta, head_first=True)
    with pytest.raises(TypeError, match="g must be a tensor"):
        chunk_gated_delta_rule(q, k, v, None, beta)
    with pytest.raises(ValueError, match="g is None: use_gate_in_kernel"):
        fused_recurrent_gated_delta_rule(q, k, v, use_gate_in_kernel=True)


def by_kernels(method):
    """`wkv7` as one method's kernels compute it, forward and backward, on a CPU too."""
    folder = f"rwkv_lessons.wkv7.{method}"
    forward, backward = (import_module(f"{folder}.{x}") for x in ("forward", "backward"))

    class Kernels(torch.autograd.Function):
        @staticmethod
        def forward(ctx, ends, scale, *x):
            o, s1, states, reads = forward.forward(*x, ends, scale, "log", True)
            ctx.save_for_backward(*x, ends, states, reads)
            ctx.scale = scale
            return o, s1

        @staticmethod
        def backward(ctx, do, ds1):
            gradients = backward.gradients(*ctx.saved_tensors, do, ds1, ctx.scale, "log")
            return None, None, *gradients

    return lambda *x, cu_seqlens, scale: Kernels.apply(cu_seqlens, scale, *x)


def mapped_by_triton(q, *arguments):
    """What `in_torch` returns, by the kernels, on a CPU too."""
    from rwkv_lessons.wkv7.kda.kernels import InTriton

    r, *others = InTriton.apply(q, *arguments)
    return q if r is None else r, *others


@pytest.mark.filterwarnings("ignore:overflow encountered in exp2")
@pytest.mark.skipif(not TRITON, reason="Triton is not installed")
@pytest.mark.parametrize("lower_bound", [None, -5.0])
def test_kernels_make_what_a_layer_leaves_to_the_call(monkeypatch, lower_bound):
    """More value heads, packed sequences, turned states, decays from 1 to exp(-50)."""
    device, ends = "cuda" if torch.cuda.is_available() else "cpu", [0, 1, 1, 70, 75]
    q, k, v, _, _, s0 = make(H=2, HV=4, K=7, V=5, ends=ends)
    g, beta = 4 * torch.randn(1, 75, 4, 7), torch.randn(1, 75, 4)
    A_log, dt_bias = torch.tensor([0.0, 0.5, 1.0, 2.5]), torch.randn(28)
    x = [3 * q, 2 * k, v, g, beta, s0.mT.contiguous(), A_log, dt_bias]

    def f(*x):
        options = {"A_log": x[6], "dt_bias": x[7], "lower_bound": lower_bound}
        options |= {"use_gate_in_kernel": True, "use_qk_l2norm_in_kernel": True}
        options |= {"use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": True}
        return called(chunk_kda, ends=ends, state_v_first=True, **options)(*x[:6])

    want = results(f, [y.double() for y in x])
    if device == "cpu":
        monkeypatch.setattr(fla_kda, "in_torch", mapped_by_triton)
    got = results(f, [y.to(device, torch.float32) for y in x])
    near([y.cpu() for y in got], want, 2 * SINGLE, [*NAMES, "dA_log", "ddt_bias"])


# The first launch multiplies what does not fit, and the second one does it again.
@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered")
@pytest.mark.skipif(not TRITON, reason="Triton is not installed")
@pytest.mark.parametrize("method, f", KERNELS)
def test_our_kernels_compute_it(monkeypatch, method, f):
    """In float32, with strong decays, packed: on a GPU, or in Triton's interpreter."""
    device, ends = "cuda" if torch.cuda.is_available() else "cpu", [0, 1, 1, 20]
    monkeypatch.setattr(fla_kda, "wkv7", by_kernels(method))
    if device == "cpu":
        monkeypatch.setattr(fla_kda, "in_torch", mapped_by_triton)
    x = make(H=1, HV=2, K=8, V=12, most=2.0, ends=ends)
    x = [y.to(device, torch.float32) for y in x]
    x[3] = x[3] if f is chunk_kda else x[3][..., 0]

    def wanted(q, k, v, g, beta, s0):
        g = g if f is chunk_kda else g[..., None].expand(*g.shape, 8)
        return definition(q, k, v, g, beta, s0, ends=ends)

    want = results(wanted, [y.cpu().double() for y in x])
    near([y.cpu() for y in results(called(f, ends=ends), x)], want, SINGLE, NAMES)
