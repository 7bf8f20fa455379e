"""RWKV-7's part: a run of tokens multiplies the state before it by a matrix.

A token maps S to (diag(exp(w)) + bᵀ a) S + kᵀ v. So A is what the operation itself makes of the
identity as its state, with v = 0, and its outputs are the rows r[t] A[..t] that meet an entry
state. Runs of tokens are taken until nothing is left of A. The kernels of states_first.py compute A
themselves; this is for the other methods.
"""

import torch

from ..runtime.precision import sum_dtype
from ..wkv7 import wkv7
from ..wkv7.arguments import check_call
from .rwkv6 import KEPT_BITS
from .saved import SavedStep

OPERATION, CHECK = wkv7, check_call
INPUTS, V = ("r", "w", "k", "v", "a", "b"), 3  # the arguments before s0, and which of them is v
BESIDE = True  # as long as a main pass of as many tokens: on a stream beside it
FIRST_RUN = 4096  # tokens; each next run is as long as all before it


def columns(B):
    """Columns of A beside the states B `[…, K, V]`."""
    return B.shape[-2]


class Carry:
    """The matrices since a rank's first token, as far as anything is left of them."""

    def __init__(self, call, inputs, tokens, saved=None):
        """Computes them; `tokens` are those of the sequence that enters.

        Args:
            saved: what a backward pass will need goes there; None: there will be none.
        """
        r = inputs[0]
        B, _, H, K = r.shape
        self.real, self.tokens = sum_dtype(r.dtype), tokens
        least = 2.0 ** -KEPT_BITS.get(r.dtype, 32)
        state = torch.eye(K, dtype=self.real, device=r.device).expand(B, H, K, K)

        def read(r, w, a, b, before):
            k = torch.zeros_like(r)
            return call.operation(r, w, k, k, a, b, before, **call.options)

        learn = [saved is not None] * 5
        self.runs, self.reach, end, rows = [], 0, min(tokens, FIRST_RUN), []
        while True:
            r, w, _, _, a, b = (x[:, self.reach : end] for x in inputs)
            step = SavedStep(saved)
            reads, state = step.results(read, (r, w, a, b, state.contiguous()), learn)
            rows.append(reads)
            self.runs.append((self.reach, end, step))
            self.reach, end = end, min(tokens, 2 * end)
            if self.reach == tokens or bool((state.abs() < least).all()):
                break
        self.rows = torch.cat(rows, 1)
        self.state = state if self.reach == tokens else torch.zeros_like(state)

    def across(self):
        """The matrix of all its tokens, `[B, H, K, K]`."""
        return self.state

    def correct(self, o, E):
        """o, to which it adds in place what its tokens read of the entry state."""
        _products(o[:, : self.reach], self.rows, E.to(o.dtype), 1)
        return o

    def entry_gradient(self, do, E):
        """The gradient of the entry state through o."""
        pairs = zip(self.rows, do[:, : self.reach], strict=True)  # of one batch: no copies
        return torch.stack([_summed(x.permute(1, 2, 0), y.transpose(0, 1)) for x, y in pairs])

    def find_gradients(self, do, E, after):
        """What r, w, a and b change of the rows and of the matrix, for `add_gradients`.

        Args:
            after: the gradient of the state after the tokens of the sequence that enters,
                `[B, H, K, V]`.
        """
        E, dA = E.to(do.dtype), after.to(self.real) @ E.to(self.real).mT
        if self.reach < self.tokens:
            dA = torch.zeros_like(dA)
        self.of_runs = []
        for start, end, step in reversed(self.runs):
            d_rows = torch.empty_like(self.rows[:, start:end])
            _products(d_rows, do[:, start:end], E.mT, 0)
            *of_inputs, dA = step.gradients(d_rows, dA)
            self.of_runs.append((start, end, of_inputs))

    def add_gradients(self, gradients, do, E, after):
        """Adds to the gradients of r, w, k, v, a, b, in place; None where there is none."""
        for start, end, of_inputs in self.of_runs:
            for n, x in zip((0, 1, 4, 5), of_inputs, strict=True):
                if gradients[n] is not None:
                    gradients[n][:, start:end] += x


def _products(out, x, states, beta):
    """out = beta * out + x states, in place and rounded once; out and x are `[B, T, H, …]`.

    cuBLAS takes the heads of one batch as a batch of matrices where they are. Of several batches
    `matmul` would copy x, and then write products that another launch adds to out.
    """
    for out_b, x_b, state in zip(out, x, states, strict=True):
        out_b.transpose(0, 1).baddbmm_(x_b.transpose(0, 1), state, beta=beta)


def _summed(x, y):
    """x y, `[H, K, V]`, with sums and results in float32 (of float64 in float64)."""
    real = sum_dtype(x.dtype)
    if x.is_cuda and x.dtype != real:
        return torch.bmm(x, y, out_dtype=real)
    return x.to(real) @ y.to(real)
