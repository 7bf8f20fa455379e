"""Serving calls of WKV-7: states in a pool, mixed lengths, drafts; kernels in the interpreter."""

import math
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from support.serving_cases import (
    ENDS,
    SLOTS,
    TOTAL,
    UNUSED,
    captured,
    error,
    hold_replays,
    in_float64,
    make,
    places,
)
from support.wkv7_cases import SINGLE

from rwkv_lessons.sequences import arguments
from rwkv_lessons.wkv7 import wkv7_step
from rwkv_lessons.wkv7.serving import (
    drafts,
    packed,
    wkv7_commit,
    wkv7_serving,
    wkv7_verify,
    wkv7_workspace,
)

pytest.importorskip("triton")
from support.tensor_core import tensor_core  # noqa: E402

__all__ = ["tensor_core"]  # products as a GPU makes them, in every test

HALF, SHORT = torch.float16, torch.bfloat16
# ‖error‖ / ‖reference‖ of o: see ../../rwkv_lessons/verify/limits.py. Of a float16 state: rounded
# once, 2.1e-4 on average, and by chance twice as much.
LIMITS = {torch.float32: SINGLE, HALF: 4e-4, SHORT: 4e-3}
STATES = {torch.float32: {torch.float32: SINGLE, HALF: 5e-5, SHORT: 3e-3}}
STATES[HALF] = {x: 4e-4 + y for x, y in STATES[torch.float32].items()}


def by_kernels(*x, decay="clamp", w0=None, scale=1.0, seeds=None, longest=TOTAL, workspace=None):
    *tokens, pool, indices, ends = x
    given = (*tokens, w0, pool, indices, ends, seeds, workspace)
    return packed.serving(*given, scale, decay, longest)


WAYS = {"kernels": by_kernels, "torch": wkv7_serving}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("decay", ["clamp", "raw", "log"])
@pytest.mark.parametrize("pool_dtype", [torch.float32, HALF])
def test_every_option_together(way, decay, pool_dtype):
    """Packed, no slot, no tokens, float16 states, w0, a scale, strong decays."""
    tokens, w0, pool = make(2, 24, 5, pool_dtype=pool_dtype, decay=decay)
    indices, ends = places()
    seeds = None if pool_dtype != HALF else torch.arange(len(SLOTS), dtype=torch.int32)
    want, after = in_float64(tokens, w0, pool, indices, ends, 0.5, decay)
    before = pool.clone()
    o = WAYS[way](*tokens, pool, indices, ends, decay=decay, w0=w0, scale=0.5, seeds=seeds)
    assert error(o, want) < LIMITS[torch.float32]
    assert error(pool, after) < STATES[pool_dtype][torch.float32] * (2 if seeds is not None else 1)
    assert torch.equal(pool[UNUSED], before[UNUSED])  # nothing was written there
    padding = [*range(ENDS[3], ENDS[4]), *range(ENDS[6], ENDS[7]), *range(ENDS[-1], TOTAL)]
    assert not o[0, padding].any()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [HALF, SHORT])
def test_tokens_in_halves(way, dtype):
    tokens, w0, pool = make(1, 16, 16, dtype, HALF)
    indices, ends = places()
    want, after = in_float64(tokens, w0, pool, indices, ends)
    o = WAYS[way](*tokens, pool, indices, ends, w0=w0)
    assert error(o, want) < LIMITS[dtype]
    assert error(pool, after) < STATES[HALF][dtype]


def test_a_wide_head_has_wide_chunks():
    tokens, w0, pool = make(1, 80, 6, SHORT)
    indices, ends = places()
    want, after = in_float64(tokens, w0, pool, indices, ends)
    o = by_kernels(*tokens, pool, indices, ends, w0=w0)
    assert error(o, want) < LIMITS[SHORT] and error(pool, after) < STATES[torch.float32][SHORT]


def test_without_options_single_tokens_are_steps():
    tokens, _, pool = make(2, 12, 12, total=3)
    indices, ends = places([0, 1, 2, 3], [4, 0, 7])
    state, after = pool[[4, 0, 7]], pool.clone()
    want = wkv7_step(*(x.transpose(0, 1).contiguous() for x in tokens), state, decay="clamp")
    for serve in (partial(by_kernels, longest=1), partial(wkv7_serving, longest=1)):
        got = serve(*tokens, after := pool.clone(), indices, ends)
        assert error(got[0], want[:, 0].double()) < SINGLE
        assert error(after[[4, 0, 7]], state.double()) < SINGLE


def test_a_workspace_is_used_again_whatever_it_holds():
    tokens, w0, pool = make(2, 8, 8)
    indices, ends = places()
    workspace = wkv7_workspace(TOTAL, len(SLOTS), 2, 8, 8, torch.float32, "cpu")
    results = []
    for n in (255, 0):
        workspace.fill_(n)  # 255: NaN
        o = by_kernels(*tokens, after := pool.clone(), indices, ends, workspace=workspace)
        results.append((o, after))
    for x, y in zip(*results, strict=True):
        assert torch.equal(x, y)
    with pytest.raises(ValueError, match="workspace must be .bytes ≥"):
        wkv7_serving(*tokens, pool, indices, ends, workspace=workspace[:-1])
    larger = torch.empty(len(workspace) + 1024, dtype=torch.uint8)
    for start in (0, 1):  # a CPU's memory may start anywhere
        wkv7_serving(*tokens, pool.clone(), indices, ends, workspace=larger[start:])


def test_a_sequence_has_the_same_bits_whatever_else_is_in_the_batch():
    tokens, w0, pool = make(1, 16, 16)
    indices, ends = places()
    whole = by_kernels(*tokens, pool.clone(), indices, ends, w0=w0)
    for n in (0, 2, 5):
        part = [x[:, ENDS[n] : ENDS[n + 1]].contiguous() for x in tokens]
        alone = places([0, ENDS[n + 1] - ENDS[n]], [SLOTS[n]])
        o = by_kernels(*part, pool.clone(), *alone, w0=w0)
        assert torch.equal(o, whole[:, ENDS[n] : ENDS[n + 1]])


# Drafts.

VERIFY = {"kernels": drafts.verify, "torch": drafts.verify_in_torch}
COMMIT = {"kernels": drafts.commit, "torch": drafts.commit_in_torch}
DRAFT_SLOTS, ACCEPTED = [3, -1, 0, 6, 2], [4, 2, 0, 1, 3]


def draft(T, pool_dtype, dtype=torch.float32):
    S = len(DRAFT_SLOTS)
    tokens, w0, pool = make(2, 12, 10, dtype, pool_dtype, S * T)
    seeds = torch.arange(10, 10 + S, dtype=torch.int32) if pool_dtype == HALF else None
    return [x.view(S, T, *x.shape[2:]) for x in tokens], w0, pool, seeds


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("pool_dtype", [torch.float32, HALF])
def test_drafts_are_bit_for_bit_the_tokens_one_by_one(way, pool_dtype):
    T = 4
    tokens, w0, pool, seeds = draft(T, pool_dtype)
    S, indices = len(DRAFT_SLOTS), torch.tensor(DRAFT_SLOTS, dtype=torch.int32)
    states, outputs = [pool.clone()], []
    for t in range(T):
        one = [x[:, t].unsqueeze(0).contiguous() for x in tokens]
        states.append(states[-1].clone())
        ends = torch.arange(S + 1, dtype=torch.int32)
        later = None if seeds is None else seeds + t
        o = WAYS[way](*one, states[-1], indices, ends, w0=w0, scale=0.5, seeds=later, longest=1)
        outputs.append(o[0])
    before = pool.clone()
    o = VERIFY[way](*tokens, w0, pool, indices, seeds, 0.5, "clamp")
    assert torch.equal(o, torch.stack(outputs, 1))
    assert torch.equal(pool, before)  # to roll back is to do nothing
    accepted = torch.tensor(ACCEPTED, dtype=torch.int32)
    COMMIT[way](*tokens, w0, pool, indices, accepted, seeds, "clamp")
    for slot, n in zip(DRAFT_SLOTS, ACCEPTED, strict=True):
        if slot >= 0:
            assert torch.equal(pool[slot], states[n][slot])
    unused = sorted({*range(len(pool))} - {*DRAFT_SLOTS})
    assert torch.equal(pool[unused], before[unused])


def test_drafts_have_the_same_bits_with_a_transposed_w0():
    tokens, w0, pool, _ = draft(2, torch.float32)
    indices = torch.tensor(DRAFT_SLOTS, dtype=torch.int32)
    accepted, results = torch.tensor([2, 2, 0, 1, 2], dtype=torch.int32), []
    for base in (w0, w0.T.contiguous().T):
        o = drafts.verify(*tokens, base, pool, indices, None, 1.0, "clamp")
        drafts.commit(*tokens, base, after := pool.clone(), indices, accepted, None, "clamp")
        results.append((o, after))
    for x, y in zip(*results, strict=True):
        assert torch.equal(x, y)


def test_the_public_calls_are_those_of_the_device():
    tokens, w0, pool, seeds = draft(3, HALF)
    indices = torch.tensor(DRAFT_SLOTS, dtype=torch.int32)
    accepted = torch.tensor([3, 3, 0, 1, 2], dtype=torch.int32)
    o = wkv7_verify(*tokens, pool, indices, w0=w0, seeds=seeds)
    assert torch.equal(o, drafts.verify_in_torch(*tokens, w0, pool, indices, seeds, 1.0, "clamp"))
    other = pool.clone()
    wkv7_commit(*tokens, pool, indices, accepted, w0=w0, seeds=seeds)
    drafts.commit_in_torch(*tokens, w0, other, indices, accepted, seeds, "clamp")
    assert torch.equal(pool, other)


@pytest.mark.parametrize(
    "change, kind, message",
    [
        ({"state_pool": torch.zeros(8, 2, 8, 9)}, ValueError, r"state_pool must be \[slots, H"),
        ({"state_pool": torch.zeros(8, 2, 8, 8).double()}, TypeError, "one of float32, float16"),
        ({"state_pool": torch.zeros(8, 2, 8, 8).mT}, ValueError, "must be contiguous"),
        ({"state_indices": torch.zeros(8)}, TypeError, "state_indices must be int32, got .*: use"),
        ({"state_indices": torch.zeros(8).int()}, ValueError, r"got \[0\] several times"),
        ({"state_indices": torch.arange(1, 9).int()}, ValueError, "must be -1 or from 0 to 7"),
        ({"state_indices": torch.arange(7).int()}, ValueError, r"\[S\] = \[8\], got \[7\]"),
        ({"cu_seqlens": torch.tensor([0, 200])}, ValueError, "increase from 0 to at most 101"),
        ({"cu_seqlens": torch.tensor([0, 9, 3])}, ValueError, "increase from 0"),
        ({"w0": torch.zeros(8)}, ValueError, r"w0 must be \[H, K\]"),
        ({"seeds": torch.arange(8)}, ValueError, "seeds are for rounding to a float16"),
        ({"decay": "soft"}, ValueError, "decay must be one of log, raw, clamp"),
        ({"longest": 0}, ValueError, "longest must be an integer of at least 1"),
        ({"longest": 38}, ValueError, "longest must be at least the tokens of any sequence, 39"),
        ({"r": torch.zeros(2, 101, 2, 8)}, ValueError, "r must be "),
        ({"scale": math.nan}, ValueError, "scale must be a finite number"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(change, kind, message):
    tokens, _, pool = make(2, 8, 8)
    indices, ends = places()
    x = dict(zip("rwkvab", tokens, strict=True))
    x |= {"state_pool": pool, "state_indices": indices, "cu_seqlens": ends}
    with pytest.raises(kind, match=message):
        wkv7_serving(**x | change)


def test_a_pool_of_inference_mode_is_updated_only_there():
    tokens, _, pool = make(2, 8, 8)
    indices, ends = places()
    with torch.inference_mode():
        inside = pool.clone()
        wkv7_serving(*tokens, after := inside.clone(), indices, ends)
    with pytest.raises(ValueError, match="state_pool was made in torch.inference_mode"):
        wkv7_serving(*tokens, inside, indices, ends)
    assert torch.equal(inside, pool)  # nothing was written
    wkv7_serving(*tokens, pool, indices, ends)
    assert torch.equal(after, pool)


def test_numbers_on_a_gpu_are_read_on_request_alone(monkeypatch):
    numbers = {x: SimpleNamespace(device=SimpleNamespace(type=x)) for x in ("cpu", "cuda", "meta")}
    for asked, expected in ((False, ["cpu"]), (True, ["cpu", "cuda"])):
        monkeypatch.setattr(arguments, "LOOKS_AT_CU_SEQLENS", asked)
        assert [x for x, y in numbers.items() if arguments.reads_values_of(y)] == expected


def test_wrong_drafts_say_what_is_wrong():
    tokens, _, pool, _ = draft(3, torch.float32)
    indices = torch.tensor(DRAFT_SLOTS, dtype=torch.int32)
    nine = [torch.cat([x] * 3, 1) for x in tokens]
    with pytest.raises(ValueError, match="T ≤ 8 drafted tokens"):
        wkv7_verify(*nine, pool, indices)
    with pytest.raises(ValueError, match="accepted must be from 0 to T = 3, got"):
        wkv7_commit(*tokens, pool, indices, torch.tensor([4, 0, 0, 0, 0], dtype=torch.int32))
    with pytest.raises(ValueError, match="no argument can require a gradient"):
        wkv7_verify(tokens[0].requires_grad_(), *tokens[1:], pool, indices)


def test_operators_are_described_as_torch_wants_them():
    tokens, w0, pool = make(1, 4, 4)
    indices, ends = places()
    given = (*tokens, w0, pool, indices, ends, None, None, 1.0, "clamp", TOTAL)
    torch.library.opcheck(torch.ops.rwkv_lessons.wkv7_serving, given)
    tokens, w0, pool, seeds = draft(2, HALF)
    indices = torch.tensor(DRAFT_SLOTS, dtype=torch.int32)
    given = (*tokens, w0, pool, indices, seeds, 1.0, "clamp")
    torch.library.opcheck(torch.ops.rwkv_lessons.wkv7_verify, given)


# On a GPU: no call waits for it, so that one can be captured.


@pytest.mark.gpu
@pytest.mark.parametrize("decay", ["clamp", "raw", "log"])
@pytest.mark.parametrize("pool_dtype", [torch.float32, HALF])
@pytest.mark.parametrize("dtype", [torch.float32, SHORT])
def test_every_option_together_captured(dtype, pool_dtype, decay):
    """Packed, no slot, no tokens, float16 states, w0, a scale, strong decays; other lengths."""
    tokens, w0, pool = make(2, 64, 64, dtype, pool_dtype, decay=decay)
    seeds = torch.arange(len(SLOTS), dtype=torch.int32) if pool_dtype == HALF else None
    given, (base, on_gpu, seeds) = [x.cuda() for x in tokens], to_gpu(w0, pool, seeds)
    workspace = wkv7_workspace(TOTAL, len(SLOTS), 2, 64, 64, dtype)
    options = {"decay": decay, "w0": base, "scale": 0.5, "seeds": seeds, "workspace": workspace}

    def reference(*places):
        return in_float64(tokens, w0, *places, 0.5, decay)

    limit = STATES[pool_dtype][dtype] * (2 if seeds is not None else 1)
    serve = partial(wkv7_serving, *given, **options)
    hold_replays(serve, on_gpu, reference, LIMITS[dtype], limit)


@pytest.mark.gpu
@pytest.mark.parametrize("pool_dtype", [torch.float32, HALF])
def test_drafts_captured(pool_dtype):
    """Verified and committed in one graph, replayed with other counts and slots."""
    tokens, w0, pool, seeds = draft(4, pool_dtype)
    given, (w0, pool, seeds) = [x.cuda() for x in tokens], to_gpu(w0, pool, seeds)
    indices, accepted = to_gpu(*(torch.tensor(x).int() for x in (DRAFT_SLOTS, ACCEPTED)))
    used, options = pool.clone(), {"w0": w0, "seeds": seeds}

    def both(states):
        o = wkv7_verify(*given, states, indices, scale=0.5, **options)
        wkv7_commit(*given, states, indices, accepted, **options)
        return o

    o, replay = captured(lambda: both(used))
    for slots, counts in ((DRAFT_SLOTS, ACCEPTED), ([0, 1, -1, 2, 7], [0, 4, 3, 1, 2])):
        used.copy_(pool)
        indices.copy_(torch.tensor(slots))
        accepted.copy_(torch.tensor(counts))
        replay()
        assert torch.equal(o, both(fresh := pool.clone())) and torch.equal(used, fresh)


def to_gpu(*tensors):
    return [None if x is None else x.cuda() for x in tensors]
