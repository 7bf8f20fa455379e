"""The calls of wind_rwkv, RWKV-LM and FLA for RWKV-7, against their definitions in their layout."""

import math
import sys
from types import ModuleType

import pytest
import torch
from support.wkv7_cases import make, near, with_raw

from rwkv_lessons.interop import fla, fla_rwkv7, rwkv_lm, wind_rwkv

EXACT = 1e-13  # float64 on both sides


def steps(r, decay, k, v, a, b, s):
    """One token after the other with a state of values × keys, as the seed's table has it."""
    outputs = []
    for t in range(r.shape[1]):
        read = (s @ a[:, t, :, :, None]) @ b[:, t, :, None, :]
        s = s * decay[:, t, :, None, :] + read + v[:, t, :, :, None] @ k[:, t, :, None, :]
        outputs.append((s @ r[:, t, :, :, None])[..., 0])
    return torch.stack(outputs, 1), s


def both(f, g, x):
    """Results of two functions of the same tensors, and all gradients through all of them."""
    found = []
    for function in (f, g):
        leaves = [y.detach().requires_grad_() for y in x]
        results = function(*leaves)
        gradients = torch.autograd.grad([y.square().sum() for y in results], leaves)
        found.append([*results, *gradients])
    names = [f"result {n}" for n in range(len(found[0]))]
    near(*found, EXACT, names)


@pytest.mark.parametrize("name", wind_rwkv.__all__[:3] + ["attn_triton_bighead"])
def test_wind_rwkv_has_a_raw_decay_and_a_state_of_values_by_keys(name):
    def by_definition(r, w, k, v, a, b, s):
        return steps(r, torch.exp(-torch.exp(w)), k, v, a, b, s)

    x = make(2, 20, 2, 6, 6)
    x[1] = torch.randn_like(x[1])
    both(getattr(wind_rwkv, name), by_definition, x)


def test_wind_rwkvs_final_state_has_the_dtype_of_the_originals():
    *x, s0 = with_raw(make(1, 20, 2, 8, 8, "mixed", torch.bfloat16), "raw")
    y, state = wind_rwkv.attn_chunked_cuda(*x)
    assert y.dtype == state.dtype == torch.bfloat16
    assert wind_rwkv.attn_chunked_cuda(*x, s0)[1].dtype == torch.float32
    assert wind_rwkv.attn_backstepping_smallhead(*x)[1].dtype == torch.float32
    assert wind_rwkv.load_chunked_cuda(64) is None


def test_wind_rwkvs_packed_sequences_have_no_batch():
    x, ends = with_raw(make(1, 20, 2, 8, 8, "mixed", torch.bfloat16), "raw")[:6], [0, 7, 20]
    flat = [y[0] for y in x]
    o, states = wind_rwkv.attn_chunked_cuda_varlen(*flat, None, torch.tensor(ends))
    alone, last = wind_rwkv.attn_chunked_cuda(*(y[:, 7:] for y in x))
    assert o.shape == flat[3].shape and torch.equal(o[7:], alone[0])
    assert torch.equal(states[1:], last)
    given = states.float()
    _, after = wind_rwkv.attn_chunked_cuda_varlen(*flat, given, torch.tensor(ends))
    assert after.dtype == torch.float32 and torch.equal(given, states.float())


def test_wind_rwkvs_names_and_precisions_are_there():
    """Its own tests import all names, and choose how the big heads multiply."""
    names = {}
    exec("from rwkv_lessons.interop.wind_rwkv import *", names)
    *x, s0 = with_raw(make(1, 20, 2, 8, 8, "mixed", torch.bfloat16), "raw")
    want = wind_rwkv.attn_chunked_cuda(*x, s0)
    for precision in ("bf16", "fp16", "fp32"):
        found = names[f"attn_triton_bighead_{precision}"](*x, s0)
        assert all(map(torch.equal, found, want))
        found = names["attn_triton_bighead"](*x, s0, dot_prec=precision)
        assert all(map(torch.equal, found, want))
    functions = [name for name in names if name.startswith(("attn_", "load_"))]
    assert len(functions) == 12  # as many as its package has


@pytest.mark.parametrize("T", [1, 20])
def test_rwkv_lm_has_a_clamped_decay_and_flat_sequences(T):
    r, w, k, v, a, b, s0 = make(2, T, 3, 4, 4)
    w = torch.randn_like(w)
    flat = [y.flatten(2) for y in (r, w, k, v, a, b)]

    def by_definition(s, *flat):
        r, w, k, v, a, b = (y.unflatten(2, (3, 4)) for y in flat)
        decay = torch.exp(-math.exp(-0.5) * torch.sigmoid(w))
        o, s1 = steps(r, decay, k, v, a, b, s)
        return o.flatten(2), s1

    def ours(s, *flat):
        return rwkv_lm.RWKV7_STATE_PASSING_CLAMPW_CUDA(s, *flat, HEAD_SIZE=4)

    both(ours, by_definition, [s0, *flat])
    want = by_definition(s0, *flat)[0]
    near([rwkv_lm.RWKV7_STATE_CLAMPW_CUDA(s0, *flat, HEAD_SIZE=4)], [want], EXACT)
    want = by_definition(torch.zeros_like(s0), *flat)[0]
    near([rwkv_lm.RWKV7_CLAMPW_CUDA(*flat, HEAD_SIZE=4)], [want], EXACT)
    raw = torch.exp(-torch.exp(w))
    want = steps(r, raw, k, v, a, b, torch.zeros_like(s0))[0].flatten(2)
    near([rwkv_lm.RUN_CUDA_RWKV7g(*flat, HEAD_SIZE=4)], [want], EXACT)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_torchscript_compiles_what_calls_rwkv_lms_functions():
    """As it does RWKV-LM's models, with the decay of either name."""

    class Layer(torch.nn.Module):
        def forward(self, r, w, k, v, a, b):
            return rwkv_lm.RWKV7_CLAMPW_CUDA(r, w, k, v, a, b) + rwkv_lm.RUN_CUDA_RWKV7g(
                r, w, k, v, a, b, 16
            )

    x = [y.flatten(2) for y in make(2, 20, 1, 64, 64)[:6]]
    x[1] = torch.randn_like(x[1])
    both(lambda *y: [torch.jit.script(Layer())(*y)], lambda *y: [Layer()(*y)], x)


def test_rwkv_lm_names_a_wrong_argument():
    x = [torch.zeros(1, 3, 128) for _ in range(6)]
    assert rwkv_lm.RWKV7_CLAMPW_CUDA(*x).shape == (1, 3, 128)
    with pytest.raises(ValueError, match="k must be .B, T, C. with C a multiple of HEAD_SIZE = 64"):
        rwkv_lm.RWKV7_CLAMPW_CUDA(*x[:2], x[2][..., :100], *x[3:])
    with pytest.raises(TypeError, match="b must be a tensor"):
        rwkv_lm.RWKV7_CLAMPW_CUDA(*x[:5], None)


@pytest.mark.parametrize("scale", [None, 0.3])
def test_fla_has_log_decays_and_a_state_of_keys_by_values(scale):
    def by_definition(r, w, k, v, a, b, s):
        o, s1 = steps(r * (scale or r.shape[-1] ** -0.5), w.exp(), k, v, a, b, s.mT)
        return o, s1.mT

    x = make(2, 20, 2, 4, 6)
    x[1] = -x[1].clamp(min=-3).exp()  # a finite one, so that gradients are
    chunk = lambda *y: fla.chunk_rwkv7(*y[:6], scale, y[6], True)  # noqa: E731
    recurrent = lambda *y: fla.fused_recurrent_rwkv7(*y[:6], scale, y[6])  # noqa: E731
    both(chunk, by_definition, x)
    both(recurrent, by_definition, x)


@pytest.mark.parametrize("reverse", [False, True])
def test_fla_forms_the_delta_rule_of_a_unit_vector_and_a_rate(reverse):
    r, w, k, v, a, b, s0 = make(2, 20, 2, 4, 6)
    rate = torch.rand_like(a)
    turn = (lambda y: y.flip(1)) if reverse else lambda y: y
    given = [turn(y) for y in (r, w.exp(), k, v, a, -a * rate)]
    want, state = steps(*given, s0.mT)
    o, s1 = fla.fused_mul_recurrent_rwkv7(
        r, w, k, v, -a, rate, initial_state=s0, output_final_state=True, reverse=reverse
    )
    near([turn(o), s1.mT], [want, state], EXACT)
    assert fla.fused_mul_recurrent_rwkv7(r, w, k, v, -a, rate)[1] is None
    ends, states = torch.tensor([0, 7, 20]), torch.cat([s0, s0])[:2]
    x = [y[:1] for y in (r, w, k, v, -a, rate)]
    o, s1 = fla.fused_mul_recurrent_rwkv7(*x, 1.0, states, True, reverse, ends)
    part = [y[:, 7:] for y in x]
    alone, last = fla.fused_mul_recurrent_rwkv7(*part, 1.0, states[1:], True, reverse)
    near([o[:, 7:], s1[1:]], [alone, last], EXACT)


def test_fla_refuses_what_it_cannot_do():
    *x, s0 = make(1, 4, 2, 3, 5)
    with pytest.raises(NotImplementedError, match="cp_context"):
        fla.chunk_rwkv7(*x, cp_context=object())
    with pytest.raises(ValueError, match=r"initial_state must be \[B, H, K, V\]"):
        fla.chunk_rwkv7(*x, initial_state=s0.mT)
    with pytest.raises(TypeError, match="b must be a tensor"):
        fla.chunk_rwkv7(*x[:5], None)


def test_one_call_puts_flas_rwkv7_layers_on_ours(monkeypatch):
    names = "fla fla.ops fla.ops.rwkv6 fla.ops.rwkv6.chunk fla.ops.rwkv6.fused_recurrent fla.layers"
    names = [*names.split(), "fla.layers.rwkv6", "fla.ops.rwkv7", *fla_rwkv7.MODULES]
    for name in names:
        module = ModuleType(name)
        module.__path__ = []
        monkeypatch.setitem(sys.modules, name, module)
        if "rwkv7" in name:
            for function in fla_rwkv7.FUNCTIONS:
                setattr(module, function, lambda *_: "theirs")
    layer = sys.modules["fla.layers.rwkv7"]
    *x, s0 = make(1, 3, 1, 2, 2)
    with fla.patch_fla():
        near([layer.chunk_rwkv7(*x)[0]], [fla.chunk_rwkv7(*x)[0]], 0)
        assert layer.fused_mul_recurrent_rwkv7.replacement is fla.fused_mul_recurrent_rwkv7
    assert layer.chunk_rwkv7(*x) == "theirs"
