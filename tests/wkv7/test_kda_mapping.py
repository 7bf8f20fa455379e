"""The kernels that make WKV-7's inputs of Kimi's delta attention, against formulas in float64."""

import math

import pytest
import torch
from support.bfloat16_on_cpu import round_bfloat16
from support.wkv6_cases import HALF
from support.wkv7_cases import near

from rwkv_lessons.runtime.packages import TRITON

if not TRITON:
    pytest.skip("Triton is not installed", allow_module_level=True)

from rwkv_lessons.wkv7.kda.formulas import KDAForm  # noqa: E402
from rwkv_lessons.wkv7.kda.kernels import ELEMENTS, InTriton  # noqa: E402

# A sigmoid of -100 is 1 / (1 + inf).
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp2")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
NAMES = "r w k b a dq dk dg dbeta dA_log ddt_bias".split()
# ‖error‖ / ‖float64‖ of some operations in float32; measured: up to 1.5e-7 in the interpreter. A
# GPU's exp2 is right to 2⁻²², and x log2(e) is rounded for it: 5 · 2⁻²⁴ for a decay of exp(-5).
SINGLE = 1e-6


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    if DEVICE == "cpu":
        round_bfloat16(monkeypatch)


def make(B, T, H, K, dtype=torch.float32, g=None, one_decay=False):
    """q, k, g, beta; g from -1e-3 to -5, and some -inf."""
    q, k, rate = torch.randn(3, B, T, H, K)
    if g is None:
        g = -torch.exp(-7 + 8.6 * rate.sigmoid())
        g = (g.mean(-1, True) if one_decay else g).masked_fill(rate[..., :1] > 1.5, -math.inf)
    return [q.to(dtype), k.to(dtype), g, torch.rand(B, T, H), None, None]


def make_gated(B, T, H, K, dtype=torch.float32, of_g=None):
    """Inputs of a layer: g and beta are projections; A_log, dt_bias are those of its first step."""
    q, k, _, beta, *_ = make(B, T, H, K, dtype)
    g = (3 * torch.randn(B, T, H, K)).to(of_g or dtype)
    step = torch.exp(math.log(0.001) + math.log(100) * torch.rand(H, K))
    return [q, k, g, torch.randn_like(beta), torch.rand(H).log() + 2, step.expm1().log()]


def formulas(q, k, g, beta, A_log, dt_bias, form, of_w):
    """r, w, βk twice and a, of a log decay that counts as rounded to the dtype `of_w`."""
    if form.norm:
        q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    if form.rate:
        beta = form.rate / (1 + torch.exp(-beta))
    if form.gate:
        x = g if dt_bias is None else g + dt_bias
        size = 1.0 if A_log is None else A_log.exp()[:, None]
        g = (
            -size * torch.log1p(x.exp())
            if form.gate == "softplus"
            else form.lower_bound / (1 + torch.exp(-size * x))
        )
    g = g + (g.detach().to(of_w).double() - g.detach()).nan_to_num(0.0)
    written = beta[..., None] * k
    return q, g.expand(k.shape), written, 1 * written, -g.exp() * k


def compare(form, x, limit=SINGLE):
    """Holds what the kernels make to what they should, values and all gradients."""
    leaves = [None if y is None else y.to(DEVICE).requires_grad_() for y in x]
    got = InTriton.apply(*leaves, form)
    exact = [None if y is None else y.double().requires_grad_() for y in x]
    want = formulas(*exact, form, got[1].dtype)
    used = [n for n in range(5) if got[n] is not None]
    assert used == list(range(0 if form.norm else 1, 5))
    given = [torch.randn(want[n].shape).to(got[n].dtype) for n in used]
    learned = [n for n in range(0 if form.norm else 1, 6) if x[n] is not None]

    def gradients(results, inputs, given):
        results, inputs = [results[n] for n in used], [inputs[n] for n in learned]
        return results + list(torch.autograd.grad(results, inputs, given))

    got = gradients(got, leaves, [y.to(DEVICE) for y in given])
    want = gradients(want, exact, [y.double() for y in given])
    for n, (y, z) in enumerate(zip(got, want, strict=True)):
        assert torch.equal(y.cpu().isfinite(), z.isfinite())
        got[n], want[n] = (u.cpu().nan_to_num(0.0, 0.0, 0.0) for u in (y, z))
    near(
        got, want, limit + HALF[form.dtype], [NAMES[n] for n in (*used, *(5 + m for m in learned))]
    )


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("one_decay", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_and_gradients_are_those_of_the_formulas(dtype, one_decay, norm):
    rows = 2 * (ELEMENTS // 128) + 3
    for learns in (False, True):
        form = KDAForm(dtype, norm, learns=learns)
        compare(form, make(1, rows, 1, 100, dtype, one_decay=one_decay))


@pytest.mark.parametrize("gate, lower_bound", [("softplus", 0.0), ("sigmoid", -5.0)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_that_a_layer_leaves_to_the_call(dtype, gate, lower_bound):
    # The addends of dA_log have both signs.
    compare(KDAForm(dtype, True, gate, lower_bound, 2), make_gated(2, 7, 3, 64, dtype), 4 * SINGLE)


def test_parameters_of_a_gate_may_be_missing():
    x = make_gated(1, 9, 2, 16)
    compare(KDAForm(torch.float32, False, "sigmoid", -3.0, 1), [*x[:4], None, None])
    compare(KDAForm(torch.float32, False, "softplus"), [*x[:5], None])


def test_the_softplus_of_numbers_far_from_0():
    """Of -30 it is exp(-30); of 30 it is 30."""
    x = make_gated(1, 61, 1, 8)
    x[2] = torch.arange(-30.0, 31.0)[None, :, None, None].expand(1, 61, 1, 8)
    form = KDAForm(torch.float32, gate="softplus")
    compare(form, [*x[:4], torch.zeros(1), None])
    given = [y.to(DEVICE) for y in (*x[:4], torch.zeros(1))]
    w = InTriton.apply(*given, None, form)[1]
    want = -torch.log1p(x[2].double().exp())
    assert ((w.cpu() - want) / want).abs().max() < 32 * 2**-24  # x log2(e) is rounded


@pytest.mark.parametrize("shape", [(2, 3, 2, 1), (1, 1, 1, 256), (1, 5, 3, 64), (3, 40, 2, 33)])
def test_any_size(shape):
    norm = shape[3] > 1  # one element of length 1 has no gradient
    compare(KDAForm(torch.float32, norm), make(*shape), 2 * SINGLE)
    if norm:
        compare(KDAForm(torch.float32, True, "softplus", 0.0, 1), make_gated(*shape), 2 * SINGLE)


def test_w_is_in_bfloat16_where_fused_is_fast():
    """Among bfloat16 alone, and with gradients only of heads of 128."""
    for dtype, of_g, K, learns, of_w in (
        (torch.bfloat16, torch.float32, 64, False, torch.bfloat16),
        (torch.bfloat16, torch.float16, 128, False, torch.bfloat16),
        (torch.bfloat16, torch.float32, 64, True, torch.float32),
        (torch.bfloat16, torch.bfloat16, 64, True, torch.float32),
        (torch.bfloat16, torch.float32, 128, True, torch.bfloat16),
        (torch.bfloat16, torch.bfloat16, 128, True, torch.bfloat16),
        (torch.float16, torch.float32, 128, False, torch.float32),
        (torch.float32, torch.bfloat16, 128, True, torch.bfloat16),
    ):
        q, k, g, beta = (y.to(DEVICE) for y in make(1, 3, 2, K, dtype)[:4])
        form = KDAForm(dtype, True, learns=learns)
        r, w, k, b, a = InTriton.apply(q, k, g.to(of_g), beta, None, None, form)
        assert w.dtype == of_w
        assert {y.dtype for y in (r, k, b, a)} == {dtype}
        assert k.data_ptr() == b.data_ptr()


def test_inputs_need_not_be_contiguous():
    form = KDAForm(torch.float32, True)
    x = [y.to(DEVICE) for y in make(2, 6, 3, 8)[:4]]
    turned = [y.transpose(0, 1).contiguous().transpose(0, 1) for y in x]
    results = (InTriton.apply(*y, None, None, form) for y in (x, turned))
    assert all(map(torch.equal, *results))


def test_second_gradients_are_refused():
    x = [y.to(DEVICE).requires_grad_() for y in make(1, 3, 1, 4)[:4]]
    results = InTriton.apply(*x, None, None, KDAForm(torch.float32))
    loss = sum(y.square().sum() for y in results[1:])
    first = torch.autograd.grad(loss, x[1:], create_graph=True)
    with pytest.raises(RuntimeError, match="has no second gradients in Triton"):
        torch.autograd.grad(first[0].sum(), x[1:])
