"""What the note on limits in `wkv6` says: what a NaN reaches, and which results come again."""

import pytest
import torch
from support import simulated
from support.tensor_core import tensor_core  # noqa: F401
from support.wkv6_gradients import draw
from support.wkv6_options import interpreted

from rwkv_lessons.wkv6 import METHODS
from rwkv_lessons.wkv6.chunked import backward as chunked_backward
from rwkv_lessons.wkv6.chunked import forward as chunked
from rwkv_lessons.wkv6.recurrent import backward as recurrent_backward
from rwkv_lessons.wkv6.recurrent import forward as recurrent

# Tokens, and the one with the NaN. Its chunk of 64 is 64 … 127; its span in recurrent 32 … 39.
PLACES = {"doubling": (150, 100), "chunked": (150, 100), "recurrent": (40, 35)}
NAMES = "o s1 dr dk dv dw du ds0".split()
KERNELS = {"chunked": (chunked, chunked_backward), "recurrent": (recurrent, recurrent_backward)}
METHODS_HERE = ["doubling", "recurrent", "chunked"]


def results(method, inputs, do, ds1, cu_seqlens=None):
    """o, s1 and every gradient, by the name of each."""
    if method in KERNELS:
        forward, backward = KERNELS[method]
        o, s1, kept = forward.forward(*inputs, cu_seqlens, 1.0, False, True)
        given = (*inputs, cu_seqlens, kept, do, ds1, 1.0, False)
        return dict(zip(NAMES, (o, s1, *backward.gradients(*given)), strict=True))
    leaves = [x.clone().requires_grad_() for x in inputs]
    o, s1 = METHODS[method](*leaves, cu_seqlens=cu_seqlens)
    return dict(zip(NAMES, (o, s1, *torch.autograd.grad([o, s1], leaves, [do, ds1])), strict=True))


def draw_with(method, *names, value=torch.nan, dtype=torch.float32, **sizes):
    """Inputs with one NaN in each of `names`, in head 1 of the last of B sequences."""
    T, at = PLACES[method]
    inputs, do, ds1 = draw(**({"B": 2, "T": T, "H": 2, "K": 8, "V": 4} | sizes), dtype=dtype)
    given = dict(zip("r k v w u s0 do ds1".split(), [*inputs, do, ds1], strict=True))
    for name in names:
        x = given[name]
        x[(1, 3) if name == "u" else (-1, 1, 3, 2) if x.shape[1] == 2 else (-1, at, 1, 3)] = value
    return inputs, do, ds1


def tokens(x):
    """Which tokens of head 1 of the last sequence are not finite."""
    return (~torch.isfinite(x[-1, :, 1])).any(-1).nonzero().flatten().tolist()


def beside(method):
    """The first and the last token that a NaN reaches where it has no business."""
    at = PLACES[method][1]
    return (at // 64 * 64, at // 64 * 64 + 63) if method == "chunked" else (at, at)


@interpreted
@pytest.mark.parametrize(
    "method, dtype",
    [
        *((method, torch.float32) for method in METHODS_HERE),
        ("chunked", torch.float16),
        ("chunked", torch.bfloat16),
    ],
)
def test_nans_stay_in_their_head_and_sequence(method, dtype):
    given = draw_with(method, *"r k v w do s0 ds1".split(), dtype=dtype)
    for key, x in results(method, *given).items():
        if key == "du":
            assert x[0].isfinite().all()
        else:
            heads = 1 if key in ("s1", "ds0") else 2
            assert x[0].isfinite().all(), key
            assert x.select(heads, 0).isfinite().all(), key


@interpreted
@pytest.mark.parametrize("method", METHODS_HERE)
def test_a_nan_in_u_reaches_its_head_of_every_sequence_and_no_state(method):
    found = results(method, *draw_with(method, "u"))
    for key in ("o", "dr", "dk", "dv"):
        assert found[key][:, :, 0].isfinite().all()
        assert found[key][:, :, 1].isnan().any(-1).all()
    for key in ("s1", "dw", "ds0"):
        assert found[key].isfinite().all()


@interpreted
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("method", METHODS_HERE)
def test_a_nan_reaches_later_outputs_and_in_chunks_those_beside_it(method, value):
    """Of k and v dr is such an output, too, and dk and dv are of their own token only."""
    at = PLACES[method][1]
    for name in "kvw" if value != torch.inf else "kv":
        found = results(method, *draw_with(method, name, value=value, B=1))
        assert all(t >= beside(method)[0] for key in ("o", "dr") for t in tokens(found[key]))
        assert tokens(found["o"])[-1] == PLACES[method][0] - 1
        if name != "w":
            assert set(tokens(found["dk"])) | set(tokens(found["dv"])) == {at}
            assert tokens(found["dw"])[0] >= beside(method)[0]
    assert tokens(results(method, *draw_with(method, "r", value=value, B=1))["o"]) == [at]


@interpreted
@pytest.mark.parametrize("method", METHODS_HERE)
def test_a_nan_reaches_earlier_gradients_and_in_chunks_those_beside_it(method):
    at = PLACES[method][1]
    for name in ("r", "do"):
        found = results(method, *draw_with(method, name, B=1))
        for key in ("dk", "dv", "dw"):
            assert tokens(found[key])[0] == 0 and tokens(found[key])[-1] <= beside(method)[1]
        assert set(tokens(found["dr"])) <= {at} and found["s1"].isfinite().all()
    found = results(method, *draw_with(method, "w", B=1))
    assert (
        tokens(found["dk"])[-1] <= beside(method)[1]
        and tokens(found["dv"])[-1] <= beside(method)[1]
    )


@interpreted
def test_in_chunks_a_nan_does_reach_earlier_tokens():
    """As the note says; where this fails the note is to be made better, too."""
    assert tokens(results("chunked", *draw_with("chunked", "v", B=1))["o"])[0] == 64


@interpreted
@pytest.mark.parametrize("method", METHODS_HERE)
def test_nans_stay_in_their_packed_sequence(method):
    T, at = PLACES[method]
    ends = torch.tensor([0, at - 3, at + 1, T])  # the second one is four tokens
    given = draw_with(method, *"r k v w do".split(), B=1, sequences=3)
    for key, x in results(method, *given, ends).items():
        if key in ("s1", "ds0"):
            assert x[[0, 2]].isfinite().all(), key
        elif key != "du":
            assert set(tokens(x)) <= set(range(at - 3, at + 1)), key


def test_in_cuda_kernels_only_dw_reaches_back_and_at_most_64_tokens():
    """From the state kept before token 64 on; and dw of tokens later than a NaN of r is finite."""
    at = 66
    for name in "vr":
        inputs, do, ds1 = draw(2, 70, 2, 8, 4)
        inputs["rkv".index(name)][1, at, 1, 3] = torch.nan
        o, s1, _ = simulated.forward(inputs)
        found = dict(zip(NAMES, (o, s1, *simulated.backward(inputs, do, ds1)[0]), strict=True))
        for key in ("o", "dr", "dk", "dv", "dw"):
            assert found[key][0].isfinite().all() and found[key][:, :, 0].isfinite().all()
        if name == "v":
            assert tokens(found["o"]) == tokens(found["dr"]) == list(range(at, 70))
            assert tokens(found["dk"]) == [at] and tokens(found["dw"])[0] >= 64
        else:
            assert tokens(found["o"]) == [at] and tokens(found["dw"])[-1] <= at


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("method", ["recurrent", "chunked", "cuda", "doubling"])
def test_the_same_call_gives_the_same_bits(method, dtype):
    def run(inputs, do, ds1):
        leaves = [x.detach().requires_grad_() for x in inputs]
        o, s1 = METHODS[method](*leaves)
        return o, s1, *torch.autograd.grad([o, s1], leaves, [do, ds1])

    for B, H in ((1, 2), (2, 64)):  # in segments, and without
        given = draw(B, 1500, H, 64, 64, "any", dtype)
        for x, y in zip(run(*given), run(*given), strict=True):
            assert torch.equal(x, y)
