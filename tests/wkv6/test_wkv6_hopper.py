"""The chunked WKV-6 in Gluon, as it is written, on the CPU: every chunk, wait and fence."""

import itertools
import math

import pytest
import torch
from support.gluon_on_cpu import on_cpu
from support.wkv6_cases import DECAYS, make, near
from support.wkv6_chunks import NAMES, expected, fresh_tiles, in_segments  # noqa: F401
from support.wkv6_gradients import out_of_units
from support.wkv6_hopper import bfloat16  # noqa: F401
from support.wkv6_options import interpreted, packed, raw_of
from torch.nn import functional as F

from rwkv_lessons.wkv6.chunked import forward as chunked
from rwkv_lessons.wkv6.chunked.hopper.strong import NEAR_DECAY
from rwkv_lessons.wkv6.chunked.sizes import CHECKPOINT
from rwkv_lessons.wkv6.chunked.tiles import FITS_TO_END, LOG2E
from warplens.gluon import GluonFault

pytestmark = interpreted
# o is rounded to bfloat16, and so are the scores and S, of which it is a sum: 1.66e-3 each time,
# 2.34e-3 for both. In s1 is no such rounding, only that of k decayed, to 16 bits.
LIMITS = {"": 2.4e-3, "s1": 1e-5}
ROUNDED = 2**-8.5
BOUND = 2 * FITS_TO_END.value / LOG2E.value  # of the sum of w over a chunk
PACKED = [0, 1, 1, 70, 262, 262, 391]  # a last chunk of each kind, and sequences without tokens


@pytest.fixture(autouse=True)
def launched(monkeypatch):
    """The kernel, as launched last."""
    on_cpu(monkeypatch, chunked, "wkv6_segment_states_kernel")
    return on_cpu(monkeypatch, chunked, "wkv6_hopper_kernel")


def results(x, cu_seqlens=None, scale=1.0, raw_decay=False, keep=False):
    return chunked.forward(*x, cu_seqlens, scale, raw_decay, keep)


def states(x, every):
    """Of each sequence, before tokens 0, every, …, in float64."""
    parts = [[*(y[:, :t] for y in x[:4]), *x[4:]] for t in range(every, x[0].shape[1], every)]
    s0 = torch.zeros_like(expected(x)[1]) if x[5] is None else x[5].double()
    return torch.stack([s0, *(expected(y)[1] for y in parts)], 1)


def taken_as_strong(w):
    """[B, chunks, H]: from the first strong chunk to the end of a fourth one that is not."""
    strong = F.pad(w.double(), (0, 0, 0, 0, 0, -w.shape[1] % 64)).unflatten(1, (-1, 64)).sum(2)
    strong = ~(strong >= -BOUND).all(-1)
    taken, now = strong.clone(), torch.zeros_like(strong[:, 0])
    for i in range(strong.shape[1]):
        now = taken[:, i] = now | strong[:, i]
        if i % 4 == 3:
            now = now & strong[:, i]
    return taken


@pytest.mark.parametrize("T", [1, 63, 64, 65, 200])
@pytest.mark.parametrize("w", DECAYS)
def test_chunks_are_the_reference(T, w):
    x = make(2, T, 2, 64, 64, w, torch.bfloat16)
    few = {1: 1.15, 200: 1}.get(T, 1.05)  # three deviations of the error of so few roundings
    limits = {name: few * limit for name, limit in LIMITS.items()}
    near(results(x), expected(x), limits, NAMES)
    x[5] = None
    *got, kept = results(x, scale=0.3, keep=True)
    near(got, expected(x, scale=0.3), limits, NAMES)
    near([kept], [states(x, CHECKPOINT).flatten(0, 1)], ROUNDED, ["checkpoints"])


@pytest.mark.parametrize("share", [0.99, 1.01])
def test_decays_at_the_bound_of_factors(share):
    x = make(1, 200, 2, 64, 64, -share * BOUND / 64, torch.bfloat16)
    # A token reads few others: three deviations of the error of so few roundings.
    near(results(x), expected(x), LIMITS | {"": 1.05 * LIMITS[""]}, NAMES)
    assert taken_as_strong(x[3])[:, 0].all() == (share > 1)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("n", [1, 2])
def test_tame_chunks_again_after_strong_ones(n, keep, monkeypatch):
    in_segments(monkeypatch, n)
    x = make(1, 620, 2, 64, 64, -0.02, torch.bfloat16)
    for first, count, w in ((70, 1, -math.inf), (75, 20, -8.0), (400, 90, -3.0), (603, 17, -200.0)):
        x[3][:, first : first + count, 1, ::2] = w
    x[3][:, 330:, 0, 7] = -4.0  # one channel of a head
    o, s1, kept = results(x, keep=keep)
    near((o, s1), expected(x), LIMITS, NAMES)
    if keep:
        near([kept], [states(x, CHECKPOINT).flatten(0, 1)], ROUNDED, ["checkpoints"])


def test_which_chunks_are_taken_as_strong(launched, monkeypatch):
    """o of the others is lost with what forward.py stores of it."""
    in_segments(monkeypatch, 1)
    x = make(2, 1024, 2, 64, 64, -0.02, torch.bfloat16)
    x[3][0, 200:240], x[3][0, 700, :, 3], x[3][1, :, 0] = -4.0, -math.inf, -2.0
    x[3][1, 100:120, 1], x[3][1, 510:515, 1] = -8.0, -30.0
    launched.mistake("rounded(b_o) if", "rounded(b_o * 0.0) if", inside="store_chunk")
    o, *_ = results(x)
    there = (o.unflatten(1, (-1, 64)) != 0).any(-1).any(2)
    want = taken_as_strong(x[3])
    assert torch.equal(there, want) and 0.2 < want.double().mean() < 0.8


@pytest.mark.parametrize(
    "edit",
    [
        ("(strong != 0) & (t < n)", "t < n"),
        ("gl.where(b_total >= -FITS_TO_END, 0, 1)", "gl.where(b_total >= 1, 1, 0)"),
    ],
)
def test_a_way_back_too_early_or_never_is_seen(edit, launched, monkeypatch):
    launched.mistake(*edit, inside="strong_chunks")
    with pytest.raises(AssertionError):
        test_which_chunks_are_taken_as_strong(launched, monkeypatch)


def test_a_state_is_turned_exactly(launched):
    """Without keys, and without decay but in one channel, nothing happens to the others."""
    x = make(1, 450, 1, 64, 64, 0.0, torch.bfloat16)
    x[1].zero_()
    x[3][:, 10:20, :, 0], x[3][:, 300, :, 0] = -math.inf, -math.inf
    _, s1, _ = results(x)
    assert torch.equal(s1[:, :, 1:], x[5][:, :, 1:].float())
    launched.mistake("turned += widened(s_third", "widened(s_third", inside="turned")
    _, s1, _ = results(x)
    assert not torch.equal(s1[:, :, 1:], x[5][:, :, 1:].float())


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


@pytest.mark.parametrize("K, w, T", [(64, "mixed", 790), (64, -0.02, 768), (128, -0.02, 600)])
def test_tokens_swept_ahead_and_states_of_pieces(K, w, T, monkeypatch):
    """128 tokens before the first segment; segments of 256, whose states are of 128 each."""
    monkeypatch.setattr(chunked, "cut_on_hopper", lambda *_: (128, 3, 256, 2))
    x = make(2, T, 1, K, 64, w, torch.bfloat16)
    near(results(x)[:2], expected(x), LIMITS, NAMES)
    x[5] = None
    *got, kept = results(x, keep=True)
    near(got, expected(x), LIMITS, NAMES)
    near([kept], [states(x, CHECKPOINT).flatten(0, 1)], ROUNDED, ["checkpoints"])


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


@pytest.mark.parametrize("K, V", [(128, 64), (64, 128), (192, 128)])
def test_heads_of_several_blocks(K, V, launched):
    x = make(1, 200, 2, K, V, "mixed", torch.bfloat16)
    x[3][:, 64:, 0] = x[3][:, 64:, 0].clamp(min=-0.5)
    limits = LIMITS | {"": 1.05 * LIMITS[""]}
    near(results(x), expected(x), limits, NAMES)
    *got, kept = results(x, scale=0.3, keep=True)
    near(got, expected(x, scale=0.3), limits, NAMES)
    near([kept], [states(x, CHECKPOINT).flatten(0, 1)], ROUNDED, ["checkpoints"])
    assert (launched.arguments["K"], launched.arguments["V"]) == (K, V)


@pytest.mark.parametrize("raw_decay", [False, True])
def test_packed_heads_of_several_blocks_in_segments(raw_decay, monkeypatch):
    in_segments(monkeypatch, 2)
    x, cu_seqlens = packed(torch.bfloat16, 128, 192, PACKED)
    x = raw_of(x) if raw_decay else x
    x[5] = x[5].float()
    options = {"cu_seqlens": cu_seqlens, "scale": 0.7, "raw_decay": raw_decay}
    near(results(x, *options.values())[:2], expected(x, **options), LIMITS, NAMES)


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
def test_a_neighbour_of_nan_does_no_harm(which, keep, raw_decay):
    x, cu_seqlens = packed(torch.bfloat16, 64, 64, PACKED)
    x[5] = x[5].float()
    options = {"cu_seqlens": cu_seqlens, "scale": 1.0, "raw_decay": raw_decay}
    want = expected(x, **options)
    start, end = PACKED[3:5]
    for name in which:
        x["rkvw".index(name)][:, start:end] = math.nan
    o, s1, _ = results(x, *options.values(), keep)
    assert o[:, end - 1].isnan().all() and s1[3].isnan().all()
    o[:, start:end], s1[3] = want[0][:, start:end], want[1][3]
    near((o, s1), want, LIMITS, NAMES)


# float16: a result's rounding is 0.21e-3, and that of the scores as much in what tokens read of
# each other: 0.29e-3 of both, and more of a single token. All else is in two pieces.
OF_FLOAT16 = {"": 3.1e-4, "s1": 1e-5}
OF_STATES = 2.2e-4  # rounded to it


@pytest.mark.parametrize("T", [1, 65, 200])
@pytest.mark.parametrize("w", DECAYS)
def test_float16(T, w, launched):
    x = make(2, T, 2, 64, 64, w, torch.float16)
    near(results(x), expected(x), OF_FLOAT16, NAMES)
    x[5] = None
    *got, kept = results(x, scale=0.3, keep=True)
    near(got, expected(x, scale=0.3), OF_FLOAT16, NAMES)
    of_states = states(x, CHECKPOINT).flatten(0, 1)
    near([out_of_units(kept)], [of_states], OF_STATES, ["checkpoints"])
    assert launched.arguments["HALF"] and kept.dtype == torch.float16


@pytest.mark.parametrize("share", [0.99, 1.01, 4.0])
def test_float16_at_the_bound_of_runs(share):
    x = make(1, 150, 2, 64, 64, -share * NEAR_DECAY.value, torch.float16)
    near(results(x), expected(x), OF_FLOAT16, NAMES)
    x[3][:, 3::5], x[3][:, 9::7] = -0.01, -math.inf
    near(results(x, keep=True)[:2], expected(x), OF_FLOAT16, NAMES)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("raw_decay", [False, True])
@pytest.mark.parametrize("K", [64, 128])
def test_packed_sequences_of_float16_in_segments(K, raw_decay, keep, monkeypatch):
    in_segments(monkeypatch, 2)
    x, cu_seqlens = packed(torch.float16, K, 128, PACKED)
    x = raw_of(x) if raw_decay else x
    x[5] = x[5].float()
    options = {"cu_seqlens": cu_seqlens, "scale": 0.7, "raw_decay": raw_decay}
    near(results(x, *options.values(), keep)[:2], expected(x, **options), OF_FLOAT16, NAMES)


@pytest.mark.parametrize("w", [-0.01, -3.0])
def test_states_and_scores_beyond_the_largest_float16(w):
    """r or v is small, so that o is a float16."""
    x = make(1, 150, 2, 64, 64, w, torch.float16)
    x[5] = x[5] * 1e6
    x[0] = x[0] * 2.0**-12
    near(results(x), expected(x), OF_FLOAT16, NAMES)
    x[0], x[1], x[2] = x[0] * 2.0**18, x[1] * 2.0**10, x[2] * 2.0**-14
    x[5] = x[5] * 1e-6
    assert (x[0][:, :-1] * x[1][:, :-1]).double().sum(3).abs().max() > 65_504
    near(results(x), expected(x), OF_FLOAT16, NAMES)


# Of each, what a product leaves out is 2^-9 of the result, or all is wrong.
OF_PIECES = {
    "second pieces of S": ("product(r_left, state,", "product(r_left, Rounded(state.high),"),
    "second pieces of k in S": (
        "update_state",
        "return plus_product(b_s, k, v,",
        "return plus_product(b_s, Rounded(k.high), v,",
    ),
    "pieces of k in S not as those of the scores": (
        "store_keys",
        "b_high, b_low = b_high * b_up",
        "b_high, b_low = b_high",
    ),
    "k of the second half as of the first": (
        "store_keys",
        "gl.where(is_first, s_up.load(gl.SliceLayout(0, TILES))[None, :], 1.0)",
        "s_up.load(gl.SliceLayout(0, TILES))[None, :]",
    ),
    "a power that is none": (
        "power_of_middle",
        "return exponent.to(gl.float32)",
        "return b_second",
    ),
    "the scores too early": (
        "UPDATES * products(k_of_state, v_tile)",
        "UPDATES * products(k_of_state, v_tile) + 4",
    ),
    "S too early": ("second_half", "(b_s, b_more)", "(b_s, b_s)"),
    "scores in bfloat16": (
        "masked",
        "below_and_on_diagonal(b_a,",
        "below_and_on_diagonal(widened(rounded(b_a)),",
    ),
    "scores too large": ("scores_fit", "squares <= LARGEST", "squares == squares"),
    "v of strong chunks": (
        "strong_chunks",
        "store(v_runs, v_pieces)",
        "store(Rounded(v_runs.high), Rounded(v_pieces.high))",
    ),
    "scores of strong chunks": (
        "strong_chunks",
        "either_of(scores, of_the_next_run(low))",
        "scores",
    ),
    "the unit of states": ("bonus_and_state", "True, KEYS_EXPONENT", "True, 7"),
    "the unit of the state in the middle": ("second_half", "KEYS_EXPONENT", "0"),
    "the unit of the state of a strong chunk": ("strong_chunks", "True, 0, K, V", "True, 8, K, V"),
    "the state in the middle of a strong chunk": ("strong_chunks", "i_state + H, t", "i_state, t"),
    "the runs' places": ("strong_chunks", "of_the_next_run(low)", "low"),
    "S of strong chunks": (
        "pass_run",
        "read = as_left(split(b_s))",
        "read = Split(as_left(split(b_s)).high, as_left(split(b_s * 0.0)).low)",
    ),
    "scores of other runs": ("pass_run", "16 * (run ^ 1)", "16 * run"),
    "S of strong chunks too early": (
        "pass_run",
        "products(v, scores), deps=(b_s,) + read",
        "products(v, scores) + 1, deps=(b_s,) + read",
    ),
}


@pytest.mark.parametrize("name", OF_PIECES)
def test_mistakes_in_pieces_of_float16_are_seen(name, launched):
    *inside, old, new = OF_PIECES[name]
    launched.mistake(old, new, *inside)
    with pytest.raises((GluonFault, AssertionError)):
        for w in (-0.01, -5.0):
            x = make(1, 150, 1, 64, 64, w, torch.float16)
            for keep in (False, True):
                o, s1, kept = results(x, keep=keep)
                near((o, s1), expected(x), OF_FLOAT16, NAMES)
                if keep:
                    of_states = states(x, CHECKPOINT).flatten(0, 1)
                    near([out_of_units(kept)], [of_states], OF_STATES, ["checkpoints"])
        x[0], x[2] = x[0] * 2.0**18, x[2] * 2.0**-14
        x[3].fill_(-0.01)
        near(results(x), expected(x), OF_FLOAT16, NAMES)


# What these tests are worth: mistakes in the kernel that they have to see.

FENCE = "fence_async_shared()\n"
AT = "\n" + 12 * " "
MISTAKES = {
    "no fence after the decays": (FENCE + AT[1:] + "tma.store", "tma.store"),
    "no fence after r and k": (
        FENCE
        + AT[1:]
        + "    barrier()  # all warps' parts of the factors are stored"
        + AT
        + "    expect_chunk(",
        "expect_chunk(",
    ),
    "no fence after o": (
        "    " + FENCE + "    barrier()  # o, and the state in the middle, are stored\n",
        "",
        "store_chunk",
    ),
    "no fence after init": (
        FENCE + "    barrier()  # the barriers are there\n    expect",
        "expect",
    ),
    "no wait": ("wait_for_chunk(ready, i, phase)", "pass"),
    "tiles of the other stage": ("b_k = s_k.index(i).load", "b_k = s_k.index(1 - i).load"),
    "one phase for ever": ("phase = t // C // 2 % 2", "phase = 0"),
    "never announced": ("expect_chunk(ready, i, t + 2 * C < n)", "pass"),
    "stores overtaken": ("tma.store_wait(0)" + AT + "copy_chunk(", "copy_chunk("),
    "stores left at the end": ("tma.store_wait(0)\n    is_last", "is_last"),
    "the scores too early": (
        "UPDATES * products(k_of_state, v_tile)",
        "UPDATES * products(k_of_state, v_tile) + 4",
    ),
    "o too early": ("b_o, b_s = warpgroup_mma_wait(0", "b_o, b_s = warpgroup_mma_wait(1"),
    "w of others in the tail": ("b_w = gl.where(row < n - t, b_w, 0.0)", "b_w = b_w"),
    "k of others in the tail": ("b_k = gl.where(row < n - t, b_k, 0.0)", "b_k = b_k"),
    "o of others in the tail": (
        "b_o.to(s_o.dtype), row < left",
        "b_o.to(s_o.dtype), row < left + C",
        "store_chunk",
    ),
    "never too strong": (
        "if too_strong(b_total, b_r, b_k, b_bonus, long, HALF and not KEEP):",
        "if t < 0:",
    ),
    "weights of strong chunks": ("to_log2 = store_w", "if t == 0: to_log2 = store_w"),
}
IN_STRONG = {
    "no fence after the decays": (FENCE + "        tma.store_wait(0)\n", "tma.store_wait(0)\n"),
    "no fence after near keys": (
        FENCE + "        if checkpoints is not None:\n            tma",
        "if checkpoints is not None:\n            tma",
    ),
    "no fence after scores": (FENCE + "        barrier()\n\n        by_run", "by_run"),
    "no fence after o": (
        FENCE
        + "        barrier()\n        if checkpoints is not None and not HALF:\n            if t",
        "if checkpoints is not None and not HALF:\n            if t",
    ),
    "no wait": ("        wait_for_chunk(ready, i, phase)\n", ""),
    "one phase for ever": ("phase = t // C // 2 % 2", "phase = 0"),
    "never announced": ("        expect_chunk(ready, i, t + 2 * C < n)\n", ""),
    "asked for twice": ("(t + C < n) & (t != there)", "t + C < n"),
    "sums of runs among them": ("gl.where(row % 16 == 8, 0.0, LOG2E)", "LOG2E"),
    "k of others in the tail": ("h_k = gl.where(row < n - t, h_k, 0.0)", "h_k = h_k"),
    "near sums too early": ("6 * len(w),", "6 * len(w) + 1,"),
    "sums too early": ("0, deps=sums", "1, deps=sums"),
    "o too early": ("0, deps=(o_0, o_1, o_2, o_3, read", "1, deps=(o_0, o_1, o_2, o_3, read"),
    "the runs in another order": ("(0, 3, 2, 1)", "(0, 2, 3, 1)"),
}
BELOW = {
    "near sums backwards": ("weights_of_runs", "backwards, MINUS_ONE, 0", "backwards, ONE, 0"),
    "the last token of a run before it": (
        "weights_of_runs",
        "same & (col < row)",
        "same & (col <= row)",
    ),
    "decays of another run": (
        "pass_run",
        "s_decays.slice(8 * run, 1, 0)",
        "s_decays.slice(8, 1, 0)",
    ),
    "a state too early": (
        "pass_run",
        "products(v, scores), deps=(b_s,))",
        "products(v, scores) + 1, deps=(b_s,))",
    ),
    "scores of others": ("pass_run", "slice(first, 16, 1)", "slice(0, 16, 1)"),
    "one piece of k": (
        "pass_run",
        "rows_of(k_runs,",
        "rows_of(Split(k_runs.high, k_runs.high),",
    ),
    "near decays as they are": (
        "store_decays",
        "Rounded(at_least(h_w, -NEAR_DECAY))",
        "Rounded(h_w)",
    ),
    "w of others in the tail": (
        "store_decays",
        "h_w = gl.where(row < left, h_w, 0.0)",
        "h_w = h_w",
    ),
    "o of others in the tail": ("store_turned", "(64)), row < left", "(64)), row < left + C"),
    "stores overtaken": ("turned", "    tma.store_wait(0)\n", ""),
    "no wait for w": ("wait_for_chunk", "static_range(4)", "static_range(1, 4)"),
    "v never announced": ("expect_chunk", "static_range(4)", "static_range(3)"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_in_the_kernel_are_seen(name, launched):
    launched.mistake(*MISTAKES[name])
    with pytest.raises((GluonFault, AssertionError)):
        ways_and_tails()


@pytest.mark.parametrize("name", IN_STRONG)
def test_mistakes_in_chunks_of_strong_decays_are_seen(name, launched):
    launched.mistake(*IN_STRONG[name], inside="strong_chunks")
    with pytest.raises((GluonFault, AssertionError)):
        ways_and_tails()


@pytest.mark.parametrize("name", BELOW)
def test_mistakes_in_what_these_call_are_seen(name, launched):
    inside, *edit = BELOW[name]
    launched.mistake(*edit, inside=inside)
    with pytest.raises((GluonFault, AssertionError)):
        ways_and_tails()


def test_values_from_the_keys_columns_are_seen(launched):
    """Where a head has as many of either, they are the same."""
    launched.mistake("n == 3", "n == 4", inside="copy_chunk")
    with pytest.raises((GluonFault, AssertionError)):
        test_heads_of_several_blocks(64, 128, launched)


def ways_and_tails():
    """Never strong, and at once, to the end, and with a way back; tails before k that is NaN."""
    ends = [0, 200, 230, 428, 450, 514, 578, 900]
    (*x, u, s0), cu_seqlens = packed(torch.bfloat16, 64, 64, ends)
    x, u, s0 = [y[:, :, :1] for y in x], u[:1], s0[:, :1].float()
    x[3] = x[3].clamp(min=-0.5)
    x[3][:, 294:330], x[3][:, 422:428], x[3][:, 450:514] = -3.0, -40.0, -40.0
    x[3][:, 600:620] = -7.0
    want = expected([*x, u, s0], cu_seqlens=cu_seqlens)
    for n in (1, 3):
        x[1][:, ends[n] : ends[n + 1]] = math.nan
    o, s1, _ = results([*x, u, s0], cu_seqlens)
    for n in (1, 3):
        o[:, ends[n] : ends[n + 1]], s1[n] = want[0][:, ends[n] : ends[n + 1]], want[1][n]
    near((o, s1), want, LIMITS, NAMES)


def test_without_a_mistake_they_pass():
    ways_and_tails()
