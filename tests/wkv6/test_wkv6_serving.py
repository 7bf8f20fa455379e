"""Serving calls of WKV-6: states in a pool and mixed lengths; kernels in the interpreter."""

from functools import partial

import pytest
import torch
from support.serving_cases import ENDS, SLOTS, TOTAL, UNUSED, error, hold_replays, make, places

from rwkv_lessons.wkv6 import wkv6_reference
from rwkv_lessons.wkv6.serving import packed, wkv6_serving

pytest.importorskip("triton")
from support.tensor_core import tensor_core  # noqa: E402

__all__ = ["tensor_core"]  # products as a GPU makes them, in every test
HALF, SHORT = torch.float16, torch.bfloat16
# ‖error‖ / ‖reference‖ of o, and of a float32 state: see ../../rwkv_lessons/verify/limits.py.
LIMITS = {torch.float32: (1e-5, 1e-5), HALF: (3e-4, 2e-5), SHORT: (2.7e-3, 2e-5)}
ROUNDED = 4e-4  # of a float16 state, twice what is average


def by_kernels(*x, raw_decay=True, w0=None, scale=1.0, seeds=None):
    *given, pool, indices, ends = x
    return packed.serving(*given, w0, pool, indices, ends, seeds, scale, raw_decay, TOTAL)


WAYS = {"kernels": by_kernels, "torch": wkv6_serving}


def case(dtype, pool_dtype, raw_decay, K=24, V=5):
    (r, w, k, v, _, _), w0, pool = make(
        2, K, V, dtype, pool_dtype, decay="raw" if raw_decay else "log"
    )
    u = torch.randn(2, K, generator=torch.Generator().manual_seed(1))
    return [r, k, v, w, u], w0, pool


def in_float64(x, w0, pool, indices, ends, scale, raw_decay):
    r, k, v, w, u = (y.double() for y in x)
    o, after, bounds = torch.zeros_like(v), pool.double(), ends.tolist()
    for slot, start, end in zip(indices.tolist(), bounds, bounds[1:], strict=False):
        if slot >= 0 and end > start:
            tokens = [y[:, start:end] for y in (r, k, v, w + w0.double())]
            o[:, start:end], s1 = wkv6_reference(
                *tokens, u, after[slot : slot + 1].clone(), scale=scale, raw_decay=raw_decay
            )
            after[slot] = s1[0]
    return o, after


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("raw_decay", [True, False])
@pytest.mark.parametrize(
    "dtype, pool_dtype",
    [(torch.float32, torch.float32), (torch.float32, HALF), (HALF, HALF), (SHORT, torch.float32)],
)
def test_every_option_together(way, raw_decay, dtype, pool_dtype):
    """Packed, no slot, no tokens, float16 states, w0, a scale, strong decays."""
    x, w0, pool = case(dtype, pool_dtype, raw_decay)
    indices, ends = places()
    seeds = None if pool_dtype != HALF else torch.arange(len(SLOTS), dtype=torch.int32)
    want, after = in_float64(x, w0, pool, indices, ends, 0.5, raw_decay)
    before, of_o, of_state = pool.clone(), *LIMITS[dtype]
    options = {"raw_decay": raw_decay, "w0": w0, "scale": 0.5, "seeds": seeds}
    o = WAYS[way](*x, pool, indices, ends, **options)
    assert error(o, want) < of_o
    assert error(pool, after) < (of_state if pool_dtype != HALF else of_state + 2 * ROUNDED)
    assert torch.equal(pool[UNUSED], before[UNUSED])  # nothing was written there
    padding = [*range(ENDS[3], ENDS[4]), *range(ENDS[6], ENDS[7]), *range(ENDS[-1], TOTAL)]
    assert not o[0, padding].any()


@pytest.mark.parametrize(
    "change, kind, message",
    [
        ({"u": torch.zeros(2)}, ValueError, r"u must be \[H, K\]"),
        ({"raw_decay": 1}, TypeError, "raw_decay must be True or False"),
        ({"state_pool": torch.zeros(8, 2, 8, 8)}, ValueError, r"state_pool must be \[slots, H"),
        ({"state_indices": torch.arange(8)}, TypeError, "state_indices must be int32, got .*: use"),
        ({"w0": torch.zeros(2, 3)}, ValueError, r"w0 must be \[H, K\]"),
        ({"longest": 38}, ValueError, "longest must be at least the tokens of any sequence, 39"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(change, kind, message):
    x, _, pool = case(torch.float32, torch.float32, True)
    indices, ends = places()
    x = dict(zip("rkvwu", x, strict=True))
    x |= {"state_pool": pool, "state_indices": indices, "cu_seqlens": ends}
    with pytest.raises(kind, match=message):
        wkv6_serving(**x | change)


def test_the_operator_is_described_as_torch_wants_it():
    x, w0, pool = case(torch.float32, HALF, True)
    indices, ends = places()
    given = (*x, w0, pool, indices, ends, None, 1.0, True, TOTAL)
    torch.library.opcheck(torch.ops.rwkv_lessons.wkv6_serving, given)


@pytest.mark.gpu
@pytest.mark.parametrize("raw_decay", [True, False])
@pytest.mark.parametrize("pool_dtype", [torch.float32, HALF])
@pytest.mark.parametrize("dtype", [torch.float32, SHORT])
def test_every_option_together_captured(dtype, pool_dtype, raw_decay):
    """In a CUDA graph that is replayed with other lengths and slots."""
    x, w0, pool = case(dtype, pool_dtype, raw_decay, 64, 64)
    seeds = torch.arange(len(SLOTS), dtype=torch.int32).cuda() if pool_dtype == HALF else None
    options = {"raw_decay": raw_decay, "w0": w0.cuda(), "scale": 0.5, "seeds": seeds}
    serve = partial(wkv6_serving, *(y.cuda() for y in x), **options)

    def reference(*places):
        return in_float64(x, w0, *places, 0.5, raw_decay)

    of_o, of_state = LIMITS[dtype]
    of_state += 0 if pool_dtype != HALF else 2 * ROUNDED
    hold_replays(serve, pool.cuda(), reference, of_o, of_state)
