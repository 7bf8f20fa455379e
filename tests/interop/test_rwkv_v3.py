"""`TimeX.apply` as the models of RWKV-v2 and v3 call it."""

import pytest
import torch

from rwkv_lessons.inputs import timex_inputs
from rwkv_lessons.interop.rwkv_v3 import TimeX
from rwkv_lessons.timex import timex_fft, timex_reference


def mixed(w, k, v, time_x):
    """A layer's two sums and their quotient."""
    B, C, T = k.shape
    return time_x(w, k * v, B, C, T, 0) / time_x(w, k, B, C, T, 1e-8)


def make(largest=0.0):
    w, k = timex_inputs(2, 4, 90)
    k[..., 60] *= torch.tensor(largest).exp()
    return w, k, torch.randn_like(k)


@pytest.mark.parametrize("largest", [0.0, 58.0], ids=["of one size", "one of 1e25"])
def test_a_layer_gets_its_quotient_whatever_the_range_of_k(largest):
    w, k, v = make(largest)
    want = mixed(*(x.double() for x in (w, k, v)), lambda w, k, *s: timex_reference(w, k, s[-1]))
    got = mixed(w, k, v, TimeX.apply)
    assert (got - want).norm() <= 1e-5 * want.norm()


def test_spectra_would_not():
    """Why they are not used: the largest number of a row is what rounds all of it."""
    w, k, v = make(58.0)
    want = mixed(w, k, v, TimeX.apply)
    got = mixed(w, k, v, lambda w, k, *s: timex_fft(w, k, s[-1]))
    assert not (got - want)[..., :60].norm() <= 0.1 * want[..., :60].norm()


def test_gradients_come_back_and_sizes_are_held_against_k():
    w, k, _ = make()
    leaves = w.requires_grad_(), k.requires_grad_()
    assert all(
        x.shape == y.shape
        for x, y in zip(
            torch.autograd.grad(TimeX.apply(*leaves, 2, 4, 90, 0).sum(), leaves),
            leaves,
            strict=True,
        )
    )
    with pytest.raises(ValueError, match=r"k must be \[B, C, T\] = \[2, 4, 91\], got"):
        TimeX.apply(w, k, 2, 4, 91, 0)
