"""WKV-7 as matrix products, in plain torch: for CPU tensors, and for float64 on any device.

Within a chunk of C tokens, z[t] = a[t] S[t-1] is what token t reads and writes back with b. It
depends on the z before it, so all of them solve one triangular system:

    z = Ã S + A_ab z + A_ak v          z = W S + U,  W = (I - A_ab)⁻¹ Ã,  U = (I - A_ab)⁻¹ A_ak v
    o = R̃ S + A_rb z + A_rk v          S ← diag(decay of the chunk) S + B̂ᵀ z + K̂ᵀ v

This is the WY form. Ã and R̃ are a and r decayed from the chunk's start, B̂ and K̂ are b and k
decayed to its end, and A_xy[t, s] is x[t] · y[s] through the decays between them: those before t
for a, those up to t for r. Everything but S ← … is the same for all chunks at once.

The four matrices are built from runs of 1, 2, 4, … tokens: of two neighbouring runs the right one
reads the left one, through decays from its own start and to the other's end. Each is exp of a sum
of log decays and at most 1, so that any w ≤ 0 is exact. The inverse grows with them:

    (I - A)⁻¹ of two runs = [[L, 0], [R A_rl L, R]],  L and R the inverses of each

The gradients are by hand, chunk by chunk in reverse: y = (I - A_ab)⁻ᵀ (A_rbᵀ do + B̂ dS) is the
gradient of the right-hand side, and dS ← diag(decay) dS + R̃ᵀ do + Ãᵀ y has the form of the forward
sweep. A log decay's gradient is a sum over the products of decays that it is part of: never a
difference of two sums, so strong decays lose nothing.
"""

from functools import partial

import torch
from torch.nn import functional as F

from ..runtime.precision import outside_autocast, product, sum_dtype
from ..runtime.running_sums import running_sums
from .options import takes_options

CHUNK = 64  # tokens; the products within a chunk then cost as much as those with the state


@takes_options
def wkv7_wy(r, w, k, v, a, b, s0=None):
    """Same arguments and results as `wkv7`, on any device, with gradients for every argument.

    Computes in float64 where r is float64, else in float32.
    """
    real = sum_dtype(r.dtype)
    if s0 is None:
        s0 = r.new_zeros(r.shape[0], *r.shape[2:], v.shape[3], dtype=real)
    function = WYFunction if torch.compiler.is_compiling() else WYWithTangents
    return function.apply(r, w, k, v, a, b, s0)


class WYFunction(torch.autograd.Function):
    """Saves its inputs alone: what the backward pass computes from them can be derived again."""

    generate_vmap_rule = True

    @staticmethod
    def forward(r, w, k, v, a, b, s0):  # torch.compile counts them: no ctx
        o, s1, *_ = run_forward(r, w, k, v, a, b, s0)
        return o, s1.contiguous()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    @partial(outside_autocast, backward=True)
    def backward(ctx, do, ds1):
        return gradients(*ctx.saved_tensors, do, ds1)


class WYWithTangents(WYFunction):
    """Forward mode as well; torch.compile takes no Function that has it."""

    @staticmethod
    def jvp(ctx, *tangents):
        """The transpose of `gradients`, which is linear in the gradients of o and s1."""
        saved = ctx.saved_tensors
        v, s0 = saved[3], saved[6]
        zeros = torch.zeros_like(v), torch.zeros_like(s0, dtype=sum_dtype(v.dtype))
        pairs = zip(saved, tangents, strict=True)
        tangents = [torch.zeros_like(x) if dx is None else dx for x, dx in pairs]
        _, transpose = torch.func.vjp(lambda *d: gradients(*saved, *d), *zeros)
        return tuple(x.contiguous() for x in transpose(tuple(tangents)))


def run_forward(r, w, k, v, a, b, s0):
    """o, s1, and of each chunk: its matrices, the state before it, and z."""
    real, T = sum_dtype(r.dtype), r.shape[1]
    chunk = Chunks(*(in_chunks(x.to(real)) for x in (r, w, k, v, a, b)))
    W = product(chunk.inverse, chunk.from_start[0])
    U = product(chunk.inverse, product(chunk.pairs[0, 1], chunk.v))
    kv = product(chunk.to_end[1].mT, chunk.v)
    s, states, reads = s0.to(real), [], []
    for c in range(U.shape[2]):
        states.append(s)
        reads.append(product(W[:, :, c], s) + U[:, :, c])
        s = chunk.across[:, :, c, :, None] * s
        s = s + product(chunk.to_end[0, :, :, c].mT, reads[-1]) + kv[:, :, c]
    states, z = torch.stack(states, 2), torch.stack(reads, 2)
    o = product(chunk.from_start[1], states) + product(chunk.pairs[1, 0], z)
    o = o + product(chunk.pairs[1, 1], chunk.v)
    return in_sequence(o, T).to(v.dtype), s, chunk, states, z


def gradients(r, w, k, v, a, b, s0, do, ds1):
    """The gradients of r, w, k, v, a, b and s0, in their dtypes."""
    real, T = sum_dtype(r.dtype), r.shape[1]
    _, _, chunk, states, z = run_forward(r, w, k, v, a, b, s0)
    do = in_chunks(do.to(real))
    dz = product(chunk.pairs[1, 0].mT, do)
    ds, after, ys = ds1.to(real), [], []
    for c in reversed(range(do.shape[2])):
        after.append(ds)
        y = dz[:, :, c] + product(chunk.to_end[0, :, :, c], ds)
        y = product(chunk.inverse[:, :, c].mT, y)
        ys.append(y)
        ds = chunk.across[:, :, c, :, None] * ds
        ds = ds + product(chunk.from_start[1, :, :, c].mT, do[:, :, c])
        ds = ds + product(chunk.from_start[0, :, :, c].mT, y)
    after, y = torch.stack(after[::-1], 2), torch.stack(ys[::-1], 2)

    readers, carried = torch.stack([y, do]), torch.stack([z, chunk.v])
    dv = product(chunk.pairs[1, 1].mT, do) + product(chunk.pairs[0, 1].mT, y)
    dv = dv + product(chunk.to_end[1], after)
    dx, dy, dw = chunk.gradients(readers, carried, states, after)
    (da, dr), (db, dk) = dx, dy
    pairs = ((dr, r), (dw, w), (dk, k), (dv, v), (da, a), (db, b))
    return *(in_sequence(x, T).to(like.dtype) for x, like in pairs), ds.to(s0.dtype)


class Chunks:
    """r, w, k, v, a, b of `[B, H, chunks, C, K or V]`, and what of them needs no state.

    x are the readers a and r, y what they read, b and k; both are stacked in front.
    """

    def __init__(self, r, w, k, v, a, b):
        self.w, self.v = w, v
        self.x, self.y = torch.stack([a, r]), torch.stack([b, k])
        self.from_start, self.to_end = self.x * reader_decays(w), self.y * to_end(w)
        self.across = w.sum(-2).exp()
        own = torch.stack([torch.zeros_like(self.y), r * self.y])  # a[t] reads no token t
        pairs = own.sum(-1)[..., None, None]  # [2, 2, B, H, chunks, runs, 1, 1]
        inverse, L = torch.ones_like(pairs[0, 0]), 1
        while L < w.shape[-2]:
            right, left = self.runs(L)
            low = product(right[:, None], left[None].mT)
            of_inverse = product(inverse[..., 1::2, :, :], low[0, 0])
            of_inverse = product(of_inverse, inverse[..., ::2, :, :])
            pairs, inverse, L = blocks(pairs, low), blocks(inverse, of_inverse), 2 * L
        self.pairs, self.inverse = pairs.squeeze(-3), inverse.squeeze(-3)

    def runs(self, L):
        """x of every second run of L tokens and y of the run before it, decayed to their border."""
        right, left = in_runs(self.w, L)
        return in_runs(self.x, L)[0] * reader_decays(right), in_runs(self.y, L)[1] * to_end(left)

    def gradients(self, readers, carried, states, after):
        """dx and dy, stacked as x and y are, and dw.

        Args:
            readers: y and do, the gradients of what a and r read, `[2, B, H, chunks, C, V]`.
            carried: z and v, what b and k carry.
            states, after: the state before each chunk, and the gradient of the one after it.
        """
        from_start, to_the_end = product(readers, states.mT), product(carried, after.mT)
        dx, dy = from_start * reader_decays(self.w), to_the_end * to_end(self.w)
        dw = readers_dw(self.from_start * from_start) + to_end_dw(self.to_end * to_the_end)
        dw = dw + (self.across * (states * after).sum(-1))[..., None, :]

        pairs = product(readers[:, None], carried[None].mT)  # gradients of the four matrices
        own = pairs[1].diagonal(dim1=-2, dim2=-1)[..., None]  # only r reads its own token
        dx = dx + torch.stack([torch.zeros_like(dx[0]), (own * self.y).sum(0)])
        dy = dy + own * self.x[1]
        L = 1
        while L < self.w.shape[-2]:
            right, left = self.runs(L)
            low = below(pairs, L)
            of_right = product(low, left[None]).sum(1)
            of_left = product(low.mT, right[:, None]).sum(0)
            w_right, w_left = in_runs(self.w, L)
            dx = dx + side_by_side(None, of_right * reader_decays(w_right))
            dy = dy + side_by_side(of_left * to_end(w_left), None)
            dw = dw + side_by_side(to_end_dw(left * of_left), readers_dw(right * of_right))
            L *= 2
        return dx, dy, dw


def in_chunks(x):
    """[B, T, H, N] → [B, H, chunks, C, N], with zeros after the last token: decays of 1."""
    T = x.shape[1]
    C = min(CHUNK, 1 << (T - 1).bit_length())
    x = F.pad(x, (0, 0, 0, 0, 0, -T % C))
    return x.unflatten(1, (-1, C)).permute(0, 3, 1, 2, 4)


def in_sequence(x, T):
    """The reverse of `in_chunks`, in memory of its own: no view, which has no tangents."""
    return x.flatten(2, 3)[:, :, :T].transpose(1, 2).clone(memory_format=torch.contiguous_format)


def reader_decays(w):
    """The decays from a run's start to each token: before it for a, with its own for r; stacked."""
    total = running_sums(w)
    return torch.stack([F.pad(total[..., :-1, :], (0, 0, 1, 0)), total]).exp()


def to_end(w):
    """The decay from just after each token to the end of its run: …, exp(w[-1]), exp(0)."""
    return running_sums(F.pad(w[..., 1:, :], (0, 0, 0, 1)).flip(-2)).flip(-2).exp()


def readers_dw(x_dx):
    """dw of `reader_decays`, from x · dx of both: w[u] is part of r's from u on, of a's after u."""
    of_a, of_r = x_dx
    return running_sums((F.pad(of_a[..., 1:, :], (0, 0, 0, 1)) + of_r).flip(-2)).flip(-2)


def to_end_dw(y_dy):
    """dw of `to_end`, from y · dy of both: w[u] is part of those of the tokens before u."""
    return running_sums(F.pad(y_dy.sum(0)[..., :-1, :], (0, 0, 1, 0)))


def in_runs(x, L):
    """The second and the first of each pair of runs of L tokens, `[…, pairs, L, N]`."""
    pairs = x.unflatten(-2, (-1, 2, L))
    return pairs[..., 1, :, :], pairs[..., 0, :, :]


def side_by_side(left, right):
    """Runs back in their places; zeros for None."""
    left = torch.zeros_like(right) if left is None else left
    right = torch.zeros_like(left) if right is None else right
    return torch.stack([left, right], -3).flatten(-4, -2)


def blocks(diagonal, low):
    """Triangular matrices of two runs each, from those of one, `[…, runs, L, L]`."""
    upper = torch.cat([diagonal[..., ::2, :, :], torch.zeros_like(low)], -1)
    return torch.cat([upper, torch.cat([low, diagonal[..., 1::2, :, :]], -1)], -2)


def below(pairs, L):
    """The blocks of `[…, C, C]` in which a run of L tokens reads the run before it."""
    runs = pairs.unflatten(-2, (-1, 2, L)).unflatten(
        -1, (-1, 2, L)
    )  # […, pairs, 2, L, pairs, 2, L]
    return runs[..., 1, :, :, 0, :].diagonal(dim1=-4, dim2=-2).movedim(-1, -3)
