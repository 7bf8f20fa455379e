"""The kernels of the correction, in the interpreter or on a GPU, against the same sums in torch."""

import pytest
import torch

pytest.importorskip("triton")
from support.tensor_core import tensor_core  # noqa: E402, F401

from rwkv_lessons.distributed import correction, rwkv6  # noqa: E402
from rwkv_lessons.distributed.rwkv6 import Carry  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Float32 sums; on a GPU three products of TF32 for each. 16 bits: the rounding of o and dr.
LIMITS = {
    torch.float32: 5e-6 if DEVICE == "cpu" else 2e-5,
    torch.float16: 1e-3,
    torch.bfloat16: 6e-3,
}


class ParallelCall:
    """What Carry asks of a call."""

    def __init__(self, **options):
        self.options = options


def problem(T, K, V, dtype, decay, raw, B=2, H=2):
    g = torch.Generator().manual_seed(T + K)
    draw = lambda *size: torch.randn(*size, generator=g)  # noqa: E731
    w = 2 * draw(B, T, H, K) - 3
    if not raw:
        w = -w.exp() if decay is None else torch.full_like(w, decay)
        w = w.masked_fill(torch.rand(w.shape, generator=g) > 0.98, -float("inf"))
    r, v, o, do = (draw(B, T, H, n) for n in (K, V, V, V))
    E, after = draw(B, H, K, V), draw(B, H, K, V)
    grads = draw(B, T, H, K), draw(B, T, H, K)
    return [x.to(DEVICE, dtype) for x in (r, v, w, o, do, *grads)] + [
        E.to(DEVICE),
        after.to(DEVICE),
    ]


CASES = [
    (70, 8, 8, torch.float32, None, False, 1.0),
    (130, 20, 70, torch.float32, None, True, 0.5),
    (1100, 8, 8, torch.float32, 0.0, False, 1.0),  # more than one program's chunks
    (100, 70, 20, torch.float32, -0.01, False, 1.0),
    (90, 16, 16, torch.float16, None, False, 1.0),
    (90, 16, 16, torch.bfloat16, None, True, 1.0),
]


@pytest.mark.parametrize("T, K, V, dtype, decay, raw, scale", CASES)
def test_kernels_make_the_same_sums_as_torch(T, K, V, dtype, decay, raw, scale):
    r, v, w, o, do, dr, dw, E, after = problem(T, K, V, dtype, decay, raw)
    found = []
    for kernels in (False, True):
        inputs = [x if kernels else x.double() for x in (r, r, v, w, r[0, 0])]
        carry = Carry.__new__(Carry)
        carry.begin(ParallelCall(scale=scale, raw_decay=raw), inputs, T - 3, kernels)
        given = [x.clone() if kernels else x.double() for x in (o, do, dr, dw, E, after)]
        o1, do1, dr1, dw1, E1, after1 = given
        o1 = carry.correct(o1, E1)
        dE = carry.entry_gradient(do1, E1)
        carry.add_gradients([dr1, None, None, dw1, None], do1, E1, after1)
        found.append([o1, dE, dr1, dw1, carry.across()])
    for name, expected, got in zip(("o", "dE", "dr", "dw", "A"), *found, strict=True):
        error = float((expected - got.double()).norm() / expected.norm().clamp(min=1e-30))
        assert error < LIMITS[dtype], name


def test_a_chunk_that_nothing_reaches_is_left_alone():
    r, v, w, o, do, dr, dw, E, after = problem(200, 8, 8, torch.float32, -2.0, False)
    carry = Carry.__new__(Carry)
    carry.begin(ParallelCall(), (r, r, v, w, r[0, 0]), 200, True)
    marked = torch.full_like(o, 7.0)
    carry.correct(marked, E)
    C = correction.chunk_for(8)
    assert not (marked[:, :C] == 7).all() and (marked[:, C:] == 7).all()  # exp(-2 · 64) < 2^-64


@pytest.fixture
def deterministic(monkeypatch):
    """On a GPU torch refuses sums of its own then; on a CPU they are taken away."""
    if DEVICE == "cpu":
        monkeypatch.setattr(rwkv6, "running_sums", torch.Tensor.cumsum)
        monkeypatch.setattr(torch.Tensor, "cumsum", None)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(True, warn_only=True)  # as conftest.py has it


@pytest.mark.parametrize("kernels", [False, True])
def test_nothing_of_it_is_refused_where_torch_is_deterministic(kernels, deterministic):
    r, v, w, o, do, dr, dw, E, after = problem(70, 8, 8, torch.float32, None, False)
    carry = Carry.__new__(Carry)
    carry.begin(ParallelCall(), (r, r, v, w, r[0, 0]), 70, kernels)
    carry.correct(o, E)
    carry.entry_gradient(do, E)
    carry.add_gradients([dr, None, None, dw, None], do, E, after)
