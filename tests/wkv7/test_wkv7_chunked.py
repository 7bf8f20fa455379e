"""The chunked Triton kernels of WKV-7 against float64, in the interpreter or on a GPU."""

import math

import pytest
import torch
from support.wkv7_cases import (
    DECAYS,
    NAMES,
    SINGLE,
    gradients_given,
    in_float64,
    make,
    near,
    packed,
    results,
    with_raw,
)

pytest.importorskip("triton")
from support.tensor_core import tensor_core  # noqa: E402

from rwkv_lessons.runtime.devices import H200  # noqa: E402
from rwkv_lessons.sequences.spans import count_spans, span_bounds  # noqa: E402
from rwkv_lessons.wkv7 import (  # noqa: E402
    METHODS,
    wkv7_chunked,
    wkv7_reference,
    wkv7_step,
)
from rwkv_lessons.wkv7.chunked import backward, forward, kept  # noqa: E402

# The first launch multiplies what does not fit, and the second one does it again.
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered")
GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
if not GPU:
    __all__ = ["tensor_core"]  # products as a GPU makes them, in every test
else:
    del tensor_core

# ‖error‖ / ‖reference‖. float16: rounding the result, 2.1e-4, and products of two pieces of
# bfloat16 in the state. bfloat16: four factors of 8 bits are between an input and a result, the
# maps, the state, z, and the result itself, 1.7e-3 each; da and db have two more, y and those of
# pairs of tokens.
LIMITS = {
    torch.float32: {"": SINGLE},
    torch.float16: {"": 4e-4, "s1": 3e-5, "ds0": 3e-5},
    torch.bfloat16: {"": 4e-3, "da": 5.6e-3, "db": 5.6e-3},
}


def launched(x, cu_seqlens=None, scale=1.0, decay="log"):
    """o, s1 and all gradients by the kernels."""
    given = (cu_seqlens, scale, decay)
    o, s1, maps, across = forward.forward(*x, *given, True)
    do, ds1 = gradients_given(x)
    found = backward.gradients(*x, cu_seqlens, maps, across, do, ds1, scale, decay)
    alone = forward.forward(*x, *given, False)  # what is not kept changes nothing
    assert torch.equal(alone[0], o) and torch.equal(alone[1], s1)
    return [o, s1, *found]


@pytest.mark.parametrize("w", DECAYS)
@pytest.mark.parametrize("shape", [(1, 1, 1, 5, 7), (1, 39, 1, 16, 20)])
def test_values_and_gradients_are_those_of_the_recurrence(shape, w):
    x = make(*shape, w, torch.float32, device=DEVICE)
    near(launched(x), in_float64(x), LIMITS[torch.float32])


@pytest.mark.parametrize("w", DECAYS)
@pytest.mark.parametrize("T", [15, 16, 17])
def test_tokens_about_a_chunk(T, w):
    x = make(1, T, 1, 5, 7, w, torch.float32, device=DEVICE)
    near(launched(x), in_float64(x), LIMITS[torch.float32])


@pytest.mark.gpu
@pytest.mark.parametrize("w", DECAYS)
@pytest.mark.parametrize("T", [1, 15, 16, 17, 100, 1000])
@pytest.mark.parametrize("dtype", LIMITS)
def test_every_length_and_decay_on_a_gpu(dtype, T, w):
    x = make(2, T, 3, 64, 64, w, dtype, device="cuda")
    # Without decay dw sums over all tokens what z and the states were rounded by: 4.0e-3 measured.
    # Where nothing passes a token, few of the state's roundings average out: ds0 3.6e-5 measured.
    looser = {torch.bfloat16: {"dw": 5e-3}, torch.float16: {"ds0": 5e-5}}
    limits = LIMITS[dtype] | looser.get(dtype, {})
    near(results(wkv7_chunked, x), in_float64(x), limits)


@pytest.mark.parametrize("w", ["mixed", 0.0, -0.3])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves(dtype, w):
    x = make(1, 40, 1, 32, 40, w, dtype, device=DEVICE)
    near(launched(x), in_float64(x), LIMITS[dtype])


def test_wide_heads_in_bfloat16_have_longer_chunks():
    x = make(1, 40, 1, 72, 16, "mixed", torch.bfloat16, device=DEVICE)
    assert kept.chunk_of(x[0]) == 32 and kept.chunk_of(x[0][..., :64]) == 16
    near(launched(x), in_float64(x), LIMITS[torch.bfloat16])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_keys_that_are_all_alike(dtype):
    """Then each token corrects all that came before: a series for the inverse has huge terms."""
    x = make(1, 70, 1, 16, 20, -1e-3, torch.float64, device=DEVICE)
    x[4][:], x[5][:] = x[4][:, :1].clone(), -0.95 * x[4][:, :1]
    x = [y.to(dtype if n < 6 else torch.float32) for n, y in enumerate(x)]
    # In da and db the roundings of the state and of pairs are seen against what 70 corrections have
    # left: some five times as large as elsewhere.
    limits = LIMITS[dtype] | ({"da": 2e-2, "db": 2e-2} if dtype == torch.bfloat16 else {})
    near(launched(x), in_float64(x), limits)


def test_many_values_of_a_large_head_take_several_programs():
    x = make(1, 20, 1, 130, 70, "mixed", torch.float32, device=DEVICE)
    near(launched(x), in_float64(x), LIMITS[torch.float32])


@pytest.mark.parametrize("decay", ["raw", "clamp"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_parameter_for_w(dtype, decay):
    x = with_raw(make(1, 40, 1, 32, 16, -1.0, dtype, device=DEVICE), decay)
    near(launched(x, decay=decay), in_float64(x, decay=decay), LIMITS[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_sequences_with_a_scale(dtype):
    x, cu_seqlens = packed(dtype, 16, 20, [0, 3, 3, 39], DEVICE)
    got = launched(x, cu_seqlens, 0.3)
    near(got, in_float64(x, cu_seqlens=cu_seqlens, scale=0.3), LIMITS[dtype])
    assert torch.equal(got[1][1], x[6][1])  # the state of the empty one, and its gradient
    assert torch.equal(got[8][1], gradients_given(x)[1][1])


def test_weak_and_strong_chunks_beside_each_other():
    """The launch for strong decays does some of the chunks again, and leaves the others."""
    x = make(1, 96, 1, 16, 16, -0.3, torch.float32, device=DEVICE)
    x[1][:, 40:60, :, 5] = -30.0
    x[1][:, 61] = -math.inf
    near(launched(x), in_float64(x), LIMITS[torch.float32])


def test_no_state_before_and_no_gradient_of_the_state():
    *x, _ = make(1, 40, 2, 16, 20, "mixed", torch.float32, device=DEVICE)
    o, s1, maps, across = forward.forward(*x, None, None, 1.0, "log", True)
    do = gradients_given([*x, None])[0]
    found = backward.gradients(*x, None, None, maps, across, do, None, 1.0, "log")
    zeros = torch.zeros(1, 2, 16, 20, device=DEVICE)
    leaves = [y.double().requires_grad_() for y in (*x, zeros)]
    want, _ = wkv7_reference(*leaves)
    gradients = torch.autograd.grad(want, leaves, do.double())
    near([o, *found], [want, *gradients], SINGLE, [NAMES[0], *NAMES[2:]])


def test_the_same_key_at_every_token_is_inverted_without_cancelling():
    """Powers of such a matrix would have numbers of 10⁸ in them, the inverse has none above 1."""
    x = make(1, 64, 1, 16, 16, 0.0, torch.float32, device=DEVICE)
    x[4], x[5] = -torch.ones_like(x[4]) / 4, torch.ones_like(x[5]) / 4
    near(launched(x), in_float64(x), 1e-5)


def test_a_nan_stays_in_its_head_and_does_not_reach_earlier_chunks():
    x = make(1, 70, 2, 16, 16, "mixed", torch.float32, device=DEVICE)
    want = forward.forward(*x, None, 1.0, "log", False)[:2]
    x[1][0, 40, 1, 3] = math.nan
    o, s1 = forward.forward(*x, None, 1.0, "log", False)[:2]
    assert torch.equal(o[:, :, 0], want[0][:, :, 0]) and torch.equal(o[:, :32], want[0][:, :32])
    assert torch.equal(s1[:, 0], want[1][:, 0])
    assert o[0, 40:, 1].isnan().all() and s1[0, 1].isnan().any()


def test_bounds_of_packed_chunks_are_those_of_the_sequences():
    ends = torch.tensor([0, 3, 3, 70, 102])
    found = span_bounds(ends, 102, 32)
    assert len(found) == count_spans(1, 102, 4, 32)
    used = [tuple(x) for x in found.tolist() if x[0] < x[1]]
    assert used == [(0, 3), (3, 70), (35, 70), (67, 70), (70, 102)]


def test_what_is_kept_has_a_place_each_and_the_tensor_is_full():
    tensor = torch.zeros(kept.Kept.size(3, 2, 8, 5, 16, True))
    of = kept.Kept(tensor, 3, 2, 8, 5, 16, True)
    for name in kept.Kept.NAMES:
        getattr(of, name).add_(1)
    assert (tensor == 1).all()
    few = kept.Kept(torch.zeros(kept.Kept.size(3, 2, 8, 5, 16, False)), 3, 2, 8, 5, 16, False)
    assert few.readers is not None and few.z is None and few.states is None


def test_few_heads_split_their_values():
    def tiles(heads, chunks, N, dtype=torch.bfloat16):
        t = kept.tiles_for(heads, chunks, N, N, dtype, H200)
        return t.block_keys, t.keys, t.values, t.warps, t.registers, t.sweeps[0].STAGES, t.segments

    # 128 registers, so that four share an SM, fit 64 keys of 64 values alone.
    assert tiles(512, 128, 64) == (64, 64, 64, 4, 128, 3, 1)
    assert tiles(8, 16, 64) == (64, 64, 16, 4, 255, 3, 1)
    assert tiles(512, 128, 256) == (64, 256, 128, 8, 255, 2, 1)
    assert tiles(16, 1024, 256) == (64, 256, 16, 4, 255, 2, 1)
    assert tiles(512, 128, 256, torch.float32) == (64, 256, 64, 8, 255, 1, 1)


@pytest.fixture
def segments(monkeypatch):
    """Sequences in segments of a chunk or two, however short."""
    monkeypatch.setattr(kept, "MIN_CHUNKS", 1)
    monkeypatch.setattr(kept, "MIN_SEGMENTS", 2)
    monkeypatch.setattr(kept, "MAX_SEGMENTS", 4)
    kept.tiles_for.cache_clear()
    yield
    kept.tiles_for.cache_clear()


@pytest.mark.parametrize("w", ["mixed", 0.0, -math.inf])
def test_segments_side_by_side_are_the_recurrence(segments, w):
    x = make(1, 100, 1, 20, 36, w, torch.float32, device=DEVICE)
    assert kept.tiles_for(1, 7, 20, 36, torch.float32, H200).segments == 4
    near(launched(x), in_float64(x), LIMITS[torch.float32])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_segments_of_packed_sequences_with_a_scale_and_a_parameter_for_w(segments, dtype):
    x, cu_seqlens = packed(dtype, 16, 20, [0, 3, 3, 99, 131], DEVICE)
    x = with_raw(x, "clamp")
    got = launched(x, cu_seqlens, 0.3, "clamp")
    want = in_float64(x, cu_seqlens=cu_seqlens, scale=0.3, decay="clamp")
    near(got, want, LIMITS[dtype])
    assert torch.equal(got[1][1], x[6][1]) and torch.equal(got[8][1], gradients_given(x)[1][1])


def test_segments_of_more_keys_than_a_product_joins(segments):
    x = make(1, 70, 1, 80, 16, "mixed", torch.float32, device=DEVICE)
    near(launched(x), in_float64(x), LIMITS[torch.float32])


def test_segments_without_a_state_before(segments):
    *x, _ = make(1, 70, 1, 16, 16, -0.1, torch.float32, device=DEVICE)
    o, s1, *_ = forward.forward(*x, None, None, 1.0, "log", False)
    near([o, s1], wkv7_reference(*[y.double() for y in x]), SINGLE)


def test_segments_are_for_few_heads_and_long_sequences():
    assert kept.segments_for(64, 1024, 64, H200.sms) == (4, 256)
    assert kept.segments_for(16, 1024, 64, H200.sms) == (16, 64)
    assert kept.segments_for(8, 20, 64, H200.sms) == (1, 20)  # two chunks a segment would not pay
    assert kept.segments_for(512, 1024, 64, H200.sms) == (1, 1024)
    assert kept.segments_for(16, 1024, 128, H200.sms) == (8, 128)
    assert kept.segments_for(64, 1024, 128, H200.sms) == (1, 1024)
    assert kept.segments_for(16, 1024, 256, H200.sms) == (1, 1024)
    assert kept.segments_for(8, 1024, 256, H200.sms) == (1, 1024)
    assert kept.segments_for(4, 1024, 256, H200.sms) == (8, 128)
    assert kept.segments_for(4, 128, 256, H200.sms) == (1, 128)


def test_on_a_cpu_and_in_float64_it_is_the_torch_method():
    x = make(2, 20, 2, 5, 6, device=DEVICE)
    near(wkv7_chunked(*x), in_float64(x), 1e-13)


@pytest.mark.gpu
@pytest.mark.parametrize("option", [{}, {"decay": "clamp", "scale": 0.3}])
@pytest.mark.parametrize("name", ["recurrent", "chunked"])
def test_an_operator_of_torch(name, option):
    """Eagerly, compiled without a graph break, by opcheck; and it refuses second gradients."""
    x = make(2, 70, 2, 64, 64, -0.3, torch.float32, device="cuda")
    method = METHODS[name]
    want = in_float64(x, **option)
    near(results(method, x, **option), want, 1e-5)
    compiled = torch.compile(method, backend="aot_eager", fullgraph=True)
    near(results(compiled, x, **option), want, 1e-5)
    given = (*x, None, option.get("scale", 1.0), option.get("decay", "log"), True)
    operator = getattr(torch.ops.rwkv_lessons, f"wkv7_{name}_forward").default
    torch.library.opcheck(operator, (*(y.requires_grad_() for y in x), *given[7:]))
    o, _ = method(*x, **option)
    (dr,) = torch.autograd.grad(o.sum(), x[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="second gradients"):
        dr.sum().backward()


@pytest.mark.gpu
def test_a_cuda_graph_of_a_call_and_of_a_step():
    *x, s0 = make(2, 70, 2, 64, 64, "mixed", torch.bfloat16, device=DEVICE)
    token, state = [y[:, :1].contiguous() for y in x], s0.clone()
    want = wkv7_chunked(*x, s0)[0], wkv7_step(*token, state)
    state.copy_(s0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = wkv7_chunked(*x, s0)[0], wkv7_step(*token, state)
    graph.replay()
    assert all(torch.equal(y, z) for y, z in zip(got, want, strict=True))
