"""Operations compute in their own precision, and second gradients are right or raise."""

import pytest
import torch
from support.mla_problem import problem
from support.wkv6_cases import make
from support.wkv7_cases import make as make_7

from rwkv_lessons.mla import mla, mla_absorbed, mla_prefill, mla_reference
from rwkv_lessons.mla.prefill.prefill import expand
from rwkv_lessons.runtime.precision import product
from rwkv_lessons.timex import timex, timex_fft, timex_reference
from rwkv_lessons.wkv5 import wkv5, wkv5_chunked, wkv5_reference
from rwkv_lessons.wkv6 import wkv6, wkv6_doubling, wkv6_reference, wkv6_step
from rwkv_lessons.wkv7 import wkv7, wkv7_reference, wkv7_wy

WKV = [wkv5, wkv5_chunked, wkv5_reference, wkv6, wkv6_doubling, wkv6_reference]
WKV += [wkv7, wkv7_wy, wkv7_reference]
TIMEX = [timex, timex_fft, timex_reference]
MLA = [mla, mla_absorbed, mla_prefill, mla_reference]


def results_of(operation, leaves, options):
    results = operation(*leaves, **options)
    return [results] if isinstance(results, torch.Tensor) else results


def with_gradients(operation, tensors, options):
    leaves = [x.detach().requires_grad_() for x in tensors]
    results = results_of(operation, leaves, options)
    return *results, *torch.autograd.grad(sum(x.float().sum() for x in results), leaves)


def time_mixing(operation, T=9):
    if operation.__name__.startswith("wkv7"):
        return make_7(1, T, 2, 8, 8, dtype=torch.float32)
    x = make(1, T, 2, 8, 8, dtype=torch.float32)
    return [*x[:3], x[3][0, 0], *x[4:]] if operation.__name__.startswith("wkv5") else x


@pytest.mark.parametrize("in_backward", [False, True])
@pytest.mark.parametrize("operation", [*WKV, *MLA, *TIMEX], ids=lambda f: f.__name__)
def test_autocast_changes_nothing(operation, in_backward):
    if operation in TIMEX:
        tensors, options = [torch.randn(3, 40), torch.randn(2, 3, 40)], {}
    elif operation in WKV:
        tensors, options = time_mixing(operation), {}
    else:
        tensors, options = problem(2, 2, 3, 40, dtype=torch.float32, lengths=[40, 33])
        tensors = [x.nan_to_num() for x in tensors]
    expected = with_gradients(operation, tensors, options)
    leaves = [x.detach().requires_grad_() for x in tensors]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16  # it is on
        results = results_of(operation, leaves, options)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=in_backward):
        gradients = torch.autograd.grad(sum(x.float().sum() for x in results), leaves)
    found = *results, *gradients
    for x, y in zip(found, expected, strict=True):
        assert x.dtype == y.dtype and torch.equal(x, y)


@pytest.mark.parametrize("operation", [wkv6_reference, wkv7_wy, mla_absorbed])
def test_autocast_changes_nothing_in_what_torch_compiles(operation):
    """A compiled backward pass is traced under the forward pass's autocast, and runs under none."""
    tensors, options = problem(1, 1, 2, 5, R=8, P=4, K=4, V=4, dtype=torch.float32)
    if operation is not mla_absorbed:
        tensors, options = time_mixing(operation, T=2), {}

    def loss(*leaves):
        return sum(x.square().sum() for x in results_of(operation, leaves, options))

    leaves = [x.detach().requires_grad_() for x in tensors]
    expected = torch.autograd.grad(loss(*leaves), leaves)
    torch._dynamo.reset()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)(*leaves)
        found = torch.autograd.grad(compiled, leaves)
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y)  # sums in another order; bfloat16 is wrong by 1e-2


def test_autocast_in_backward_does_not_round_keys_and_values():
    """Those that the kernels of prefill attend to are made, and have their gradients, in torch."""
    latent, w_k, w_v = torch.randn(2, 5, 8), torch.randn(3, 4, 8), torch.randn(3, 6, 8)
    found = []
    for enabled in (False, True):
        leaves = [x.clone().requires_grad_() for x in (latent, w_k, w_v)]
        k, v = expand(*leaves)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            found.append(torch.autograd.grad(k.square().sum() + v.sum(), leaves))
    assert all(map(torch.equal, *found))


def test_second_gradients_are_outside_of_autocast_too():
    x, found = make_7(1, 5, 1, 4, 4, dtype=torch.float32), []
    for enabled in (False, True):
        leaves = [y.clone().requires_grad_() for y in x]
        (dr,) = torch.autograd.grad(wkv7_wy(*leaves)[0].sum(), leaves[0], create_graph=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            found.append(torch.autograd.grad(dr.square().sum(), leaves[2:]))
    assert all(map(torch.equal, *found))


def test_a_product_broadcasts_and_has_gradients_of_every_kind():
    x, y = torch.randn(2, 1, 3, 4).double(), torch.randn(5, 4, 2).double()
    leaves = x.requires_grad_(), y.requires_grad_()
    assert torch.autograd.gradcheck(product, leaves, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(product, leaves, check_fwd_over_rev=True)


@pytest.mark.gpu
def test_autocast_in_backward_changes_nothing_on_a_gpu():
    """Through kernels; mla's prefill makes keys and values in torch."""
    for operation, tensors, options in (
        (wkv6, make(2, 200, 2, 64, 64, -0.1, torch.float32, device="cuda"), {}),
        (wkv7, make_7(2, 200, 2, 64, 64, -0.1, torch.float32, device="cuda"), {}),
        (mla, *problem(2, 200, 4, 300, dtype=torch.float32, device="cuda")),
        (timex, [torch.randn(3, 40, device="cuda"), torch.randn(2, 3, 40, device="cuda")], {}),
    ):
        found = []
        for enabled in (False, True):
            leaves = [x.detach().requires_grad_() for x in tensors]
            loss = sum(x.float().sum() for x in results_of(operation, leaves, options))
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=enabled):
                found.append(torch.autograd.grad(loss, leaves))
        assert all(map(torch.equal, *found)), operation.__name__


@pytest.mark.parametrize("operation", [wkv5_chunked, wkv6_doubling, mla_absorbed])
def test_second_gradients_in_torch_are_right(operation):
    if operation is mla_absorbed:
        tensors, options = problem(1, 2, 1, 3, R=2, P=2, K=2, V=2)
    else:
        x = make(1, 3, 1, 2, 2)
        tensors, options = ([*x[:3], x[3][0, 0], *x[4:]] if operation is wkv5_chunked else x), {}
    leaves = [x.detach().requires_grad_() for x in tensors]
    assert torch.autograd.gradgradcheck(lambda *x: operation(*x, **options)[0], leaves)


def on_meta(*shapes):
    return [torch.empty(shape, device="meta", requires_grad=True) for shape in shapes]


B, T, H, N = 1, 5, 2, 8
TOKENS, STATE = (B, T, H, N), (B, H, N, N)


def operators():
    """(name, a call of an operator, tensors without memory: shapes are all that it needs)."""
    ops = torch.ops.rwkv_lessons
    pytest.importorskip("numba_cuda")
    pytest.importorskip("triton")
    for name in ("wkv5_cuda", "wkv6_cuda", "wkv6_recurrent", "wkv6_chunked"):
        getattr(__import__(f"rwkv_lessons.{name[:4]}", fromlist=["_"]), name)  # defines it
    tokens = on_meta(*[TOKENS] * 3)
    yield "wkv5", ops.wkv5_forward, [*tokens, *on_meta((H, N), (H, N), STATE)]
    given = [*tokens, *on_meta(TOKENS, (H, N), STATE)]
    yield "wkv6 cuda", ops.wkv6_forward, given
    yield "wkv6 recurrent", lambda *x: ops.wkv6_recurrent_forward(*x, None, 1.0, False, True), given
    yield "wkv6 chunked", lambda *x: ops.wkv6_chunked_forward(*x, None, 1.0, False, True), given
    q, k = (B, T, H, N), (B, H, T, N)
    given = on_meta(q, (B, T, H, 4), k, (B, T, 4), k)
    yield "mla", lambda *x: ops.mla_attend(*x, 1.0, None, None), given


def test_second_gradients_of_kernels_raise():
    """torch would take the gradients for constants, and those of them for zeros."""
    found = []
    for name, operator, tensors in operators():
        o = operator(*tensors)[0]
        gradients = torch.autograd.grad(o.sum(), tensors, create_graph=True, materialize_grads=True)
        with pytest.raises(RuntimeError, match="second gradients are those of the methods in tor"):
            torch.autograd.grad(gradients[0].sum(), tensors[1], allow_unused=True)
        found.append(name)
    assert len(found) == 5


@pytest.mark.gpu
def test_second_gradients_raise_on_a_gpu():
    for T in (3, 200):
        x = [y.requires_grad_() for y in make(1, T, 2, 64, 64, dtype=torch.float32, device="cuda")]
        (dr,) = torch.autograd.grad(wkv6(*x)[0].sum(), x[0], create_graph=True)
        with pytest.raises(RuntimeError, match="second gradients"):
            torch.autograd.grad(dr.sum(), x[1])


@pytest.mark.gpu
def test_autocast_changes_nothing_on_a_gpu():
    tensors, options = problem(2, 2, 3, 40, dtype=torch.float32, device="cuda")
    for many in (False, True):
        given = [x.repeat(1, 60, 1, 1) if many and x.ndim == 4 else x for x in tensors]
        expected = mla(*given, **options)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            found = mla(*given, **options)
        assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("wide", ["r", "w", "u"])
def test_a_step_with_any_float64_computes_in_it(wide, monkeypatch):
    """The operator on a GPU, where a kernel would compute in float32."""
    from rwkv_lessons.wkv6 import step

    monkeypatch.setattr(step.STEP, "run_forward", lambda: pytest.fail("a kernel was asked for"))
    real = torch.float64 if wide == "r" else torch.float32
    x = dict(zip("rkvwu", make(1, 1, 2, 4, 4, dtype=real)[:5], strict=True))
    x[wide] = x[wide].double()
    state = torch.randn(1, 2, 4, 4, dtype=real)
    want, s1 = wkv6_reference(*x.values(), state)
    assert torch.equal(step.STEP.on_gpu(*x.values(), state, 1.0, False), want)
    assert torch.equal(state, s1)
    assert wkv6_step(*x.values(), state).dtype == real
