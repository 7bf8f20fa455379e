"""What a call is given is checked once, whichever way it goes: for one token that is half of it."""

import pytest
import torch
from support.mla_problem import problem
from support.wkv6_cases import make

from rwkv_lessons import mla, wkv6
from rwkv_lessons.mla import arguments
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
    monkeypatch.setattr(options, "_right", {})
    monkeypatch.setattr(wkv6, "_methods", {})
    x = make(1, T, 2, 4, 4, dtype=torch.float32)
    (wkv6.METHODS | {"wkv6": wkv6.wkv6})[name](*x, scale=scale)
    assert len(calls) == 1
    (wkv6.METHODS | {"wkv6": wkv6.wkv6})[name](*x, scale=scale)
    assert len(calls) == 1  # of the same looks


def test_once_in_a_step(monkeypatch):
    calls = counted(monkeypatch, options, "check_arguments")
    monkeypatch.setattr(options, "_right", {})
    wkv6.wkv6_step(*make(1, 1, 2, 4, 4, dtype=torch.float32))
    assert len(calls) == 1


@pytest.mark.parametrize("M", [1, 100])
@pytest.mark.parametrize("name", [*mla.METHODS, "mla"])
def test_once_in_mla(name, M, monkeypatch):
    calls = counted(monkeypatch, arguments, "_check_kinds")
    tensors, which = problem(1, M, 2, 120, dtype=torch.float32)
    (mla.METHODS | {"mla": mla.mla})[name](*tensors, **which)
    assert len(calls) == 1
