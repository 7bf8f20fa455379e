"""What a call is given is checked once, whichever way it goes: for one token that is half of it."""

import pytest
import torch
from support.mla_problem import problem
from support.wkv6_cases import make

from rwkv_lessons import mla, wkv6
from rwkv_lessons.mla import arguments
from rwkv_lessons.runtime.arguments import DTYPES, sizes_if_right
from rwkv_lessons.wkv6 import options


def counted(monkeypatch, module, name):
    calls, check = [], getattr(module, name)
    monkeypatch.setattr(module, name, lambda *given: calls.append(1) or check(*given))
    return calls


@pytest.mark.parametrize("T", [1, 5])
@pytest.mark.parametrize("scale", [1.0, 0.5])
@pytest.mark.parametrize("name", [*(x for x in wkv6.METHODS if x != "cuda"), "wkv6"])
def test_once_in_wkv6(name, scale, T, monkeypatch):
    calls = counted(monkeypatch, options, "check_arguments")
    monkeypatch.setattr(wkv6, "_methods", {})
    x = make(1, T, 2, 4, 4, dtype=torch.float32)
    (wkv6.METHODS | {"wkv6": wkv6.wkv6})[name](*x, scale=scale)
    assert len(calls) == 1
    (wkv6.METHODS | {"wkv6": wkv6.wkv6})[name](*x, scale=scale)
    assert len(calls) == (1 if name == "wkv6" else 2)  # wkv6 knows a call like one before


FAULTS = {
    "no tensor": lambda x: x.tolist(),
    "another dtype": torch.Tensor.int,
    "another device": lambda x: x.to("meta"),
    "sparse": torch.Tensor.to_sparse,
    "no elements": lambda x: x[:0],
    "of 16 bits": torch.Tensor.half,
    "of another shape": lambda x: x[:, :1],
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("place", range(4), ids=["r", "v", "alike", "others"])
def test_what_the_quick_check_lets_pass_is_right(place, fault):
    """But for the shape of the others, which may be of 16 bits."""
    tensors = [torch.ones(2, 3, 2, n) for n in (4, 5, 4, 7)]

    def sizes():
        r, v, alike, other = tensors
        return sizes_if_right(r, v, (alike,), (other,), DTYPES)

    assert sizes() == (2, 3, 2, 4, 5)
    tensors[place] = FAULTS[fault](tensors[place])
    passes = place == 3 and fault in ("no elements", "of 16 bits", "of another shape")
    assert (sizes() is None) != passes


@pytest.mark.parametrize("x", [torch.ones(2, 0, 2, 4), torch.ones(2, 3, 2, 4).int()])
def test_no_tokens_and_whole_numbers_do_not_pass_where_all_are_alike(x):
    assert sizes_if_right(x, x, (x,), (), DTYPES) is None


def test_once_in_a_step(monkeypatch):
    calls = counted(monkeypatch, options, "check_arguments")
    wkv6.wkv6_step(*make(1, 1, 2, 4, 4, dtype=torch.float32))
    assert len(calls) == 1


@pytest.mark.parametrize("M", [1, 100])
@pytest.mark.parametrize("name", [*mla.METHODS, "mla"])
def test_once_in_mla(name, M, monkeypatch):
    calls = counted(monkeypatch, arguments, "_check_kinds")
    tensors, which = problem(1, M, 2, 120, dtype=torch.float32)
    (mla.METHODS | {"mla": mla.mla})[name](*tensors, **which)
    assert len(calls) == 1
