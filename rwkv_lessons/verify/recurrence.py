"""WKV-5, WKV-6 and its single step: inputs, what a method makes of them, and float64.

Heads do not know of each other, so float64 takes some heads at a time: large shapes fit anywhere.
"""

import zlib

import torch

from . import limits
from .judge import with_training

PART = 2**16  # tokens times heads that float64 takes at once: 3 GB with all gradients
HEAD_AXIS = {"du": 0, "s1": 1, "ds0": 1}
HEAD_AXIS |= dict.fromkeys(("o", "dr", "dw", "dk", "dv", "da", "db"), 2)
LEAVES = ("r", "k", "v", "w", "u", "s0")


class Recurrence:
    """One call. `results()` by the method, `expected()` in float64, heads by heads."""

    leaves = LEAVES

    def __init__(self, case, device):
        g, B, T, sequences = self._begin(case, device, "raw_decay")
        H, K, V = case.sizes[2:]
        dtype = getattr(torch, case.dtype)
        float32 = torch.float64 if dtype == torch.float64 else torch.float32

        def normal(*sizes):
            return torch.randn(*sizes, generator=g, device=device)

        r, k, v, do = (normal(B, T, H, n).to(dtype) for n in (K, K, V, V))
        w = decays(case.decay, (B, T, H, K), g)
        if case.operation == "wkv5":  # of one token for all; w is a parameter, float32
            w = w[0, -1].to(float32)
        else:
            w = raw(w) if self.options.get("raw_decay") else w
            w = w.to(getattr(torch, self.options.get("w_dtype", case.dtype)))
        k = (k.float() / K**0.5).to(dtype)
        u, s0, ds1 = normal(H, K), normal(sequences, H, K, V), normal(sequences, H, K, V)
        state = self.options.get("state")
        self.inputs = (r, k, v, w, u.to(float32), s0.to(float32) if state else None)
        self.do, self.ds1 = do, ds1.to(float32) if state else None

    def _begin(self, case, device, decay):
        """Returns a generator of the case's own, B, T, and how many sequences these hold.

        Args:
            decay: the option that says what w is.
        """
        self.case, self.options = case, dict(case.options)
        seed = zlib.crc32(f"{case.operation} {case.sizes} {case.option} {case.decay}".encode())
        g = torch.Generator(device).manual_seed(seed)
        B, T = case.sizes[:2]
        self.call = {x: self.options[x] for x in ("scale", decay) if x in self.options}
        if not self.options.get("packed"):
            return g, B, T, B
        B, T = 1, B * T
        ends = sorted(min(T, n) for n in (0, 1, 1, T * 2 // 5, T * 3 // 4, T))
        self.call["cu_seqlens"] = torch.tensor(ends, dtype=torch.int32, device=device)
        return g, B, T, len(ends) - 1

    def results(self):
        """Name → tensor; what the forward pass gives once more where it keeps for gradients."""
        package = self.case.package
        if self.case.operation.endswith("_step"):
            return self._steps(getattr(package, self.case.operation))
        methods = package.METHODS
        method = methods.get(self.case.method) or getattr(package, self.case.method)
        with torch.no_grad():
            o, s1 = method(*self.inputs, **self.call)
        tensors = {"o": o, "s1": s1}
        if self.case.gradients:
            args = (self.inputs, self.call, self.do, self.ds1)
            in_training = _with_gradients(method, self.leaves, *args)
            tensors = with_training(tensors, in_training)
        return tensors

    def _steps(self, step):
        *inputs, s0 = self.inputs
        state, outputs = s0.clone(), []
        for t in range(inputs[0].shape[1]):
            token = [x[:, t : t + 1] if x.ndim == 4 else x for x in inputs]
            outputs.append(step(*token, state, **self.call))
        return {"o": torch.cat(outputs, 1), "s1": state}

    def expected(self):
        """(first head, name → float64 of some heads), part after part."""
        method = self._in_float64()
        B, T, H, _ = self.inputs[0].shape
        few = max(1, PART // (B * T))
        for h in range(0, H, few):
            heads = slice(h, h + few)
            inputs = [None if x is None else x.double() for x in self._of(heads)]
            do = self.do[:, :, heads].double()
            ds1 = None if self.ds1 is None else self.ds1[:, heads].double()
            if self.case.gradients:
                yield h, _with_gradients(method, self.leaves, inputs, self.call, do, ds1)
            else:
                o, s1 = method(*inputs, **self.call)
                yield h, {"o": o, "s1": s1}

    def _of(self, heads):
        r, k, v, w, u, s0 = self.inputs
        w = w[heads] if w.ndim == 2 else w[:, :, heads]
        s0 = None if s0 is None else s0[:, heads]
        return r[:, :, heads], k[:, :, heads], v[:, :, heads], w, u[heads], s0

    def _in_float64(self):
        """The recurrence itself on a CPU and for float64; matrix products for more tokens."""
        methods = self.case.package.METHODS
        few = self.case.sizes[1] <= 300 and not self.inputs[0].is_cuda
        if few or self.case.dtype == "float64":
            return methods["reference"]
        return methods["chunked" if self.case.operation == "wkv5" else "doubling"]

    def errors(self, name, result, part, want):
        """Of each sequence and head ‖got − want‖ / ‖want‖, and the numbers that one error is of."""
        axis = 0 if self.case.operation == "wkv5" and name == "dw" else HEAD_AXIS[name]
        result = result.narrow(axis, part, want.shape[axis]).double()
        difference, want = (_by_head(x, axis) for x in (result - want, want))
        return limits.relative(difference, want), want.shape[-1]

    def limit(self, name):
        return limits.limit(limits.WKV, self.case.dtype, name)


def _by_head(x, axis):
    """[heads, numbers], or [B, heads, numbers]."""
    return x.flatten(1) if axis == 0 else x.movedim(axis, 1).flatten(2)


def _with_gradients(method, names, inputs, call, do, ds1):
    leaves = [None if x is None else x.detach().requires_grad_() for x in inputs]
    with torch.enable_grad():
        o, s1 = method(*leaves, **call)
    results, grad_outputs = ((o,), (do,)) if ds1 is None else ((o, s1), (do, ds1))
    named_leaves = {f"d{name}": x for name, x in zip(names, leaves, strict=True) if x is not None}
    gradients = torch.autograd.grad(
        results, list(named_leaves.values()), grad_outputs, materialize_grads=True
    )
    return {"o": o.detach(), "s1": s1.detach()} | dict(zip(named_leaves, gradients, strict=True))


def decays(kind, shape, g):
    """Log decays `[B, T, H, K]`, float32.

    tame: as a model starts, memories of 1 to 1,000 tokens. strong: the same up to a fifth of T,
    then every way of forgetting beside each other: keys that always forget all, a run of tokens
    where all keys nearly do, tokens that end a document, keys of any rate down to -20, and some 0.
    """
    B, T, H, K = shape
    noise = torch.randn(shape, generator=g, device=g.device)
    w = -torch.exp(noise - 3).clamp(1e-3, 1.0)
    if kind == "tame":
        return w
    chance = torch.rand(shape, generator=g, device=g.device)
    t, h, i = (torch.arange(n, device=g.device) for n in (T, H, K))
    late = (t >= T // 5)[:, None, None]
    w = torch.where(late & (i % 4 == 1), -20 * chance, w)
    run = (t >= T // 3) & (t < T // 3 + 40)
    w = torch.where(run[:, None, None] & (h % 2 == 0)[:, None], -8.0, w)
    w = torch.where(late & (i % 8 == 3) & (chance > 0.3), -20.0, w)
    w = torch.where(late & (chance[..., :1] > 0.98), -torch.inf, w)
    w = torch.where(chance < 0.02, 0.0, w)
    return torch.where(i % 16 == 5, -torch.inf, w)


def raw(w):
    """x of w = -exp(x): inf where w is -inf, -inf where it is 0."""
    return torch.log(-w)
