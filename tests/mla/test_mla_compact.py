"""Decoding with an FP8 cache and with lists of tokens: interpreter, simulator, and on a GPU."""

import math

import pytest
import torch

pytest.importorskip("triton")
from support.mla_problem import near, problem  # noqa: E402

from rwkv_lessons.mla import (  # noqa: E402
    fp8_cache,
    fp8_cache_parts,
    mla,
    mla_absorbed,
    mla_decode,
    mla_reference,
)
from rwkv_lessons.mla.decode import compact, fp8  # noqa: E402
from rwkv_lessons.mla.decode import forward as decode  # noqa: E402
from rwkv_lessons.mla.decode.combine import combine_hopper_kernel  # noqa: E402
from rwkv_lessons.runtime import devices  # noqa: E402
from warplens.gluon import OnCPU

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ON_CPU = pytest.mark.skipif(torch.cuda.is_available(), reason="there the kernels are compiled")
# As verify's: weights and o are rounded, by 2.0e-4 each in float16 and 1.7e-3 in bfloat16 (rms),
# and the numbers of a token that outweighs the others have the same error. An e4m3 value is exact
# in either dtype, and scales are factors in float32.
LIMITS = {torch.float16: 5e-4, torch.bfloat16: 4e-3}
DEEPSEEK = {"R": 512, "P": 64, "V": 64, "absorbed": True, "dtype": torch.bfloat16}


def compact_problem(B, M, H, N, *, fp8=True, groups=None, listed=0, device=DEVICE, **options):
    """A problem with an FP8 cache, with lists of `listed` tokens of each query, or with both.

    A list has -1, entries beyond the cache, and repeats; the rest of the tokens is in no order.
    """
    options = {"absorbed": True, "dtype": torch.bfloat16} | options
    tensors, which = problem(B, M, H, N, **options)
    g = torch.Generator().manual_seed(7)
    if fp8:
        latent, k_rope = tensors[2:4]
        empty = latent.isnan()
        sizes = torch.logspace(-3, 0, 4, dtype=latent.dtype).repeat_interleave(
            latent.shape[-1] // 4
        )
        cache = fp8_cache((latent * sizes).nan_to_num(0), k_rope) if groups is None else None
        if groups is None:
            values, scales, b_rope = fp8_cache_parts(cache, k_rope.shape[-1])
            k_rope = b_rope if k_rope.dtype == b_rope.dtype else k_rope
        else:
            values = latent.nan_to_num(0).to(torch.float8_e4m3fn)
            scales = torch.rand(*latent.shape[:2], groups, generator=g) + 0.01
        values.view(torch.uint8)[empty] = 0x7F  # NaN
        scales[empty[..., 0]] = math.nan
        k_rope[empty[..., 0]] = math.nan
        tensors[2:4] = values, k_rope
        which["scales"] = scales
    if listed:
        tokens = torch.randint(-2, N + 9, (B, M, listed), generator=g, dtype=torch.int32)
        which["tokens"] = tokens if M > 1 else tokens[:, 0]
    moved = [None if x is None else x.to(device) for x in tensors]
    return moved, {k: x.to(device) if isinstance(x, torch.Tensor) else x for k, x in which.items()}


def kernels(tensors, which):
    """The kernels, in the interpreter where there is no GPU."""
    q, q_rope, latent, k_rope, w_k, w_v = tensors
    if q.is_cuda:
        return mla_decode(*tensors, **which)
    names = ("lengths", "left_padding", "block_table", "scales", "tokens")
    which = {"scale": 1.0} | which
    return decode.forward_compact(
        q, q_rope, latent, k_rope, w_v, which["scale"], *(which.get(name) for name in names)
    )


def in_float64(tensors, which):
    """By the definition, of the same cache: q and k_rope in float64, FP8 as it is."""
    return mla_reference(
        *(x if x is None or x.itemsize == 1 else x.double() for x in tensors), **which
    )


def check(tensors, which, result=None):
    result = kernels(tensors, which) if result is None else result
    near(result, in_float64(tensors, which), LIMITS)


SMALL = {"R": 128, "P": 16, "V": 20, "dtype": torch.float16}  # interpreted, bfloat16 is wrong


@pytest.mark.parametrize("N", [1, 64, 65, 130])
def test_any_number_of_tokens(N):
    check(*compact_problem(1, 1, 3, N, fp8=False, listed=N, **SMALL))


@pytest.mark.parametrize("M, page_size", [(1, 16), (3, None), (7, 16)])
def test_lengths_and_pages(M, page_size):
    which = {"lengths": [130, 0, 65, 64], "page_size": page_size, **SMALL}
    check(*compact_problem(4, M, 3, 130, fp8=False, listed=70, **which))


@pytest.mark.parametrize("groups, R", [(1, 96), (3, 96), (8, 128)])
def test_groups_of_columns(groups, R):
    """In torch, whatever the sizes."""
    which = {"lengths": [100, 9], **SMALL, "R": R, "P": 24, "dtype": torch.float32}
    for listed in (0, 50):
        tensors, keywords = compact_problem(2, 2, 3, 100, groups=groups, listed=listed, **which)
        expected = in_float64(tensors, keywords)
        for x, y in zip(mla(*tensors, **keywords), expected, strict=True):
            torch.testing.assert_close(x.double(), y, rtol=1e-4, atol=1e-5)


def test_splits(monkeypatch):
    monkeypatch.setattr(compact, "splits_for", lambda *_: 5)
    which = {"lengths": [200, 64, 3, 0], **SMALL}
    check(*compact_problem(4, 1, 20, 200, fp8=False, listed=190, **which))


@pytest.fixture
def hopper(monkeypatch):
    """On the CPU what an H200 would be given: the Gluon kernels, as they are written."""
    launched = []

    def on_cpu(kernel, programs, warps, tensors, numbers, constants, **options):
        launched.append(kernel)
        OnCPU(kernel, keeps=False).run((programs,), warps, (*tensors, *numbers, *constants))

    empty = torch.empty
    monkeypatch.setattr(compact, "launch", on_cpu)
    monkeypatch.setattr(decode, "launch", on_cpu)
    monkeypatch.setattr(torch, "empty", lambda *s, **o: empty(*s, **o).fill_(math.nan))
    monkeypatch.setattr(devices, "gpu_of", lambda device: devices.H200)
    return launched


@ON_CPU
@pytest.mark.parametrize(
    "M, H, listed, page_size, splits",
    [(1, 16, 0, None, 2), (2, 20, 0, 16, 1), (1, 8, 130, None, 1), (2, 16, 130, 16, 2)],
)
def test_hopper_waits_for_what_it_reads(M, H, listed, page_size, splits, hopper, monkeypatch):
    monkeypatch.setattr(compact, "splits_for", lambda *_: splits)
    which = {"lengths": [200, 65, 2, 0], "page_size": page_size, **DEEPSEEK}
    check(*compact_problem(4, M, H, 200, listed=listed, **which))
    assert hopper == [fp8.decode_fp8_kernel, combine_hopper_kernel]


def test_the_layout_is_flashmlas():
    g = torch.Generator().manual_seed(0)
    c = torch.randn(3, 5, 512, generator=g) * torch.logspace(-3, 3, 5)[:, None]
    k = torch.randn(3, 5, 64, generator=g)
    c[0, 0, :128] = 0
    cache = fp8_cache(c, k)
    assert cache.dtype == torch.uint8 and cache.shape == (3, 5, 656)
    values = cache[..., :512].view(torch.float8_e4m3fn).float().unflatten(-1, (4, 128))
    scales = cache[..., 512:528].contiguous().view(torch.float32)
    assert torch.equal(cache[..., 528:].contiguous().view(torch.bfloat16), k.bfloat16())
    top = c.unflatten(-1, (4, 128)).abs().amax(-1)
    torch.testing.assert_close(scales * 448, top, rtol=1e-6, atol=1e-30)
    # e4m3 has 4 bits, of 448: half a unit of the last is 1/16, or 2^-10 near 0.
    error = (values * scales[..., None] - c.unflatten(-1, (4, 128))).abs()
    assert (error <= c.unflatten(-1, (4, 128)).abs() / 16 + scales[..., None] * 2**-10).all()
    assert not values[0, 0, 0].any()
    for x, y in zip(
        fp8_cache_parts(cache), (values.flatten(-2), scales, k.bfloat16()), strict=True
    ):
        assert torch.equal(x.float(), y.float()) and x.data_ptr() >= cache.data_ptr()
    latent, scales, k_rope = fp8_cache_parts(cache.view(15, 656)[:, None].expand(-1, 2, -1))
    assert (latent.stride(), scales.stride(), k_rope.stride()) == (
        (656, 0, 1), (164, 0, 1), (328, 0, 1),
    )  # fmt: skip


def test_slots_of_the_whole_cache_are_lists_of_one_long_sequence():
    which = {"lengths": [130, 100], "page_size": 16, **SMALL}
    tensors, keywords = compact_problem(2, 1, 3, 130, listed=60, **which)
    expected = mla(*tensors, **keywords)
    table, tokens, lengths = (keywords.pop(x) for x in ("block_table", "tokens", "lengths"))
    counts = (tokens >= 0) & (tokens < lengths[:, None])
    inside = tokens.where(counts, 0).long()
    slots = (table.gather(1, inside // 16) * 16 + inside % 16).where(counts, -1)
    q, q_rope, latent, k_rope, w_k, w_v = tensors
    latent, k_rope, scales = (
        x.flatten(0, 1).expand(2, -1, -1) for x in (latent, k_rope, keywords.pop("scales"))
    )
    which = keywords | {"scales": scales, "tokens": slots}
    found = mla(q, q_rope, latent, k_rope, w_k, w_v, **which)
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x.float(), y.float(), rtol=2e-3, atol=2e-3)


def test_absorbed_and_reference_agree_and_have_gradients():
    tensors, which = compact_problem(2, 3, 3, 40, listed=9, **SMALL | {"dtype": torch.float64})
    tensors[0].requires_grad_()
    results = [f(*tensors, **which) for f in (mla_absorbed, mla_reference, mla)]
    gradients = [torch.autograd.grad(o.sum(), tensors[0])[0] for o, _ in results]
    for (o, lse), dq in zip(results, gradients, strict=True):
        torch.testing.assert_close(o, results[0][0], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(lse, results[0][1], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(dq, gradients[0], rtol=1e-12, atol=1e-12)


WRONG = {
    "scales must be given with a float8_e4m3fn latent": {"scales": None},
    "latent must be float8_e4m3fn, got uint8: see fp8_cache_parts": {"latent": "bytes"},
    "latent must be float8_e4m3fn in an FP8 cache, got torch.float16": {"latent": "plain"},
    "scales must be float32 in an FP8 cache, got torch.float64": {"scales": "double"},
    r"scales must be \[2, 20, groups\], groups a divisor of R = 128, got \[2, 20, 3\]": {
        "scales": "three"
    },
    r"tokens must be \[B, M, K\] = \[2, 1, K\] or \[B, K\]": {"tokens": torch.zeros(3, 4).int()},
    "tokens must have lists of at least one entry": {"tokens": torch.zeros(2, 0).int()},
    "tokens must be one of int32, int64, got torch.float32": {"tokens": torch.zeros(2, 4)},
    "left_padding must be None if tokens are given": {"left_padding": torch.zeros(2).int()},
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_arguments(message):
    tensors, which = compact_problem(2, 1, 3, 20, listed=4, **SMALL, device="cpu")
    scales, latent = which["scales"], tensors[2]
    made = {"double": scales.double(), "three": scales.expand(-1, -1, 3)}
    made |= {"bytes": latent.view(torch.uint8), "plain": tensors[3].repeat(1, 1, 8)}
    for name, value in WRONG[message].items():
        value = made[value] if isinstance(value, str) else value
        if name == "latent":
            tensors[2] = value
        else:
            which[name] = value
    with pytest.raises((TypeError, ValueError), match=message):
        mla(*tensors, **which)


@pytest.mark.parametrize(
    "cache",
    [
        torch.zeros(656, 3, dtype=torch.uint8).T,
        torch.zeros(3, 1312, dtype=torch.uint8)[:, ::2],
        torch.zeros(3, 657, dtype=torch.uint8)[:, :656],
        torch.zeros(3, 660, dtype=torch.uint8)[:, 1:657],
        torch.zeros(1, 657, dtype=torch.uint8)[:, :656],
    ],
    ids=["transposed", "every other", "stride 657", "offset 1", "one row"],
)
def test_a_cache_that_cannot_be_viewed_says_how_to_copy_it(cache):
    with pytest.raises(ValueError, match=r"got strides \(.*\) and offset .*: copy it with \.clone"):
        fp8_cache_parts(cache)
    fp8_cache_parts(cache.clone(memory_format=torch.contiguous_format))


def test_a_group_with_an_infinite_value_is_nan():
    latent = torch.ones(1, 256)
    latent[0, 5] = torch.inf
    values, scales, _ = fp8_cache_parts(fp8_cache(latent, torch.zeros(1, 64)))
    read = values.float().unflatten(-1, (2, 128)) * scales[..., None]
    assert read[0, 0].isnan().all() and (read[0, 1] == 1).all()


def test_wrong_caches():
    cases = [
        ([1, 2], "list: pass what fp8_cache returned"),
        (torch.zeros(2, 656), "torch.float32: pass what fp8_cache returned"),
        (torch.zeros(2, 656, dtype=torch.int8), r"torch.int8: use .view\(torch.uint8\)"),
    ]
    for cache, says in cases:
        with pytest.raises(TypeError, match=f"cache must be a uint8 tensor, got {says}"):
            fp8_cache_parts(cache)
    with pytest.raises(ValueError, match=r"rows of cache must have .*, got \[2, 576\] for P = 64"):
        fp8_cache_parts(torch.zeros(2, 576, dtype=torch.uint8))
    with pytest.raises(ValueError, match="latent must have R a multiple of 128, got 100"):
        fp8_cache(torch.zeros(2, 100), torch.zeros(2, 64))
    with pytest.raises(ValueError, match="must be of the same tokens"):
        fp8_cache(torch.zeros(2, 128), torch.zeros(3, 64))
    with pytest.raises(TypeError, match="k_rope must be a tensor of floats, got torch.int64"):
        fp8_cache(torch.zeros(2, 128), torch.zeros(2, 64).long())


@pytest.mark.gpu
@pytest.mark.parametrize("fp8, listed", [(True, 0), (False, 2048), (True, 2048)])
@pytest.mark.parametrize("page_size", [None, 64])
def test_real_sizes(fp8, listed, page_size):
    """Few heads and many, one query and two, sequences of any length, and splits of them."""
    lengths = [4641, 1730, 65, 64, 1, 0]
    which = {"lengths": lengths, "page_size": page_size, "fp8": fp8, "listed": listed, **DEEPSEEK}
    for M, H in ((1, 16), (2, 16), (1, 8), (1, 40)):
        check(*compact_problem(6, M, H, 4641, **which))
    which |= {"lengths": [200, 3, 77] * 100, "listed": min(listed, 150)}
    check(*compact_problem(300, 1, 16, 200, **which))


@pytest.mark.gpu
@pytest.mark.parametrize("fp8, listed", [(True, 0), (False, 500), (True, 500)])
def test_a_captured_graph_follows_lengths_and_lists(fp8, listed):
    which = {"lengths": [2000] * 4, "page_size": 64, **DEEPSEEK}
    tensors, keywords = compact_problem(4, 1, 16, 2000, fp8=fp8, listed=listed, **which)
    kernels(tensors, keywords)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = kernels(tensors, keywords)
    for lengths in ([2000, 1, 64, 1999], [0, 3, 700, 0]):
        keywords["lengths"].copy_(torch.tensor(lengths))
        if listed:
            keywords["tokens"].copy_(torch.randint(-1, 2000, (4, listed)))
        graph.replay()
        check(tensors, keywords, result)


def test_what_has_no_gradient_says_so():
    tensors, which = compact_problem(1, 1, 16, 70, **DEEPSEEK)
    q, q_rope, latent, k_rope, *weights = tensors
    for learned in (q.clone().requires_grad_(), latent.clone().requires_grad_()):
        problem = "latent has no gradient in FP8" if learned.itemsize == 1 else "no gradients"
        cache = (learned, q_rope, latent) if learned.itemsize > 1 else (q, q_rope, learned)
        with pytest.raises(ValueError, match=problem):
            mla_decode(*cache, k_rope, *weights, **which)
    which["scales"].requires_grad_()
    with pytest.raises(ValueError, match="no gradients"):
        mla_decode(*tensors, **which)
    (of_scales,) = torch.autograd.grad(mla(*tensors, **which)[0].float().sum(), which["scales"])
    assert of_scales.isfinite().all() and of_scales.any()
