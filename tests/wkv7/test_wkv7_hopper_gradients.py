"""RWKV-7's gradients of a tile in one launch, as they are written, on the CPU, beside float64."""

import itertools
import math

import pytest
import torch
from support.gluon_on_cpu import Mutable
from support.wkv7_cases import make, with_raw

from rwkv_lessons.runtime.packages import TRITON
from rwkv_lessons.wkv7 import wkv7_reference

if not TRITON:
    pytest.skip("the kernels need Triton", allow_module_level=True)

from rwkv_lessons.sequences.spans import count_spans
from rwkv_lessons.wkv7.chunked.hopper import gradients as hopper
from rwkv_lessons.wkv7.chunked.hopper.products import FITS_TWICE
from warplens.gluon import GluonFault

# A rounding to bfloat16 is 1.66e-3. A gradient has one of itself; its terms have one each of their
# factors, among them the two states, which are given in bfloat16.
LIMIT = 5e-3
NAMES = "dr dw dk dv da db".split()


@pytest.fixture(autouse=True)
def launched(monkeypatch):
    """The first kernel, and tiles that the second one was given."""
    kernel, strong = (
        Mutable(x) for x in (hopper.wkv7_tile_gradients_kernel, hopper.wkv7_strong_gradients_kernel)
    )
    kernel.strong = []

    def launch(programs, tensors, numbers, form):
        kernel[(programs,)](*tensors, *numbers, form, num_warps=4)

    def launch_strong(programs, tensors, numbers, decay):
        kernel.strong.append(tensors[-1].tolist())
        strong[(programs,)](*tensors, *numbers, decay, num_warps=4)

    monkeypatch.setattr(hopper, "launch", launch)
    monkeypatch.setattr(hopper, "launch_strong", launch_strong)
    return kernel


def bfloat16(T, w, H=1, B=1):
    return make(B, T, H, 64, 64, w, torch.bfloat16)


def drawn(x, sequences):
    g = torch.Generator().manual_seed(5)
    do = torch.randn(x[3].shape, generator=g).bfloat16()
    states = torch.randn(2, sequences, x[0].shape[2], 64, 64, generator=g)
    return do, *states


def in_float64(x, do, s0, ds1, ends, **options):
    """States before each tile, gradients of those after it, and of r, w, k, v, a and b."""
    leaves = [y.double().requires_grad_() for y in x[:6]]
    (B, T, H, _), packed = x[0].shape, ends is not None
    places = [(0, *span) for span in itertools.pairwise(ends or [])] or [
        (i, 0, T) for i in range(B)
    ]
    tiles = count_spans(B, T, len(places) if packed else None, 64)
    before, after = torch.full((2, tiles, H, 64, 64), math.nan, dtype=torch.float64)
    loss, states = 0, []
    for n, (i, start, end) in enumerate(places):
        state, tile = s0[n : n + 1].double(), start // 64 + n if packed else n * -(-T // 64)
        for first in range(start, end, 64):
            before[tile] = state[0].detach().mT
            tokens = slice(i, i + 1), slice(first, min(first + 64, end))
            o, state = wkv7_reference(*(y[tokens] for y in leaves), state, **options)
            state = state.clone()  # o reads the one before: its share is not in `after`
            state.retain_grad()
            states.append((tile, state))
            loss, tile = loss + (o * do[tokens].double()).sum(), tile + 1
        loss = loss + (state * ds1[n : n + 1].double()).sum()
    loss.backward()
    for tile, state in states:
        after[tile] = state.grad[0].mT
    return before.bfloat16(), after.bfloat16(), [y.grad for y in leaves]


def compare(got, want, limit=LIMIT):
    for name, x, y in zip(NAMES, got, want, strict=True):
        error, size = (x.double() - y).norm().item(), y.norm().item()
        assert error <= limit * size, f"{name}: ‖error‖ {error:.1e}, ‖reference‖ {size:.1e}"


def right(x, limit=LIMIT, **options):
    do, s0, ds1 = drawn(x, x[0].shape[0])
    before, after, want = in_float64(x, do, s0, ds1, None, **options)
    compare(hopper.tile_gradients(*x[:6], do, before, after, **options), want, limit)


@pytest.mark.parametrize("T", [1, 16, 63, 64, 65])
def test_sequences_of_any_length(T):
    right(bfloat16(T, -0.1))


def test_several_tiles_sequences_and_a_scale():
    right(bfloat16(70, math.log(0.5), B=2), scale=0.3)


def test_several_heads():
    right(bfloat16(66, -0.1, H=2))


@pytest.mark.parametrize("w", [0.0, -1.5, -math.inf])
def test_decays_of_none_strong_and_total(w):
    right(bfloat16(40, w))


@pytest.mark.parametrize("share", [0.98, 1.02])
def test_decays_at_the_bound_of_products(share, launched):
    right(bfloat16(64, -share * FITS_TWICE.value / 64))
    assert launched.strong == [[int(share > 1)]]


@pytest.mark.parametrize("where", ["one key", "the start", "the end"])
def test_decays_are_split_at_their_middle(where, launched):
    """Where the first and the last tokens have factors of e^±55 or more in such a key."""
    x = bfloat16(64, -0.1)
    if where == "one key":
        x[1][..., 5] = -1.8
    else:
        x[1][:, slice(0, 8) if where == "the start" else slice(56, 64)] = -14
    right(x)
    assert launched.strong == [[0]]


def test_strong_tiles_among_others(launched):
    x = bfloat16(150, -0.1)
    x[1][:, 70:80, :, ::3] = -math.inf
    right(x)
    assert launched.strong == [[0, 1, 0]]


@pytest.mark.parametrize("decay", ["raw", "clamp"])
def test_decays_of_a_parameter(decay, launched):
    x = with_raw(bfloat16(70, 0.0), decay)
    if decay == "raw":
        x[1][:, 1:] -= 2.5  # so that the last tile's decays fit
    right(x, decay=decay)
    assert launched.strong == ([[1, 0]] if decay == "raw" else [])


def test_what_follows_a_sequence_does_no_harm():
    x, ends = bfloat16(150, -0.1), [0, 40, 40, 75, 150]
    do, s0, ds1 = drawn(x, 4)
    before, after, want = in_float64(x, do, s0, ds1, ends)
    for y in (*x[:6], do):
        y[:, 40:75] = math.nan
    packed = torch.tensor(ends, dtype=torch.int32)
    got = hopper.tile_gradients(*x[:6], do, before, after, packed)
    for y, z in zip(got, want, strict=True):
        assert y[:, 40:75].isnan().all()
        y[:, 40:75] = z[:, 40:75]
    compare(got, want)


def test_equal_keys_without_decay():
    """Where powers of A_ab are large and cancel each other; and so do terms of db."""
    x = bfloat16(64, 0.0)
    x[4] = x[4][:, :1].expand_as(x[4]).contiguous()
    x[5] = -x[4]
    right(x, limit=1.5e-2)


MISTAKES = {
    "factors without a fence": ("decay_tile", "visible()", "barrier()", "no fence came after"),
    "states not waited for": (
        "wkv7_tile_gradients_kernel",
        "for n in gl.static_range(1, 9):\n            mbarrier.wait(",
        "for n in gl.static_range(1, 8):\n            mbarrier.wait(",
        "before the wait",
    ),
    "T too early": (
        "solve",
        "warpgroup_mma_wait(2, deps=(b_t,))",
        "warpgroup_mma_wait(3, deps=(b_t,))",
        "before the wait",
    ),
    "z too early": (
        "solve",
        "warpgroup_mma_wait(2, deps=(b_z, b_dy))",
        "warpgroup_mma_wait(3, deps=(b_z, b_dy))",
        "before the wait",
    ),
    "a factor not kept": (
        "gradients_of_tile",
        "deps=(b_dr, do, left_v, left_z))[0]",
        "deps=(b_dr, do, left_v))[0]",
        "not kept",
    ),
    "dv overwritten": (
        "gradients_of_tile",
        "tma.store_wait(0)  # dv",
        "pass  # dv",
        "while it is read",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_noticed(name, launched):
    inside, old, new, message = MISTAKES[name]
    launched.mistake(old, new, inside=inside)
    with pytest.raises(GluonFault, match=message):
        right(bfloat16(64, -0.1))
