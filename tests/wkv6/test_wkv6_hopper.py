"""The chunked WKV-6 in Gluon, as it is written, on the CPU: every chunk, wait and fence."""

import itertools
import math
import types

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
from rwkv_lessons.wkv6.chunked.checkpoints import CHECKPOINT
from rwkv_lessons.wkv6.chunked.hopper.strong import NEAR_DECAY
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
    """The kernel of chunks whose factors fit, and that of the others, as launched last."""
    names = {"fits": "wkv6_hopper_kernel", "strong": "wkv6_hopper_strong_kernel"}
    return types.SimpleNamespace(
        **{key: on_cpu(monkeypatch, chunked, name) for key, name in names.items()}
    )


def results(x, cu_seqlens=None, scale=1.0, raw_decay=False, keep=False):
    return chunked.forward(*x, cu_seqlens, scale, raw_decay, keep)


def states(x, every):
    """Of each sequence, before tokens 0, every, …, in float64."""
    parts = [[*(y[:, :t] for y in x[:4]), *x[4:]] for t in range(every, x[0].shape[1], every)]
    s0 = torch.zeros_like(expected(x)[1]) if x[5] is None else x[5].double()
    return torch.stack([s0, *(expected(y)[1] for y in parts)], 1)


def tokens_done(w, span):
    """[B, segments, H]: how many of a segment's tokens come before its first strong chunk."""
    done = torch.empty(len(w), -(-w.shape[1] // span), w.shape[2], dtype=torch.int32)
    for i, part in enumerate(w.double().split(span, 1)):
        chunks = F.pad(part, (0, 0, 0, 0, 0, -part.shape[1] % 64)).unflatten(1, (-1, 64)).sum(2)
        strong = ~(chunks >= -BOUND).all(-1)  # [B, chunks, H]
        strong = torch.cat([strong, torch.ones_like(strong[:, :1])], 1)
        done[:, i] = 64 * strong.int().argmax(1)
    return done


def check_done(launched, w):
    want = tokens_done(w, launched.fits.given["span"])
    assert torch.equal(launched.fits.given["done"].view(want.shape), want)
    return want


@pytest.mark.parametrize("T", [1, 63, 64, 65, 200])
@pytest.mark.parametrize("w", DECAYS)
def test_chunks_are_the_reference(T, w, launched):
    x = make(2, T, 2, 64, 64, w, torch.bfloat16)
    few = {1: 1.15, 200: 1}.get(T, 1.05)  # three deviations of the error of so few roundings
    limits = {name: few * limit for name, limit in LIMITS.items()}
    near(results(x), expected(x), limits, NAMES)
    check_done(launched, x[3])
    x[5] = None
    *got, kept = results(x, scale=0.3, keep=True)
    near(got, expected(x, scale=0.3), limits, NAMES)
    near([kept], [states(x, CHECKPOINT).flatten(0, 1)], ROUNDED, ["checkpoints"])


@pytest.mark.parametrize("share", [0.99, 1.01])
def test_decays_at_the_bound_of_factors(share, launched):
    x = make(1, 200, 2, 64, 64, -share * BOUND / 64, torch.bfloat16)
    near(results(x), expected(x), LIMITS, NAMES)
    assert (check_done(launched, x[3]) == 0).all() == (share > 1)


@pytest.mark.parametrize("keep", [False, True])
def test_segments_stop_at_their_first_strong_chunk(keep, launched, monkeypatch):
    in_segments(monkeypatch, 2)
    x = make(2, 400, 2, 64, 64, -0.02, torch.bfloat16)
    for first, n, w in ((70, 1, -math.inf), (75, 20, -8.0), (383, 17, -200.0)):
        x[3][:, first : first + n, 1, ::2] = w
    o, s1, kept = results(x, keep=keep)
    near((o, s1), expected(x), LIMITS, NAMES)
    done = check_done(launched, x[3])
    assert len(done.unique()) > 2  # at once, later, and never
    if keep:
        near([kept], [states(x, CHECKPOINT).flatten(0, 1)], ROUNDED, ["checkpoints"])


@pytest.mark.parametrize("share", [0.99, 1.01, 4.0])
def test_decays_at_the_bound_of_runs(share):
    """Beyond it a decay counts as the bound, for other tokens of its run: 1.8e-4 is left."""
    x = make(1, 150, 2, 64, 64, -share * NEAR_DECAY.value, torch.bfloat16)
    near(results(x), expected(x), LIMITS, NAMES)
    x[3][:, 3::5], x[3][:, 9::7] = -0.01, -math.inf
    o, s1, kept = results(x, keep=True)
    near((o, s1), expected(x), LIMITS, NAMES)
    near([kept], [states(x, CHECKPOINT).flatten(0, 1)], ROUNDED, ["checkpoints"])


def test_what_a_decay_of_zero_hides_stays_hidden():
    """Of tokens in other runs nothing is left; of its own run, what the bound leaves."""
    x = make(1, 128, 2, 64, 64, -0.01, torch.bfloat16)
    x[4].zero_()
    x[3][:, 40] = -math.inf
    for first, last, left in ((0, 32, 0.0), (32, 40, 2 * math.exp(-NEAR_DECAY.value))):
        y = [z if z is None else z.clone() for z in x]
        y[1].zero_(), y[5].zero_()
        y[1][:, first:last] = x[1][:, first:last]
        o, s1, _ = results(y)
        before = o[:, 1:41].double().norm(dim=(1, 3)).max()
        assert before > 0 and o[:, 41:].double().norm(dim=(1, 3)).max() <= left * before
        assert (s1 == 0).all()


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
                first, want = start // CHECKPOINT + i, states(y, CHECKPOINT)[0]
                near([kept[first : first + len(want)]], [want], ROUNDED, ["checkpoints"])


def test_raw_decays_are_held_to_sixteen_bits():
    """Rounded to bfloat16, this one would leave states wrong by 4e-3."""
    raw = torch.linspace(-3.0, -2.7, 99).bfloat16()
    w = raw.double().exp()
    x = make(
        1,
        2 * CHECKPOINT,
        2,
        64,
        64,
        raw[(1 - w.bfloat16() / w).abs().argmax()].item(),
        torch.bfloat16,
    )
    o, s1, kept = results(x, raw_decay=True, keep=True)
    near((o, s1), expected(x, raw_decay=True), {"": 1.05 * LIMITS[""], "s1": LIMITS["s1"]}, NAMES)
    x[3] = -x[3].double().exp()
    near([kept], [states(x, CHECKPOINT).flatten(0, 1)], ROUNDED, ["checkpoints"])


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
    assert "w" not in which or (launched.fits.given["done"].view(6, 2)[3] == 0).all()
    o[:, start:end], s1[3] = want[0][:, start:end], want[1][3]
    near((o, s1), want, LIMITS, NAMES)


# What these tests are worth: mistakes in the kernel that they have to see.

FENCE = "        fence_async_shared()\n"
MORE, LESS = "            ", "        "
MISTAKES = {
    "no fence after the decays": (FENCE + "        more =", "        more ="),
    "no fence after r and k": (
        MORE + FENCE.lstrip() + MORE + "barrier()\n" + MORE + "expect_tile",
        MORE + "expect_tile",
    ),
    "no fence after o": (
        MORE + FENCE.lstrip() + MORE + "barrier()\n" + MORE + "if whole",
        MORE + "if whole",
    ),
    "no fence after init": ("    fence_async_shared()\n    barrier()\n    for", "    for"),
    "no wait for w": (
        "    while t < stop:",
        "    mbarrier.wait = lambda *_: None\n    while t < stop:",
    ),
    "tiles of the other stage": ("b_k = s_k.index(i).load", "b_k = s_k.index(1 - i).load"),
    "one phase for ever": ("phase = t // C // 2 % 2", "phase = 0"),
    "never announced": (MORE + "expect_tile(k_ready.index(i), t + 2 * C < n)\n", ""),
    "stores overtaken": ("        tma.store_wait(0)\n        next_at", "        next_at"),
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
    "never too strong": ("gl.where(b_total >= -FITS_TO_END, 0, 1)", "gl.where(b_total > 0, 0, 0)"),
    "the wrong state handed over": ("* (C * C) + o_s, b_s)", "* (C * C) + o_s, 2 * b_s)"),
    "one chunk too late": (
        "    gl.store(done + gl.program_id(0), t)",
        "    gl.store(done + gl.program_id(0), t + C)",
    ),
    "copies left at the stop": ("        if t + C < n:  # its", "        if t + C < 0:  # its"),
}
IN_STRONG = {
    "no fence after the decays": (FENCE + "        barrier()\n        more", "        more"),
    "no fence after keys": (FENCE + "        barrier()\n\n        b_s", "        b_s"),
    "no fence after near factors": (FENCE + "        barrier()\n\n        b_a", "        b_a"),
    "no fence after o": (FENCE + "        barrier()\n        if whole", "        if whole"),
    "no wait for w": ("        mbarrier.wait(w_ready.index(i), phase)\n", ""),
    "one phase for ever": ("phase = (t - first_t) // C // 2 % 2", "phase = 0"),
    "never announced": ("        expect_tile(k_ready.index(i), t + 2 * C < n)\n", ""),
    "from the first token": ("t = gl.load(done + gl.program_id(0))", "t = 0 * gl.load(done)"),
    "near sums backwards": ("gl.where(backwards, MINUS_ONE, 0)", "gl.where(backwards, ONE, 0)"),
    "near decays as they are": ("at_least(h_w, -NEAR_DECAY)", "at_least(h_w, -1e4)"),
    "sums of halves among them": ("(row == 24), 0.0, LOG2E)", "(row == 24), LOG2E, LOG2E)"),
    "other runs among a run": ("gl.where(row // 16 == col // 16, b_a, 0.0)", "b_a"),
    "a run of the other half": ("gl.where(of_runs == 3, b_run_2, 0.0)", "b_run_2"),
    "the state of the other half": ("b_o = gl.where(row < half, b_o, 0.0)", "b_o = b_o"),
    "w of others in the tail": ("h_w = gl.where(row < n - t, h_w, 0.0)", "h_w = h_w"),
    "k of others in the tail": ("h_k = gl.where(row < n - t, h_k, 0.0)", "h_k = h_k"),
    "scores too early": ("warpgroup_mma_wait(6, deps=(b_a,", "warpgroup_mma_wait(7, deps=(b_a,"),
    "stores left at the end": ("    tma.store_wait(0)\n    is_last", "    is_last"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_in_the_kernel_are_seen(name, launched):
    launched.fits.mistake(*MISTAKES[name])
    with pytest.raises((GluonFault, AssertionError)):
        stops_and_tails(launched)


@pytest.mark.parametrize("name", IN_STRONG)
def test_mistakes_in_the_kernel_of_strong_decays_are_seen(name, launched):
    launched.strong.mistake(*IN_STRONG[name])
    with pytest.raises((GluonFault, AssertionError)):
        stops_and_tails(launched)


def stops_and_tails(launched):
    """One sequence never stops, one after a chunk, one at once; tails before k that is NaN."""
    ends = [0, 200, 230, 428, 450, 514, 578]
    (*x, u, s0), cu_seqlens = packed(torch.bfloat16, 64, 64, ends)
    x, u, s0 = [y[:, :, :1] for y in x], u[:1], s0[:, :1].float()
    x[3] = x[3].clamp(min=-0.5)
    x[3][:, 294:330], x[3][:, 422:428], x[3][:, 450:514] = -3.0, -40.0, -40.0
    want = expected([*x, u, s0], cu_seqlens=cu_seqlens)
    for n in (1, 3):
        x[1][:, ends[n] : ends[n + 1]] = math.nan
    o, s1, _ = results([*x, u, s0], cu_seqlens)
    for n in (1, 3):
        o[:, ends[n] : ends[n + 1]], s1[n] = want[0][:, ends[n] : ends[n + 1]], want[1][n]
    near((o, s1), want, LIMITS, NAMES)
    assert launched.fits.given["done"].tolist() == [256, 64, 64, 64, 0, 64]


def test_without_a_mistake_they_pass(launched):
    stops_and_tails(launched)
