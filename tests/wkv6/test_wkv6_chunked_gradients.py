"""The gradients of the chunked kernels, with the states that a forward pass keeps from torch."""

import math

import pytest
import torch
from support.tensor_core import tensor_core  # noqa: F401
from support.wkv6_gradients import (
    DEVICE,
    GPU,
    compare,
    draw,
    expected,
    got,
)
from support.wkv6_kernels import kernels, tiled  # noqa: F401

from rwkv_lessons.wkv6.chunked import backward as chunked_backward
from rwkv_lessons.wkv6.chunked import forward as chunked
from rwkv_lessons.wkv6.chunked.forward import wkv6_chunked
from rwkv_lessons.wkv6.chunked.hopper.sweep import OF_PARTS, sweep_hopper_kernel
from rwkv_lessons.wkv6.chunked.hopper.tiles import TILE
from rwkv_lessons.wkv6.chunked.pairs import PairSizes, keys_gradients, values_gradients
from rwkv_lessons.wkv6.chunked.sizes import CHECKPOINT, ChunkSizes
from rwkv_lessons.wkv6.chunked.states import ALL, state_gradients
from warplens.compiled.assembly import assembly

needs_gpu = pytest.mark.gpu


# Sums of some hundred float32 products; dw also of differences, whose terms may be exp(2.6) larger.
FLOAT32 = 1e-5


@pytest.mark.parametrize("decay", ["mixed", "strong", "any", -8.0, -50.0, -math.inf])
@pytest.mark.parametrize("B, T, H, K, V", [(2, 37, 1, 16, 16), (1, 70, 2, 20, 12)])
def test_decays(B, T, H, K, V, decay):
    given = draw(B, T, H, K, V, decay)
    results = got(*given)
    compare(results, expected(*given), FLOAT32)
    assert (results[3][given[0][3] == -math.inf] == 0).all()


@pytest.mark.parametrize("T", [1, 2, 31, 32, 33])
def test_lengths(T):
    given = draw(1, T, 1, 16, 16)
    compare(got(*given), expected(*given), FLOAT32)


@pytest.mark.parametrize("decay", ["mixed", -8.0])
@pytest.mark.parametrize("lengths", [(37, 0, 1, 40), (0, 64, 0), (5,), (32, 32)])
def test_packed(lengths, decay):
    given = draw(1, sum(lengths), 2, 16, 16, decay, sequences=len(lengths))
    compare(got(*given, lengths), expected(*given, lengths), FLOAT32)


@pytest.mark.parametrize("without", ["do", "ds1"])
def test_one_gradient_alone(without):
    inputs, do, ds1 = draw(1, 40, 1, 16, 16)
    given = (inputs, None if without == "do" else do, None if without == "ds1" else ds1)
    compare(got(*given), expected(*given), FLOAT32)


@pytest.mark.parametrize("lengths", [None, (37, 0, 3)])
def test_scale_and_raw_decay(lengths):
    inputs, do, ds1 = draw(1, 40, 1, 20, 16, sequences=None if lengths is None else len(lengths))
    inputs[3] = torch.linspace(-7, 4, inputs[3].numel(), device=DEVICE).view(inputs[3].shape)
    options = {"lengths": lengths, "scale": 0.25, "raw": True}
    compare(got(inputs, do, ds1, **options), expected(inputs, do, ds1, **options), FLOAT32)


@pytest.mark.skipif(GPU, reason="there the options have tests of their own")
@pytest.mark.parametrize("decay", ["any", -3.6, -50.0])
@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("lengths", [None, (37, 0, 3)])
def test_every_option_with_strong_decays(lengths, raw, decay):
    sequences = None if lengths is None else len(lengths)
    inputs, do, ds1 = draw(1, 40, 1, 6, 5, decay, sequences=sequences)
    if raw:
        inputs[3] = torch.log(-inputs[3])
    options = {"lengths": lengths, "scale": 0.3, "raw": raw}
    compare(got(inputs, do, ds1, **options), expected(inputs, do, ds1, **options), FLOAT32)


def test_segments(monkeypatch):
    """Few heads and many tokens: segments find their part of dS first."""
    monkeypatch.setattr(chunked_backward, "MIN_CHUNKS_PER_SEGMENT", 1)
    chunked_backward.plan.cache_clear()
    given = draw(1, 130, 1, 16, 16)
    compare(got(*given), expected(*given), FLOAT32)
    given = draw(1, 130, 1, 16, 16, sequences=3)
    compare(got(*given, (65, 0, 65)), expected(*given, (65, 0, 65)), FLOAT32)
    chunked_backward.plan.cache_clear()


@pytest.mark.skipif(GPU, reason="the same goes through the public function there")
def test_autograd_around_the_kernels():
    """Both kernels behind torch.autograd, which no CPU tensor reaches by the public function."""
    inputs, do, ds1 = draw(1, 40, 1, 8, 8)
    leaves = [x.requires_grad_() for x in inputs]
    o, s1 = chunked.chunked(*leaves, None, 1.0, False)
    wanted = expected([x.detach() for x in inputs], do, ds1)
    compare(torch.autograd.grad([o, s1], leaves, [do, ds1]), wanted, FLOAT32)
    o, s1 = chunked.chunked(*leaves[:5], None, None, 0.5, False)  # no s0, and s1 not used
    without = [*(x.detach() for x in inputs[:5]), torch.zeros_like(inputs[5])]
    wanted = expected(without, do, None, scale=0.5)
    compare(torch.autograd.grad(o, leaves[:5], do), wanted[:5], FLOAT32)


# Rounded results, and states kept in bfloat16, whose rounding is 1.7e-3 of a number: together at
# most 2.4e-3.
HALF = 2.5e-3


# Halves of runs: weak enough for a chunk; 8 tokens fit (to -6.9), 4 (to -13.9), 2 (to -27.7); 1.
@pytest.mark.parametrize("decay", ["mixed", "strong", "any", -3.4, -3.6, -6.8, -7.1, -13.7, -14.0,
                                   -27.5, -28.0, -1e30, -math.inf])  # fmt: skip
def test_half_precision(decay):
    """float16, as the interpreter knows no bfloat16 sums; decays, and so dw, in float32."""
    inputs, do, ds1 = draw(1, 70, 1, 16, 16, decay, torch.float16)
    inputs[3] = draw(1, 70, 1, 16, 16, decay)[0][3]
    results = got(inputs, do, ds1)
    compare(results, expected(inputs, do, ds1), HALF)
    assert (results[3][inputs[3] == -math.inf] == 0).all()


@pytest.mark.parametrize("K, V", [(12, 20), (70, 70)])  # with and without loading ahead
@pytest.mark.parametrize("raw", [False, True])
def test_half_precision_of_chunks_that_differ(K, V, raw):
    """Each in runs of another length, for one key more than for the others; some in none."""
    inputs, do, ds1 = draw(1, 200, 2, K, V, -2.0, torch.float16)
    for c, w in enumerate((-5.0, -10.0, -20.0, -0.1, -40.0, -3.0)):
        inputs[3][:, 32 * c : 32 * (c + 1), 0, :] = w / 2
        inputs[3][:, 32 * c : 32 * (c + 1), 0, 3] = w
    inputs[3][:, 70:75, 1, :2] = 0
    if raw:
        inputs[3] = torch.log(-inputs[3])
    options = {"scale": 0.3, "raw": raw}
    compare(got(inputs, do, ds1, **options), expected(inputs, do, ds1, **options), HALF)


def test_few_strong_chunks_among_many():
    """A program looks through 64 of the 68 chunks, of which the first and the last are strong."""
    inputs, do, ds1 = draw(2, 34 * CHECKPOINT - 3, 1, 4, 4, -0.01)
    for b, c in ((0, 0), (0, 33), (1, 0), (1, 28), (1, 29), (1, 30), (1, 33)):
        inputs[3][b, c * CHECKPOINT : (c + 1) * CHECKPOINT, :, 1:] = -20.0  # too strong for factors
    compare(got(inputs, do, ds1), expected(inputs, do, ds1), FLOAT32)


def test_gradients_have_the_dtypes_of_the_inputs():
    inputs, do, ds1 = draw(1, 3, 1, 16, 16, dtype=torch.float16)
    inputs[4] = inputs[4].half()
    for x, y in zip(got(inputs, do, ds1), inputs, strict=True):
        assert x.dtype == y.dtype and x.shape == y.shape  # the state is float32


@needs_gpu
@pytest.mark.parametrize("decay", ["mixed", "strong", "any", -0.5, -8.0, -math.inf])
@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 2.5e-3), (torch.float32, 1e-5)])
@pytest.mark.parametrize(
    "B, T, H, K, V", [(2, 300, 3, 64, 64), (1, 1025, 2, 64, 64), (1, 70, 2, 100, 36)]
)
def test_on_the_gpu(B, T, H, K, V, dtype, tolerance, decay):
    given = draw(B, T, H, K, V, decay, dtype)
    compare(got(*given), expected(*given), tolerance)


@needs_gpu
@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 2.5e-3), (torch.float32, 1e-5)])
@pytest.mark.parametrize("K, V", [(256, 256), (64, 256), (256, 64), (128, 128)])
def test_large_heads(K, V, dtype, tolerance):
    for decay in ("mixed", -8.0):
        given = draw(1, 70, 2, K, V, decay, dtype)
        compare(got(*given), expected(*given), tolerance)


@needs_gpu
@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("decay", ["mixed", "strong", "any", -math.inf])
@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 2.5e-3), (torch.float32, 1e-5)])
@pytest.mark.parametrize("K, V", [(64, 64), (100, 36)])
def test_packed_on_the_gpu(K, V, dtype, tolerance, decay, raw):
    lengths = (500, 0, 1, 33, 490)
    inputs, do, ds1 = draw(1, 1024, 4, K, V, decay, dtype, sequences=5)
    if raw:  # inf is a limit that torch's own gradient of exp(-exp(x)) does not know
        inputs[3] = torch.log(-inputs[3]).clamp(max=7)
    options = {"scale": 0.3, "raw": raw}
    found = got(inputs, do, ds1, lengths, **options)
    compare(found, expected(inputs, do, ds1, lengths, **options), tolerance)


@tiled
@needs_gpu
@pytest.mark.parametrize("T", [1, 500])
@pytest.mark.parametrize("decay", ["mixed", "strong", "any"])
def test_tiles_through_the_public_function(decay, T):
    test_through_the_public_function(decay, T)


@needs_gpu
@pytest.mark.parametrize("T", [1, 500])
@pytest.mark.parametrize("decay", ["mixed", "strong", "any"])
def test_through_the_public_function(decay, T):
    inputs, do, ds1 = draw(2, T, 3, 64, 64, decay, torch.bfloat16)
    leaves = [x.requires_grad_() for x in inputs]
    o, s1 = wkv6_chunked(*leaves)
    results = torch.autograd.grad([o, s1], leaves, [do, ds1])
    # S and dw are rounded once each; of one token, few of the 384 numbers weigh
    compare(results, expected([x.detach() for x in inputs], do, ds1), 3e-3 if T == 1 else 2.8e-3)


# dw sums parts of either sign, in each of which a state or G is rounded: 2.34e-3 of the parts.
TILED = 2.8e-3


# 32 tokens fit to -3.46, eight to -7.6; a last chunk is whole, is not, or has no second half.
@tiled
@needs_gpu
@pytest.mark.parametrize("decay", ["mixed", "strong", "any", -0.0, -1e-3, -0.5, -1.7, -3.5, -8.0,
                                   -20.0, -math.inf])  # fmt: skip
@pytest.mark.parametrize("B, T, H", [(2, 200, 2), (3, 1, 2), (2, 97, 3), (1, 64, 1), (1, 4096, 8)])
def test_tiles_on_the_gpu(B, T, H, decay):
    inputs, do, ds1 = draw(B, T, H, 64, 64, decay, torch.bfloat16)
    results = got(inputs, do, ds1)
    compare(results, expected(inputs, do, ds1), 3e-3 if T == 1 else TILED)
    assert (results[3][inputs[3] == -math.inf] == 0).all()


@tiled
@needs_gpu
@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, TILED), (torch.float16, 3.2e-4)])
@pytest.mark.parametrize("K, V", [(64, 64), (128, 64), (64, 128), (128, 128), (192, 128)])
@pytest.mark.parametrize("decay", ["mixed", "strong", "any"])
def test_blocks_of_both_dtypes_on_the_gpu(decay, K, V, dtype, tolerance):
    inputs, do, ds1 = draw(2, 200, 2, K, V, decay, dtype)
    compare(got(inputs, do, ds1), expected(inputs, do, ds1), tolerance)


@tiled
@needs_gpu
@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("without", [None, "do", "ds1"])
def test_tiles_of_chunks_that_differ_on_the_gpu(raw, without):
    """Scaled; one key that is too strong has a chunk go in two runs."""
    inputs, do, ds1 = draw(2, 330, 3, 64, 64, "mixed", torch.bfloat16)
    inputs[3] = inputs[3].clamp(min=-1.5)
    inputs[3][0, 70, :, 3], inputs[3][0, 75:85, 1, 5] = -54.0, -0.0
    inputs[3][1, 200:232, 2, 9] = -8.0
    if raw:
        inputs[3] = torch.log(-inputs[3]).clamp(min=-20)
    given = (inputs, None if without == "do" else do, None if without == "ds1" else ds1)
    options = {"scale": 0.3, "raw": raw}
    compare(got(*given, **options), expected(*given, **options), TILED)


@tiled
@needs_gpu
def test_the_same_bits_again_in_tiles():
    test_the_same_bits_again()


@needs_gpu
def test_the_same_bits_again():
    given = draw(2, 1000, 4, 64, 64, "any", torch.bfloat16)
    for x, y in zip(got(*given), got(*given), strict=True):
        assert torch.equal(x, y)


B16, F32, INT = "*bf16", "*fp32", "i32"
SIZES = ChunkSizes(64, 64, 64, 64, CHECKPOINT)
FLAGS = {"num_warps": 4}


def pair_sizes(N, blocks, levels):
    return PairSizes(N, N, *blocks, CHECKPOINT, RAW=False, LEVELS=levels)


@pytest.mark.parametrize("segments", [False, True])
def test_machine_code_of_the_reverse_sweep(segments):
    local = F32 if segments else None
    args = (B16, B16, B16, B16, F32, local, local, None, B16, F32, F32, None, F32)
    flags = {"RAW": False, "WHAT": ALL.value, "maxnreg": 128} | FLAGS
    code = assembly(state_gradients, *args, INT, INT, "fp32", INT, INT, SIZES, **flags)
    assert code.spill_stores <= 8 and code.count("HGMMA") > 0  # 128 registers: four an SM
    assert code.count("LDGSTS") > 0 and code.atomics == 0  # the next chunk comes in meanwhile


@pytest.mark.parametrize("N", [64, 128])
def test_machine_code_of_float32_uses_the_registers(N):
    """Without a limit in words ptxas takes 32 of them, and 10 to 17 KB of local memory."""
    of_keys, of_values = (pair_sizes(N, x, False) for x in chunked_backward.blocks(N, N, True)[1:])
    rest = (INT, INT, "fp32", INT, INT)
    flags = {"num_warps": 4 if N <= 64 else 8, "STAGES": 1}
    flags |= {"maxnreg": chunked_backward.MAX_REGISTERS}
    keys = assembly(keys_gradients, *[F32] * 10, None, *[F32] * 5, *rest, of_keys, NV=1, **flags)
    values = assembly(values_gradients, *[F32] * 7, None, *[F32] * 2, *rest, of_values, **flags)
    for code in (keys, values):
        assert code.registers > 200 and code.local_bytes <= 5000


def test_machine_code_of_keys_and_values():
    tokens, rest = [B16] * 4, (INT, INT, "fp32", INT, INT, pair_sizes(64, (64, 64), False))
    keys = assembly(
        keys_gradients, *tokens, F32, B16, B16, F32, F32, F32, None, *[B16] * 4, F32, *rest,
        NV=1, STAGES=3, **FLAGS,
    )  # fmt: skip
    values = assembly(
        values_gradients, *tokens[:3], F32, B16, F32, F32, None, B16, B16, *rest,
        STAGES=3, **FLAGS,
    )  # fmt: skip
    for code in (keys, values):
        assert code.spill_stores <= 48  # bytes, beside 255 registers and once in a chunk
        assert code.atomics == 0 and code.count("LDGSTS") > 0
        kinds = [op for op in code.counts if op.startswith("HMMA")]
        assert any("TF32" in op for op in kinds) and any("BF16" in op for op in kinds)


@pytest.mark.parametrize("packed", [None, "*i64"])
@pytest.mark.parametrize("N, raw, scaled", [(64, False, False), (128, True, True)])
@pytest.mark.parametrize("half", [False, True])
def test_machine_code_of_the_sweep_on_hopper(half, N, raw, scaled, packed):
    kind = "fp16" if half else "bf16"
    x, s = (f"tensordesc<{kind}[{n}, 64],{TILE.value!r}>" for n in (CHECKPOINT, 64))
    exponents = "*fp16" if half else None
    given = (x, x, x, x, F32, s, exponents, "*i16", x, F32, None, None, packed)
    numbers = (INT, INT, "fp32", INT, INT, INT, INT)
    flags = {"K": N, "V": N, "RAW": raw, "SCALED": scaled, "HALF": half, "num_warps": 4}
    parts = f"tensordesc<fp32[{CHECKPOINT}, 64],{OF_PARTS.value!r}>"
    results = [*[x] * 4, *[f"*{kind}"] * 4] if N == 64 else [*[parts] * 4, *[F32] * 4]
    results += [F32, F32]
    code = assembly(sweep_hopper_kernel, *given, *results, *numbers, **flags)
    assert code.shared_bytes <= 113 * 1024  # two an SM
    assert code.spill_stores <= 256 and code.atomics == 0
    assert code.count("HGMMA") >= (110 if half else 86)  # of 16 tokens, or keys
    assert code.count("WARPGROUP.DEPBAR") <= 14  # and not a wait for each
    assert code.count("UTMALDG") == 12 and code.count("UTMASTG") == 4


@pytest.mark.parametrize("N", [64, 256])
def test_machine_code_of_levels(N):
    of_keys, of_values = (pair_sizes(N, x, True) for x in chunked_backward.blocks(N, N, False)[1:])
    tokens, rest = [B16] * 4, (INT, INT, "fp32", INT, INT)
    of_size = {"num_warps": 4, "STAGES": 3} if N <= 64 else {"num_warps": 8, "STAGES": 1}
    flags = of_size | {"maxnreg": chunked_backward.MAX_REGISTERS}
    keys = assembly(
        keys_gradients, *tokens, F32, B16, B16, F32, F32, F32, None, *[B16] * 4, F32, *rest,
        of_keys, NV=1, **flags,
    )  # fmt: skip
    values = assembly(
        values_gradients, *tokens[:3], F32, B16, F32, F32, None, B16, B16, *rest,
        of_values, **flags,
    )  # fmt: skip
    for code in (keys, values):
        assert code.registers > 200 and code.atomics == 0
        assert code.spill_stores <= (256 if N == 64 else 6000)
        assert code.shared_bytes <= 227 * 1024 // 2  # two programs an SM
        # a loop in a chunk's work would keep the next one waiting; larger heads have no room for it
        assert (code.count("LDGSTS") > 0) == (N == 64)
