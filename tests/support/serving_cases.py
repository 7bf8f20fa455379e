"""Inputs of the serving calls, and what they are held against, one sequence after the other."""

import math

import torch

from rwkv_lessons.wkv7 import wkv7_reference

# Rows of no sequence at the end; sequences of one token and of none, of a chunk and of several,
# with a part of one left; one without a slot among the short ones, and one among the long.
ENDS = [0, 1, 1, 17, 34, 36, 75, 95, 98]
SLOTS = [3, 5, 0, -1, 2, 6, -1, 1]
TOTAL, SLOT_COUNT = 101, 8
# Others that a CUDA graph of the same call is replayed with: single tokens, one long prompt, none.
REPLAYED = (
    ([0, 1, 2, 3, 4, 5, 6, 7, 8], [7, 0, 1, -1, 2, 3, 4, 5]),
    ([0, 0, 0, 0, 1, 1, 1, 1, TOTAL], [-1, 1, 2, 3, 4, 5, 7, 6]),
    ([0] * 9, [-1] * 8),
    (ENDS, SLOTS),
)
UNUSED = [4, 5, 7]  # slots of no sequence, and of one without tokens


def make(H, K, V, dtype=torch.float32, pool_dtype=torch.float32, total=TOTAL, decay="clamp"):
    """r, w, k, v, a, b, w0 and a pool. Some decays are as strong and as weak as there is."""
    g = torch.Generator().manual_seed(total + K)

    def normal(*sizes):
        return torch.randn(*sizes, generator=g)

    r, w, k, kappa = (normal(1, total, H, K) for _ in range(4))
    kappa = torch.nn.functional.normalize(kappa, dim=-1)
    rate, w0 = torch.rand(1, total, H, K, generator=g), normal(H, K) - 1
    if decay == "log":
        w, w0 = -(w - 1).exp(), -(w0 - 2).exp()
    strong = {"log": [-math.inf, -20.0, 0.0], "raw": [9.0, 3.0, -30.0], "clamp": [80.0, 9.0, -80.0]}
    w[0, ::5, 0, :3] = torch.tensor(strong[decay])
    tokens = (r, w, k / K**0.5, normal(1, total, H, V), -kappa, kappa * rate)
    pool = normal(SLOT_COUNT, H, K, V).to(pool_dtype)
    return [x.to(dtype) for x in tokens], w0, pool


def places(ends=ENDS, slots=SLOTS):
    return torch.tensor(slots, dtype=torch.int32), torch.tensor(ends, dtype=torch.int32)


def in_float64(tokens, w0, pool, indices, ends, scale=1.0, decay="clamp"):
    """o and the pool afterwards, in float64 and not rounded."""
    r, w, *more = (x.double() for x in tokens)
    w = w if w0 is None else w + w0.double()
    o, after = torch.zeros_like(tokens[3], dtype=torch.float64), pool.double()
    bounds = ends.tolist()
    for slot, start, end in zip(indices.tolist(), bounds, bounds[1:], strict=False):
        if slot >= 0 and end > start:
            x = [y[:, start:end] for y in (r, w, *more)]
            o[:, start:end], s1 = wkv7_reference(
                *x, after[slot : slot + 1].clone(), scale=scale, decay=decay
            )
            after[slot] = s1[0]
    return o, after


def error(got, want):
    """‖error‖ / ‖reference‖."""
    return ((got.double() - want).norm() / want.norm()).item()


def captured(call):
    """What a call returns, and what replays its CUDA graph into the same memory."""
    call()  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    return result, graph.replay


def hold_replays(serve, pool, reference, of_o, of_states):
    """Holds a graph of one call, replayed with other lengths and slots, to eager calls and float64.

    Args:
        serve: (pool, indices, ends) → o.
        reference: the same on a CPU → o and the pool afterwards, in float64.
        of_o, of_states: the largest errors.
    """
    used, (indices, ends) = pool.clone(), (x.to(pool.device) for x in places())
    o, replay = captured(lambda: serve(used, indices, ends))
    for others in REPLAYED:
        used.copy_(pool)
        for x, y in zip((indices, ends), places(*others), strict=True):
            x.copy_(y)
        replay()
        eager = serve(fresh := pool.clone(), indices, ends)
        assert torch.equal(o, eager) and torch.equal(used, fresh)
        want, after = reference(pool.cpu(), indices.cpu(), ends.cpu())
        assert error(used.cpu(), after) < of_states
        assert error(o.cpu(), want) < of_o if want.any() else not o.any()
