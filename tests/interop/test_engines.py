"""The operators of Albatross, vLLM-RWKV and rwkv-sglang, against float64 in their layout."""

import inspect

import pytest
import torch
from support.serving_cases import ENDS, SLOTS, TOTAL, error, in_float64, make, places
from support.wkv7_cases import SINGLE

from rwkv_lessons.interop import albatross, rwkv_sglang
from rwkv_lessons.wkv7 import wkv7_reference
from rwkv_lessons.wkv7.serving import wkv7_serving

HALF = torch.float16
LIMITS = {torch.float32: SINGLE, HALF: 4e-4}  # of o, see tests/wkv7/test_wkv7_serving.py
STATES = {torch.float32: SINGLE, HALF: 8e-4}  # rounded stochastically, twice that of nearest


def names_of(function):
    return list(inspect.signature(function).parameters)


# Albatross.


def batch(B, T, H, N, pool_dtype, decay="clamp"):
    """Tokens `[B, T, C]`, w0 `[C]`, states `[B, H, N, N]`, and (o, states) in float64."""
    tokens, w0, pool = make(H, N, N, pool_dtype=pool_dtype, total=B * T, decay=decay)
    state = pool[:B].clone()
    heads = [x.double().view(B, T, H, N) for x in tokens]
    heads[1] = heads[1] + w0.double()
    want = wkv7_reference(*heads, state.double(), decay=decay)
    return [x.view(B, T, H * N) for x in tokens], w0.flatten(), state, want


@pytest.mark.parametrize("T", [1, 5, 20])
@pytest.mark.parametrize("pool_dtype", [torch.float32, HALF])
def test_sequences_of_albatross(T, pool_dtype):
    B, H, N = 3, 2, 8
    (r, w, *others), w0, state, want = batch(B, T, H, N, pool_dtype)
    y, elapsed = torch.empty_like(r), torch.arange(B, dtype=torch.int32)
    others, before = [*others, y, elapsed], state.clone()
    sizes = (B, T, H * N, H)
    albatross.wkv_seq_w0(*sizes, state, r, w, w0, *others)
    assert error(y.view_as(want[0]), want[0]) < LIMITS[torch.float32]
    assert error(state, want[1]) < STATES[pool_dtype]
    first, after = y.clone(), state.clone()
    albatross.wkv_seq(*sizes, before, r, w + w0, *others)  # w0 is added in float32, in both
    assert torch.equal(y, first) and torch.equal(before, after)


def test_one_token_of_albatross_and_its_float32_states():
    B, H, N = 3, 2, 8
    (r, w, k, v, a, b), w0, state, want = batch(B, 1, H, N, torch.float32)
    y, elapsed, sizes = torch.empty(B, H * N), torch.zeros(B, dtype=torch.int32), (B, H * N, H)
    flat = [x[:, 0] for x in (k, v, a, b)]
    for call, given in (
        (albatross.wkv_one_w0, (r[:, 0], w[:, 0], w0, *flat, y, elapsed)),
        (albatross.wkv_one, (r[:, 0], (w + w0)[:, 0], *flat, y, elapsed)),
    ):
        s = state.clone()
        call(*sizes, s, *given)
        assert error(y.view(B, 1, H, N), want[0]) < SINGLE and error(s, want[1]) < SINGLE
    y = torch.empty_like(r)
    albatross.forward(B, 1, H * N, H, state, r, w + w0, k, v, a, b, y)
    assert error(y.view_as(want[0]), want[0]) < SINGLE and error(state, want[1]) < SINGLE


@pytest.mark.parametrize("pool_dtype", [torch.float32, HALF])
def test_a_batch_of_vllm_rwkv(pool_dtype):
    """Mixed lengths, padding that is no slot, an empty sequence; one seed for each slot."""
    H, N, B = 2, 8, len(SLOTS)
    tokens, w0, pool = make(H, N, N, pool_dtype=pool_dtype)
    indices, ends = places()
    want, after = in_float64(tokens, w0, pool, indices, ends)
    r, w, *others = [x[0].flatten(1) for x in tokens]
    y, elapsed, s = torch.empty_like(r), torch.arange(len(pool), dtype=torch.int32), pool.clone()
    beyond = torch.where(indices < 0, len(pool) + 7, indices)
    given = (B, TOTAL, TOTAL, H * N, H, ends, beyond, s)
    albatross.wkv_seq_w0_varlen(*given, r, w, w0.flatten(), *others, y, elapsed)
    assert error(y.view_as(want), want) < SINGLE and error(s, after) < STATES[pool_dtype]
    same = pool.clone()
    seeds = elapsed[indices.clamp(0)] if pool_dtype == HALF else None
    wkv7_serving(*tokens, same, indices, ends, w0=w0, seeds=seeds)
    assert torch.equal(s, same)
    given = (*given[:-1], s := pool.clone(), r, w + w0.flatten(), *others, first := y.clone())
    if pool_dtype == HALF:
        albatross.wkv_seq_varlen(*given, elapsed)
    else:
        albatross.forward_varlen(*given)
    assert error(first.view_as(want), want) < SINGLE and torch.equal(s, same)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("single", [True, False])
def test_albatross_reference_has_raw_decays_and_states_of_values_by_keys(single):
    B, T, H, N = 1 if single else 2, 20, 2, 64
    tokens, w0, state, want = batch(B, T, H, N, torch.float32, "raw")
    tokens[1] = tokens[1] + w0
    state = state.mT.contiguous()
    if single:
        tokens, state = [x[0] for x in tokens], state[0]
    call = torch.jit.script(called) if single else albatross.RWKV7_BATCH_OP
    y = call(state, *tokens)
    assert error(y.view_as(want[0]), want[0]) < SINGLE
    assert error(state.mT.view_as(want[1]), want[1]) < SINGLE


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_states_of_albatross_reference_hold_no_graph():
    tokens, _, state, _ = batch(1, 3, 2, 64, torch.float32, "raw")
    tokens, state = [x[0].requires_grad_() for x in tokens], state[0]
    assert albatross.RWKV7_OP(state, *tokens).requires_grad and not state.requires_grad
    before = state.clone()
    with pytest.raises(ValueError, match="state must not require a gradient"):
        albatross.RWKV7_OP(state.requires_grad_(), *tokens)
    assert torch.equal(state, before)


def called(
    state: torch.Tensor, r: torch.Tensor, w: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
    a: torch.Tensor, b: torch.Tensor,
):  # fmt: skip
    """As TorchScript compiles the models that call it."""
    return albatross.RWKV7_OP(state, r, w, k, v, a, b)


def test_the_signatures_are_those_of_the_operators():
    tokens = "state r w k v a b y elapsed_t".split()
    with_w0 = [*tokens[:3], "w0", *tokens[3:]]
    places = "B total_tokens max_t C H query_start_loc slot_indices".split()
    for name, before, rest in (
        ("wkv_seq", [*"BTCH"], tokens),
        ("wkv_seq_w0", [*"BTCH"], with_w0),
        ("wkv_one", [*"BCH"], tokens),
        ("wkv_one_w0", [*"BCH"], with_w0),
        ("forward", [*"BTCH"], tokens[:-1]),
        ("wkv_seq_varlen", places, tokens),
        ("wkv_seq_w0_varlen", places, with_w0),
        ("forward_varlen", places, tokens[:-1]),
        ("RWKV7_OP", [], tokens[:-2]),
    ):
        assert names_of(getattr(albatross, name)) == [*before, *rest], name
    assert names_of(rwkv_sglang.wkv_decode) == "r w k v kk a pool ci scale".split()


# rwkv-sglang.


def kappa_and_rate(tokens):
    """Tokens as r, w, k, v, kk, a, and as r, w, k, v, a, b."""
    r, w, k, v, a, b = tokens
    rate = torch.rand(a.shape, generator=torch.Generator().manual_seed(3)).to(a.dtype)
    return [r, w, k, v, -a, rate], [r, w, k, v, a, -a * rate]


@pytest.mark.parametrize("pool_dtype", [torch.float32, HALF])
def test_single_tokens_of_rwkv_sglang(pool_dtype):
    H, N, ci = 2, 8, torch.tensor([4, -1, 0, 8, 7], dtype=torch.int32)  # 8 slots: 8 is padding
    tokens, _, pool = make(H, N, N, pool_dtype=pool_dtype, total=5, decay="log")
    given, plain = kappa_and_rate(tokens)
    indices = torch.tensor([4, -1, 0, -1, 7], dtype=torch.int32)
    ends, s = torch.arange(6, dtype=torch.int32), pool.clone()
    want, after = in_float64(plain, None, pool, indices, ends, 0.5, "log")
    o = rwkv_sglang.wkv_decode(*(x.transpose(0, 1) for x in given), s, ci, 0.5)
    assert o.shape == (5, 1, H, N) and error(o.transpose(0, 1), want) < SINGLE
    assert error(s, after) < STATES[pool_dtype] / 2  # rounded to nearest, as theirs
    unused = [1, 2, 3, 5, 6]
    assert torch.equal(s[unused], pool[unused])


def test_prompts_and_states_of_rwkv_sglang():
    H, N = 2, 8
    tokens, _, pool = make(H, N, N, decay="log")
    given, plain = kappa_and_rate(tokens)
    indices, ends = places()
    want, after = in_float64(plain, None, pool, indices, ends, 1.0, "log")
    o, none = rwkv_sglang.wkv_recurrent(
        *given, cu_seqlens=ends, state_pool=(s := pool.clone()), cache_indices=indices.long()
    )
    assert none is None and error(o, want) < SINGLE and error(s, after) < SINGLE
    n = ENDS[3]
    part, last = [x[:, ENDS[2] : n] for x in given], pool[SLOTS[2]][None].float()
    alone, s1 = rwkv_sglang.wkv_recurrent(*part, 1.0, last, True)
    assert error(alone, want[:, ENDS[2] : n]) < SINGLE
    assert error(s1[0], after[SLOTS[2]]) < SINGLE


def sglang(**change):
    tokens, _, pool = make(2, 8, 8, total=3, decay="log")
    given = dict(zip("r w k v kk a".split(), kappa_and_rate(tokens)[0], strict=True))
    given |= {"state_pool": pool, "cache_indices": torch.zeros(1, dtype=torch.int32)}
    return rwkv_sglang.wkv_recurrent(**given | change)


def sequences(**change):
    (r, w, k, v, a, b), w0, state, _ = batch(3, 2, 2, 8, HALF)
    given = {"B": 3, "T": 2, "C": 16, "H": 2, "state": state, "r": r, "w": w, "w0": w0, "k": k}
    given |= {"v": v, "a": a, "b": b, "y": r.clone(), "elapsed_t": torch.zeros(3).int()}
    return albatross.wkv_seq_w0(**given | change)


def pooled(**change):
    (r, w, *others), _, pool = make(2, 8, 8, total=5)
    r, w, *others = [x[0].flatten(1) for x in (r, w, *others)]
    given = dict(zip("kvab", others, strict=True)) | {"r": r, "w": w, "y": r.clone()}
    given |= {"B": 2, "total_tokens": 5, "max_t": 5, "C": 16, "H": 2, "state": pool[:3]}
    given |= {"query_start_loc": torch.tensor([0, 3, 5]), "slot_indices": torch.tensor([0, 2])}
    return albatross.forward_varlen(**given | change)


@pytest.mark.parametrize("call", [sequences, pooled])
def test_a_y_that_cannot_be_written_leaves_the_states_alone(call):
    shape = (3, 2, 16) if call is sequences else (5, 16)
    before = torch.randn(3, 2, 8, 8)
    for y, message in (
        (torch.zeros(shape, requires_grad=True), "y must not require a gradient"),
        (torch.zeros(16).expand(shape), "y must have memory for each element"),
    ):
        with pytest.raises(ValueError, match=message):
            call(y=y, state=(state := before.clone()))
        assert torch.equal(state, before)


@pytest.mark.parametrize(
    "call, change, kind, message",
    [
        (sglang, {"reverse": True}, NotImplementedError, "reverse is not supported"),
        (sglang, {"cache_indices": None}, ValueError, "cache_indices must be given"),
        (sglang, {"cache_indices": torch.zeros(1)}, TypeError, "cache_indices must be one of int"),
        (sglang, {"kk": torch.zeros(1, 3, 2, 4)}, ValueError, r"kk must be \[B, T, H, K\]"),
        (sglang, {"state_pool": torch.zeros(2, 8, 8)}, ValueError, r"state_pool must be \[slots"),
        (sequences, {"C": 17}, ValueError, r"state must be \[slots, H, N, N\] with H = 2"),
        (sequences, {"B": 2}, ValueError, r"state must be \[B, H, N, N\] = \[2, 2, 8, 8\]"),
        (sequences, {"y": torch.zeros(3, 2, 8)}, ValueError, r"y must be \[B, T, C\]"),
        (sequences, {"w0": torch.zeros(8)}, ValueError, r"w0 must be \[C\] = \[16\]"),
        (sequences, {"elapsed_t": torch.zeros(3)}, TypeError, "elapsed_t must be one of int32"),
        (sequences, {"elapsed_t": torch.zeros(2).int()}, ValueError, r"elapsed_t must be \[B\]"),
        (sequences, {"elapsed_t": torch.zeros(6).int()[::2]}, ValueError, "elapsed_t must be cont"),
        (sequences, {"H": 0}, ValueError, "H must be an integer of at least 1"),
        (sequences, {"k": None}, TypeError, "k must be a tensor"),
        (pooled, {"slot_indices": torch.tensor([1, 1])}, ValueError, "slot_indices must name each"),
        (pooled, {"query_start_loc": torch.tensor([0, 4, 2])}, ValueError, "query_start_loc must"),
        (pooled, {"query_start_loc": torch.zeros(6).int()[::2]}, ValueError, r"strides \(2,\)"),
        (pooled, {"max_t": 2}, ValueError, "max_t must be at least the tokens of any sequence, 3"),
        (pooled, {"state": torch.zeros(3, 2, 8, 8).mT}, ValueError, "state must be contiguous"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(call, change, kind, message):
    with pytest.raises(kind, match=message):
        call(**change)
