"""The split decode kernels: in Triton's interpreter at small sizes, on a GPU at real ones."""

import math

import pytest
import torch

pytest.importorskip("triton")
from support.mla_problem import in_float64, near, problem  # noqa: E402

from rwkv_lessons.mla import mla_absorbed, mla_decode  # noqa: E402
from rwkv_lessons.mla.decode import forward as decode  # noqa: E402
from rwkv_lessons.mla.decode import turns  # noqa: E402
from rwkv_lessons.mla.decode.combine import (  # noqa: E402
    combine_hopper_kernel,
    pieces_in_flight,
)
from rwkv_lessons.mla.decode.hopper import decode_hopper_kernel  # noqa: E402
from rwkv_lessons.mla.decode.programs import DecodeSizes  # noqa: E402
from rwkv_lessons.mla.decode.splits import combine_columns, combine_tile, splits_for  # noqa: E402
from rwkv_lessons.mla.decode.turns import decode_turns_kernel  # noqa: E402
from rwkv_lessons.runtime import devices  # noqa: E402
from warplens.compiled.assembly import assembly, can_compile
from warplens.gluon import OnCPU

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

# ‖o − ref‖ / ‖ref‖. float16 and bfloat16 round the weights of the tokens and o itself, by 2.0e-4
# and 1.7e-3 each (rms), and the interpreter rounds as the GPU does. float32 sums in float32.
# Parts add 2.1e-4 in quadrature, and float16 weights 0.8e-4: rounding o to float16 alone is 2.1e-4.
LIMITS = {torch.float32: 3e-6, torch.float16: 4e-4, torch.bfloat16: 3e-3}


def kernels(tensors, which):
    """The two kernels on these tensors, in the interpreter where there is no GPU."""
    q, q_rope, latent, k_rope, w_k, w_v = tensors
    if q.is_cuda:
        return mla_decode(*tensors, **which)
    assert w_k is None
    names = ("lengths", "left_padding", "block_table")
    return decode.forward(
        q, q_rope, latent, k_rope, w_v, which["scale"], *(which.get(name) for name in names)
    )


def check(tensors, which, result=None):
    result = kernels(tensors, which) if result is None else result
    near(result, in_float64(tensors, **which), LIMITS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("N", [1, 2, 10, 63, 64, 65, 127, 129, 200])
def test_any_number_of_tokens(N, dtype):
    check(*problem(1, 1, 3, N, dtype=dtype, absorbed=True, device=DEVICE))


@pytest.mark.parametrize(
    "M, N", [(2, 2), (2, 3), (4, 128), (17, 17), (17, 70), (33, 100), (5, 3), (64, 65)]
)
def test_queries_stand_at_the_end_of_the_cache(M, N):
    check(*problem(2, M, 3, N, dtype=torch.float16, absorbed=True, device=DEVICE))


def test_padding_and_lengths_of_each_sequence():
    lengths, left_padding = [130, 0, 65, 64, 7], [64, 0, 3, 63, 7]
    which = {"lengths": lengths, "left_padding": left_padding, "absorbed": True}
    check(*problem(5, 1, 3, 130, dtype=torch.float16, device=DEVICE, **which))
    check(*problem(5, 3, 3, 130, dtype=torch.float16, device=DEVICE, **which))


def test_lengths_may_be_a_column():
    which = {"lengths": [70, 3, 65], "left_padding": [1, 0, 64], "absorbed": True}
    tensors, keywords = problem(3, 1, 3, 70, dtype=torch.float16, device=DEVICE, **which)
    columns = torch.stack([keywords["lengths"], keywords["left_padding"]], 1)
    check(tensors, keywords | {"lengths": columns[:, 0], "left_padding": columns[:, 1]})


def test_padding_changes_nothing():
    (q, q_rope, c, k, _, w_v), which = problem(
        1, 2, 3, 80, dtype=torch.float32, absorbed=True, device=DEVICE, left_padding=[13]
    )
    padded = kernels((q, q_rope, c, k, None, w_v), which)
    bare = kernels((q, q_rope, c[:, 13:], k[:, 13:], None, w_v), {"scale": which["scale"]})
    # The same tiles in the same order: nothing is rounded in another way.
    assert all(torch.equal(x, y) for x, y in zip(padded, bare, strict=True))


@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_pages_are_the_same_cache(page_size):
    N, lengths = 130, [130, 64, 65, 0]
    which = {"lengths": lengths, "dtype": torch.float16, "absorbed": True, "device": DEVICE}
    tensors, keywords = problem(4, 2, 3, N, page_size=page_size, **which)
    check(tensors, keywords)
    plain = problem(4, 2, 3, N, **which)
    for x, y in zip(kernels(tensors, keywords), kernels(*plain), strict=True):
        assert torch.equal(x, y)


def test_sequences_share_pages():
    which = {"lengths": [100, 90, 64], "page_size": 16, "shared_pages": 3, "absorbed": True}
    check(*problem(3, 1, 3, 100, dtype=torch.float16, device=DEVICE, **which))


@pytest.mark.parametrize("splits", [1, 2, 7, 64])
def test_splits_change_nothing(splits, monkeypatch):
    monkeypatch.setattr(decode, "splits_for", lambda *_: splits)
    which = {"lengths": [200, 64, 3, 0], "left_padding": [5, 0, 0, 0], "absorbed": True}
    tensors, keywords = problem(4, 1, 3, 200, dtype=torch.float32, device=DEVICE, **which)
    check(tensors, keywords)
    again = kernels(tensors, keywords)
    assert all(map(torch.equal, again, kernels(tensors, keywords)))


@pytest.mark.parametrize("H, R, P, V", [(1, 16, 16, 16), (9, 20, 3, 5), (20, 48, 16, 24)])
def test_heads_and_sizes(H, R, P, V):
    sizes = {"R": R, "P": P, "V": V, "absorbed": True, "device": DEVICE}
    check(*problem(2, 1, H, 70, dtype=torch.float16, **sizes))
    check(*problem(17, 1, H, 9, dtype=torch.float32, **sizes))


@pytest.mark.parametrize("loud", [0.0, 50.0])
@pytest.mark.parametrize("first", [True, False])
def test_silent_and_loud_scores(loud, first):
    tensors, which = problem(
        1, 1, 3, 140, dtype=torch.float32, absorbed=True, loud=loud, device=DEVICE
    )
    # The largest score at the very first or the very last token.
    tensors[2][0, 0 if first else -1] = tensors[0][0, 0, 0]
    check(tensors, which)


def test_nothing_in_sight():
    tensors, which = problem(2, 1, 3, 20, dtype=torch.float16, absorbed=True, lengths=[0, 0])
    tensors = [None if x is None else x.to(DEVICE) for x in tensors]
    o, lse = kernels(tensors, which | {"lengths": which["lengths"].to(DEVICE)})
    assert not o.any() and (lse == -math.inf).all()


FAR = 2**33 + 5  # as a 32-bit number it is 5


@pytest.mark.parametrize("page_size", [None, 16])
def test_numbers_out_of_range_count_as_the_nearest(page_size):
    """On a GPU nobody looks at them before the kernel, which must not read outside of the cache."""
    which = {"dtype": torch.float32, "absorbed": True, "device": DEVICE, "page_size": page_size}
    tensors, keywords = problem(4, 1, 3, 64, lengths=[64] * 4, **which)
    far = {"lengths": [64, FAR, -FAR, 1000], "left_padding": [FAR, -FAR, 0, -1]}
    near = {"lengths": [64, 64, 0, 64], "left_padding": [64, 0, 0, 0]}
    far, near = (
        keywords | {name: torch.tensor(x, device=DEVICE) for name, x in given.items()}
        for given in (far, near)
    )
    if page_size:
        pages = keywords["block_table"]
        far["block_table"] = pages.masked_fill(pages == pages[1, 2], 2147480000)
        near["block_table"] = pages.masked_fill(pages == pages[1, 2], 0)
        tensors[2:4] = (x.nan_to_num() for x in tensors[2:4])
    for x, y in zip(kernels(tensors, far), kernels(tensors, near), strict=True):
        assert torch.equal(x, y)


def test_a_cpu_needs_no_kernel():
    tensors, which = problem(2, 1, 3, 20, dtype=torch.float32)
    for x, y in zip(mla_decode(*tensors, **which), mla_absorbed(*tensors, **which), strict=True):
        assert torch.equal(x, y)


def test_splits_fill_the_card_and_no_more():
    for programs in (1, 3, 16, 64, 128, 264, 1000):
        for tiles in (1, 2, 16, 64, 1024):
            splits = splits_for(programs, tiles, 132, 2)
            assert 1 <= splits <= max(1, min(64, tiles // 2))
    # The best of those measured on an H200, with its 132 SMs.
    measured = {(1, 256, 2): 64, (16, 64, 2): 8, (64, 64, 2): 4, (64, 256, 2): 4}
    measured |= {(2, 256, 1): 64, (32, 64, 1): 4, (128, 64, 1): 1, (256, 64, 1): 1, (64, 64, 1): 2}
    for (programs, tiles, side_by_side), splits in measured.items():
        assert splits_for(programs, tiles, 132, side_by_side) == splits


def test_tiles_of_the_second_kernel_fit_the_tensor_cores():
    for rows in (1, 2, 16, 63, 64, 1000):
        for splits in (1, 2, 5, 64):
            few, together = combine_tile(rows, 40, 256, splits)
            assert 16 <= few * together <= 64
            assert few & (few - 1) == 0 == together & (together - 1)


def test_tiles_of_the_second_kernel_fit_the_shared_memory():
    for gpu in (devices.H200, devices.gpu_like("sm_120")):
        for BV in (16, 64, 128, 256):
            for dtype in (torch.float32, torch.bfloat16):
                columns = combine_columns(64, BV, dtype, gpu)
                assert columns == 64 or 3 * columns * (4 * 64 + 2 * BV) < gpu.shared_bytes
    assert combine_columns(64, 128, torch.bfloat16, devices.H200) == 128


@pytest.fixture
def hopper(monkeypatch):
    """On the CPU what an H200 would be given: the Gluon kernel, as it is written."""
    launch, launched = decode.launch, []

    def in_turns(kernel, grid, warps, tensors, numbers, constants):
        launched.append(kernel)
        OnCPU(kernel, keeps=False).run(grid, warps, (*tensors, *numbers, *constants))

    def on_cpu(kernel, programs, warps, tensors, numbers, constants, **options):
        launched.append(kernel)
        if kernel in (decode_hopper_kernel, combine_hopper_kernel):
            OnCPU(kernel, keeps=False).run((programs,), warps, (*tensors, *numbers, *constants))
        else:  # the interpreter starts nothing before something else is over
            launch(kernel, programs, warps, tensors, numbers, (*constants[:-1], False))

    empty = torch.empty

    def full_of_nan(*sizes, **options):
        x = empty(*sizes, **options)
        return x if x.is_meta else x.fill_(math.nan)

    monkeypatch.setattr(decode, "launch", on_cpu)
    monkeypatch.setattr(turns, "launch_tiles", in_turns)
    monkeypatch.setattr(decode.torch, "empty", full_of_nan)
    monkeypatch.setattr(devices, "gpu_of", lambda device: devices.H200)
    return launched


@pytest.mark.skipif(torch.cuda.is_available(), reason="there the kernels are compiled")
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("M, H, R, P", [(1, 20, 512, 64), (2, 40, 256, 32)])
@pytest.mark.parametrize("page_size", [None, 16])
def test_hopper_waits_for_what_it_reads(M, H, R, P, page_size, splits, hopper, monkeypatch):
    monkeypatch.setattr(decode, "splits_for", lambda *_: splits)
    in_turns = R == 512 and page_size is None
    kernel = decode_turns_kernel if in_turns else decode_hopper_kernel
    which = {"R": R, "P": P, "dtype": torch.float16, "absorbed": True}
    lengths = [321, 257, 65, 64, 2, 0]
    check(*problem(6, M, H, 321, lengths=lengths, page_size=page_size, **which))
    if page_size is None:
        check(*problem(3, M, H, 200, left_padding=[3, 64, 190], **which))
    assert kernel in hopper


ON_CPU = pytest.mark.skipif(torch.cuda.is_available(), reason="there the kernels are compiled")
DEEPSEEK = {"R": 512, "P": 64, "V": 64, "absorbed": True}


@ON_CPU
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("page_size", [64, 192])
@pytest.mark.parametrize("M, H, dtype", [(1, 20, torch.float16), (3, 43, torch.bfloat16)])
def test_tiles_of_pages(M, H, dtype, page_size, splits, hopper, monkeypatch):
    monkeypatch.setattr(decode, "splits_for", lambda *_: splits)
    lengths = [449, 257, 65, 64, 63, 2, 1, 0] if M == 1 else [130, 3, 192, 0]
    which = {"lengths": lengths, "page_size": page_size, "dtype": dtype, **DEEPSEEK}
    check(*problem(len(lengths), M, H, max(lengths), **which))
    assert hopper[0] is decode_turns_kernel


@ON_CPU
def test_tiles_of_pages_that_sequences_share(hopper, monkeypatch):
    monkeypatch.setattr(decode, "splits_for", lambda *_: 1)
    which = {"lengths": [200, 150, 128], "page_size": 64, "shared_pages": 2, **DEEPSEEK}
    tensors, keywords = problem(3, 1, 20, 200, dtype=torch.float16, **which)
    check(tensors, keywords)
    plain = kernels(tensors, keywords)
    table = keywords["block_table"]
    wide = torch.full((3, 7), -1, dtype=torch.int64)  # what engines keep: room for more pages
    wide[:, : table.shape[1]] = table
    wide[:, table.shape[1] :] = 2**40
    for x in (wide[:, : table.shape[1]], wide.T.contiguous().T, wide):
        found = kernels(tensors, keywords | {"block_table": x})
        assert all(map(torch.equal, found, plain))
    assert {x.__name__ for x in hopper} == {"decode_turns_kernel", "combine_hopper_kernel"}


@ON_CPU
@pytest.mark.parametrize("loud", [0.0, 50.0])
def test_tiles_of_pages_with_silent_and_loud_scores(loud, hopper, monkeypatch):
    monkeypatch.setattr(decode, "splits_for", lambda *_: 1)
    which = {"lengths": [300], "page_size": 64, "loud": loud, **DEEPSEEK}
    check(*problem(1, 1, 20, 300, dtype=torch.float16, **which))
    assert hopper[0] is decode_turns_kernel


@ON_CPU
def test_tiles_of_pages_apart_from_each_other(hopper, monkeypatch):
    """Both parts in tensors of their own, and pages with room between them."""
    monkeypatch.setattr(decode, "splits_for", lambda *_: 2)
    which = {"lengths": [200, 70], "page_size": 64, **DEEPSEEK}
    tensors, keywords = problem(2, 1, 20, 200, dtype=torch.float16, **which)
    plain = kernels(tensors, keywords)
    latent, k_rope = tensors[2:4]
    room = torch.full((len(latent), 3 * 64, 512), math.nan, dtype=torch.float16)
    room[:, :64] = latent
    tensors[2:4] = room[:, :64], k_rope.contiguous()
    assert all(map(torch.equal, kernels(tensors, keywords), plain))
    assert {x.__name__ for x in hopper} == {"decode_turns_kernel", "combine_hopper_kernel"}


@ON_CPU
@pytest.mark.parametrize("page_size, left_padding", [(16, None), (100, None), (64, [70, 3])])
def test_other_pages_are_looked_up_token_by_token(page_size, left_padding, hopper, monkeypatch):
    monkeypatch.setattr(decode, "splits_for", lambda *_: 1)
    which = {"lengths": [150, 65], "page_size": page_size, "left_padding": left_padding, **DEEPSEEK}
    check(*problem(2, 1, 20, 150, dtype=torch.float16, **which))
    assert hopper[0] is decode_hopper_kernel


@pytest.mark.skipif(not can_compile(decode_hopper_kernel), reason="nothing to compile with here")
def test_hopper_computes_every_score_once():
    code = machine_code(decode_hopper_kernel, 40, 256, 32, 0, num_warps=4)
    # The scores of 64 tokens, twice: the first tile has code of its own.
    assert code.count("HGMMA.64x64x16") == 2 * (256 + 32) // 16
    assert code.count("HGMMA.64x256x16") == 2 * 64 // 16
    assert code.count("HMMA") == 0
    # 255 registers a thread are all there are: some addresses do not find room.
    assert code.spill_stores <= 64


@pytest.mark.skipif(not can_compile(combine_hopper_kernel), reason="nothing to compile with here")
@pytest.mark.parametrize("H, R, V", [(128, 512, 128), (40, 256, 64)])
@pytest.mark.parametrize("splits", [1, 4, 64])
@pytest.mark.parametrize("size, parts", [(2, ("*fp16", "*fp32")), (4, ("*fp32", None))])
def test_parts_and_weights_fit_beside_each_other(H, R, V, splits, size, parts):
    stages = pieces_in_flight(R, V, devices.H200, size)
    sizes = {"w_h": V * R, "w_n": R, "H": H, "R": R, "V": V, "BM": 64 // splits, "BS": splits}
    given = (*parts, "*fp32", "*bf16", "*bf16", "*fp32", "i32", "i32")
    code = assembly(combine_hopper_kernel, *given, **sizes, STAGES=stages, PDL=True, num_warps=8)
    assert stages > 1
    assert code.count(f"HGMMA.64x{V // 2}x16") == 2 * R // 16
    assert code.spill_stores + code.spill_loads == 0
    assert code.shared_bytes <= devices.H200.shared_bytes


def machine_code(kernel, H, R, P, page_size, *more, more_sizes=(), **options):
    """A decode kernel as `forward` would launch it, compiled for an H100 or H200."""
    table = "*i32" if page_size else None
    sizes = DecodeSizes(16, H, R, P, R + P, R + P, page_size, 64, 64, True, **dict(more_sizes))
    parts = ("*fp16", "*fp32") if kernel is decode_hopper_kernel else ("*fp32",)
    given = (*["*bf16"] * 4, "*i32", None, table, *parts, "*fp32", *more, "fp32", *["i32"] * 13)
    return assembly(kernel, *given, sizes, **options)


SIZES = {  # H, R, P, V
    "MiniCPM3": (40, 256, 32, 64),
    "Mistral 4": (32, 256, 64, 128),
    "DeepSeek-V3": (128, 512, 64, 128),
    "its 8th part": (16, 512, 64, 128),
    "GLM 4.7": (20, 512, 64, 256),
    "three heads": (3, 512, 64, 128),
    "126 heads": (126, 512, 64, 128),
    "rank 96": (12, 96, 24, 40),
}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("name", SIZES)
def test_real_sizes(name, dtype):
    H, R, P, V = SIZES[name]
    lengths = [4641, 1730, 65, 64, 1, 0]
    left_padding = [0, 1700, 1, 0, 0, 0]
    which = {"R": R, "P": P, "V": V, "dtype": dtype, "device": "cuda", "absorbed": True}
    for M, page_size in ((1, None), (2, None), (1, 64)):
        check(*problem(6, M, H, 4641, lengths=lengths, page_size=page_size, **which))
        check(*problem(6, M, H, 300, left_padding=[3, 64, 299, 0, 300, 5], **which))
    left = {"lengths": lengths, "left_padding": left_padding}
    check(*problem(6, 3, H, 4641, **left, **which))


@pytest.mark.gpu
def test_one_long_sequence_among_short_ones():
    which = {"R": 256, "P": 32, "V": 64, "dtype": torch.float16, "absorbed": True}
    check(*problem(16, 1, 40, 65536, lengths=[1] * 15 + [65536], device="cuda", **which))


@pytest.mark.gpu
@pytest.mark.parametrize("H", [16, 128])
def test_pages_beyond_two_to_the_31(H):
    R, P, count = 512, 64, 2**31 // (64 * 576) + 8
    pages = torch.empty(count, 64, R + P, dtype=torch.float16, device="cuda")
    tensors, which = problem(
        1, 1, H, 64, R=R, P=P, V=128, dtype=torch.float16, absorbed=True, device="cuda"
    )
    pages[-1, :, :R], pages[-1, :, R:] = tensors[2][0], tensors[3][0]
    table = torch.tensor([[count - 1]], dtype=torch.int32, device="cuda")
    lengths = torch.tensor([64], device="cuda")
    far = [*tensors[:2], pages[..., :R], pages[..., R:], *tensors[4:]]
    found = kernels(far, which | {"block_table": table, "lengths": lengths})
    for x, y in zip(found, kernels(tensors, which), strict=True):
        assert torch.equal(x, y)


@pytest.mark.gpu
@pytest.mark.parametrize("splits", [1, 3, 64])
@pytest.mark.parametrize("page_size", [64, 192])
def test_tiles_of_pages_on_a_gpu(page_size, splits, monkeypatch):
    monkeypatch.setattr(decode, "splits_for", lambda *_: splits)
    which = {"page_size": page_size, "dtype": torch.bfloat16, "device": "cuda", **DEEPSEEK}
    lengths = [4000, 0, 1, 64, 65, 1999, 3968, 63]
    check(*problem(8, 2, 128, 4000, lengths=lengths, **which))
    check(*problem(8, 1, 128, 4000, lengths=lengths, shared_pages=5, **which))
    tensors, keywords = problem(8, 1, 128, 640, loud=50.0, lengths=[640] * 8, **which)
    check(tensors, keywords)
    table = keywords["block_table"]
    wide = torch.full((8, 100), 2**40, device="cuda")
    wide[:, : table.shape[1]] = table
    tensors[3] = tensors[3].contiguous()  # as a cache of its own
    result = kernels(tensors, keywords | {"block_table": wide[:, : table.shape[1]]})
    check(tensors, keywords, result)


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [{"R": 256, "P": 32}, {"R": 512, "P": 64, "page_size": 64}])
def test_a_captured_graph_follows_the_lengths(sizes):
    which = {"V": 64, "dtype": torch.float16, "absorbed": True, **sizes}
    tensors, keywords = problem(4, 1, 40, 2000, lengths=[2000] * 4, device="cuda", **which)
    kernels(tensors, keywords)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = kernels(tensors, keywords)
    for lengths in ([2000, 1, 64, 1999], [0, 3, 700, 0]):
        keywords["lengths"].copy_(torch.tensor(lengths))
        graph.replay()
        check(tensors, keywords, result)


@pytest.mark.gpu
def test_is_an_operator_of_torch():
    (q, q_rope, c, k, _, w_v), which = problem(
        2, 1, 3, 70, dtype=torch.float16, absorbed=True, lengths=[70, 9], device="cuda"
    )
    given = (q, q_rope, c, k, w_v, which["scale"], which["lengths"], None, None)
    torch.library.opcheck(torch.ops.rwkv_lessons.mla_decode, given)


@pytest.mark.gpu
def test_misaligned_and_strided_arguments():
    tensors, which = problem(
        2, 2, 20, 300, R=256, P=32, V=64, dtype=torch.float16, absorbed=True, device="cuda"
    )
    expected = kernels(tensors, which)

    def shifted(x, width):
        """The same in rows of x's width and `width` more, from the second element on."""
        wide = x.new_zeros(*x.shape[:-1], x.shape[-1] + width)
        wide[..., 1 : x.shape[-1] + 1] = x
        return wide[..., 1 : x.shape[-1] + 1]

    q, q_rope, c, k, _, w_v = tensors
    for given in (
        [shifted(x, 3) for x in (q, q_rope, c, k, w_v)],
        [shifted(q, 16), q_rope, c, k, w_v],  # strides that can be divided by 16, and no address
        [q, q_rope, shifted(c, 16), k, w_v],
        [q.mT.contiguous().mT, q_rope, c, k, w_v],  # the last stride is not 1
    ):
        found = kernels([*given[:4], None, given[4]], which)
        for x, y in zip(found, expected, strict=True):
            # The general kernel adds up in another order; o is rounded to 11 bits once more.
            torch.testing.assert_close(x, y, rtol=2e-3, atol=2e-3)


@pytest.mark.gpu
def test_gradients_are_refused_where_there_are_none():
    tensors, which = problem(1, 1, 3, 20, dtype=torch.float16, device="cuda")
    tensors[0].requires_grad_()
    with pytest.raises(ValueError, match="mla_decode has no gradients"):
        mla_decode(*tensors, **which)
    with torch.no_grad():
        mla_decode(*tensors, **which)
