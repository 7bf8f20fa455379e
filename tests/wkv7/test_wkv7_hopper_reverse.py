"""RWKV-7's gradient of the state at tile ends, as it is written, on the CPU."""

import inspect
import itertools
import math

import pytest
import torch
from support.gluon_on_cpu import Mutable
from support.wkv7_cases import make, near, with_raw

from rwkv_lessons.runtime.packages import TRITON
from rwkv_lessons.wkv7 import wkv7_reference

if not TRITON:
    pytest.skip("the kernels need Triton", allow_module_level=True)

from rwkv_lessons.wkv7.chunked.hopper import reverse
from rwkv_lessons.wkv7.chunked.hopper.maps import FITS
from warplens.gluon import GluonFault
from warplens.gluon.run import watch

# A rounding to bfloat16 is 1.66e-3. d_states have one of their own. dS is a sum of terms with one
# each of dS after a chunk, of the factors, and of what is read through b.
LIMITS = {"": 4e-3, "ds0": 3e-3}
# Where a chunk forgets all but its first token, one product r·b decides: 64 terms of either sign,
# so that their rounding weighs more in it.
LIMIT_OF_STRONG = 6e-3
TILE = 64


@pytest.fixture(autouse=True)
def launched(monkeypatch):
    """The kernel, as launched last."""
    kernel = Mutable(reverse.wkv7_reverse_kernel)

    def launch(programs, tensors, numbers, constants):
        kernel[(programs,)](*tensors, *numbers, *constants, num_warps=4)

    monkeypatch.setattr(reverse, "launch", launch)
    return kernel


def bfloat16(T, w, H=1, sequences=1):
    """r, w, k, v, a and b; do and ds1."""
    *x, _ = make(1, T, H, 64, 64, w, torch.bfloat16)
    g = torch.Generator().manual_seed(T)
    do = torch.randn(x[3].shape, generator=g).bfloat16()
    return x, do, torch.randn(sequences, H, 64, 64, generator=g)


def swept(x, do, ds1, cu_seqlens=None, scale=1.0, decay="log"):
    r, w, _, _, a, b = x
    return reverse.state_gradients(r, w, a, b, do, ds1, cu_seqlens, scale, decay)


def tiles_in_float64(x, do, ds1, start, end, **options):
    """By autograd: [(first token of a tile, dS after it)], from the last to the first; and ds0."""
    d_state, after = ds1.double(), []
    for first in reversed(range(start, end, TILE)):
        after.append((first, d_state))
        tokens = slice(first, min(first + TILE, end))
        state = torch.zeros_like(d_state, requires_grad=True)
        o, s1 = wkv7_reference(*(y[:, tokens].double() for y in x), state, **options)
        of_o = do[:, tokens].double()
        (d_state,) = torch.autograd.grad([o, s1], state, [of_o, d_state])
    return after, d_state


def right(x, do, ds1, got=None, ends=None, limits=LIMITS, **options):
    """Whether d_states and ds0 are autograd's; ends: of packed sequences."""
    d_states, ds0 = got or swept(x, do, ds1, **options)
    ds1 = torch.zeros_like(ds0) if ds1 is None else ds1
    for n, (start, end) in enumerate(itertools.pairwise(ends or [0, x[0].shape[1]])):
        after, want = tiles_in_float64(x, do, ds1[n : n + 1], start, end, **options)
        for first, d_state in after:
            tile = start // TILE + n + (first - start) // TILE
            near([d_states[tile].mT], [d_state[0]], limits, [f"dS after token {first} + 64"])
        near([ds0[n]], [want[0]], limits, ["ds0"])


def test_tiles_are_autograds():
    x, do, _ = bfloat16(135, math.log(0.5), H=2)
    right(x, do, None, scale=0.3)


@pytest.mark.parametrize("T", [1, 15, 16, 17, 63, 64, 65, 128])
def test_sequences_of_any_length(T):
    right(*bfloat16(T, -0.1))


def test_two_sequences():
    (x, do, ds1), (y, do_y, ds1_y) = bfloat16(80, -0.1), bfloat16(80, -0.3)
    both = [torch.cat(z) for z in zip(x, y, strict=True)], torch.cat([do, do_y])
    d_states, ds0 = swept(*both, torch.cat([ds1, ds1_y]))
    right(x, do, ds1, got=(d_states[:2], ds0[:1]))
    right(y, do_y, ds1_y, got=(d_states[2:], ds0[1:]))


def test_what_follows_a_sequence_does_no_harm():
    """It is NaN here; an empty sequence is among them."""
    ends = [0, 70, 70, 150, 230]
    x, do, ds1 = bfloat16(230, -0.1, sequences=4)
    cu_seqlens = torch.tensor(ends, dtype=torch.int32)
    broken, broken_do = [y.clone() for y in x], do.clone()
    for y in (*broken, broken_do):
        y[:, 70:150] = math.nan
    d_states, ds0 = swept(broken, broken_do, ds1, cu_seqlens=cu_seqlens)
    # The third sequence, which is the broken one, has index 70 // 64 + 2 and the one after.
    assert d_states[3].isnan().all() and ds0[2].isnan().all()
    whole = swept(x, do, ds1, cu_seqlens=cu_seqlens)
    d_states[3], ds0[2] = whole[0][3], whole[1][2]
    right(x, do, ds1, got=(d_states, ds0), ends=ends)
    assert torch.equal(ds0[1], ds1[1])


@pytest.mark.parametrize("w", ["mixed", 0.0, -3.0, -math.inf])
def test_decays_of_none_strong_and_total(w):
    right(*bfloat16(150, w), limits=LIMIT_OF_STRONG if w == -3.0 else LIMITS)


@pytest.mark.parametrize("share", [0.99, 1.01])
def test_decays_at_the_bound_of_maps(share):
    x, do, ds1 = bfloat16(80, -share * FITS.value / 16, H=4 if share < 1 else 1)
    right(x, do, ds1, limits=LIMIT_OF_STRONG)


def test_strong_tiles_among_others():
    x, do, ds1 = bfloat16(330, -0.1)
    x[1][:, 70:80, :, ::3], x[1][:, 300, :, 5] = -math.inf, -70.0
    right(x, do, ds1, scale=0.7)


@pytest.mark.parametrize("decay", ["raw", "clamp"])
def test_decays_of_a_parameter(decay):
    x, do, ds1 = bfloat16(100, 0.0)
    right(with_raw(x, decay), do, ds1, decay=decay)


def test_strong_decays_of_a_parameter():
    x, do, ds1 = bfloat16(100, 0.0)
    x[1].fill_(1.5)
    right(x, do, ds1, decay="raw")


def test_equal_keys_without_decay():
    """Where the powers of A_ab are large and cancel each other."""
    x, do, ds1 = bfloat16(64, 0.0)
    x[4] = x[4][:, :1].expand_as(x[4]).contiguous()
    x[5] = -x[4]
    right(x, do, ds1)


@pytest.mark.parametrize("reverse_order", [False, True])
def test_either_role_may_run_first(reverse_order, launched, monkeypatch):
    def launch(programs, tensors, numbers, constants):
        parameters = inspect.signature(reverse.wkv7_reverse_kernel.fn).parameters
        arguments = dict(zip(parameters, (*tensors, *numbers, *constants), strict=True))
        seen = watch(launched.kernel, (programs,), arguments, reverse=reverse_order)
        assert not seen.faults

    monkeypatch.setattr(reverse, "launch", launch)
    right(*bfloat16(400, -0.1))


MISTAKES = {
    "maps without a fence": ("next_maps", "fence_async_shared()", "pass", "no fence came after"),
    "maps not waited for": (
        "next_tile",
        "mbarrier.wait(mapped.index(i), turn // STAGES % 2)",
        "pass",
        "before the wait for it|nothing in it",
    ),
    "dS without a fence": ("next_tile", "fence_async_shared()", "pass", "no fence came after"),
    "dS overwritten": (
        "next_tile",
        "tma.store_wait(0)  # dS",
        "pass  # dS",
        "overwritten while it is read",
    ),
    "dz too early": (
        "apply_with_do",
        "warpgroup_mma_wait(1",
        "warpgroup_mma_wait(2",
        "before the wait",
    ),
    "dy not kept": ("plus_dy", "deps=(b_ds, dy_wide)", "deps=(b_ds, b_ds)", "not kept"),
    "another stage": ("make_maps", "turn // STAGES % 2", "turn % 2", "before the wait"),
    "w not waited for": ("wait_for_tile", "range(len(loaded))", "range(1)", "before the wait"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_noticed(name, launched):
    inside, old, new, message = MISTAKES[name]
    launched.mistake(old, new, inside=inside)
    with pytest.raises(GluonFault, match=message):
        swept(*bfloat16(140, -0.1))
