"""The rungs of lessons 25 to 28: one decoding step of one layer, from keys and values to the end.

All of them absorb W_K or expand it, and apply W_V: the same inputs, the same output.
"""

from functools import cache, partial

import torch

from rwkv_lessons.bench import timing
from rwkv_lessons.bench.commands.run import QUICK_MS, choose, recorded_ceilings, time_rows
from rwkv_lessons.bench.measure import LIMITS, checked_row
from rwkv_lessons.mla import mla_decode
from rwkv_lessons.operations.entries import lesson
from rwkv_lessons.operations.mla import MLA_LADDER
from rwkv_lessons.records.rates import rates
from rwkv_lessons.records.schema import Measurement, code

PLACES = 264  # programs of lesson 27 that an H200 runs at a time
LIBRARY = ("rwkv_lessons/mla/decode/forward.py::mla_decode",)


def command(options):
    """`python -m rwkv_lessons.bench mla-ladder`."""
    choose(METHODS, options.methods)
    settings = {"names": options.methods, "quick": options.quick}
    time_rows(options, MLA_LADDER, partial(measure, **settings))


def make_inputs(shape, dtype, device):
    """q, q_rope, latent, k_rope, w_k, w_v, for one query per sequence."""
    B, N, H, K, R, P, V = shape
    generator = torch.Generator(device).manual_seed(0)

    def normal(*sizes):
        x = torch.randn(*sizes, device=device, generator=generator)
        return x.to(getattr(torch, dtype))

    w_k, w_v = normal(H, K, R) / R**0.5, normal(H, V, R) / R**0.5
    return normal(B, H, K), normal(B, H, P), normal(B, N, R), normal(B, N, P), w_k, w_v


@torch.no_grad()
def measure(shape, dtype, device, names=None, quick=False):
    """One `Measurement` per rung, checked against float64 first."""
    inputs, scale = make_inputs(shape, dtype, device), (shape[3] + shape[5]) ** -0.5
    expected, least = absorbed(*(x.double() for x in inputs), scale), MLA_LADDER.least(shape, dtype)
    budget_ms, limits = QUICK_MS if quick else timing.BUDGET_MS, recorded_ceilings(device)
    for name, (run, sources) in choose(METHODS, names).items():
        row = {"method": name, "shape": shape, "dtype": dtype} | code(*sources)
        if device.type != "cuda" and run in (fused, split):
            yield Measurement(**row, problem="needs a GPU")
            continue
        prepare = PREPARED.get(name) or partial(partial, run)

        def times(run, whole=name not in PREPARED):
            measured = timing.device_times(run, device, budget_ms)
            speed = rates(least, dtype, measured.median_ms, limits) if whole else {}
            return measured._asdict() | speed

        yield checked_row(row, partial(prepare, *inputs, scale), expected, LIMITS[dtype], times)


_lesson = cache(lesson)


def expanded(*args):
    return _lesson("25_absorb_the_weights").expanded(*args)


def absorbed(*args):
    return _lesson("25_absorb_the_weights").absorbed(*args)


def fused(q, q_rope, latent, k_rope, w_k, w_v, scale):
    """Lesson 26's kernel with one query, in blocks of 16 rows."""
    rung, sizes = _lesson("26_fused_prefill"), _sizes(q, q_rope, latent, w_v)
    q_latent = torch.einsum("bhk,hkr->bhr", q, w_k).contiguous()
    o = torch.empty(*q.shape[:2], w_v.shape[1], dtype=q.dtype, device=q.device)
    grid, constants = rung.launch(sizes, scale, BM=16)
    rung.kernel[grid](q_latent, q_rope, latent, k_rope, w_v, o, **constants)
    return o


def split(q, q_rope, latent, k_rope, w_k, w_v, scale):
    """Lesson 27's two kernels."""
    return split_alone(q, q_rope, latent, k_rope, w_k, w_v, scale)()


def split_alone(q, q_rope, latent, k_rope, w_k, w_v, scale):
    """Runs the first kernel; returns a function that runs the second one on its parts."""
    rung, sizes = _lesson("27_split_decode"), _sizes(q, q_rope, latent, w_v)
    q_latent = torch.einsum("bhk,hkr->bhr", q, w_k).contiguous()
    tokens = rung.tokens_per_split(sizes.B, 1, sizes.N, 64, PLACES)
    grid, constants = rung.launch_partial(sizes, scale, tokens)
    parts = torch.empty(sizes.B, grid[0], sizes.H, sizes.R, device=q.device)
    part_lse = torch.empty(sizes.B, grid[0], sizes.H, device=q.device)
    rung.partial[grid](q_latent, q_rope, latent, k_rope, parts, part_lse, **constants)
    o = torch.empty(*q.shape[:2], w_v.shape[1], dtype=q.dtype, device=q.device)
    grid, constants = rung.launch_combine(sizes, tokens)

    def join():
        rung.combine[grid](parts, part_lse, w_v, o, **constants)
        return o

    return join


def finished(q, q_rope, latent, k_rope, w_k, w_v, scale):
    q, q_rope = q[:, None], q_rope[:, None]
    return mla_decode(q, q_rope, latent, k_rope, w_k, w_v, scale=scale)[0][:, 0]


def _sizes(q, q_rope, latent, w_v):
    (B, H, K), (N, R), V = q.shape, latent.shape[1:], w_v.shape[1]
    return _lesson("27_split_decode").LatentSizes(B, 1, N, H, K, q_rope.shape[2], V, R)


def _code(stem, *names):
    return tuple(f"solutions/{stem}.py::{name}" for name in names)


METHODS = {
    "expanded": (expanded, _code("25_absorb_the_weights", "expanded")),
    "25_absorb_the_weights": (absorbed, _code("25_absorb_the_weights", "absorbed")),
    "26_fused_prefill": (fused, _code("26_fused_prefill", "kernel", "launch")),
    "27_split_decode": (
        split,
        _code("27_split_decode", "partial", "combine", "launch_partial", "launch_combine")
        + _code("27_split_decode", "tokens_per_split"),
    ),
    "27_split_decode.combine": (split, _code("27_split_decode", "combine", "launch_combine")),
    "decode": (finished, LIBRARY),
}
PREPARED = {"27_split_decode.combine": split_alone}  # what they return is timed, and not they
