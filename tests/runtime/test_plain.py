"""Tensors whose numbers are not at their address go through torch's dispatcher, whichever it is."""

import pytest
import torch
from torch.autograd import forward_ad

from rwkv_lessons.runtime import plain
from rwkv_lessons.runtime.operators import call
from rwkv_lessons.runtime.plain import launches_directly


class Wrapped(torch.Tensor):
    pass


def some():
    return [torch.randn(3) for _ in range(3)]


def test_ordinary_tensors_and_parameters_go_past_the_dispatcher():
    x = some()
    assert launches_directly(*x, None, torch.nn.Parameter(x[0]), x[1][1:], x[2].requires_grad_())


@pytest.mark.parametrize("n", range(3))
@pytest.mark.parametrize(
    "other",
    [
        lambda x: x.as_subclass(Wrapped),
        lambda x: torch.nn.Parameter(x.as_subclass(Wrapped)),
        lambda x: torch._subclasses.FakeTensorMode().from_tensor(x),
        torch._neg_view,
    ],
)
def test_one_that_is_not_ordinary_sends_all_to_the_dispatcher(other, n):
    x = some()
    x[n] = other(x[n])
    assert not launches_directly(*x)


def test_transforms_modes_tangents_and_traces_send_all_to_the_dispatcher():
    seen = []

    def look(x):
        seen.append(launches_directly(x))
        return x

    x = torch.randn(3, 3)
    torch.func.vmap(look)(x)
    torch.jit.trace(look, x, check_trace=False)
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        look(x)
    with forward_ad.dual_level():
        look(x)
    assert seen == [False] * 4 and launches_directly(x)


def test_with_an_unknown_torch_all_goes_to_the_dispatcher(monkeypatch):
    monkeypatch.setattr(plain, "KNOWN", False)
    assert not launches_directly(*some())


@pytest.fixture
def operator():
    library = torch.library.Library("rwkv_lessons_tests", "DEF")
    library.define("twice(Tensor x, Tensor? y) -> Tensor")
    library.impl("twice", lambda x, y: 2 * x, "CPU")
    name = "rwkv_lessons_tests::twice"
    torch.library.register_autograd(name, lambda ctx, g: (2 * g, None), lib=library)
    yield torch.ops.rwkv_lessons_tests.twice
    library._destroy()


def test_an_operator_refuses_tangents_that_would_get_lost(operator):
    x, t = some()[:2]
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, t)
        assert forward_ad.unpack_dual(operator(dual, None)).tangent is None  # as torch does it
        with pytest.raises(RuntimeError, match=r"twice.* has no forward-mode gradients"):
            call(operator, x, dual)
        assert call(operator, x, None).equal(2 * x)
    with pytest.raises(RuntimeError, match="has no forward-mode gradients"):
        torch.func.jvp(lambda x: call(operator, x, None), (x,), (t,))
    assert call(operator, x.requires_grad_(), None).requires_grad
