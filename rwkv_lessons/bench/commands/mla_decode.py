"""python -m rwkv_lessons.bench mla-decode: a query token of each sequence against a latent cache.

One layer, with w_v and without w_k, which every way of decoding multiplies by in the same way.
Each method has two rows: one with the L2 cache cleared before every call, and one replayed from a
CUDA graph, call after call, as an engine decodes: what the L2 cache keeps is then still there. With
DeepSeek-V3's heads the cache is measured in pages, too.
"""

import math

import torch

from rwkv_lessons.bench import timing
from rwkv_lessons.bench.commands.run import QUICK_MS, choose, recorded_ceilings, time_rows
from rwkv_lessons.bench.measure import PEER_LIMIT, checked
from rwkv_lessons.mla import mla_decode
from rwkv_lessons.operations.mla import DEEPSEEK_V3, MLA_DECODE
from rwkv_lessons.records.rates import rates
from rwkv_lessons.records.schema import Measurement, code

SOURCES = ("rwkv_lessons/mla/decode/forward.py::mla_decode",)
CALLS = 10  # of a graph
PAGE_SIZE = 64  # tokens
# ‖o − ref‖ / ‖ref‖: the weights of the tokens and o are rounded to 11 or 8 bits, 2.0e-4 and 1.7e-3.
LIMITS = {"float32": 1e-5, "float16": 3e-4, "bfloat16": 3e-3}


def command(options):
    """Checks and times each method at each shape, prints the rows and records them."""
    chosen = choose({f.__name__: f for f in (decode, paged, torch_absorbed)}, options.methods)
    budget_ms = QUICK_MS if options.quick else timing.BUDGET_MS

    def rows(shape, dtype, device):
        for f in chosen.values():
            if f is not paged or options.methods or shape[2:] == DEEPSEEK_V3:
                yield from _measure(f, shape, dtype, device, budget_ms)

    time_rows(options, MLA_DECODE, rows)


def decode(q, q_rope, latent, k_rope, w_v, scale):
    """This library's kernels."""
    return lambda: mla_decode(q, q_rope, latent, k_rope, None, w_v, scale=scale)[0]


def paged(q, q_rope, latent, k_rope, w_v, scale):
    """The same of a cache in pages, in no order; what a last page has beyond its tokens is NaN."""
    (B, N), per_sequence = latent.shape[:2], -(-latent.shape[1] // PAGE_SIZE)
    cache = torch.cat([latent, k_rope], 2)
    rows = cache.new_full((B, per_sequence * PAGE_SIZE, cache.shape[2]), math.nan)
    rows[:, :N] = cache
    g = torch.Generator(q.device).manual_seed(1)
    order = torch.randperm(B * per_sequence, generator=g, device=q.device)
    pages = rows.view(-1, PAGE_SIZE, cache.shape[2])[order.argsort()]
    tensors = q, q_rope, *pages.split([latent.shape[2], k_rope.shape[2]], 2), None, w_v
    which = {
        "block_table": order.view(B, per_sequence).int(),
        "lengths": torch.full((B,), N, dtype=torch.int32, device=q.device),
    }
    return lambda: mla_decode(*tensors, scale=scale, **which)[0]


def torch_absorbed(q, q_rope, latent, k_rope, w_v, scale):
    """Four matrix products in the dtype of the inputs, and a softmax in float32."""
    q, q_rope, w_v = q[:, 0], q_rope[:, 0], w_v.mT  # the heads are the rows of one matrix

    def run():
        s = torch.baddbmm(q @ latent.mT, q_rope, k_rope.mT).float() * scale
        o = s.softmax(-1).to(latent.dtype) @ latent  # [B, H, R]
        return (o.transpose(0, 1) @ w_v).transpose(0, 1)[:, None]

    return run


def make_inputs(shape, dtype, device):
    """Random numbers such that scores have a standard deviation of about 1."""
    B, N, H, R, P, V = shape
    g = torch.Generator(device).manual_seed(0)

    def draw(*sizes):
        return torch.randn(*sizes, generator=g, device=device, dtype=getattr(torch, dtype))

    cache = draw(B, N, R + P)
    inputs = draw(B, 1, H, R), draw(B, 1, H, P), cache[..., :R], cache[..., R:], draw(H, V, R)
    return *inputs, (R + P) ** -0.5


def in_float64(q, q_rope, latent, k_rope, w_v, scale):
    """o by the definition, one sequence at a time."""
    o = []
    for b in range(len(q)):
        c, w = latent[b].double(), w_v.double()
        s = q[b, 0].double() @ c.T + q_rope[b, 0].double() @ k_rope[b].double().T
        o.append(torch.einsum("hr,hvr->hv", (s * scale).softmax(-1) @ c, w)[None])
    return torch.stack(o)


@torch.no_grad()
def _measure(f, shape, dtype, device, budget_ms):
    """The rows of one method: with a cold L2 cache and, on a GPU, replayed from a graph."""
    inputs = make_inputs(shape, dtype, device)
    ours = f is not torch_absorbed
    row = {"shape": tuple(shape), "dtype": dtype}
    if ours:
        row |= code(*SOURCES)
    name, limit = f.__name__.replace("_", " "), LIMITS[dtype] if ours else PEER_LIMIT
    run, row["error"], problem = checked(lambda: f(*inputs), in_float64(*inputs), limit)
    if problem:
        return [Measurement(name, **row, problem=problem)]

    least, limits = MLA_DECODE.least(shape, dtype), recorded_ceilings(device)

    def timed(name, times, **more):
        speed = rates(least, dtype, times.median_ms, limits)
        return Measurement(name, **row, **times._asdict(), **speed, **more)

    host_ms = timing.host_time(run, device, budget_ms)
    rows = [timed(name, timing.device_times(run, device, budget_ms), host_ms=host_ms)]
    if device.type == "cuda":
        rows.append(timed(f"{name}, graph replay", graph_times(run, budget_ms)))
    return rows


def graph_times(run, budget_ms):
    """Device time of a call, out of a graph of several."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            run()
    once = timing.event_ms(graph.replay)
    n = timing.repetitions(once, budget_ms)
    return timing.summary([timing.event_ms(graph.replay) / CALLS for _ in range(n)])
