"""Errors of one RWKV-7 block in training: python -m rwkv_lessons.verify.block

The time mixing of a middle layer, forward and backward, in the types and with the calls of
RWKV-LM: tokens and weights in bfloat16, the recurrence by `RWKV7_CLAMPW_CUDA`. It is held against
the recurrence written out in float64, on the same values. Two tables: the recurrence alone, and the
whole block, whose other operations are torch's in the same type for all.

"RWKV-LM" is its kernel's arithmetic in torch, not its kernel: float32 with a state kept each 16
tokens, from which the backward pass steps back by dividing by the decay. The order of its sums and
its fast exponentials are not reproduced. Without a GPU `wkv7` computes in torch, not in kernels;
`python tests/support/interpreted_wkv7.py` shows the kernels in Triton's interpreter.
"""

import argparse
import sys

import torch
from torch.nn import functional as F

from rwkv_lessons.models.rwkv7 import random_weights, ready_to_learn, time_mix
from rwkv_lessons.runtime.command_line import as_seed, at_least, run
from rwkv_lessons.wkv7 import wkv7_reference
from rwkv_lessons.wkv7.options import CLAMP

KEPT_EACH = 16  # tokens, RWKV-LM's CHUNK_LEN
SMALL, LARGE = (1, 128, 2), (8, 1024, 12)  # B, T, H: on a CPU; and the width of a 0.1B model
HEAD = 64


def relative(x, want):
    return float((x.detach().double() - want).norm() / want.norm())


class ClampW(torch.autograd.Function):
    """o of `[B, T, H, N]` tokens from a zero state, in the arithmetic of RWKV-LM's kernel."""

    @staticmethod
    def forward(ctx, r, w, k, v, a, b):
        *rows, decay = (x.float() for x in (r, k, v, a, b, torch.exp(log_decay(w))))
        B, T, H, N = r.shape
        s, o, read, checkpoints = r.new_zeros(B, H, N, N, dtype=torch.float32), [], [], []
        for t in range(T):
            r_t, k_t, v_t, a_t, b_t = (x[:, t] for x in rows)
            read.append((a_t[..., None] * s).sum(-2))  # of the state before the token
            s = decay[:, t, :, :, None] * s
            s = s + (b_t[..., None] * read[-1][..., None, :] + k_t[..., None] * v_t[..., None, :])
            o.append((r_t[..., None] * s).sum(-2))
            if (t + 1) % KEPT_EACH == 0 or t + 1 == T:
                checkpoints.append(s)
        ctx.save_for_backward(r, w, k, v, a, b, torch.stack(read, 1), torch.stack(checkpoints))
        return torch.stack(o, 1).to(r.dtype)

    @staticmethod
    def backward(ctx, do):
        *tokens, read, checkpoints = ctx.saved_tensors
        r, w, k, v, a, b, do = (x.float() for x in (*tokens, do))
        decay, by_token = torch.exp(log_decay(w)), []
        ds = torch.zeros_like(checkpoints[0])
        for t in reversed(range(w.shape[1])):
            columns = (x[:, t, :, :, None] for x in (r, k, a, b, decay))
            r_t, k_t, a_t, b_t, decay_t = columns
            v_t, do_t, read_t = (x[:, t, :, None] for x in (v, do, read))
            if (t + 1) % KEPT_EACH == 0 or t + 1 == w.shape[1]:
                s = checkpoints[t // KEPT_EACH]
            dr = (s * do_t).sum(-1)
            s = (s - k_t * v_t - b_t * read_t) / decay_t  # the state before the token
            ds = ds + r_t * do_t
            dread = (ds * b_t).sum(-2, keepdim=True)
            dw, dk, db = ((ds * x).sum(-1) for x in (s, v_t, read_t))
            da, dv = (s * dread).sum(-1), (ds * k_t).sum(-2)
            ds = ds * decay_t + a_t * dread
            by_token.append((dr, dw, dk, dv, da, db))
        dr, dw, dk, dv, da, db = (torch.stack(x[::-1], 1) for x in zip(*by_token, strict=True))
        share = torch.sigmoid(w)
        dw = -CLAMP * dw * decay * share * (1 - share)
        gradients = zip((dr, dw, dk, dv, da, db), tokens, strict=True)
        return tuple(x.to(token.dtype) for x, token in gradients)


def log_decay(w):
    return -CLAMP * torch.sigmoid(w.float())


def ways(on_gpu):
    """{name: (dtype, what computes o)}; without a GPU the kernels are not there."""
    from rwkv_lessons import wkv7

    names = ("chunked", "recurrent") if on_gpu else ("wy",)
    recurrences = {"RWKV-LM": (torch.bfloat16, ClampW.apply)}
    for dtype in (torch.bfloat16, torch.float32):
        for name in names:
            method = clamped(wkv7.METHODS[name])
            recurrences[f"{name}, {str(dtype).removeprefix('torch.')}"] = dtype, method
    return recurrences


def clamped(method):
    """(r, w, k, v, a, b) → o of `decay="clamp"` by a method of `wkv7`."""
    return lambda *tokens: method(*tokens, decay="clamp")[0]


class Block:
    """A middle layer's time mixing, its tokens and weights in bfloat16, and gradients of both."""

    def __init__(self, B, T, heads, device="cpu", seed=0):
        g, C = torch.Generator().manual_seed(seed), heads * HEAD
        weights = ready_to_learn(random_weights(2, heads, HEAD, 2, 64, seed))
        prefix = "blocks.1.att."
        weights = {k.removeprefix(prefix): x for k, x in weights.items() if k.startswith(prefix)}
        values = {name: x.flatten() if x.ndim == 3 else x for name, x in weights.items()}
        values["x"], values["v_first"] = torch.randn(2, B, T, C, generator=g)
        values["x"] = F.layer_norm(values["x"], (C,))
        self.do = torch.randn(B, T, C, generator=g).bfloat16().to(device)
        self.values = {name: x.bfloat16().to(device) for name, x in values.items()}

    def of_block(self, recurrence, dtype):
        """{result: its value}: the output and all gradients; and the recurrence's inputs."""
        leaves = {name: x.to(dtype).requires_grad_() for name, x in self.values.items()}
        before, recurrence_inputs = F.pad(leaves["x"], (0, 0, 1, -1)), []

        def watched(*tokens):
            recurrence_inputs.extend(tokens)
            return recurrence(*tokens)

        y, _ = time_mix(leaves, leaves["x"], before, leaves["v_first"], watched)
        gradients = torch.autograd.grad(y, list(leaves.values()), self.do.to(dtype))
        named = {f"d {name}": x for name, x in zip(leaves, gradients, strict=True)}
        return {"output": y.detach()} | named, [x.detach() for x in recurrence_inputs]

    def of_recurrence(self, recurrence, dtype, tokens):
        """{result: its value} of the recurrence alone, on tokens that were rounded to bfloat16."""
        leaves = [x.to(dtype).contiguous().requires_grad_() for x in tokens]
        o = recurrence(*leaves)
        gradients = torch.autograd.grad(o, leaves, self.do.view(o.shape).to(dtype))
        return {"o": o.detach()} | dict(
            zip(("dr", "dw", "dk", "dv", "da", "db"), gradients, strict=True)
        )


def errors(ways, B, T, heads, device="cpu", seed=0):
    """Two tables, {way: {result: ‖error‖ / ‖float64‖}}: the recurrence, and the block."""
    written_out = clamped(wkv7_reference)
    block = Block(B, T, heads, device, seed)
    want, tokens = block.of_block(written_out, torch.float64)
    tokens = [x.bfloat16() for x in tokens]
    alone = block.of_recurrence(written_out, torch.float64, tokens)
    tables = {}, {}
    for way, (dtype, recurrence) in ways.items():
        results = block.of_recurrence(recurrence, dtype, tokens)
        tables[0][way] = {name: relative(x, alone[name]) for name, x in results.items()}
        results, _ = block.of_block(recurrence, dtype)
        tables[1][way] = {name: relative(x, want[name]) for name, x in results.items()}
    return tables


def lines(table):
    """A table in Markdown: a row for each result, a column for each way."""
    yield f"| | {' | '.join(table)} |"
    yield f"|---|{'---:|' * len(table)}"
    for name in next(iter(table.values())):
        yield f"| {name} | {' | '.join(f'{column[name]:.1e}' for column in table.values())} |"


def main(argv=None):
    parser = argparse.ArgumentParser(
        prog="python -m rwkv_lessons.verify.block",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--shape", nargs=3, type=at_least(1), metavar=("B", "T", "H"), help="heads are of 64"
    )
    parser.add_argument("--seed", type=as_seed, default=0)
    options = parser.parse_args(argv)
    on_gpu = torch.cuda.is_available()
    shape = options.shape or (LARGE if on_gpu else SMALL)
    device, where = ("cuda", torch.cuda.get_device_name()) if on_gpu else ("cpu", "a CPU")
    show(errors(ways(on_gpu), *shape, device, options.seed), shape, where)


def show(tables, shape, where):
    B, T, heads = shape
    print(f"‖error‖ / ‖float64‖, B={B} T={T} H={heads} N={HEAD}, on {where}")
    for title, table in zip(("The recurrence", "The block"), tables, strict=True):
        print(f"\n{title}\n", *lines(table), sep="\n")


if __name__ == "__main__":
    sys.exit(run(main, "block"))
