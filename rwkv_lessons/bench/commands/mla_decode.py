"""python -m rwkv_lessons.bench mla-decode: a query token of each sequence against a latent cache.

One layer, with w_v and without w_k, which every way of decoding multiplies by in the same way.
Each method has two rows: one with the L2 cache cleared before every call, and one replayed from a
CUDA graph, call after call, as an engine decodes: what the L2 cache keeps is then still there. With
DeepSeek-V3's heads the cache is measured in pages, too; with few heads, in FP8, with lists of 2,048
tokens of a longer cache, with both, and with heads padded to 64 as FlashMLA has them.
"""

import math
from functools import partial

import torch

from rwkv_lessons.bench import timing
from rwkv_lessons.bench.commands.run import QUICK_MS, choose, recorded_ceilings, time_rows
from rwkv_lessons.bench.measure import PEER_LIMIT, checked
from rwkv_lessons.mla import fp8_cache, fp8_cache_parts, mla_decode, mla_reference
from rwkv_lessons.operations.mla import DEEPSEEK_V3, MLA_DECODE, least_mla_compact
from rwkv_lessons.records.rates import rates
from rwkv_lessons.records.schema import Measurement, code

SOURCES = ("rwkv_lessons/mla/decode/forward.py::mla_decode",)
COMPACT_SOURCES = ("rwkv_lessons/mla/decode/forward.py::forward_compact",)
CALLS = 10  # of a graph
PAGE_SIZE = 64  # tokens
LISTED = 2048  # tokens of a list, DeepSeek-V3.2's
PADDED = 64  # heads
# ‖o − ref‖ / ‖ref‖: weights of tokens and o are rounded to 11 or 8 bits, 2.0e-4 and 1.7e-3, and
# parts of the sum to 11.
LIMITS = {"float32": 1e-5, "float16": 4e-4, "bfloat16": 3e-3}


def command(options):
    """Checks and times each method at each shape, prints the rows and records them."""
    methods = decode, paged, torch_absorbed, padded, fp8, lists, fp8_lists
    chosen = choose({f.__name__: f for f in methods}, options.methods)
    budget_ms = QUICK_MS if options.quick else timing.BUDGET_MS

    def rows(shape, dtype, device):
        for f in chosen.values():
            if options.methods or f in methods_at(shape):
                yield from _measure(f, shape, dtype, device, budget_ms)

    time_rows(options, MLA_DECODE, rows)


def methods_at(shape):
    """What is measured at a shape if no method is asked for."""
    _, N, H, R, _, _ = shape
    methods = [decode, torch_absorbed]
    methods += [paged] if shape[2:] == DEEPSEEK_V3 else []
    if H <= 16 and R == 512:
        methods += [padded, fp8] if N < 16 * LISTED else [lists, fp8_lists]
    return methods


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


def padded(q, q_rope, latent, k_rope, w_v, scale):
    """The same with more heads, of which those that pad are zeros."""
    B, _, H, _ = q.shape
    q, q_rope, w_v = (
        torch.cat([x, x.new_zeros(*x.shape[:n], PADDED - H, *x.shape[n + 1 :])], n)
        for x, n in ((q, 2), (q_rope, 2), (w_v, 0))
    )
    return lambda: mla_decode(q, q_rope, latent, k_rope, None, w_v, scale=scale)[0][:, :, :H]


def fp8(q, q_rope, latent, k_rope, w_v, scale):
    """The same of a cache in FP8."""
    return compact(q, q_rope, w_v, scale, *in_fp8(latent, k_rope))


def lists(q, q_rope, latent, k_rope, w_v, scale):
    """Only some tokens of each sequence."""
    return compact(q, q_rope, w_v, scale, latent, None, k_rope, listed(latent))


def fp8_lists(q, q_rope, latent, k_rope, w_v, scale):
    """Only some tokens of a cache in FP8."""
    return compact(q, q_rope, w_v, scale, *in_fp8(latent, k_rope), listed(latent))


def in_fp8(latent, k_rope):
    """A cache as FlashMLA and vLLM keep it, in parts; one sequence after the other, for memory."""
    both = zip(latent.split(1), k_rope.split(1), strict=True)
    return fp8_cache_parts(torch.cat([fp8_cache(*x) for x in both]), k_rope.shape[-1])


def listed(latent):
    """A list of each sequence, of tokens in no order."""
    B, N, _ = latent.shape
    g = torch.Generator(latent.device).manual_seed(1)
    draw = [torch.randperm(N, generator=g, device=latent.device)[:LISTED] for _ in range(B)]
    return torch.stack(draw).int()


def compact(q, q_rope, w_v, scale, latent, scales, k_rope, tokens=None):
    """A call of `mla_decode`. Its `expected` is the definition, of the same cache in float64."""

    def expected():
        rows = []
        for b in range(len(q)):
            one = [x[b : b + 1] for x in (q.double(), q_rope.double(), latent, k_rope.double())]
            one[2] = one[2].double() if scales is None else one[2]
            more = {"scales": scales, "tokens": tokens}
            more = {k: x if x is None else x[b : b + 1] for k, x in more.items()}
            rows.append(mla_reference(*one, None, w_v.double(), scale=scale, **more)[0])
        return torch.cat(rows)

    which = {"scale": scale, "scales": scales, "tokens": tokens}
    call = partial(mla_decode, q, q_rope, latent, k_rope, None, w_v, **which)

    def run():
        return call()[0]

    run.expected = expected
    return run


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
    ours, is_compact = f is not torch_absorbed, f in (fp8, lists, fp8_lists)
    row = {"shape": tuple(shape), "dtype": dtype}
    if ours:
        row |= code(*(COMPACT_SOURCES if is_compact else SOURCES))
    name, limit = f.__name__.replace("_", " "), LIMITS[dtype] if ours else PEER_LIMIT
    if is_compact:
        prepared = f(*inputs)
        prepare, expected = (lambda: prepared), prepared.expected()
    else:
        prepare, expected = (lambda: f(*inputs)), in_float64(*inputs)
    run, row["error"], problem = checked(prepare, expected, limit)
    if problem:
        return [Measurement(name, **row, problem=problem)]

    least, limits = MLA_DECODE.least(shape, dtype), recorded_ceilings(device)
    if is_compact:
        tokens = min(shape[1], LISTED) if f is not fp8 else shape[1]
        least = least_mla_compact(*shape, tokens=tokens, fp8=f is not lists)

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
