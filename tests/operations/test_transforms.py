"""Outputs are contiguous, whatever their inputs are, and torch.func goes through every method."""

import pytest
import torch
from support.mla_problem import problem
from support.wkv6_cases import make
from support.wkv7_cases import make as make_7
from torch.func import grad, jvp, vmap

from rwkv_lessons import mla, timex, wkv5, wkv6, wkv7
from rwkv_lessons.interop import fla, flash_rwkv, rwkv_lm, transformers_rwkv, wind_rwkv

PACKAGES = {"wkv5": wkv5, "wkv6": wkv6, "wkv7": wkv7, "mla": mla, "timex": timex}
METHODS = [
    (package, name)
    for package, module in PACKAGES.items()
    for name in [package, *(x for x in module.METHODS if x != "cuda")]
]


def call(package, name, T=5, dtype=torch.float64):
    """A method, its tensors, and what else it is given."""
    module, options = PACKAGES[package], {}
    method = module.METHODS.get(name) or getattr(module, name)
    if package == "timex":
        g = torch.Generator().manual_seed(T)
        tensors = [torch.randn(*x, generator=g, dtype=dtype) for x in ((3, T), (2, 3, T))]
    elif package == "mla":
        tensors, options = problem(2, T, 3, 8, R=6, P=4, K=4, V=5, dtype=dtype)
    else:
        # Gradients are compared with those of other methods; none has a tangent at -inf.
        tensors = (make_7 if package == "wkv7" else make)(2, T, 2, 4, 3, -0.3, dtype)
        tensors[0], tensors[2] = tensors[0] * 0.5, tensors[2] * 0.5
    if package == "wkv5":
        tensors[3] = tensors[3][0, 0]
    return method, tensors, options


def outputs(method, tensors, options):
    results = method(*tensors, **options)
    return (results,) if isinstance(results, torch.Tensor) else results


def turned(x):
    """The same numbers, the last two dimensions in the other order in memory."""
    return x.mT.contiguous().mT


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("T", [1, 5, 100])
@pytest.mark.parametrize("package, name", METHODS)
def test_outputs_are_contiguous(package, name, T, dtype):
    method, tensors, options = call(package, name, T, dtype)
    if package == "mla":  # the cache's last stride is 1
        tensors = [x if n in (2, 3) else turned(x) for n, x in enumerate(tensors)]
    else:
        tensors = [turned(x) for x in tensors]
    for x in outputs(method, tensors, options):
        assert x.is_contiguous(), x.stride()


def doors(T):
    r, k, v, w, u, s0 = make(1, T, 2, 64, 64, -0.3, torch.float32)
    flat = [x.flatten(2) for x in (r, k, v, w)]
    yield lambda: flash_rwkv.rwkv5_cuda_linear_attention(*flat[:3], w[0, 0], u, s0)
    yield lambda: flash_rwkv.rwkv6_cuda_linear_attention(*flat, u, s0)
    yield lambda: transformers_rwkv.rwkv5_linear_attention(True, *flat[:3], w[0, 0], u, s0)
    yield lambda: transformers_rwkv.rwkv6_linear_attention(True, *flat, u, s0)
    for ends in (None, torch.tensor([0, T])):
        options = {"initial_state": s0, "output_final_state": True, "cu_seqlens": ends}
        yield lambda options=options: fla.chunk_rwkv6(r, k, v, w, u, **options)
        more = options | {"reverse": True}
        yield lambda more=more: fla.fused_recurrent_rwkv6(r, k, v, w, u, **more)
        given = make_7(1, T, 2, 64, 64, -0.3, torch.float32)[:6]
        yield lambda given=given, options=options: fla.chunk_rwkv7(*given, **options)
        yield lambda given=given, more=more: fla.fused_mul_recurrent_rwkv7(*given, **more)
    flat_7 = [x.flatten(2) for x in given]
    yield lambda: (rwkv_lm.RWKV7_CLAMPW_CUDA(*flat_7),)
    yield lambda: rwkv_lm.RWKV7_STATE_PASSING_CLAMPW_CUDA(s0, *flat_7)
    yield lambda: wind_rwkv.attn_chunked_cuda(*given, s0)
    yield lambda: wind_rwkv.attn_chunked_cuda(*(x.bfloat16() for x in given), s0)
    yield lambda: wind_rwkv.attn_backstepping_smallhead(*given)
    packed = [x[0] for x in given]
    yield lambda: wind_rwkv.attn_chunked_cuda_varlen(*packed, s0, torch.tensor([0, T]))


@pytest.mark.parametrize("T", [1, 5])
def test_outputs_of_doors_are_contiguous(T):
    checked = 0
    for door in doors(T):
        for x in door():
            assert x.is_contiguous(), x.stride()
            checked += 1
    assert checked > 30


EXACT = {"rtol": 1e-9, "atol": 1e-11}  # float64 on both sides


@pytest.mark.parametrize("T", [1, 5])
@pytest.mark.parametrize("package, name", [x for x in METHODS if x != ("mla", "decode")])
def test_torch_func_goes_through(package, name, T):
    """`mla_decode` has no gradients."""
    method, tensors, options = call(package, name, T)

    def loss(*x):
        return sum(y.sin().sum() for y in outputs(method, x, options))

    every = tuple(range(len(tensors)))
    leaves = [x.clone().requires_grad_() for x in tensors]
    wanted = torch.autograd.grad(loss(*leaves), leaves)
    torch.testing.assert_close(grad(loss, every)(*tensors), wanted, **EXACT)

    tangents = tuple(torch.randn_like(x) for x in tensors)
    value, along = jvp(loss, tuple(tensors), tangents)
    slope = sum((x * y).sum() for x, y in zip(wanted, tangents, strict=True))
    torch.testing.assert_close(along, slope, **EXACT)

    for shared in (None, 0, 1):  # an argument that is the same in all calls
        stacked = [x if n == shared else torch.stack([x, x / 2]) for n, x in enumerate(tensors)]
        in_dims = tuple(None if n == shared else 0 for n in every)
        alone = [[x if n == shared else x[i] for n, x in enumerate(stacked)] for i in (0, 1)]
        torch.testing.assert_close(
            vmap(loss, in_dims)(*stacked), torch.stack([loss(*x) for x in alone]), **EXACT
        )
        gradients = [grad(loss, every)(*x) for x in alone]
        together = vmap(grad(loss, every), in_dims)(*stacked)
        for x, *y in zip(together, *gradients, strict=True):
            torch.testing.assert_close(x, torch.stack(y), **EXACT)
