"""RWKV-7's forward pass in one launch, as it is written, on the CPU: chunks, waits and fences."""

import ast
import inspect
import itertools
import math
import re

import pytest
import torch
from support.gluon_on_cpu import Mutable
from support.wkv7_cases import NAMES, make, near, with_raw

from rwkv_lessons.runtime import devices
from rwkv_lessons.runtime.packages import TRITON
from rwkv_lessons.wkv7 import wkv7_reference

if not TRITON:
    pytest.skip("the kernels need Triton", allow_module_level=True)

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource

from rwkv_lessons.wkv7.chunked.hopper import forward as hopper
from rwkv_lessons.wkv7.chunked.hopper import fused as method
from rwkv_lessons.wkv7.chunked.hopper import layouts
from rwkv_lessons.wkv7.chunked.hopper.maps import FITS
from warplens.gluon import GluonFault
from warplens.gluon.run import watch

# A rounding to bfloat16 is 1.66e-3. o has one of itself, and is a sum of terms with one each of
# their factors, of S, of what is read through a, and of z. s1 has none of itself.
LIMITS = {"": 4.4e-3, "s1": 3e-3}


@pytest.fixture(autouse=True)
def launched(monkeypatch):
    """The kernel, as launched last."""
    kernel = Mutable(hopper.wkv7_hopper_kernel)

    def launch(programs, tensors, numbers, form):
        kernel[(programs,)](*tensors, *numbers, form, num_warps=4)

    monkeypatch.setattr(hopper, "launch", launch)
    return kernel


def bfloat16(T, w, H=1):
    return make(1, T, H, 64, 64, w, torch.bfloat16)


def run(x, cu_seqlens=None, scale=1.0, decay="log", keep=False):
    """o, s1 and, with `keep`, the states before each tile."""
    *results, nothing = hopper.forward(*x, cu_seqlens, scale, decay, keep)
    assert not nothing.numel() and (keep or not results[2].numel())
    return results if keep else results[:2]


def right(x, **options):
    want = wkv7_reference(*(None if y is None else y.double() for y in x), **options)
    near(run(x, **options), want, LIMITS, NAMES)


def test_tiles_are_the_reference():
    x = bfloat16(135, math.log(0.5), H=2)
    x[6] = None
    right(x, scale=0.3)


@pytest.mark.parametrize("T", [1, 15, 16, 17, 63, 64, 65, 128])
def test_sequences_of_any_length(T):
    right(bfloat16(T, -0.1))


def test_what_follows_a_sequence_does_no_harm():
    x = bfloat16(230, -0.1)
    cu_seqlens = torch.tensor([0, 70, 70, 150, 230], dtype=torch.int32)
    x[6] = torch.randn(4, 1, 64, 64)
    want = wkv7_reference(*(y.double() for y in x), cu_seqlens=cu_seqlens)
    for y in x[:6]:
        y[:, 70:150] = math.nan
    o, s1 = run(x, cu_seqlens=cu_seqlens)
    assert o[:, 149].isnan().all() and s1[2].isnan().all()
    o[:, 70:150], s1[2] = want[0][:, 70:150], want[1][2]
    near((o, s1), want, LIMITS, NAMES)


@pytest.mark.parametrize("w", [0.0, -3.0, -math.inf])
def test_decays_of_none_strong_and_total(w):
    right(bfloat16(70, w))


@pytest.mark.parametrize("share", [0.99, 1.01])
def test_decays_at_the_bound_of_maps(share):
    right(bfloat16(80, -share * FITS.value / 16))


def test_strong_tiles_among_others():
    x = bfloat16(330, -0.1)
    x[1][:, 70:80, :, ::3], x[1][:, 300, :, 5] = -math.inf, -70.0
    right(x)


@pytest.mark.parametrize("decay", ["raw", "clamp"])
def test_decays_of_a_parameter(decay):
    right(with_raw(bfloat16(100, 0.0), decay), decay=decay)


def test_equal_keys_without_decay():
    """Where the powers of A_ab are large and cancel each other."""
    x = bfloat16(64, 0.0)
    x[4] = x[4][:, :1].expand_as(x[4]).contiguous()
    x[5] = -x[4]
    right(x)


def test_states_before_each_tile_are_kept():
    x, ends = bfloat16(230, -0.1, H=2), [0, 70, 70, 230]
    x[6] = torch.randn(3, 2, 64, 64)
    cu_seqlens = torch.tensor(ends, dtype=torch.int32)
    x[1][:, 80:90] = -math.inf
    _, _, states = run(x, cu_seqlens=cu_seqlens, keep=True)
    for i, (start, end) in enumerate(itertools.pairwise(ends)):
        want = x[6][i : i + 1].double()
        for tile, first in enumerate(range(start, end, 64)):
            near([states[start // 64 + i + tile].mT], [want[0]], LIMITS["s1"], ["states"])
            tokens = (y[:, first : min(first + 64, end)].double() for y in x[:6])
            _, want = wkv7_reference(*tokens, want)


@pytest.mark.parametrize("reverse", [False, True])
def test_either_role_may_run_first(reverse, launched, monkeypatch):
    def launch(programs, *args):
        tensors, numbers, form = args
        given = named(*tensors, *numbers, form)
        seen = watch(launched.kernel, (programs,), given, reverse=reverse)
        assert not seen.faults

    def named(*args):
        parameters = inspect.signature(hopper.wkv7_hopper_kernel.fn).parameters
        return dict(zip(parameters, args, strict=True))

    monkeypatch.setattr(hopper, "launch", launch)
    right(bfloat16(210, -0.1))


MISTAKES = {
    "maps without a fence": ("next_maps", "fence_async_shared()", "pass", "no fence came after"),
    "maps not waited for": (
        "apply_maps",
        "mbarrier.wait(mapped.index(i), phase)",
        "pass",
        "before the wait for it|nothing in it",
    ),
    "o without a fence": ("store_tile", "fence_async_shared()", "pass", "no fence came after"),
    "o overwritten": ("apply_chunks", "tma.store_wait(0)", "pass", "overwritten while it is read"),
    "y too early": (
        "apply_with_values",
        "warpgroup_mma_wait(3",
        "warpgroup_mma_wait(4",
        "before the wait",
    ),
    "z not kept": ("plus_z", "deps=(b_s, b_o, z, z_wide)", "deps=(b_s, b_o, z)", "not kept"),
    "another stage": ("next_maps", "// N // STAGES % 2", "// N % 2", "before the wait"),
    "w not waited for": ("wait_for_tile", "range(len(loaded))", "range(1)", "before the wait"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_noticed(name, launched):
    inside, old, new, said = MISTAKES[name]
    launched.mistake(old, new, inside=inside)
    with pytest.raises(GluonFault, match=said):
        run(bfloat16(140, -0.1))


@gluon.jit
def print_layouts():
    gl.static_print(gl.to_linear_layout(layouts.TILE, [64, 64]))
    gl.static_print(gl.to_linear_layout(layouts.BY_CHUNK, [4, 16, 64]))


def test_a_tile_by_chunk_has_its_bytes_in_the_same_order(capsys):
    """The simulator does not look at the order of bytes."""
    source = GluonASTSource(print_layouts, {}, {}, {})
    with knobs.compilation.scope():
        knobs.compilation.always_compile = True
        triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
    tile, by_chunk = re.findall(r"offset_bases=(\[.*?\]\])", capsys.readouterr().out)
    tokens = [[16 * chunk + token, key] for chunk, token, key in ast.literal_eval(by_chunk)]
    assert ast.literal_eval(tile) == tokens and len(tokens) == 12


@pytest.mark.parametrize("kind", ["float32", "w in float32", "s0 in float64", "no Hopper GPU"])
def test_what_it_does_not_take_goes_to_chunks(kind, monkeypatch):
    hopper_gpu = devices.H200 if kind != "no Hopper GPU" else devices.gpu_of(torch.device("cpu"))
    monkeypatch.setattr(method.devices, "gpu_of", lambda device: hopper_gpu)
    taken = []
    monkeypatch.setattr(method, "fused", lambda *arguments: taken.append("fused"))
    monkeypatch.setattr(method, "wkv7_chunked", lambda *_, **__: taken.append("chunked"))
    x = bfloat16(16, -0.1)
    method.wkv7_fused(*x)
    if kind == "float32":
        x[:6] = [y.float() for y in x[:6]]
    elif kind == "w in float32":
        x[1] = x[1].float()
    elif kind == "s0 in float64":
        x[6] = x[6].double()
    method.wkv7_fused(*x)
    assert taken == ["chunked" if kind == "no Hopper GPU" else "fused", "chunked"]


def test_fake_results_are_like_real_ones():
    ends = torch.tensor([0, 70, 70, 130], dtype=torch.int32)
    for cu_seqlens in (None, ends):
        for keep in (False, True):
            x = bfloat16(130, -0.1, H=2)
            x[6] = None
            arguments = (*x, cu_seqlens, 1.0, "log", keep)
            real, fake = hopper.forward(*arguments), hopper.forward_shapes(*arguments)
            looks = [[(y.shape, y.dtype, y.stride()) for y in results] for results in (real, fake)]
            assert looks[0] == looks[1]


def test_misaligned_tensors_are_copied():
    x = bfloat16(20, -0.1)
    memory = torch.empty(x[3].numel() + 1, dtype=x[3].dtype)[1:]
    x[3] = memory.view_as(x[3]).copy_(x[3])
    assert x[3].data_ptr() % 16 and not hopper.aligned(x[3]).data_ptr() % 16
    right(x)
