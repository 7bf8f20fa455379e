"""The chunked WKV-6 in Gluon, as it is written, on the CPU: every chunk, wait and fence."""

import itertools
import math

import pytest
import torch
from support.gluon_on_cpu import on_cpu
from support.wkv6_cases import DECAYS, make, near
from support.wkv6_chunks import NAMES, expected, fresh_tiles, in_segments  # noqa: F401
from support.wkv6_hopper import bfloat16  # noqa: F401
from support.wkv6_options import interpreted, packed, raw_of
from torch.nn import functional as F

from rwkv_lessons.lab.simulator.gluon import GluonFault
from rwkv_lessons.wkv6.chunked import forward as chunked
from rwkv_lessons.wkv6.chunked.checkpoints import KEEP
from rwkv_lessons.wkv6.chunked.strong import GROUP
from rwkv_lessons.wkv6.chunked.tiles import FITS_TO_END, LOG2E

pytestmark = interpreted
# o is rounded to bfloat16, and so are the scores and S, of which it is a sum: 1.66e-3 each time,
# 2.34e-3 for both. In s1 is no such rounding, only that of k decayed, to 16 bits.
LIMITS = {"": 2.4e-3, "s1": 1e-5}
ROUNDED = 2**-8.5
BOUND = FITS_TO_END.value / LOG2E.value  # of the sum of w over a chunk
PACKED = [0, 1, 1, 70, 262, 262, 391]  # a last chunk of each kind, and sequences without tokens


@pytest.fixture(autouse=True)
def launched(monkeypatch):
    """The kernel; it keeps what it was launched with."""
    return on_cpu(monkeypatch, chunked, "wkv6_hopper_kernel")


def results(x, cu_seqlens=None, scale=1.0, raw_decay=False, keep=False):
    return chunked.forward(*x, cu_seqlens, scale, raw_decay, keep)


def states(x, every):
    """Of each sequence, before tokens 0, every, …, in float64."""
    parts = [[*(y[:, :t] for y in x[:4]), *x[4:]] for t in range(every, x[0].shape[1], every)]
    s0 = torch.zeros_like(expected(x)[1]) if x[5] is None else x[5].double()
    return torch.stack([s0, *(expected(y)[1] for y in parts)], 1)


def too_strong(w, segments=1):
    """[B, segments, H, groups, 64]: for which keys a chunk of a group decays beyond the bound."""
    w = F.pad(w.double(), (0, 0, 0, 0, 0, -w.shape[1] % (segments * GROUP)))
    chunks = w.unflatten(1, (segments, -1, GROUP // 64, 64)).sum(4)
    return (chunks < -BOUND).any(3).transpose(2, 3)


@pytest.mark.parametrize("T", [1, 63, 64, 65, 200])
@pytest.mark.parametrize("w", DECAYS)
def test_chunks_are_the_reference(T, w, launched):
    x = make(2, T, 2, 64, 64, w, torch.bfloat16)
    few = {1: 1.15, 200: 1}.get(T, 1.05)  # three deviations of the error of so few roundings
    limits = {name: few * limit for name, limit in LIMITS.items()}
    near(results(x), expected(x), limits, NAMES)
    before = launched.given["before"].base.view(2, 2, -1, 64, 64).transpose(1, 2)
    near([before], [states(x, GROUP)], ROUNDED, ["before"])
    assert torch.equal(launched.given["strong"].bool().view(2, 1, 2, -1, 64), too_strong(x[3]))
    x[5] = None
    *got, kept = results(x, scale=0.3, keep=True)
    near(got, expected(x, scale=0.3), limits, NAMES)
    near([kept], [states(x, KEEP).flatten(0, 1)], ROUNDED, ["kept"])


@pytest.mark.parametrize("share", [0.99, 1.01])
def test_decays_at_the_bound_of_factors(share, launched):
    x = make(1, 200, 2, 64, 64, -share * BOUND / 64, torch.bfloat16)
    near(results(x), expected(x), LIMITS, NAMES)
    assert torch.equal(launched.given["strong"].bool().view(1, 1, 2, 2, 64), too_strong(x[3]))
    assert too_strong(x[3]).any() == (share > 1)


@pytest.mark.parametrize("keep", [False, True])
def test_strong_groups_in_segments_are_told_apart(keep, launched, monkeypatch):
    in_segments(monkeypatch, 2)
    x = make(2, 400, 2, 64, 64, -0.02, torch.bfloat16)
    for first, n, w in ((70, 1, -math.inf), (75, 20, -8.0), (190, 40, -1.0), (383, 17, -200.0)):
        x[3][:, first : first + n, 1, ::2] = w
    o, s1, kept = results(x, keep=keep)
    near((o, s1), expected(x), LIMITS, NAMES)
    assert torch.equal(launched.given["strong"].bool().view(2, 2, 2, 2, 64), too_strong(x[3], 2))
    if keep:
        near([kept], [states(x, KEEP).flatten(0, 1)], ROUNDED, ["kept"])
    else:
        before = launched.given["before"].base.view(2, 2, 2, 2, 64, 64).transpose(2, 3)
        near([before.flatten(1, 2)], [states(x, GROUP)], ROUNDED, ["before"])


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("raw_decay", [False, True])
@pytest.mark.parametrize("n", [1, 2])
def test_packed_sequences(n, raw_decay, keep, monkeypatch):
    in_segments(monkeypatch, n)
    x, cu_seqlens = packed(torch.bfloat16, 64, 64, PACKED)
    x = raw_of(x) if raw_decay else x
    x[5] = x[5].float()
    options = {"cu_seqlens": cu_seqlens, "scale": 0.7, "raw_decay": raw_decay}
    o, s1, kept = results(x, *options.values(), keep)
    near((o, s1), expected(x, **options), LIMITS, NAMES)
    if keep:
        for i, (start, end) in enumerate(itertools.pairwise(PACKED)):
            y = [*(z[:, start:end] for z in x[:4]), x[4], x[5][i : i + 1]]
            y[3] = -y[3].double().exp() if raw_decay else y[3]
            if start < end:
                first, want = start // KEEP + i, states(y, KEEP)[0]
                near([kept[first : first + len(want)]], [want], ROUNDED, ["kept"])


def test_raw_decays_are_held_to_sixteen_bits():
    """Rounded to bfloat16, this one would leave states wrong by 4e-3."""
    raw = torch.linspace(-3.0, -2.7, 99).bfloat16()
    w = raw.double().exp()
    x = make(
        1, 2 * KEEP, 2, 64, 64, raw[(1 - w.bfloat16() / w).abs().argmax()].item(), torch.bfloat16
    )
    o, s1, kept = results(x, raw_decay=True, keep=True)
    near((o, s1), expected(x, raw_decay=True), {"": 1.05 * LIMITS[""], "s1": LIMITS["s1"]}, NAMES)
    x[3] = -x[3].double().exp()
    near([kept], [states(x, KEEP).flatten(0, 1)], ROUNDED, ["kept"])


@pytest.mark.parametrize("which", ["rkvw", "w"])
@pytest.mark.parametrize("keep, raw_decay", [(False, False), (True, True)])
def test_a_neighbour_of_nan_does_no_harm(which, keep, raw_decay, launched):
    x, cu_seqlens = packed(torch.bfloat16, 64, 64, PACKED)
    x[5] = x[5].float()
    options = {"cu_seqlens": cu_seqlens, "scale": 1.0, "raw_decay": raw_decay}
    want = expected(x, **options)
    start, end = PACKED[3:5]
    for name in which:
        x["rkvw".index(name)][:, start:end] = math.nan
    o, s1, _ = results(x, *options.values(), keep)
    assert o[:, end - 1].isnan().all() and s1[3].isnan().all()
    assert launched.given["strong"].view(6, 2, -1, 64)[3, :, : -(-(end - start) // GROUP)].all()
    o[:, start:end], s1[3] = want[0][:, start:end], want[1][3]
    near((o, s1), want, LIMITS, NAMES)


# What these tests are worth: mistakes in the kernel that they have to see.

FENCE = "        fence_async_shared()\n"
MISTAKES = {
    "no fence after the decays": (FENCE + "        more =", "        more ="),
    "no fence after r and k": (FENCE + "        barrier()\n        announce", "        announce"),
    "no fence after o": (FENCE + "        barrier()\n        if whole", "        if whole"),
    "no fence after init": ("    fence_async_shared()\n    barrier()\n    for", "    for"),
    "no wait for w": ("        mbarrier.wait(w_there.index(i), phase)\n", ""),
    "no wait for v": ("        mbarrier.wait(v_there.index(i), phase)\n", ""),
    "tiles of the other stage": ("b_k = s_k.index(i).load", "b_k = s_k.index(1 - i).load"),
    "one phase for ever": ("phase = t // C // 2 % 2", "phase = 0"),
    "never announced": ("        announce(k_there.index(i), t + 2 * C < n)\n", ""),
    "stores overtaken": ("        tma.store_wait(0)\n        there", "        there"),
    "stores left at the end": ("    tma.store_wait(0)\n    is_last", "    is_last"),
    "the scores too early": (
        "warpgroup_mma_wait(2, deps=(b_a,",
        "warpgroup_mma_wait(6, deps=(b_a,",
    ),
    "o too early": ("warpgroup_mma_wait(0, deps=(b_o,", "warpgroup_mma_wait(1, deps=(b_o,"),
    "w of others in the tail": ("b_w = gl.where(row < n - t, b_w, 0.0)", "b_w = b_w"),
    "k of others in the tail": ("b_k = gl.where(row < n - t, b_k, 0.0)", "b_k = b_k"),
    "o of others in the tail": (
        "b_o.to(gl.bfloat16), row < n - t)",
        "b_o.to(gl.bfloat16), row < n)",
    ),
    "states in the wrong places": (
        "at = (gl.program_id(0) * groups",
        "at = (gl.program_id(0) + groups",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_in_the_kernel_are_seen(name, launched):
    launched.mistake(*MISTAKES[name])
    with pytest.raises((GluonFault, AssertionError)):
        test_a_neighbour_of_nan_does_no_harm("rkvw", False, False, launched)
