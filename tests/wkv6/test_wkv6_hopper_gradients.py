"""The fused gradients in Gluon, as they are written, on the CPU."""

import math

import pytest
import torch
from support.gluon_on_cpu import on_cpu
from support.wkv6_gradients import compare, draw, expected, got
from support.wkv6_hopper import bfloat16  # noqa: F401
from support.wkv6_options import interpreted

from rwkv_lessons.lab.simulator.gluon import GluonFault
from rwkv_lessons.wkv6.chunked import backward as chunked_backward
from rwkv_lessons.wkv6.chunked.tiles import FITS, LOG2E

pytestmark = interpreted
# A result is rounded to bfloat16, 1.66e-3; each part of it has a factor that is rounded, a state or
# G: 2.34e-3 for two roundings. Parts of either sign are larger than their sum. One token has few
# numbers.
LIMIT = 2.8e-3
BOUND = FITS.value / LOG2E.value  # of the sum of w over half of a chunk


@pytest.fixture(autouse=True)
def fused(monkeypatch):
    """The kernel; it keeps what it was launched with."""
    return on_cpu(monkeypatch, chunked_backward, "pairs_hopper_kernel")


def given(B, T, H, decay="mixed"):
    return draw(B, T, H, 64, 64, decay, torch.bfloat16)


def check(inputs, do, ds1, limit=LIMIT, **options):
    wanted = expected(inputs, do, ds1, **options)
    compare(got(inputs, do, ds1, **options), wanted, limit)


@pytest.mark.parametrize("T", [1, 32, 33, 64, 65, 130])
def test_whole_and_partial_chunks(T, fused):
    check(*given(2, T, 2), limit=3e-3 if T == 1 else LIMIT)
    assert fused.given["H"] == 2


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


def test_no_gradient_of_the_last_state():
    inputs, do, ds1 = given(1, 70, 1)
    check(inputs, do, torch.zeros_like(ds1))


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


MISTAKES = {  # name → what stands in the kernel, and what would be wrong
    "no fence before the first products": (
        "    fence_async_shared()\n    barrier()\n    b_er = warpgroup_mma(",
        "    b_er = warpgroup_mma(",
    ),
    "G from the other side": ("    g_high = g_high.permute((1, 0))\n", ""),
    "S makes room too early": (
        "    b_dr, b_dk = warpgroup_mma_wait(0, deps=(b_dr, b_dk))\n    s_rm_low",
        "    s_rm_low",
    ),
    "the states of the chunk before": ("at_state = [(slot * H", "at_state = [((slot - 1) * H"),
    "decays of the wrong half": ("b_ry = b_dr * gl.exp2(b_early)", "b_ry = b_dr * gl.exp2(b_late)"),
    "dw of decays as they were weakened": ("- LEAST) * LOG2E, 0.0)", "- LEAST) * 0.0, 0.0)"),
    "stores left at the end": ("    tma.store_wait(0)\n", ""),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_in_the_kernel_are_seen(name, fused):
    fused.mistake(*MISTAKES[name])
    with pytest.raises((GluonFault, AssertionError)):
        for decay in ("mixed", -20.0):
            check(*given(1, 70, 1, decay))
