"""The fused gradients in Gluon, as they are written, on the CPU."""

import math

import pytest
import torch
from support.gluon_on_cpu import on_cpu
from support.wkv6_gradients import NAMES, compare, draw, expected, got
from support.wkv6_hopper import bfloat16  # noqa: F401
from support.wkv6_options import interpreted

from rwkv_lessons.wkv6.chunked import backward as chunked_backward
from rwkv_lessons.wkv6.chunked.hopper.tiles import aligned
from rwkv_lessons.wkv6.chunked.tiles import FITS, LOG2E
from warplens.gluon import GluonFault

pytestmark = interpreted
# A result is rounded to bfloat16, 1.66e-3; each part of it has a factor that is rounded, a state or
# G: 2.34e-3 for two roundings. Parts of either sign are larger than their sum. One token has few
# numbers.
LIMIT = 2.8e-3
BOUND = FITS.value / LOG2E.value  # of the sum of w over half of a chunk


@pytest.fixture(autouse=True)
def fused(monkeypatch):
    """The kernel; it keeps what it was launched with."""
    on_cpu(monkeypatch, chunked_backward, "wkv6_segment_states_kernel")
    return on_cpu(monkeypatch, chunked_backward, "sweep_hopper_kernel")


def given(B, T, H, decay="mixed", K=64, V=64):
    return draw(B, T, H, K, V, decay, torch.bfloat16)


def check(inputs, do, ds1, limit=LIMIT, **options):
    wanted = expected(inputs, do, ds1, **options)
    compare(got(inputs, do, ds1, **options), wanted, limit)


@pytest.mark.parametrize("T", [1, 32, 33, 64, 65, 130])
def test_whole_and_partial_chunks(T, fused):
    check(*given(2, T, 2), limit=3e-3 if T == 1 else LIMIT)
    assert fused.arguments["H"] == 2


# A chunk fits, as one run, to -3.4; decays are weakened in runs of 16 from -7.625 on.
@pytest.mark.parametrize(
    "decay",
    [-0.0, -0.001, -0.5, -1.7, -3.4, -3.5, -5.0, -7.6, -7.7, -20.0, -60.0, "strong", "any"],
)
def test_every_decay(decay):
    check(*given(1, 70, 1, decay))


@pytest.mark.parametrize("decay", [-1e4, -math.inf])
def test_tokens_that_forget_all(decay):
    inputs, do, ds1 = given(1, 70, 1, decay)
    results = got(inputs, do, ds1)
    compare(results, expected(inputs, do, ds1), LIMIT)
    assert (results[3] == 0).all()


@pytest.mark.parametrize("decay", ["mixed", "any"])
@pytest.mark.parametrize("raw_decay", [False, True])
def test_scale_and_raw_decay(raw_decay, decay):
    inputs, do, ds1 = given(1, 70, 2, decay)
    if raw_decay:
        inputs[3] = torch.log(-inputs[3].float()).bfloat16()
    check(inputs, do, ds1, scale=0.3, raw=raw_decay)


@pytest.mark.parametrize("decay", ["mixed", "any"])
def test_packed_sequences_with_every_option(decay):
    lengths = (33, 0, 5, 64)
    inputs, do, ds1 = draw(1, sum(lengths), 2, 64, 64, decay, torch.bfloat16, len(lengths))
    inputs[3] = torch.log(-inputs[3].float()).bfloat16()
    check(inputs, do, ds1, lengths=lengths, scale=0.3, raw=True)


@pytest.mark.parametrize("decay", ["mixed", "any"])
@pytest.mark.parametrize("K, V", [(128, 64), (64, 128), (128, 192)])
def test_heads_of_several_blocks(K, V, decay):
    check(*given(1, 70, 2, decay, K, V))


def test_packed_heads_of_several_blocks_in_segments_with_every_option(in_segments):
    lengths = (33, 0, 5, 64)
    inputs, do, ds1 = draw(1, sum(lengths), 1, 192, 128, "any", torch.bfloat16, len(lengths))
    inputs[3] = torch.log(-inputs[3].float()).bfloat16()
    check(inputs, do, ds1, lengths=lengths, scale=0.3, raw=True)


@pytest.fixture
def in_segments(monkeypatch):
    """A chunk of tokens is enough for a segment."""
    monkeypatch.setattr(chunked_backward, "MIN_CHUNKS_PER_SEGMENT", 1)
    chunked_backward.plan.cache_clear()
    yield
    chunked_backward.plan.cache_clear()


@pytest.mark.parametrize("decay", ["mixed", "any"])
def test_segments(decay, in_segments, fused):
    check(*given(2, 130, 1, decay))
    assert fused.arguments["segments"] == 5


@pytest.mark.parametrize("T", [20, 130])
def test_what_each_segment_adds_is_there_before_the_sweep(T, in_segments):
    """Another rank's gradient of the last state may come only then."""
    inputs, do, ds1 = given(1, T, 1)
    later, ds0 = torch.zeros_like(ds1), []

    def between(local, totals):
        later.copy_(ds1)
        ds0.append(ds1.float())
        for i in reversed(range(local.shape[2])):
            ds0.append(ds0[-1] * totals[:, :, i, :, None].exp2() + local[:, :, i])

    results = got(inputs, do, later, between=between)
    compare(results, expected(inputs, do, ds1), LIMIT)
    assert (results[5] - ds0[-1]).norm() <= 1e-4 * ds0[-1].norm()


def test_no_gradient_of_the_last_state():
    inputs, do, ds1 = given(1, 70, 1)
    check(inputs, do, torch.zeros_like(ds1))


# float16: a result's rounding is 0.21e-3, and its parts have a factor that is rounded: a state, or
# scores. 0.29e-3 of both, and 0.35e-3 where all of dv comes from dS, times k rounded as well. ds0
# is float32, of factors of two pieces.
ROUNDED_ONCE, ROUNDED_TWICE = 3.1e-4, 3.6e-4
OF_FLOAT16 = dict.fromkeys(NAMES, ROUNDED_ONCE) | {"du": 1e-5, "ds0": 1e-5, "dv": ROUNDED_TWICE}


@pytest.mark.parametrize("decay", [-0.0, -0.5, -3.4, -3.5, -5.0, "mixed", "strong", "any"])
def test_float16(decay, fused):
    check(*draw(1, 70, 1, 64, 64, decay, torch.float16), limit=OF_FLOAT16)
    assert fused.arguments["HALF"]


# Pairs side by side are 1 / exp(w) times dw, and cancel in it: to 2^-24 of them, several times.
@pytest.mark.parametrize("decay, of_dw", [(-7.7, 6e-4), (-12.0, 1.5e-3), (-20.0, math.inf)])
def test_float16_and_very_strong_decays(decay, of_dw):
    """The last is too strong for dw in float16."""
    limits = OF_FLOAT16 | {"dw": of_dw}
    check(*draw(1, 70, 1, 64, 64, decay, torch.float16), limit=limits)


@pytest.mark.parametrize("decay", ["mixed", "any"])
def test_float16_with_every_option(decay, in_segments):
    lengths = (33, 0, 5, 64)
    inputs, do, ds1 = draw(1, sum(lengths), 2, 64, 128, decay, torch.float16, len(lengths))
    inputs[3] = torch.log(-inputs[3].float()).half()
    check(inputs, do, ds1, limit=OF_FLOAT16, lengths=lengths, scale=0.3, raw=True)


def test_states_beyond_the_largest_float16():
    """Units keep them within it; so they do with gradients of states."""
    inputs, do, ds1 = draw(1, 70, 1, 64, 64, -0.01, torch.float16)
    inputs[5] = inputs[5] * 1e6
    do = do / 1e4
    check(inputs, do, ds1 / 1e4, limit=OF_FLOAT16)
    inputs, do, ds1 = draw(1, 70, 1, 64, 64, -0.01, torch.float16)
    inputs[1], inputs[2], inputs[5] = inputs[1] / 2**10, inputs[2] / 2**10, inputs[5] / 2**20
    check(inputs, do, ds1 * 1e6, limit=OF_FLOAT16 | {"dr": 1e-3})  # it is small


@pytest.mark.parametrize("decay", [-0.01, -4.0])
def test_scores_beyond_the_largest_float16(decay):
    """Up to 2^22; v is small, or o would not be a float16."""
    inputs, do, ds1 = draw(1, 70, 1, 64, 64, decay, torch.float16)
    inputs[0], inputs[1], inputs[2] = inputs[0] * 2.0**6, inputs[1] * 2.0**7, inputs[2] / 2**12
    scores = (inputs[0][:, 1:].double() * inputs[1][:, :-1].double()).sum(3)
    assert scores.abs().max() > 65_504
    do, ds1, inputs[4] = do / 2**6, ds1 / 2**6, inputs[4] / 2**7
    check(inputs, do, ds1, limit=OF_FLOAT16)


@pytest.mark.parametrize("decay", [-0.01, -4.0])
def test_small_states_and_gradients_of_them(decay):
    """Smaller than a float16 could be without a unit."""
    inputs, do, ds1 = draw(1, 70, 1, 64, 64, decay, torch.float16)
    inputs[1], inputs[2], inputs[5] = inputs[1] / 2**7, inputs[2] / 2**7, inputs[5] / 2**14
    inputs[0], do, ds1 = inputs[0] * 2**6, do, ds1 * 2**6
    check(inputs, do, ds1, limit=OF_FLOAT16 | {"dr": 1e-3})


def test_a_copy_is_made_of_what_is_not_aligned():
    x = torch.arange(65, dtype=torch.float16)
    assert aligned(x) is x
    assert aligned(x[1:]).data_ptr() % 16 == 0 and torch.equal(aligned(x[1:]), x[1:])


@pytest.mark.parametrize("token", [3, 20])
@pytest.mark.parametrize("more", [1, -1])
def test_a_chunk_fits_if_both_of_its_halves_do(token, more):
    """On either side of the bound, by one strong token in one channel of one half."""
    inputs, do, ds1 = given(1, 64, 1, -0.01)
    inputs[3][:, token, :, 3] = -BOUND + more
    check(inputs, do, ds1)


def test_one_channel_of_strong_decays():
    inputs, do, ds1 = given(1, 70, 1)
    inputs[3][..., 5] = -6
    check(inputs, do, ds1)


def test_weakened_decays_keep_the_digits_of_dw():
    """dw of a strong channel alone, a millionth of the others'."""
    inputs, do, ds1 = given(1, 70, 1)
    inputs[3][..., 5] = -14
    results, wanted = got(inputs, do, ds1), expected(inputs, do, ds1)
    compare([results[3][..., 5]], [wanted[3][..., 5]], LIMIT)


def test_nan_is_seen():
    inputs, do, ds1 = given(1, 64, 1)
    inputs[3][:, 40, :, 3] = math.nan
    results = got(inputs, do, ds1)
    assert results[3][:, 32:, :, 3].isnan().any() and not results[3][:, :32].isnan().all()


def test_a_token_that_forgets_all_leaves_the_others_their_digits():
    inputs, do, ds1 = given(1, 128, 1, -0.02)
    inputs[3][:, 20], inputs[3][:, 90, :, ::2] = -50, -30
    check(inputs, do, ds1)


def test_small_and_large_inputs():
    """Factors of up to 2^88 inside of a run, times r and k."""
    inputs, do, ds1 = given(1, 64, 1, -20.0)
    for factor in (2.0**20, 2.0**-20):
        inputs[0], inputs[1] = inputs[0] * factor, inputs[1] * factor
        inputs[4] = inputs[4] / factor  # u, so that nothing hides the rest
        check(inputs, do, ds1)


MISTAKES = {  # name → what stands in the kernel, or in what it calls, and what would be wrong
    "no fence before the products of a chunk that fits": (
        "    fence_async_shared()\n    barrier()  # all warps' parts of the factors are stored\n",
        "",
        "one_run",
    ),
    "no fence before the products of two runs": (
        "    fence_async_shared()\n    barrier()  # all warps' parts of the factors are stored\n",
        "",
        "two_runs",
    ),
    "G from the other side": (
        "plus_product(b_dk_inside, rm, transposed(g))",
        "plus_product(b_dk_inside, rm, g)",
        "inside_of_runs",
    ),
    "S makes room too early": (
        "    b_st, b_dr = warpgroup_mma_wait(0, deps=(b_st, b_dr))\n",
        "",
        "chunk_gradients",
    ),
    "the states of the chunk at hand": ("+ t // T32 - 1) * H", "+ t // T32) * H"),
    "decays of the wrong half": (
        "b_ds *= gl.exp2(d.early_of_state)[:, None]",
        "b_ds *= gl.exp2(d.late_of_state)[:, None]",
        "one_run",
    ),
    "the gradient of the state before all decays of a strong chunk": (
        "gl.exp2(d.early_of_state + d.late_of_state)[:, None]",
        "gl.exp2(d.late_of_state)[:, None]",
        "two_runs",
    ),
    "what passes the chunk without its decays": (
        "x, units) * d.early\n",
        "x, units)\n",
        "one_run",
    ),
    "dw of decays as they were weakened": (
        "- WEAK) * LOG2E, 0.0)",
        "- WEAK) * 0.0, 0.0)",
        "chunk_gradients",
    ),
    "the chunk before the last overwrites results": (
        "    if not FIRST:\n        tma.store_wait(0)\n",
        "",
        "load_chunk",
    ),
    "stores left at the end": (
        "b_ds, first_segment)\n    tma.store_wait(0)\n",
        "b_ds, first_segment)\n",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_in_the_kernel_are_seen(name, fused):
    fused.mistake(*MISTAKES[name])
    with pytest.raises((GluonFault, AssertionError)):
        for decay in ("mixed", -20.0):
            check(*given(1, 130, 1, decay))


# Of each, what is left out is 2^-11 of a result, or all of it is wrong.
OF_UNITS = {
    "S do without units": ("(d.early * units.s)[:, None]", "d.early[:, None]", "one_run"),
    "S do of two runs": ("b_dr * units.s[:, None], b_dk", "b_dr, b_dk", "two_runs"),
    "dS v": ("(d.late * units.ds)[:, None]", "d.late[:, None]", "one_run"),
    "dS v of two runs": ("b_dk * units.ds", "b_dk", "two_runs"),
    "what passes from state to state": (
        " b_across *= units.s",
        " b_across *= 1.0",
        "common_with_state",
    ),
    "the unit of another chunk": ("(i_s * STATE_ROWS + K) * V", "(i_s * STATE_ROWS + K - 1) * V"),
    "the second piece of r": (
        "high, low = in_two_of_float16(b_x)",
        "high, low = in_two_of_float16(to_float16(b_x).to(gl.float32))",
        "split_in_float16",
    ),
    "scores in their own unit": ("b_scores * TO_SCORES", "b_scores", "inside_of_runs"),
}


@pytest.mark.parametrize("name", OF_UNITS)
def test_mistakes_in_units_of_float16_are_seen(name, fused):
    fused.mistake(*OF_UNITS[name])
    with pytest.raises((GluonFault, AssertionError)):
        for decay in ("mixed", -5.0):
            check(*draw(1, 70, 1, 64, 64, decay, torch.float16), limit=OF_FLOAT16)


def test_no_barrier_is_made_that_nobody_waits_for(fused):
    """A tile with the memory of such a barrier was NaN at times."""
    fused.mistake(
        "    do_ready, v_ready, s_ready = two_barriers(), two_barriers(), two_barriers()\n",
        "    do_ready, v_ready, s_ready = two_barriers(), two_barriers(), two_barriers()\n"
        "    two_barriers()\n",
        "barriers",
    )
    with pytest.raises(GluonFault, match="nothing arrives at, and nobody waits for"):
        check(*given(1, 70, 1))
