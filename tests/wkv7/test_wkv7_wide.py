"""RWKV-7's kernels for heads of 128, as they are written, on the CPU: sweeps, and gradients."""

import inspect
import math

import pytest
import torch
from support.gluon_on_cpu import Mutable
from support.wkv7_cases import NAMES, make, near, with_raw

from rwkv_lessons.runtime.packages import TRITON
from rwkv_lessons.wkv7 import wkv7_reference

if not TRITON:
    pytest.skip("the kernels need Triton", allow_module_level=True)

from rwkv_lessons.wkv7.chunked.hopper.wide import backward, gradients, sweep
from rwkv_lessons.wkv7.chunked.hopper.wide import strong as strong_tiles
from warplens.gluon import GluonFault
from warplens.gluon.run import watch

# As those of heads of 64: see test_wkv7_hopper.py and test_wkv7_hopper_training.py.
LIMITS = {"": 4.4e-3, "s1": 3e-3}
OF_GRADIENTS = {"": 6e-3}


@pytest.fixture(autouse=True)
def launched(monkeypatch):
    """The kernels: of sweeps, of tiles, and of tiles whose decays are strong."""
    modules = (sweep, "launch"), (gradients, "launch"), (gradients, "launch_strong")
    kernels = (
        sweep.wkv7_wide_kernel, gradients.wkv7_wide_gradients_kernel,
        strong_tiles.wkv7_wide_strong_kernel,
    )  # fmt: skip
    of_kernels = [Mutable(kernel) for kernel in kernels]
    for (module, name), kernel, warps in zip(modules, of_kernels, (4, 8, 4), strict=True):

        def launch(programs, tensors, numbers, form, kernel=kernel, warps=warps):
            kernel.calls = [*getattr(kernel, "calls", []), tensors]
            kernel[(programs,)](*tensors, *numbers, form, num_warps=warps)

        monkeypatch.setattr(module, name, launch)
    return of_kernels


def bfloat16(T, w, H=1):
    return make(1, T, H, 128, 128, w, torch.bfloat16)


def run(x, cu_seqlens=None, scale=1.0, decay="log"):
    o, s1, states, z = sweep.forward(*x, cu_seqlens, scale, decay, False)
    assert not states.numel() and not z.numel()
    return o, s1


def right(x, **options):
    want = wkv7_reference(*(None if y is None else y.double() for y in x), **options)
    near(run(x, **options), want, LIMITS, NAMES)


def gradients_right(x, cu_seqlens=None, scale=1.0, decay="log"):
    """Gradients beside float64's, of a loss that both o and s1 are in."""
    leaves = [y.double().requires_grad_() for y in x]
    want = wkv7_reference(*leaves, cu_seqlens=cu_seqlens, scale=scale, decay=decay)
    g = torch.Generator().manual_seed(5)
    do = torch.randn(x[3].shape, generator=g).bfloat16()
    ds1 = torch.randn(x[6].shape, generator=g)
    want = torch.autograd.grad(want, leaves, [do.double(), ds1.double()])
    _, _, *kept = sweep.forward(*x, cu_seqlens, scale, decay, True)
    got = backward.gradients(*x, cu_seqlens, *kept, do, ds1, scale, decay)
    near(got, want, OF_GRADIENTS, NAMES[2:])
    return got, want


def test_tiles_are_the_reference():
    x = bfloat16(70, math.log(0.5), H=2)
    x[6] = None
    right(x, scale=0.3)


@pytest.mark.parametrize("decay", ["raw", "clamp"])
def test_decays_of_a_parameter(decay):
    right(with_raw(bfloat16(70, 0.0), decay), decay=decay)


def test_what_follows_a_sequence_does_no_harm():
    x = bfloat16(110, -0.1)
    cu_seqlens = torch.tensor([0, 30, 30, 60, 110], dtype=torch.int32)
    x[6] = torch.randn(4, 1, 128, 128)
    x[1][:, 20] = -math.inf
    want = wkv7_reference(*(y.double() for y in x), cu_seqlens=cu_seqlens)
    for y in x[:6]:
        y[:, 30:60] = math.nan
    o, s1 = run(x, cu_seqlens=cu_seqlens)
    assert o[:, 59].isnan().all() and s1[2].isnan().all()
    o[:, 30:60], s1[2] = want[0][:, 30:60], want[1][2]
    near((o, s1), want, LIMITS, NAMES)


@pytest.mark.parametrize("decay", ["log", "raw", "clamp"])
def test_gradients_of_all(decay, launched):
    x = bfloat16(70, -0.1) if decay == "log" else with_raw(bfloat16(70, -0.1), decay)
    if decay == "raw":  # of no tile that is strong
        x[1] = torch.randn(x[1].shape, generator=torch.Generator().manual_seed(3)).bfloat16() - 3
    gradients_right(x, scale=0.3, decay=decay)
    *_, strong = launched
    assert decay == "clamp" or strong.calls[0][-1].tolist() == [0, 0]


def test_gradients_of_packed_sequences_with_a_strong_tile(launched):
    x = bfloat16(120, -0.1)
    x[1][:, 112:115, :, ::3] = -math.inf
    x[6] = torch.randn(3, 1, 128, 128)
    gradients_right(x, cu_seqlens=torch.tensor([0, 40, 40, 120], dtype=torch.int32))
    *_, strong = launched
    assert strong.calls[0][-1].tolist() == [0, 0, 0, 1]


def strong_decays(name):
    """Inputs of a tile or two that decay by more than e^-60 in some key, and their marks."""
    x = bfloat16(70 if name == "all" else 64, -1.5 if name == "all" else -0.1)
    w, last = x[1], 0
    if name == "one key":
        w[..., 5] = -1.8
    elif name == "at the start":
        w[:, :8] = -14
    elif name == "at the end":
        w[:, 56:] = -14
    elif name in ("just fit", "do not fit"):
        w[:] = (-0.98 if name == "just fit" else -1.02) * gradients.FITS_TWICE.value / 64
        last = int(name == "do not fit")
    return x, [0, 0] if name == "all" else [last]


@pytest.mark.parametrize(
    "name", ["all", "one key", "at the start", "at the end", "just fit", "do not fit"]
)
def test_decays_are_split_at_their_middle(name, launched):
    x, marks = strong_decays(name)
    gradients_right(x)
    *_, strong = launched
    assert strong.calls[0][-1].tolist() == marks


def test_raw_decays_are_split_at_their_middle(launched):
    x = bfloat16(65, 0.0)
    x[1] = (0.3 * torch.randn(x[1].shape, generator=torch.Generator().manual_seed(3))).bfloat16()
    gradients_right(x, scale=0.3, decay="raw")
    *_, strong = launched
    assert strong.calls[0][-1].tolist() == [0, 0]


STRONG = {  # log decays: where, and how strong
    "all": (slice(None), -7.0),
    "total": (slice(None), -math.inf),
    "across chunks": (slice(10, 21), -14.0),
    "a token": (slice(20, 21), -math.inf),
}


@pytest.mark.parametrize("name", STRONG)
def test_strong_decays(name, launched, monkeypatch):
    """Nothing is left as it was in the outputs, and dw of single tokens is right, too."""
    empty = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda x: empty(x).fill_(math.nan))
    x = bfloat16(64, -0.1)
    where, w = STRONG[name]
    x[1][:, where] = w
    got, want = gradients_right(x)
    error, size = (got[1] - want[1]).norm(dim=-1), want[1].norm(dim=-1)
    assert (error <= 2e-2 * size).all()
    *_, strong = launched
    assert strong.calls[0][-1].tolist() == [1]


def test_strong_decays_of_any_size(launched):
    x = bfloat16(70, 0.0)
    g = torch.Generator().manual_seed(1)
    x[1][:] = -16 * torch.rand(x[1].shape, generator=g) * torch.linspace(0.1, 1, 128)
    gradients_right(x, scale=0.3)
    *_, strong = launched
    assert strong.calls[0][-1].tolist()[0] == 1


def test_strong_decays_of_a_parameter(launched):
    x = bfloat16(64, 0.0)
    x[1][:] = torch.randn(x[1].shape, generator=torch.Generator().manual_seed(3)) + 1
    gradients_right(x, scale=0.3, decay="raw")
    *_, strong = launched
    assert strong.calls[0][-1].tolist() == [1]


def test_programs_share_strong_tiles(launched, monkeypatch):
    """Each finds those that are its own, however many there are before, between and after them."""
    monkeypatch.setattr(strong_tiles, "PROGRAMS", 2)
    monkeypatch.setattr(strong_tiles, "MARKS", 1)
    x = bfloat16(30, -0.1)
    x[1][:, [3, 8, 9, 20, 29]] = -math.inf
    ends = [0, 5, 8, 12, 19, 30]
    x[6] = torch.randn(len(ends) - 1, 1, 128, 128, generator=torch.Generator().manual_seed(2))
    gradients_right(x, cu_seqlens=torch.tensor(ends, dtype=torch.int32))
    *_, strong = launched
    assert strong.calls[0][-1].tolist() == [1, 0, 1, 0, 1]


SPLIT = {  # log decays of some tokens and keys
    "all": (slice(None), slice(None), -7.0),
    "just fit": (slice(None), slice(None), -7.46875),
    "one key": (slice(None), 70, -5.0),
    "a chunk": (slice(16, 32), slice(None), -6.0),
    "at its start": (slice(16, 22), slice(None), -14.0),
    "at its end": (slice(26, 32), slice(None), -14.0),
}


@pytest.mark.parametrize("name", SPLIT)
def test_sweeps_split_chunks_at_their_middle(name, launched):
    """No tile goes token by token."""
    launched[0].mistake("count = gl.minimum(rest, N)", "count = 0", inside="apply_tile")
    x = bfloat16(64, -0.1)
    tokens, keys, w = SPLIT[name]
    x[1][:, tokens, :, keys] = w
    right(x, scale=0.3)
    gradients_right(x)


def test_sweeps_go_from_mild_tiles_to_others_and_back():
    x = bfloat16(260, -0.1)
    x[1][:, 80:96] = -5.0  # split
    x[1][:, 100:102] = -60.0  # token by token
    x[1][:, 256:] = -16.0  # split, of a tile of four tokens
    right(x)
    gradients_right(x)


@pytest.mark.parametrize("reverse", [False, True])
def test_any_role_may_run_first(reverse, launched, monkeypatch):
    def launch(programs, *args):
        tensors, numbers, form = args
        parameters = inspect.signature(sweep.wkv7_wide_kernel.fn).parameters
        given = dict(zip(parameters, (*tensors, *numbers, form), strict=True))
        assert not watch(launched[0].kernel, (programs,), given, reverse=reverse).faults

    monkeypatch.setattr(sweep, "launch", launch)
    right(bfloat16(210, -0.1))


MISTAKES = {
    "maps not waited for": (
        "apply_maps", "mbarrier.wait(mapped.index(i), phase)", "pass", "before the wait|nothing in",
    ),
    "the other half not waited for": (
        "apply_maps", "mbarrier.wait(applied.index(i), phase)", "pass", "overwritten|read",
    ),
    "maps without a fence": ("make_maps", "fence_async_shared()", "pass", "no fence came after"),
    "y too early": ("apply_chunk", "warpgroup_mma_wait(5", "warpgroup_mma_wait(6", "before the"),
    "inputs not waited for": (
        "wait_for_tile", "mbarrier.wait(loaded[n].index(i), phase)", "pass", "before the",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_noticed(name, launched):
    inside, old, new, said = MISTAKES[name]
    launched[0].mistake(old, new, inside=inside)
    with pytest.raises(GluonFault, match=said):
        run(bfloat16(200, -0.1))


def test_fake_results_are_like_real_ones():
    x = bfloat16(70, -0.1, H=2)
    ends = torch.tensor([0, 70], dtype=torch.int32)
    for cu_seqlens, keep in ((None, False), (ends, True)):
        arguments = (*x[:6], None, cu_seqlens, 1.0, "log", keep)
        real, fake = sweep.forward(*arguments), sweep.forward_shapes(*arguments)
        looks = [[(y.shape, y.dtype, y.stride()) for y in results] for results in (real, fake)]
        assert looks[0] == looks[1]
