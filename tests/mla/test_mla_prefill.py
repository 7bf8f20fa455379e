"""Prefill: both forms of the kernel, interpreted where there is no GPU, against float64."""

import pytest
import torch

from rwkv_lessons.bench import __main__ as bench
from rwkv_lessons.bench.commands import mla_prefill as bench_prefill
from rwkv_lessons.mla import METHODS, mla_prefill, mla_reference
from rwkv_lessons.mla.arguments import CallSizes, filled_slots
from rwkv_lessons.mla.prefill import prefill
from rwkv_lessons.mla.prefill.forward import attend_kernel
from rwkv_lessons.mla.prefill.prefill import (
    ATTEND,
    attend_with_gradients,
    forward,
    key_value_weight,
    stays_absorbed,
)
from rwkv_lessons.mla.prefill.tiles import AttendSizes, choose_tiles, descriptor, heads_in_a_group
from rwkv_lessons.operations import work
from rwkv_lessons.runtime.devices import H200
from warplens.compiled.assembly import assembly, can_compile, what_is_missing

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SCALE = 0.2
# The interpreter multiplies bfloat16 wrongly; float16 takes the same way through the kernel.
DTYPES = [torch.float32, torch.float16] + [torch.bfloat16] * (DEVICE == "cuda")
# ‖o − ref‖ / ‖ref‖. Half: o is rounded once, and before it p, and k and v or the absorbed q:
# three or four roundings of rms 2.0e-4 (float16) or 1.7e-3, measured 2.5e-4 … 3.9e-4 and up to
# 3.1e-3 on an H200. float32: sums of some hundred products; three TF32 products on a GPU.
ERROR = {torch.float32: 5e-6, torch.float16: 5e-4, torch.bfloat16: 4e-3}
# |lse − ref|, of lse where it is above 1: the scores have the error of k, or of the absorbed q.
LSE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}

dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).split(".")[-1])
forms = pytest.mark.parametrize("absorbed", [False, True], ids=["expanded", "absorbed"])


def inputs(B, M, N, H, K, R, P, V, dtype=torch.float32, device=DEVICE, seed=0):
    """q, q_rope, latent, k_rope, w_k, w_v; the weights are two parts of one, as in a model."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator).to(device, dtype)

    weight = normal(H, K + V, R) / R**0.5
    tensors = normal(B, M, H, K), normal(B, M, H, P), normal(B, N, R), normal(B, N, P)
    return *tensors, weight[:, :K], weight[:, K:]


def ragged(B, N, lengths=None, left_padding=None, device=DEVICE):
    """As tensors; None stays None."""
    made = [None if x is None else torch.tensor(x, device=device) for x in (lengths, left_padding)]
    return dict(zip(("lengths", "left_padding"), made, strict=True))


def poison(given, which):
    """NaN in every slot of the cache that holds no token."""
    q, q_rope, latent, k_rope, *weights = given
    latent, k_rope = latent.clone(), k_rope.clone()
    n = torch.arange(latent.shape[1], device=latent.device)
    empty = torch.zeros(latent.shape[:2], dtype=torch.bool, device=latent.device)
    if which["lengths"] is not None:
        empty |= n >= which["lengths"][:, None]
    if which["left_padding"] is not None:
        empty |= n < which["left_padding"][:, None]
    latent[empty], k_rope[empty] = torch.nan, torch.nan
    return q, q_rope, latent, k_rope, *weights


def assert_right(given, which, absorbed, scale=SCALE):
    dtype = given[0].dtype
    expected, expected_lse = mla_reference(*(x.double() for x in given), scale=scale, **which)
    o, lse = forward(*poison(given, which), scale, *which.values(), absorbed)
    sees = expected_lse > -torch.inf
    assert o.dtype == dtype and lse.dtype == torch.float32
    assert torch.equal(lse > -torch.inf, sees) and not lse.isnan().any()
    assert (o[~sees] == 0).all()
    if sees.any():
        error = (o.double() - expected).norm() / expected.norm()
        assert error <= ERROR[dtype], f"error {error:.1e}"
        off = (lse - expected_lse).abs() / expected_lse.abs().clamp_min(1)
        assert off[sees].max() <= LSE[dtype]


# Query tokens, cache: alone, equal, one more, a chunk against a longer cache; around the tiles.
@pytest.mark.parametrize(
    "M, N", [(1, 1), (1, 70), (2, 2), (17, 17), (64, 65), (70, 70), (4, 130), (65, 200), (9, 5)]
)
@forms
@dtypes
def test_bottom_right_causal(M, N, absorbed, dtype):
    given = inputs(2, M, N, 3, 16, 32, 16, 16, dtype)
    assert_right(given, ragged(2, N), absorbed)


@pytest.mark.parametrize(
    "lengths, left_padding",
    [
        (None, [0, 3, 89]),
        (None, [64, 65, 90]),
        ([90, 64, 1], None),
        ([0, 65, 40], None),
        ([90, 70, 33], [89, 5, 33]),
        ([64, 90, 0], [0, 26, 0]),
    ],
)
@forms
@dtypes
def test_ragged_batches_with_nan_in_the_empty_slots(lengths, left_padding, absorbed, dtype):
    given = inputs(3, 40, 90, 2, 16, 32, 16, 16, dtype)
    assert_right(given, ragged(3, 90, lengths, left_padding), absorbed)


# K, R, P, V: no powers of two; no multiples of 16 bytes, which the copy engine cannot read; V ≠ K.
@pytest.mark.parametrize(
    "sizes", [(24, 48, 12, 40), (3, 5, 2, 7), (16, 64, 8, 80), (48, 40, 24, 16)], ids=str
)
@forms
@dtypes
def test_any_size(sizes, absorbed, dtype):
    given = inputs(1, 5, 67, 3, *sizes, dtype)
    assert_right(given, ragged(1, 67, [66], [1]), absorbed)


@forms
def test_views_that_models_pass(absorbed):
    """Query heads before tokens, rope beside; the cache one buffer, part of a longer one."""
    q, q_rope, latent, k_rope, *weights = inputs(2, 9, 40, 3, 16, 32, 16, 16, torch.float16)
    both = torch.cat([q, q_rope], -1).transpose(1, 2).contiguous().transpose(1, 2)
    buffer = torch.cat([latent, k_rope], -1)
    views = both[..., :16], both[..., 16:], buffer[:, :35, :32], buffer[:, :35, 32:]
    assert not any(x.is_contiguous() for x in views)
    assert_right((*views, *weights), ragged(2, 35), absorbed)


@forms
def test_scale(absorbed):
    for scale in (-0.3, 0.0, 1.7):
        given = inputs(1, 6, 20, 2, 16, 32, 16, 16)
        assert_right(given, ragged(1, 20), absorbed, scale)


@forms
def test_peaked_scores(absorbed):
    """Scores of some hundred, the largest first, last and in the middle: exp must not overflow."""
    for at in (0, 33, 69):
        given = list(inputs(1, 3, 70, 2, 16, 32, 16, 16))
        given[3][:, at] *= 30
        assert_right(given, ragged(1, 70), absorbed, scale=1.0)


def test_no_future_token_is_read():
    given = inputs(1, 8, 70, 2, 16, 32, 16, 16)
    o, _ = forward(*given, SCALE, None, None, False)
    changed = [x.clone() for x in given]
    changed[2][:, -3:] += 1
    changed[3][:, -3:] -= 1
    after, _ = forward(*changed, SCALE, None, None, False)
    assert torch.equal(o[:, :5], after[:, :5]) and not torch.equal(o[:, 5], after[:, 5])


def test_no_sequences():
    given = inputs(0, 4, 8, 2, 16, 32, 16, 16)
    o, lse = mla_prefill(*given, scale=SCALE)
    assert o.shape == (0, 4, 2, 16) and lse.shape == (0, 4, 2)


def test_pages():
    """A cache in pages, in any order, is that cache."""
    q, q_rope, latent, k_rope, *weights = inputs(2, 5, 12, 2, 16, 32, 16, 16)
    table = torch.tensor([[3, 0, 5], [1, 4, 2]], device=DEVICE, dtype=torch.int32)
    pages = [torch.full((6, 4, x.shape[-1]), torch.nan, device=DEVICE) for x in (latent, k_rope)]
    for page, x in zip(pages, (latent, k_rope), strict=True):
        page[table.long()] = x.unflatten(1, (3, 4))
    lengths = torch.tensor([12, 7], device=DEVICE)
    pages[0][2], pages[1][2], table[1, 2] = torch.nan, torch.nan, 2147480000
    which = {"scale": SCALE, "lengths": lengths}
    found = mla_prefill(q, q_rope, *pages, *weights, **which, block_table=table)
    expected = mla_prefill(q, q_rope, latent, k_rope, *weights, **which)
    torch.testing.assert_close(found, expected)


def test_an_absorbed_query():
    """Without w_k the query is in the latent space already."""
    q, q_rope, latent, k_rope, w_k, w_v = inputs(1, 7, 30, 2, 16, 32, 16, 16)
    expected = mla_prefill(q, q_rope, latent, k_rope, w_k, w_v, scale=SCALE)
    q = torch.einsum("bmhk,hkr->bmhr", q, w_k)
    found = mla_prefill(q, q_rope, latent, k_rope, None, w_v, scale=SCALE)
    torch.testing.assert_close(found, expected)


def test_gradients():
    given = [x.double().requires_grad_() for x in inputs(2, 4, 7, 2, 4, 8, 4, 4)]
    which = ragged(2, 7, [7, 5], [2, 0])
    assert torch.autograd.gradcheck(lambda *x: mla_prefill(*x, scale=SCALE, **which), given)


@dtypes
def test_gradients_in_every_dtype(dtype):
    given = [x.requires_grad_() for x in inputs(2, 12, 20, 2, 16, 32, 16, 16, dtype)]
    exact = [x.detach().double().requires_grad_() for x in given]
    for tensors in (given, exact):
        o, lse = mla_prefill(*tensors, scale=SCALE)
        (o.double().square().sum() + lse.double().sum()).backward()
    for x, y in zip(given, exact, strict=True):
        assert (x.grad.double() - y.grad).norm() <= 2 * ERROR[dtype] * y.grad.norm()


if DEVICE == "cpu":  # the kernels as operators, interpreted
    torch.library.impl(ATTEND, "CPU", prefill.attend_expanded)
    torch.library.impl(f"{ATTEND}_backward", "CPU", prefill.gradients)


def learned(given, which, scale=SCALE):
    """The gradients of all inputs through both results, by the kernels and in float64."""
    B, M, H, V = *given[0].shape[:3], given[5].shape[1]
    generator = torch.Generator().manual_seed(1)
    do, dlse = (torch.randn(B, M, H, n, generator=generator).to(DEVICE) for n in (V, 1))
    exact = [x.detach().double().requires_grad_() for x in given]
    o, lse = mla_reference(*exact, scale=scale, **which)
    sees = (lse > -torch.inf)[..., None]
    lse = lse.where(sees[..., 0], 0)
    expected = torch.autograd.grad((o * do).sum() + (lse * dlse[..., 0]).sum(), exact)

    given = [x.detach().requires_grad_() for x in poison(given, which)]
    place = CallSizes(B, M, H, 0, 0, 0, V, given[2].shape[1], None)
    o, lse = attend_with_gradients(
        *given, scale, *which.values(), ~filled_slots(place, device=DEVICE, **which)
    )
    lse = lse.where(sees[..., 0], 0)
    found = torch.autograd.grad((o * do).sum() + (lse * dlse[..., 0]).sum(), given)
    return zip(found, expected, strict=True)


@pytest.mark.parametrize("M, N", [(1, 70), (17, 17), (70, 70), (4, 130), (65, 200), (90, 66)])
@dtypes
def test_gradients_of_the_kernels(M, N, dtype):
    for found, expected in learned(inputs(2, M, N, 3, 24, 48, 12, 40, dtype), ragged(2, N)):
        assert found.dtype == dtype
        assert (found.double() - expected).norm() <= 2 * ERROR[dtype] * expected.norm()


@pytest.mark.parametrize(
    "lengths, left_padding",
    [(None, [0, 65, 90]), ([0, 65, 40], None), ([90, 70, 33], [89, 5, 33])],
)
@dtypes
def test_gradients_of_ragged_batches(lengths, left_padding, dtype):
    given = inputs(3, 40, 90, 2, 16, 32, 16, 16, dtype)
    for found, expected in learned(given, ragged(3, 90, lengths, left_padding)):
        assert (found.double() - expected).norm() <= 2 * ERROR[dtype] * expected.norm()


def test_operators():
    """The forward one of all forms has no gradients; of the expanded form, one has."""
    q, q_rope, latent, k_rope, w_k, w_v = inputs(1, 7, 20, 3, 16, 32, 16, 16)
    k, v = prefill.expand(latent, w_k, w_v)
    tensors = [x.detach().contiguous().requires_grad_() for x in (q, q_rope, k, k_rope, v)]
    lengths = torch.tensor([18], device=DEVICE)
    attend = torch.ops.rwkv_lessons.mla_attend.default
    torch.library.opcheck(attend, (*tensors, SCALE, lengths, None))


def sizes(M, N, K, R, P, V):
    return CallSizes(1, M, 1, K, R, P, V, N, None)


def test_the_form_is_picked_by_its_cost():
    minicpm3, deepseek = (64, 256, 32, 64), (128, 512, 64, 128)
    long = 10**6  # a cache so long that every query sees nearly all of it
    half = torch.bfloat16
    for model in (minicpm3, deepseek):  # in tiles of 64: break-even at 85 and 98 rows
        assert stays_absorbed(sizes(64, long, *model), half)
        assert not stays_absorbed(sizes(65, long, *model), half)
    # From scratch half of the pairs are hidden.
    assert stays_absorbed(sizes(128, 128, *minicpm3), half)
    assert not stays_absorbed(sizes(129, 129, *minicpm3), half)
    assert stays_absorbed(sizes(300, 10, *minicpm3), half)  # most queries see nothing
    assert not stays_absorbed(sizes(1, long, *minicpm3), torch.float32)


def test_weights_of_a_model_are_not_copied():
    weight = torch.randn(3, 5 + 4, 8)
    w_k, w_v = weight[:, :5], weight[:, 5:]
    assert key_value_weight(w_k, w_v).data_ptr() == weight.data_ptr()
    for pair in ((w_k.clone(), w_v), (w_k, w_v.clone()), (weight[:, :4], w_v)):
        made = key_value_weight(*pair)
        assert torch.equal(made, torch.cat(pair, 1)) and made.data_ptr() != weight.data_ptr()


def test_what_the_copy_engine_can_read_is_not_copied():
    x = torch.randn(2, 3, 7, 24, dtype=torch.float16)
    assert descriptor(x[..., 8:], 1, 1, 16, 16).base.data_ptr() == x[..., 8:].data_ptr()
    for view in (
        x[..., 1:],
        x[..., :17].contiguous(),
        x.transpose(2, 3),
        x[:1].expand(2, 3, 7, 24),
    ):
        made = descriptor(view, 1, 1, 16, 16)
        assert torch.equal(made.base, view)
        assert all(n * 2 % 16 == 0 and n for n in made.strides[:-1])


def test_bad_arguments():
    given = inputs(1, 3, 5, 2, 16, 32, 16, 16)
    with pytest.raises(ValueError, match="latent"):
        mla_prefill(*given[:2], given[2][0], *given[3:], scale=SCALE)
    with pytest.raises(TypeError, match="scale must be a number"):
        mla_prefill(*given, scale="1")


def test_is_a_method():
    assert METHODS["prefill"] is mla_prefill


@pytest.mark.skipif(DEVICE == "cuda", reason="a run on a CPU")
def test_benchmark_on_a_cpu(capsys):
    bench.main(["mla-prefill", "--quick", "--dtype", "float32", "--shape", "1,6,2,16,32,8,12"])
    printed = capsys.readouterr().out
    assert all(f"\n{name} " in printed for name in bench_prefill.METHODS)
    assert "not timed" not in printed
    for wrong, said in (
        (["--quick", "--methods", "flash"], "no method flash"),
        (["--methods", "sdpa"], "no NVIDIA GPU"),
        (["--record"], "no NVIDIA GPU here"),
    ):
        with pytest.raises(SystemExit) as ended:
            bench.main(["mla-prefill", *wrong])
        assert said in f"{ended.value} {capsys.readouterr().err}"


def test_work_by_hand():
    """One head, two tokens, sizes of one: 3 pairs of 3 products; 2 tokens of 2 expanded."""
    least = work("mla-prefill", (1, 2, 1, 1, 1, 1, 1), "bfloat16")
    assert least.flops == 2 * 3 * 3 + 2 * 2 * 2
    assert least.bytes == 2 * (2 * (1 + 1 + 1 + 1 + 1) + 2)  # q, q_rope, o, latent, k_rope; weights


def machine_code(dtype, K, R, P, V, absorbed, ragged):
    """The kernel as `attend` would launch it, compiled for an H100 or H200."""
    tiles = choose_tiles(dtype, R if absorbed else K, V, absorbed, ragged, H200)
    BM, BN, BV, BK = tiles.BM, tiles.BN, tiles.BV, R if absorbed else K

    def tile(*block):
        return f"tensordesc<bf16{list(block)}>".replace(" ", "")

    bounds, rows = "*i32" if ragged else None, (1, 1, BM) if absorbed else (1, BM, 1)
    return assembly(
        attend_kernel,
        tile(*rows, BK), tile(*rows, P),
        tile(1, BN, BK) if absorbed else tile(1, 1, BN, BK), tile(1, BN, P),
        None if absorbed else tile(1, 1, BN, BV), tile(1, BV, BK) if absorbed else None,
        bounds, bounds, "*bf16", "*fp32", "fp32", *["i32"] * 5,
        AttendSizes(V, BM, BN, BK, P, BV, absorbed, absorbed and not ragged),
        num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip


MODELS = {"MiniCPM3": (64, 256, 32, 64), "DeepSeek-V3": (128, 512, 64, 128)}  # K, R, P, V


@pytest.mark.skipif(not can_compile(attend_kernel), reason=str(what_is_missing(attend_kernel)))
@pytest.mark.parametrize("model", MODELS)
@forms
def test_machine_code(model, absorbed):
    """Tensor cores by warpgroup, tiles by the copy engine alone, nothing in local memory."""
    code = machine_code(torch.bfloat16, *MODELS[model], absorbed, ragged=False)
    assert code.count("HGMMA") and not code.count("HMMA")
    assert code.count("UTMALDG") and not code.count("LDGSTS") and not code.count("LDG")
    spills = code.spill_stores + code.spill_loads
    if absorbed and model == "DeepSeek-V3":  # all 255 registers: Triton 3.6 spills none of them,
        assert spills <= 16  # 3.7 two, stored and loaded once a tile
    else:
        assert spills == 0


def test_heads_whose_keys_fit_the_cache_are_one_group():
    mb = 2**20
    assert heads_in_a_group(40, mb) == 40
    assert heads_in_a_group(640, mb // 4) == 16  # 160 MB: 4 at a time
    assert heads_in_a_group(64, 8 * mb) == 1


gpu = pytest.mark.gpu


@gpu
@pytest.mark.parametrize("H", [1, 3, 20, 40, 128])
@pytest.mark.parametrize("M, N", [(100, 1000), (333, 333)])
@pytest.mark.parametrize("sizes", [*MODELS.values(), (128, 256, 64, 128)], ids=str)
@forms
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sizes_of_models(H, M, N, sizes, absorbed, dtype):
    assert_right(
        inputs(2, M, N, H, *sizes, dtype), ragged(2, N, [N, N // 2], [N // 3, 0]), absorbed
    )
    assert_right(inputs(1, M, N, H, *sizes, dtype), ragged(1, N), absorbed)


@gpu
@forms
def test_operator(absorbed):
    given = inputs(1, 70, 80, 3, 16, 32, 16, 16, torch.float16)
    arguments = (*given, SCALE, None, None, absorbed)
    torch.library.opcheck(torch.ops.rwkv_lessons.mla_prefill.default, arguments)


@gpu
def test_in_a_cuda_graph():
    """Captured once, replayed with other numbers in the same memory."""
    given = inputs(2, 100, 300, 4, 64, 256, 32, 64, torch.bfloat16)
    which = ragged(2, 300, [300, 200], [0, 50])
    mla_prefill(*given, scale=SCALE, **which)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o, lse = mla_prefill(*given, scale=SCALE, **which)
    given[2].normal_()
    which["lengths"].fill_(250)
    graph.replay()
    torch.testing.assert_close((o, lse), mla_prefill(*given, scale=SCALE, **which))


@gpu
def test_compiled():
    given = inputs(1, 100, 300, 4, 64, 256, 32, 64, torch.bfloat16)
    compiled = torch.compile(mla_prefill, fullgraph=True)
    torch.testing.assert_close(compiled(*given, scale=SCALE), mla_prefill(*given, scale=SCALE))
