"""The functions of the Hugging Face models, and small models in their layout before and after."""

import inspect
import math
import subprocess
import sys

import pytest
import torch
from support import modeling_rwkv5, modeling_rwkv6
from support.modeling_rwkv import Config
from support.modeling_rwkv5 import Rwkv5ForCausalLM
from support.modeling_rwkv6 import Rwkv6ForCausalLM, Rwkv6SelfAttention
from torch import nn

from rwkv_lessons.interop.transformers_rwkv import (
    patch_rwkv,
    rwkv5_linear_attention,
    rwkv6_linear_attention,
)

CALLS = {5: rwkv5_linear_attention, 6: rwkv6_linear_attention}
FILES = {5: modeling_rwkv5, 6: modeling_rwkv6}
ORIGINALS = {
    5: modeling_rwkv5.rwkv5_linear_attention,
    6: modeling_rwkv6.rwkv6_linear_attention,
}
MODELS = {5: Rwkv5ForCausalLM, 6: Rwkv6ForCausalLM}
NAMES = ["receptance", "key", "value", "time_decay", "time_first", "state"]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
# Everything is computed in float32, whatever the dtype: sums over up to 54 tokens × 64 keys.
SUMS = 1e-5  # measured below 5e-7 on a CPU
ROUNDING = {torch.float32: 2**-24, torch.float16: 2**-11, torch.bfloat16: 2**-8}

both = pytest.mark.parametrize("version", [5, 6])
devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def arguments(version, B, T, dtype=torch.float32, device="cpu", raw=(-6.0, 1.0), H=2, N=64):
    """Everything after `training`, as the models pass it; raw decays lie between two ends."""
    torch.manual_seed(B * 1000 + T)
    sequence = (B, T, H * N)
    time_decay = torch.rand((H, N) if version == 5 else sequence)
    time_decay = raw[0] + (raw[1] - raw[0]) * time_decay
    given = [*torch.randn(3, *sequence), time_decay, torch.randn(H, N)]
    return [x.to(device, dtype) for x in given] + [torch.randn(B, H, N, N).to(device)]


def by_hand(training, receptance, key, value, time_decay, time_first, state):
    """The documented recurrence in float64, one batch, head and token after the other."""
    receptance, key, value, time_decay, time_first, state = (
        x.double() for x in (receptance, key, value, time_decay, time_first, state)
    )
    B, T, C = receptance.shape
    H, N = time_first.shape
    decay = torch.exp(-torch.exp(time_decay))
    decay = decay.flatten() if decay.shape == (H, N) else decay
    r, k, v, d = (x.reshape(B, T, H, N) for x in (receptance, key, value, decay.expand(B, T, C)))
    out, last = {}, []
    for b in range(B):
        for h in range(H):
            s = state[b, h]
            for t in range(T):
                bonus = torch.outer(time_first[h] * k[b, t, h], v[b, t, h])
                out[b, t, h] = r[b, t, h] @ (s + bonus)
                s = d[b, t, h][:, None] * s + torch.outer(k[b, t, h], v[b, t, h])
            last.append(s)
    out = torch.stack([out[b, t, h] for b in range(B) for t in range(T) for h in range(H)])
    return out.reshape(B, T, H, N), torch.stack(last).reshape(state.shape)


def gradients(call, given, weighting):
    given = [x.detach().clone().requires_grad_() for x in given]
    out, _ = call(True, *given)
    return torch.autograd.grad((out * weighting.to(out)).sum(), given, materialize_grads=True)


def error(found, wanted):
    assert found.shape == wanted.shape
    return float((found.double() - wanted).norm() / wanted.norm().clamp(min=1e-30))


@both
@devices
@dtypes
@pytest.mark.parametrize("B", [1, 4])
@pytest.mark.parametrize("T", [1, 17, 54])
def test_output_and_state(version, device, B, T, dtype):
    given = arguments(version, B, T, dtype, device)
    before = [x.clone() for x in given]
    out, state = CALLS[version](False, *given)
    assert out.dtype == state.dtype == torch.float32
    assert out.is_contiguous() and state.is_contiguous()
    for name, x, y in zip(NAMES, given, before, strict=True):
        assert torch.equal(x, y), f"{name} was written to"
    for x, y in zip((out, state), by_hand(False, *given), strict=True):
        assert error(x, y) < SUMS


@both
@devices
@pytest.mark.parametrize("B", [1, 4])
@pytest.mark.parametrize("T", [1, 2, 17, 54])
def test_gradients_of_every_argument(version, device, B, T):
    given = arguments(version, B, T, device=device)
    weighting = torch.randn(B, T, 2, 64)
    found = gradients(CALLS[version], given, weighting)
    for name, x, y in zip(NAMES, found, gradients(by_hand, given, weighting), strict=True):
        if name == "time_decay" and T == 1:
            assert not x.any() and not y.any()  # it acts on later tokens only
        else:
            assert error(x, y) < SUMS, name


@both
@devices
@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_gradients_in_the_dtype_of_the_argument(version, device, dtype):
    given = arguments(version, 2, 17, dtype, device)
    weighting = torch.randn(2, 17, 2, 64)
    found = gradients(CALLS[version], given, weighting)
    for name, x, y in zip(NAMES, found, gradients(by_hand, given, weighting), strict=True):
        assert x.dtype == (torch.float32 if name == "state" else dtype), name
        assert error(x, y) < ROUNDING[dtype] + SUMS, name


@both
@devices
@pytest.mark.parametrize("raw", [(2.0, 6.0), (-30.0, -8.0), (-12.0, 6.0)], ids=str)
def test_strong_and_weak_decay(version, device, raw):
    """Raw decays from 6 (the state is multiplied by 1e-175) down to -30 (by 1)."""
    given = arguments(version, 2, 54, device=device, raw=raw)
    for x, y in zip(CALLS[version](False, *given), by_hand(False, *given), strict=True):
        assert error(x, y) < SUMS
    weighting = torch.randn(2, 54, 2, 64)
    found = gradients(CALLS[version], given, weighting)
    for name, x, y in zip(NAMES, found, gradients(by_hand, given, weighting), strict=True):
        assert error(x, y) < SUMS, name


@both
@devices
def test_a_decay_without_bounds_is_exact_and_has_a_gradient(version, device):
    given = arguments(version, 2, 17, device=device)
    flat = given[3].view(-1, 128)
    flat[:, 0::3], flat[:, 1::3] = math.inf, -math.inf
    found = gradients(CALLS[version], given, torch.ones(()))
    assert all(torch.isfinite(x).all() for x in found)
    for x, y in zip(CALLS[version](False, *given), by_hand(False, *given), strict=True):
        assert error(x, y) < SUMS


@both
@devices
def test_any_strides(version, device):
    given = arguments(version, 2, 17, device=device)
    apart = [x[..., None].repeat_interleave(2, -1)[..., 0] for x in given]
    assert not any(x.is_contiguous() for x in apart)
    for x, y in zip(CALLS[version](True, *apart), CALLS[version](True, *given), strict=True):
        assert torch.equal(x, y)


@both
def test_no_state_is_a_state_of_zeros(version):
    given, zeros = arguments(version, 2, 5)[:5], torch.zeros(2, 2, 64, 64)
    for x, y in zip(
        CALLS[version](False, *given, None), CALLS[version](False, *given, zeros), strict=True
    ):
        assert torch.equal(x, y)


@both
def test_the_state_has_no_gradient_and_its_memory_may_be_reused(version):
    given = [x.requires_grad_() for x in arguments(version, 1, 130)]  # more than one chunk
    shared = given[5].detach().clone()
    out, state = CALLS[version](True, *given[:5], shared)
    assert out.requires_grad and not state.requires_grad
    shared.copy_(state)  # as the models do, before the gradients are asked for
    wanted = CALLS[version](True, *given)[0]
    for x, y in zip(
        torch.autograd.grad(out.sum(), given[:5]),
        torch.autograd.grad(wanted.sum(), given[:5]),
        strict=True,
    ):
        assert torch.equal(x, y)


@both
def test_the_signature_is_the_originals(version):
    wanted = inspect.signature(ORIGINALS[version]).parameters
    assert list(inspect.signature(CALLS[version]).parameters) == ["training", *NAMES]
    assert list(wanted) == ["training", *NAMES]


BAD = {  # argument: what is given instead, and what the error must say
    "receptance": [
        (lambda x: x.tolist(), TypeError, " be a tensor, got list"),
        (lambda x: x.long(), TypeError, " be one of float32.*got torch.int64"),
        (lambda x: x.unflatten(2, (2, 64)), ValueError, r" be \[B, T, C\].*got \[2, 5, 2, 64\]"),
    ],
    "key": [
        (lambda x: x[:, :4], ValueError, r"\[2, 5, 128\], got \[2, 4, 128\]"),
        (lambda x: x.to("meta"), ValueError, "on receptance's device cpu, got meta"),
    ],
    "value": [(lambda x: x[..., :64], ValueError, r"\[2, 5, 128\], got \[2, 5, 64\]")],
    "time_decay": [(lambda x: x[..., :32], ValueError, r"128.*got \[.*32\]")],
    "time_first": [
        (lambda x: x.flatten(), ValueError, r"\[H, N\] with H·N = C = 128, got \[128\]"),
        (lambda x: None, TypeError, " be a tensor, got NoneType"),
    ],
    "state": [
        (lambda x: x[:1], ValueError, r"\[B, H, K, V\] = \[2, 2, 64, 64\], got \[1, 2, 64, 64\]"),
        (lambda x: "zeros", TypeError, " be a tensor, got str"),
    ],
}


@both
@pytest.mark.parametrize("name", BAD)
def test_errors_name_the_argument(version, name):
    for change, kind, message in BAD[name]:
        given = arguments(version, 2, 5)
        given[NAMES.index(name)] = change(given[NAMES.index(name)])
        with pytest.raises(kind, match=f"^{name} must.*{message}"):
            CALLS[version](False, *given)


@pytest.fixture(autouse=True)
def originals():
    yield
    for version, file in FILES.items():
        setattr(file, f"rwkv{version}_linear_attention", ORIGINALS[version])


def make(version, layers=3, device="cpu"):
    torch.manual_seed(version)
    return MODELS[version](Config(num_hidden_layers=layers)).to(device).eval()


def text(B, T, device="cpu"):
    return torch.randint(61, (B, T), generator=torch.Generator().manual_seed(T)).to(device)


@both
@devices
def test_logits_and_greedy_tokens_before_and_after(version, device):
    model, ids = make(version, device=device), text(3, 54, device)
    with torch.no_grad():
        logits, state = model(ids)
        tokens = model.generate(ids, 24)
        patch_rwkv(model)
        new_logits, new_state = model(ids)
    assert error(new_logits, logits.double()) < SUMS
    for x, y in zip(new_state, state, strict=True):
        assert error(x, y.double()) < SUMS
    assert torch.equal(model.generate(ids, 24), tokens)
    assert len(tokens.unique()) > 10  # not one token over and over


@both
@devices
@pytest.mark.parametrize("pieces", [[1] * 12, [9, 1, 1, 1], [5, 1, 6]], ids=str)
def test_prefill_then_decode_is_one_pass(version, device, pieces):
    model, ids = make(version, device=device), text(3, 12, device)
    with torch.no_grad(), patch_rwkv(model):
        logits, state = model(ids)
        parts, carried = [], None
        for piece in ids.split(pieces, 1):
            part, carried = model(piece, carried)
            parts.append(part)
    assert error(torch.cat(parts, 1), logits.double()) < SUMS
    for x, y in zip(carried, state, strict=True):
        assert error(x, y.double()) < SUMS


@both
@devices
@pytest.mark.parametrize("layers", [1, 3])
def test_a_patched_model_trains_with_its_true_gradients(version, device, layers, monkeypatch):
    """The original cuts the state's gradient, and the decay learns nothing."""
    model, ids = make(version, layers, device).train(), text(2, 17, device)

    def learn():
        logits, _ = model(ids)
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        names, parameters = zip(*model.named_parameters(), strict=True)
        found = torch.autograd.grad(loss, parameters, allow_unused=True)
        return dict(zip(names, found, strict=True))

    decays = [f"blocks.{i}.attention.time_decay" for i in range(layers)]
    assert all(learn()[name] is None for name in decays)
    with patch_rwkv(model):
        found = learn()

    def wanted(*given):
        out, state = by_hand(*given)
        return out, state.detach()

    monkeypatch.setattr(FILES[version], f"rwkv{version}_linear_attention", wanted)
    model = model.double()
    for name, gradient in learn().items():
        # Three float32 layers and their normalisations; measured below 1.1e-5 on a CPU.
        assert error(found[name], gradient) < 10 * SUMS, name


@both
def test_patching_and_undoing(version):
    model, name = make(version), f"rwkv{version}_linear_attention"
    patch = patch_rwkv(model)
    assert getattr(FILES[version], name).replacement is CALLS[version]
    assert repr(patch) == f"<Patch of {FILES[version].__name__}.{name}>"
    again = patch_rwkv(model)
    again.undo()
    assert repr(again) == "<Patch of nothing>"
    assert getattr(FILES[version], name).replacement is CALLS[version]
    patch.undo()
    patch.undo()
    assert getattr(FILES[version], name) is ORIGINALS[version]
    with pytest.raises(KeyError), patch_rwkv(model):
        assert getattr(FILES[version], name).replacement is CALLS[version]
        raise KeyError
    assert getattr(FILES[version], name) is ORIGINALS[version]


def test_the_name_that_the_world_models_converter_writes(monkeypatch):
    model, theirs = make(5), ORIGINALS[5]
    monkeypatch.setattr(modeling_rwkv5, "RWKV5_linear_attention", theirs, raising=False)
    monkeypatch.delattr(modeling_rwkv5, "rwkv5_linear_attention")
    with patch_rwkv(model):
        assert modeling_rwkv5.RWKV5_linear_attention.replacement is rwkv5_linear_attention
    assert modeling_rwkv5.RWKV5_linear_attention is theirs


def test_undo_leaves_what_others_put_there():
    patch = patch_rwkv(make(6))
    modeling_rwkv6.rwkv6_linear_attention = theirs = lambda *given: given
    patch.undo()
    assert modeling_rwkv6.rwkv6_linear_attention is theirs


def test_models_within_models_and_derived_classes():
    class Mine(Rwkv6SelfAttention):
        pass

    for model in (nn.Sequential(nn.Identity(), make(6)), Mine(Config(), 0)):
        with patch_rwkv(model):
            assert modeling_rwkv6.rwkv6_linear_attention.replacement is rwkv6_linear_attention
        assert modeling_rwkv5.rwkv5_linear_attention is ORIGINALS[5]


def test_only_a_model_of_rwkv_5_or_6_can_be_patched():
    with pytest.raises(ValueError, match="^model must be an RWKV-5 or RWKV-6 model.*got Linear"):
        patch_rwkv(nn.Linear(2, 2))
    with pytest.raises(TypeError, match="^model must be a torch.nn.Module, got str"):
        patch_rwkv("RWKV/rwkv-6-world-1b6")


def test_the_transformers_package_is_neither_needed_nor_hidden():
    code = (
        "import sys, rwkv_lessons.interop.transformers_rwkv as ours\n"
        "assert 'transformers' not in sys.modules\n"
        "from importlib.util import find_spec\n"
        "theirs = find_spec('transformers')\n"
        "assert theirs is None or theirs.origin != ours.__file__"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
