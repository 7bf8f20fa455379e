"""Running sums where torch refuses its own."""

import types

import torch

from rwkv_lessons.runtime import running_sums as module


def test_they_are_those_of_torch_also_of_infinite_decays(monkeypatch):
    x = torch.randn(2, 13, 3, dtype=torch.float64)
    x[0, 5, 1] = -torch.inf
    used = types.SimpleNamespace(cat=torch.cat, are_deterministic_algorithms_enabled=lambda: True)
    monkeypatch.setattr(module, "torch", used)
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda x: True))
    monkeypatch.setattr(torch.Tensor, "cumsum", None)
    got = [module.running_sums(x[:, :n]) for n in (1, 2, 13)]
    along_batch = module.running_sums(x, 0)
    monkeypatch.undo()
    torch.testing.assert_close(along_batch, x.cumsum(0))
    for n, sums in zip((1, 2, 13), got, strict=True):
        torch.testing.assert_close(sums, x[:, :n].cumsum(-2))  # float64: the order of additions
