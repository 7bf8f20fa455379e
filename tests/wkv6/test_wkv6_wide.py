"""WKV-6 for heads of 128 in Gluon, as it is written, on the CPU: every chunk, wait and fence."""

import itertools
import math

import pytest
import torch
from support.gluon_on_cpu import faults, on_cpu
from support.wkv6_cases import make, near
from support.wkv6_chunks import NAMES, expected, fresh_tiles, in_segments  # noqa: F401
from support.wkv6_hopper import bfloat16  # noqa: F401
from support.wkv6_options import compiles, interpreted, packed, raw_of

from rwkv_lessons.wkv6.chunked import forward as chunked
from rwkv_lessons.wkv6.chunked.hopper import wide as wide_kernel
from rwkv_lessons.wkv6.chunked.hopper.strong import NEAR_DECAY
from rwkv_lessons.wkv6.chunked.hopper.tiles import TILE
from rwkv_lessons.wkv6.chunked.sizes import CHECKPOINT
from rwkv_lessons.wkv6.chunked.tiles import FITS_TO_END, LOG2E
from warplens.compiled import assembly

pytestmark = interpreted
# As of heads of 64 (test_wkv6_hopper.py): o is rounded, and so are the scores and S.
LIMITS = {"": 2.4e-3, "s1": 1e-5}
ROUNDED = 2**-8.5
BOUND = 2 * FITS_TO_END.value / LOG2E.value  # of the sum of w over a chunk
PACKED = [0, 1, 1, 70, 134, 200]


@pytest.fixture(autouse=True)
def launched(monkeypatch):
    """The kernel, as launched last."""
    on_cpu(monkeypatch, chunked, "wkv6_segment_states_kernel")
    return on_cpu(monkeypatch, chunked, "wkv6_wide_kernel")


def results(x, cu_seqlens=None, scale=1.0, raw_decay=False, keep=False):
    return chunked.forward(*x, cu_seqlens, scale, raw_decay, keep)


def wide(T, w):
    return make(1, T, 1, 128, 128, w, torch.bfloat16)


def right(x, few=1.05, **options):
    limits = {name: few * limit for name, limit in LIMITS.items()}
    near(results(x, **options), expected(x, **options), limits, NAMES)


def states(x, every):
    """Of each sequence, before tokens 0, every, …, in float64."""
    parts = [[*(y[:, :t] for y in x[:4]), *x[4:]] for t in range(every, x[0].shape[1], every)]
    return torch.stack([x[5].double(), *(expected(y)[1] for y in parts)], 1)


@pytest.mark.parametrize(
    "T, w", [(1, "mixed"), (64, -1e-4), (65, -math.inf), (65, -0.1), (140, "mixed"), (140, 0.0)]
)
def test_chunks_are_the_reference(T, w):
    x = wide(T, w)
    x[5] = None if T == 64 else x[5]
    right(x, few=1.15 if T == 1 else 1.05, scale=0.3 if T == 65 else 1.0)


@pytest.mark.parametrize("share", [0.99, 1.01])
def test_decays_at_the_bound_of_factors(share):
    right(wide(100, -share * BOUND / 64))


@pytest.mark.parametrize("share", [0.99, 1.01])
def test_decays_at_the_bound_of_runs(share):
    right(wide(100, -share * NEAR_DECAY.value))


@pytest.mark.parametrize("key", [5, 100])
def test_one_strong_key_of_either_half(key):
    x = wide(300, -0.02)
    x[3][:, 70:80, :, key], x[3][:, 200:, :, key] = -math.inf, -4.0
    right(x)


@pytest.mark.parametrize("raw_decay, keep", [(False, False), (True, True)])
def test_packed_sequences(raw_decay, keep):
    x, cu_seqlens = packed(torch.bfloat16, 128, 128, PACKED)
    x = raw_of(x) if raw_decay else x
    x[5] = x[5].float()
    for y in x[:4]:
        y[:, 70:134] = math.nan  # which belongs to one sequence alone
    options = {"cu_seqlens": cu_seqlens, "scale": 0.7, "raw_decay": raw_decay}
    o, s1, *kept = results(x, **options, keep=keep)
    assert o[:, 70:134].isnan().all() and s1[3].isnan().all()
    for i, (start, end) in enumerate(itertools.pairwise(PACKED)):
        y = [*(z[:, start:end] for z in x[:4]), x[4], x[5][i : i + 1]]
        y[3] = -y[3].double().exp() if raw_decay else y[3]
        if start < end and i != 3:
            want = expected(y, scale=0.7)
            near((o[:, start:end], s1[i : i + 1]), want, LIMITS | {"": 2.8e-3}, NAMES)
            if keep:
                first, want = start // CHECKPOINT + i, states(y, CHECKPOINT)[0]
                near([kept[0][first : first + len(want)]], [want], ROUNDED, ["states"])


@pytest.mark.parametrize("w", ["mixed", -0.1])
def test_states_are_kept(w):
    x = wide(170, w)
    o, s1, kept = results(x, keep=True)
    near((o, s1), expected(x), LIMITS, NAMES)
    near([kept], [states(x, CHECKPOINT).flatten(0, 1)], ROUNDED, ["states"])


def test_segments_of_a_sequence(monkeypatch):
    in_segments(monkeypatch, 2)
    right(wide(200, -0.1))
    monkeypatch.setattr(chunked, "cut_on_hopper", lambda *_: (64, 2, 128, 2))
    right(wide(300, -0.02))


@pytest.mark.parametrize("reverse", [False, True])
def test_either_role_may_run_first(reverse, monkeypatch):
    x = wide(330, -0.1)
    x[3][:, 70:80, :, ::3] = -math.inf
    found = faults(monkeypatch, chunked, reverse)
    near(results(x)[:2], expected(x), LIMITS, NAMES)
    assert not found


@pytest.mark.parametrize(
    "old, new",
    [
        ("mbarrier.wait(ready.index(i), phase)", "pass"),
        ("mbarrier.wait(applied.index(i), phase)", "pass"),
        ("tma.store_wait(0)  # o of", "pass  # o of"),
        ("fence_async_shared()\n        barrier()  # o is", "barrier()  # o is"),
    ],
)
def test_a_wait_or_fence_that_is_missing_is_seen(old, new, launched, monkeypatch):
    launched.mistake(old, new, inside="apply_factors")
    found = []
    for reverse in (False, True):
        of_one = faults(monkeypatch, chunked, reverse)
        results(wide(200, -0.1))
        found += of_one
    assert found


@compiles
def test_products_start_together_and_registers_suffice():
    """With too few registers for a role, ptxas would wait after every product."""
    tile, f, n = f"tensordesc<bf16[64, 64],{TILE.value!r}>", "*fp32", "i32"
    tensors = (tile, tile, tile, tile, f, f, None, None, None, tile, "*bf16", f, None)
    given = (*tensors, n, n, n, n, n, n, n, "fp32", False, False)
    kernel = wide_kernel.wkv6_wide_kernel
    machine = assembly.assembly(kernel, *given, num_warps=4, maxnreg=wide_kernel.REGISTERS.value)
    # Factors: sums 24, scores 24, near sums 8 and scores 24, sums 48; states: 36 and four runs.
    assert machine.count("HGMMA") >= 96 + 2 * 120
    assert machine.count("WARPGROUP.DEPBAR") <= 30
    assert machine.shared_bytes <= 227 * 1024 and machine.atomics == 0
    assert machine.local_bytes <= 256  # addresses, once a program or a chunk
