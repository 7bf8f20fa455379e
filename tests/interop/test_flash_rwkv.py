"""flash-rwkv's calls: its shapes and conventions, and right where its own kernels are not."""

import inspect
import math

import pytest
import torch

from rwkv_lessons.interop import flash_rwkv
from rwkv_lessons.interop.flash_rwkv import (
    Rwkv5LinearAttention,
    Rwkv6LinearAttention,
    rwkv5_cuda_linear_attention,
    rwkv6_cuda_linear_attention,
)
from rwkv_lessons.sequences.decays import log_decay

CALLS = {5: rwkv5_cuda_linear_attention, 6: rwkv6_cuda_linear_attention}
NAMES = ["receptance", "key", "value", "time_decay", "time_first", "state"]
H, N = 2, 64
# Rounding to a dtype moves a vector by at most this share of its norm, half a last place.
ROUNDING = {torch.float32: 2**-24, torch.float16: 2**-11, torch.bfloat16: 2**-8}
SUMS = 1e-5  # float32 sums over up to 54 tokens × 64 keys; measured below 5e-7 on a CPU

both = pytest.mark.parametrize("version", [5, 6])
devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
lengths = pytest.mark.parametrize("T", [1, 17, 54])
batches = pytest.mark.parametrize("B", [1, 4])


def arguments(version, B, T, dtype=torch.float32, device="cpu", raw=(-6.0, 1.0), H=H, N=N):
    """The six arguments as flash-rwkv documents them; raw decays lie between two ends."""
    torch.manual_seed(B * 1000 + T)
    sequence, C = (B, T, H * N), H * N
    time_decay = torch.rand(C if version == 5 else sequence)
    time_decay = raw[0] + (raw[1] - raw[0]) * time_decay
    time_first = torch.randn(C) if version == 5 else torch.randn(H, N)
    given = [*torch.randn(3, *sequence), time_decay, time_first]
    return [x.to(device, dtype) for x in given] + [torch.randn(B, H, N, N).to(device)]


def by_hand(receptance, key, value, time_decay, time_first, state):
    """The documented recurrence, one batch, head and token after the other, state `[V, K]`."""
    B, T, C = receptance.shape
    H, N = state.shape[1:3]
    decay = torch.exp(-torch.exp(time_decay)).expand(B, T, C)
    r, k, v, d = (x.reshape(B, T, H, N) for x in (receptance, key, value, decay))
    u, out, last = time_first.reshape(H, N), {}, []
    for b in range(B):
        for h in range(H):
            s = state[b, h]
            for t in range(T):
                out[b, t, h] = (s + torch.outer(v[b, t, h], u[h] * k[b, t, h])) @ r[b, t, h]
                s = s * d[b, t, h] + torch.outer(v[b, t, h], k[b, t, h])
            last.append(s)
    out = torch.stack([out[b, t, h] for b in range(B) for t in range(T) for h in range(H)])
    shape = (B, T, C) if time_decay.ndim == 1 else (B, T, H, N)
    return out.reshape(shape), torch.stack(last).reshape(state.shape)


def with_gradients(call, given, wanted):
    """out, new state and the six gradients of a random weighting of both."""
    given = [x.detach().clone().requires_grad_() for x in given]
    out, state = call(*given)
    loss = sum((x * y.to(x)).sum() for x, y in zip((out, state), wanted, strict=True))
    return [out.detach(), state.detach(), *torch.autograd.grad(loss, given)]


def error(found, wanted):
    assert found.shape == wanted.shape
    return float((found.double() - wanted).norm() / wanted.norm().clamp(min=1e-30))


@both
@devices
@batches
@lengths
@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
def test_output_and_state(version, device, B, T, dtype):
    given = arguments(version, B, T, dtype, device)
    before = [x.clone() for x in given]
    out, state = CALLS[version](*given)
    assert out.dtype == dtype and state.dtype == torch.float32
    assert out.is_contiguous() and state.is_contiguous()
    for name, x, y in zip(NAMES, given, before, strict=True):
        assert torch.equal(x, y), f"{name} was written to"
    wanted_out, wanted_state = by_hand(*(x.double() for x in given))
    assert error(out, wanted_out) < ROUNDING[dtype] + SUMS
    assert error(state, wanted_state) < SUMS  # the state is float32 whatever the dtype


@both
@devices
@batches
@pytest.mark.parametrize("T", [1, 2, 17, 54])
def test_gradients_of_every_argument(version, device, B, T):
    given = arguments(version, B, T, device=device)
    weighting = [torch.randn_like(x) for x in CALLS[version](*given)]
    found = with_gradients(CALLS[version], given, weighting)
    wanted = with_gradients(by_hand, [x.double() for x in given], weighting)
    for name, x, y in zip(["out", "new state", *NAMES], found, wanted, strict=True):
        assert error(x, y) < SUMS, name


@both
@devices
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_gradients_in_the_dtype_of_the_argument(version, device, dtype):
    given = arguments(version, 2, 17, dtype, device)
    weighting = [torch.randn_like(x) for x in CALLS[version](*given)]
    found = with_gradients(CALLS[version], given, weighting)
    wanted = with_gradients(by_hand, [x.double() for x in given], weighting)
    for name, x, y in zip(["out", "new state", *NAMES], found, wanted, strict=True):
        assert x.dtype == (torch.float32 if name.endswith("state") else dtype), name
        assert error(x, y) < ROUNDING[dtype] + SUMS, name


@both
def test_gradients_are_those_of_finite_differences(version):
    given = arguments(version, 2, 3, torch.float64, H=2, N=3)
    given[3] = given[3].reshape(2, 3) if version == 5 else given[3]
    given[4] = given[4].reshape(2, 3)
    given = [x.double().requires_grad_() for x in given]
    assert torch.autograd.gradcheck(CALLS[version], given)


@both
@devices
@pytest.mark.parametrize("raw", [(2.0, 6.0), (-30.0, -8.0), (-12.0, 6.0)], ids=str)
def test_strong_and_weak_decay(version, device, raw):
    """Raw decays from 6 (the state is multiplied by 1e-175) down to -30 (by 1)."""
    given = arguments(version, 2, 54, device=device, raw=raw)
    weighting = [torch.randn_like(x) for x in CALLS[version](*given)]
    found = with_gradients(CALLS[version], given, weighting)
    wanted = with_gradients(by_hand, [x.double() for x in given], weighting)
    for name, x, y in zip(["out", "new state", *NAMES], found, wanted, strict=True):
        assert error(x, y) < SUMS, name


@both
@devices
def test_a_decay_without_bounds_is_exact_and_has_a_gradient(version, device):
    given = arguments(version, 2, 17, device=device)
    flat = given[3].view(-1, H * N)
    flat[:, 0::3], flat[:, 1::3] = math.inf, -math.inf
    flat[:, 2::6] = 88.0  # exp(88) is the last power of e in float32's range
    found = with_gradients(CALLS[version], given, [torch.ones(()), torch.ones(())])
    assert all(torch.isfinite(x).all() for x in found)
    assert not found[5].view(-1, H * N)[:, 0::3].any()
    for x, y in zip(found, by_hand(*(x.double() for x in given)), strict=False):
        assert error(x, y) < SUMS


def test_raw_decays_are_bounded_only_where_nothing_is_left():
    raw = torch.linspace(-40, 7, 100, dtype=torch.float64)
    assert torch.equal(log_decay(raw, torch.float64), -torch.exp(raw))
    assert not log_decay(torch.tensor([7.0, 88.0, math.inf]), torch.float64).exp().any()
    assert log_decay(torch.tensor([-math.inf])).exp() == 1


@both
@devices
def test_the_state_carries_on(version, device):
    """Prefill, then token by token, is one pass; gradients flow through the states in between."""
    given = arguments(version, 2, 9, device=device)
    sequences = 4 if version == 6 else 3

    def in_pieces(*given):
        parts, state = [], given[5]
        for a, b in [(0, 6), (6, 7), (7, 8), (8, 9)]:
            part = [x[:, a:b] if i < sequences else x for i, x in enumerate(given[:5])]
            out, state = CALLS[version](*part, state)
            parts.append(out)
        return torch.cat(parts, 1), state

    weighting = [torch.randn_like(x) for x in CALLS[version](*given)]
    found = with_gradients(in_pieces, given, weighting)
    for x, y in zip(found, with_gradients(CALLS[version], given, weighting), strict=True):
        assert error(x, y.double()) < SUMS


@both
@devices
def test_any_strides(version, device):
    given = arguments(version, 2, 17, device=device)
    apart = [x[..., None].repeat_interleave(2, -1)[..., 0] for x in given]
    assert not any(x.is_contiguous() for x in apart)
    for x, y in zip(CALLS[version](*apart), CALLS[version](*given), strict=True):
        assert torch.equal(x, y)


@both
def test_parameters_flat_or_per_head(version):
    given = arguments(version, 2, 5)
    flat, per_head = [*given], [*given]
    for i in (3, 4) if version == 5 else (4,):
        flat[i], per_head[i] = given[i].flatten(), given[i].reshape(H, N)
    for x, y in zip(CALLS[version](*flat), CALLS[version](*per_head), strict=True):
        assert torch.equal(x, y)


@both
def test_a_head_size_other_than_64(version):
    given = arguments(version, 2, 5, H=4, N=32)
    given[3] = given[3].reshape(4, 32) if version == 5 else given[3]
    given[4] = given[4].reshape(4, 32)
    wanted = by_hand(*(x.flatten() if x.shape == (4, 32) else x for x in given))
    for x, y in zip(CALLS[version](*given), wanted, strict=True):
        assert error(x, y.double()) < SUMS


@both
def test_no_state_is_a_state_of_zeros(version):
    given = arguments(version, 2, 5)
    zeros = CALLS[version](*given[:5], torch.zeros_like(given[5]))
    for x, y in zip(CALLS[version](*given[:5], None), zeros, strict=True):
        assert torch.equal(x, y)


def test_the_public_face_is_the_originals():
    for version, function in {5: Rwkv5LinearAttention.apply, 6: Rwkv6LinearAttention.apply}.items():
        assert list(inspect.signature(function).parameters) == NAMES
        assert function is CALLS[version]
    assert all(hasattr(flash_rwkv, name) for name in flash_rwkv.__all__)


BAD = {  # argument: what is given instead, and what the error must say
    "receptance": [
        (lambda x: x.tolist(), TypeError, " be a tensor, got list"),
        (lambda x: x.long(), TypeError, " be one of float32.*got torch.int64"),
        (lambda x: x[0], ValueError, r" be \[B, T, C\].*got \[5, 128\]"),
        (lambda x: x[:, :0], ValueError, r"at least 1, got \[2, 0, 128\]"),
    ],
    "key": [
        (lambda x: x[:, :4], ValueError, r"\[2, 5, 128\], got \[2, 4, 128\]"),
        (lambda x: x.half(), TypeError, "receptance's dtype torch.float32, got torch.float16"),
        (lambda x: x.to("meta"), ValueError, "on receptance's device cpu, got meta"),
    ],
    "value": [(lambda x: x[..., :64], ValueError, r"\[2, 5, 128\], got \[2, 5, 64\]")],
    "time_decay": [(lambda x: x[..., :64], ValueError, r"128.*got \[.*64\]")],
    "time_first": [
        (lambda x: x.flatten()[:64], ValueError, r"H·N = C = 128.*got \[64\]"),
        (lambda x: x.reshape(1, 1, -1), ValueError, r"got \[1, 1, 128\]"),
        (lambda x: None, TypeError, " be a tensor, got NoneType"),
    ],
    "state": [
        (lambda x: x[:1], ValueError, r"\[B, H, V, K\] = \[2, 2, 64, 64\], got \[1, 2, 64, 64\]"),
        (lambda x: x.half(), TypeError, " be torch.float32, got torch.float16"),
    ],
}


@both
@pytest.mark.parametrize("name", BAD)
def test_errors_name_the_argument(version, name):
    for change, kind, message in BAD[name]:
        given = arguments(version, 2, 5)
        given[NAMES.index(name)] = change(given[NAMES.index(name)])
        with pytest.raises(kind, match=f"^{name} must.*{message}"):
            CALLS[version](*given)


def test_heads_of_decay_and_bonus_must_agree():
    given = arguments(5, 2, 5)
    given[4] = given[4].reshape(4, 32)
    with pytest.raises(ValueError, match=r"^time_decay must have the heads of time_first.*\[128\]"):
        rwkv5_cuda_linear_attention(*given)


def test_a_flat_bonus_needs_heads_of_64():
    given = arguments(6, 2, 5, H=3, N=32)
    given[4] = given[4].flatten()
    with pytest.raises(ValueError, match=r"^time_first must be .* multiple of 64, got \[96\]"):
        rwkv6_cuda_linear_attention(*given)
