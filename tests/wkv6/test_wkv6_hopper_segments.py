"""The states of segments in Gluon, on the CPU, against float64: forward and in reverse."""

import itertools
import math

import pytest
import torch
from support.gluon_on_cpu import Mutable
from support.wkv6_hopper import bfloat16  # noqa: F401
from support.wkv6_options import interpreted

from rwkv_lessons.wkv6.chunked.hopper import segments
from rwkv_lessons.wkv6.chunked.hopper.tiles import tiles
from warplens.gluon import GluonFault

pytestmark = interpreted
LIMIT = 1e-5  # what is left of k and r decayed, rounded to two pieces of bfloat16, is 2^-18
ENDS = [0, 1, 1, 70, 262, 262, 391]  # sequences without tokens, and segments that begin at no chunk


@pytest.fixture(autouse=True)
def kernel(monkeypatch):
    kernel = Mutable(segments.wkv6_segment_states_kernel)
    monkeypatch.setattr(segments, "wkv6_segment_states_kernel", kernel)
    return kernel


def inputs(T, decay=None, H=1, K=64, V=64, dtype=torch.bfloat16, raw=False):
    """w, k and v; without a decay, rates from a memory of 500 tokens to one of none."""
    g = torch.Generator().manual_seed(T)
    w, x, y = (torch.randn(1, T, H, n, generator=g) for n in (K, K, V))
    w = -(1.5 * w - 3.5).exp() if decay is None else torch.full_like(w, decay)
    if decay is None:
        w[:, 5::97, :, ::3] = -30.0
    return [z.to(dtype) for z in (w.neg().log() if raw else w, x, y)]


def states(inputs, count, span, reverse=False, ends=None, raw=False, scale=1.0):
    """The states and decays, [S, H, segments …]; in reverse the first segment has none."""
    (_, T, H, K), V = inputs[0].shape, inputs[2].shape[3]
    S = 1 if ends is None else len(ends) - 1
    segments_of = count + reverse
    order = (S, H, segments_of) if reverse else (S, count, H)
    found = torch.zeros(*order, K, V), torch.zeros(*order, K)
    half = inputs[0].dtype == torch.float16
    segments.wkv6_segment_states_kernel[(S * H * (K // 64) * (V // 64) * count,)](
        *(tiles(x, H * x.shape[3], segments.CHECKPOINT) for x in inputs),
        None if ends is None else torch.tensor(ends), *found,
        T, H, segments_of, span, int(reverse), count, scale,
        K, V, reverse, raw, scale != 1, half,
        num_warps=4,
    )  # fmt: skip
    return found if reverse else [x.transpose(1, 2) for x in found]


def near(found, inputs, count, span, reverse=False, ends=None, raw=False, scale=1.0):
    """Both against sums in float64."""
    ends, checked = ends or [0, inputs[0].shape[1]], 0
    for n, (start, end) in enumerate(itertools.pairwise(ends)):
        for i in range(reverse, count + reverse):
            at = slice(min(start + i * span, end), min(start + (i + 1) * span, end))
            w, x, y = (z[0, at].double() for z in inputs)
            w = (-w.exp() if raw else w).clamp(min=-1e4)
            total, so_far = w.sum(0), w.cumsum(0)
            decayed = x * (so_far - w if reverse else total - so_far).exp()
            for got, want in (
                (found[0][n, :, i], scale * torch.einsum("thk,thv->hkv", decayed, y)),
                (found[1][n, :, i].double().exp2(), total.exp()),
            ):
                assert (got - want).norm() <= LIMIT * want.norm()  # NaN is not
                checked += bool(want.norm())
    assert checked


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("T, span", [(1, 64), (63, 64), (200, 96), (600, 320)])
def test_segments_are_the_sums(T, span, reverse):
    x, how = inputs(T, H=2), (-(-T // span), span, reverse)
    near(states(x, *how), x, *how)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("decay", [0.0, -0.02, -8.0, -math.inf])
def test_every_decay(decay, reverse):
    x, how = inputs(330, decay), (2, 192, reverse)
    near(states(x, *how), x, *how)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("K, V, dtype", [
    (128, 64, torch.bfloat16), (64, 128, torch.float16)
])  # fmt: skip
def test_every_option(K, V, dtype, reverse):
    x = inputs(ENDS[-1], None, 1, K, V, dtype, raw=True)
    how = {"count": 2, "span": 96, "reverse": reverse, "ends": ENDS, "raw": True, "scale": 0.3}
    near(states(x, **how), x, **how)


@pytest.mark.parametrize("reverse", [False, True])
def test_what_has_decayed_to_nothing_is_not_read(reverse, kernel):
    """The same bits; and a NaN far behind it is not seen."""
    x, how = inputs(2048, -0.5), (1, 1024, reverse)
    at_once, i = states(x, *how)[0], int(reverse)
    x[2][:, slice(1900, None) if reverse else slice(0, 100)] = math.nan
    assert torch.equal(states(x, *how)[0][:, :, i], at_once[:, :, i])
    x[0][..., 7] = -0.001  # one key remembers
    assert states(x, *how)[0][:, :, i].isnan().all()
    x = inputs(2048, -0.5)
    kernel.mistake("if j % 8 == 7:", "if False:")
    assert torch.equal(states(x, *how)[0][:, :, i], at_once[:, :, i])


def test_a_decay_of_nan_is_seen():
    x = inputs(1024, -0.5)
    x[0][0, 1000, 0, 3] = math.nan
    found, decays = states(x, 1, 1024)
    assert found[..., 3, :].isnan().all() and decays[..., 3].isnan().all()
    assert not found[..., 4, :].isnan().any()


MISTAKES = {
    "no fence after init": ("    fence_async_shared()\n    barrier()  # the barriers are", "    #"),
    "no fence after the tail": (
        "            fence_async_shared()\n            barrier()\n        return Rounded(s_y)",
        "            pass\n        return Rounded(s_y)",
        "values_of",
    ),
    "no wait": ("mbarrier.wait(ready.index(i), phase)", "pass"),
    "one phase for ever": ("j // STAGES % 2", "0"),
    "sums too early": ("b_total = warpgroup_mma_wait(0", "b_total = warpgroup_mma_wait(1"),
    "a state too early": ("b_s = warpgroup_mma_wait(0", "b_s = warpgroup_mma_wait(1"),
    "a chunk too many": ("after < stop", "after <= stop"),
    "x of others in the tail": ("b_x = gl.where(col < rest, b_x, 0.0)", "b_x = b_x"),
    "y of others in the tail": ("if not whole:", "if False:", "values_of"),
    "w of others in the tail": ("if not whole:", "if False:", "decays_by_key"),
    "a token decays itself": ("token > decayed)", "token >= decayed)"),
    "decays of the chunks before": (" + b_past[:, None]", ""),
    "too early an end": ("(b_past < FORGOTTEN", "(b_past < -20.0"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_seen(name, kernel):
    kernel.mistake(*MISTAKES[name])
    x, how = inputs(1030, -0.02), (1, 1000)
    for y in x:
        y[:, 1000:] = math.nan
    with pytest.raises((GluonFault, AssertionError)):
        near(states(x, *how), x, *how, ends=[0, 1000])
