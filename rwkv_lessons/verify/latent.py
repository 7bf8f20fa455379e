"""Latent attention: a ragged cache, in pages if asked for, with NaN in slots nobody may see."""

import zlib
from importlib import import_module

import torch

from . import limits
from .judge import with_training

OUTSIDE = 2147480000  # in a block table where no page is needed
NAMES = ("dq", "dq_rope", "dlatent", "dk_rope", "dw_k", "dw_v")


class Latent:
    """One call. `results()` by the method, `expected()` by the definition in float64."""

    def __init__(self, case, device):
        self.case, options = case, case.options
        seed = zlib.crc32(f"mla {case.sizes} {case.option}".encode())
        g = torch.Generator(device).manual_seed(seed)
        B, M, H, N, K, R, P, V = case.sizes
        dtype = getattr(torch, case.dtype)

        def normal(*sizes, size=1.0):
            return (size * torch.randn(*sizes, generator=g, device=device)).to(dtype)

        q, q_rope, cache = normal(B, M, H, K), normal(B, M, H, P), normal(B, N, R + P)
        weight = normal(H, K + V, R, size=R**-0.5)  # both parts of one, as models keep them
        rows = torch.arange(B, device=device) % 3  # as many kinds of sequences
        end = torch.tensor([N, min(M + 1, N), N // 2], device=device)[rows]
        start = torch.tensor([0, 3, max(N // 2 - M, 0)], device=device)[rows]
        self.call = {"scale": (K + P) ** -0.5}
        n, empty = torch.arange(N, device=device), torch.zeros(B, N, dtype=bool, device=device)
        if "lengths" in options or "pages" in options:
            self.call["lengths"] = end
            empty |= n >= end[:, None]
        if "left_padding" in options:
            self.call["left_padding"] = start
            empty |= n < start[:, None]
        cache = cache.masked_fill(empty[..., None], torch.nan)
        if "pages" in options:
            cache, self.call["block_table"] = _in_pages(cache, end, options["pages"], g)
        latent, k_rope = cache[..., :R], cache[..., R:]
        if "fp8" in options:
            latent, self.call["scales"] = _in_fp8(latent)
        if "listed" in options:
            sizes = (B, M, options["listed"])
            listed = torch.randint(-2, N + 2, sizes, generator=g, device=device, dtype=torch.int32)
            self.call["tokens"] = listed
        self.inputs = (q, q_rope, latent, k_rope, weight[:, :K], weight[:, K:])
        self.do, self.dlse = normal(B, M, H, V), normal(B, M, H).float()

    def results(self):
        package = import_module("rwkv_lessons.mla")
        method = package.METHODS.get(self.case.method) or getattr(package, self.case.method)
        with torch.no_grad():
            o, lse = method(*self.inputs, **self.call)
        tensors = {"o": o, "lse": lse}
        if self.case.gradients:
            in_training = self._with_gradients(method, self.inputs)
            tensors = with_training(tensors, in_training)
        return tensors

    def expected(self):
        method = import_module("rwkv_lessons.mla").METHODS["reference"]
        doubles = [x if x.itemsize == 1 else x.double() for x in self.inputs]
        if self.case.gradients:
            yield 0, self._with_gradients(method, doubles)
        else:  # one sequence at a time: all of their keys and values may not fit a GPU
            parts = [
                method(*self._sequence(b, doubles), **self._call(b)) for b in range(len(doubles[0]))
            ]
            yield 0, dict(zip(("o", "lse"), map(torch.cat, zip(*parts, strict=True)), strict=True))

    def _sequence(self, b, inputs):
        """`inputs` for one sequence alone, of pages all."""
        q, q_rope, *cache, w_k, w_v = inputs
        if "block_table" not in self.call:
            cache = [x[b : b + 1] for x in cache]
        return q[b : b + 1], q_rope[b : b + 1], *cache, w_k, w_v

    def _call(self, b):
        whole = ("scale", "scales") if "block_table" in self.call else ("scale",)
        return {k: x if k in whole else x[b : b + 1] for k, x in self.call.items()}

    def _with_gradients(self, method, inputs):
        leaves = [x.detach().requires_grad_() for x in inputs]
        with torch.enable_grad():
            o, lse = method(*leaves, **self.call)
            # Rows that see nothing have -inf, of which there is no gradient.
            finite_lse = torch.where(lse > -torch.inf, lse, 0)
            loss = (o.double() * self.do).sum() + (finite_lse.double() * self.dlse).sum()
            gradients = torch.autograd.grad(loss, leaves, materialize_grads=True)
        return {"o": o.detach(), "lse": lse.detach()} | dict(zip(NAMES, gradients, strict=True))

    def errors(self, name, result, part, want):
        """Of each sequence, or head of a weight, ‖got − want‖ / ‖want‖; of lse the largest."""
        result = result.double()
        if name == "lse":
            visible = want > -torch.inf
            if not torch.equal(result > -torch.inf, visible):
                return torch.tensor(torch.inf), 1
            off = (result - want)[visible].abs() / want[visible].abs().clamp_min(1)
            return off.max() if off.numel() else torch.zeros(()), want.numel()
        rows = want.flatten(1)
        return limits.relative((result - want).flatten(1), rows), rows.shape[1]

    def limit(self, name):
        return limits.limit(limits.MLA, self.case.dtype, name)


def _in_fp8(latent):
    """e4m3 values, and a scale for each 128 of a token, or for all; NaN stays."""
    R = latent.shape[-1]
    groups = latent.float().unflatten(-1, (-1, R if R % 128 else 128))
    scales = (groups.abs().amax(-1) / 448).clamp_min(1e-30)
    return (groups / scales[..., None]).to(torch.float8_e4m3fn).flatten(-2), scales


def _in_pages(cache, end, size, g):
    """The rows of a cache `[B, N, …]` in shuffled pages, three more than needed, and the table."""
    B, N, width = cache.shape
    count = -(-N // size)
    rows = cache.new_full((B, count * size, width), torch.nan)
    rows[:, :N] = cache
    order = torch.randperm(B * count + 3, generator=g, device=cache.device)[: B * count]
    pages = cache.new_full((B * count + 3, size, width), torch.nan)
    pages[order] = rows.view(B * count, size, width)
    unused = torch.arange(count, device=cache.device) * size >= end[:, None]
    return pages, order.view(B, count).masked_fill(unused, OUTSIDE).int()
