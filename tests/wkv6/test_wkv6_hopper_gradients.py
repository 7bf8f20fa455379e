"""The fused gradients in Gluon, as they are written, on the CPU."""

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
# A result is rounded to bfloat16, 1.66e-3; the states before and after a chunk were, too, of which
# most of it is made where nothing is forgotten: 2.34e-3 for two roundings. One token has few.
LIMIT = 2.5e-3
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


@pytest.mark.parametrize("decay", [-0.0, -0.001, -0.5, -1.7])
def test_every_decay_that_fits(decay):
    check(*given(1, 150, 1, decay))


@pytest.mark.parametrize("raw_decay", [False, True])
def test_scale_and_raw_decay(raw_decay):
    inputs, do, ds1 = given(1, 100, 2)
    if raw_decay:
        inputs[3] = torch.log(-inputs[3].float()).bfloat16()
    check(inputs, do, ds1, scale=0.3, raw=raw_decay)


def test_no_gradient_of_the_last_state():
    inputs, do, ds1 = given(1, 70, 1)
    check(inputs, do, torch.zeros_like(ds1))


@pytest.mark.parametrize("decay", ["strong", "any"])
def test_strong_decays_are_done_over(decay):
    check(*given(1, 140, 1, decay))


def test_a_chunk_is_named_by_its_stronger_half(fused):
    inputs, do, ds1 = given(1, 256, 1, -0.01)
    inputs[3][:, 70, :, 3] = -BOUND - 1  # in the first half of the second chunk
    inputs[3][:, 160, :, 5] = -BOUND + 1
    check(inputs, do, ds1)
    is_strong = fused.given["deepest"][:, 0] < -FITS.value
    assert is_strong.tolist() == [False, False, True, True, False, False, False, False]


def test_a_token_that_forgets_all_leaves_the_others_their_digits():
    inputs, do, ds1 = given(1, 128, 1, -0.02)
    inputs[3][:, 20], inputs[3][:, 90, :, ::2] = -50, -30
    check(inputs, do, ds1)


MISTAKES = {  # name → what stands in the kernel, and what would be wrong
    "no fence before the first products": (
        "    fence_async_shared()\n    barrier()\n    b_x = warpgroup_mma(",
        "    b_x = warpgroup_mma(",
    ),
    "G from the other side": (
        "s_g_high.permute((1, 0)), s_g_low.permute((1, 0))",
        "s_g_high, s_g_low",
    ),
    "the scores too early": (
        "warpgroup_mma_wait(8, deps=(b_p,))",
        "warpgroup_mma_wait(9, deps=(b_p,))",
    ),
    "the next slot's state": ("kept, [(slot * H", "kept, [(last * H"),
    "dS of the first half": ("d_kept, [(last * H", "d_kept, [(slot * H"),
    "stores left at the end": ("    tma.store_wait(0)\n", ""),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_in_the_kernel_are_seen(name, fused):
    fused.mistake(*MISTAKES[name])
    with pytest.raises((GluonFault, AssertionError)):
        check(*given(1, 130, 1, -0.01))
