"""Latent attention with 128 heads in clusters of two programs: checked and timed on a GPU.

    python -m rwkv_lessons.bench mla-cluster            all of it; about a minute on a Hopper GPU
    python -m rwkv_lessons.bench mla-cluster --quick    compiles, and checks, but times nothing

Without a Hopper GPU it compiles for one and prints registers, spills and shared memory. On one, it
compares each variant with float64 at lengths around a tile, in pages, with left padding and several
query tokens, and calls it ten times to see whether the bits stay the same. What passes is timed
beside `mla_decode` in the same process.
"""

import math
from functools import partial

import torch

from rwkv_lessons.bench import timing
from rwkv_lessons.bench.commands.mla_decode import LIMITS, make_inputs
from rwkv_lessons.bench.measure import relative_error
from rwkv_lessons.bench.show import console
from rwkv_lessons.bench.trials.variants import machine_code_of, repeated, try_all
from rwkv_lessons.mla import mla_decode, mla_reference
from rwkv_lessons.operations.mla import DEEPSEEK_V3

VARIANTS = {
    "pairs of tiles, multicast": {},
    "pairs of tiles, each program loads its own": {"MULTICAST": False},
    "tile by tile, multicast": {"PAIRS": False},
    "tile by tile, each program loads its own": {"PAIRS": False, "MULTICAST": False},
}
LIMIT = LIMITS["bfloat16"]
SHAPES = ((64, 4096), (16, 4096), (1, 16384))  # B, tokens
H, R, P, V = DEEPSEEK_V3


def command(options):
    """`python -m rwkv_lessons.bench mla-cluster`."""
    from rwkv_lessons.mla.decode.cluster import missing

    if why := missing():
        console().print(f"skipped: {why}")
        return
    try_all(options, VARIANTS, SHAPES, LIMIT, compiled_as, errors, time_shape)


def compiled_as(variant):
    """What a variant is compiled to, for Hopper, in a sentence; its machine code is looked at."""
    (q, q_rope, latent, k_rope, w_v), _ = case(1, 1, 64, torch.device("cpu"))
    return machine_code_of(partial(in_clusters, q, q_rope, latent, k_rope, w_v, 1.0, **variant))


def in_clusters(*inputs, **options):
    from rwkv_lessons.mla.decode.cluster import decode_in_clusters

    return decode_in_clusters(*inputs, **options)


@torch.no_grad()
def errors(variant, device):
    """(what is looked at, the error of o) of each case; NaN if the bits change."""
    for name, (inputs, options) in cases(device).items():
        run = partial(in_clusters, *inputs, (R + P) ** -0.5, **options, **variant)
        results, fault = repeated(name, run)
        if fault:
            yield fault
            continue
        o, lse = results
        *tensors, w_v = (x.double() for x in inputs)
        want, want_lse = mla_reference(*tensors, None, w_v, scale=(R + P) ** -0.5, **options)
        yield name, relative_error(o, want)
        yield f"{name}, log-sum-exp", relative_error(lse, want_lse)


def cases(device):
    """{name: ((q, q_rope, latent, k_rope, w_v), options)}."""
    make = partial(case, device=device)
    by_name = {f"{N} tokens": make(2, 1, N) for N in (1, 63, 64, 65, 128, 129, 1000, 4096)}
    by_name["other lengths"] = make(4, 1, 700, lengths=[700, 1, 64, 333])
    by_name["left padding"] = make(3, 1, 500, left_padding=[0, 3, 190])
    by_name["three query tokens"] = make(2, 3, 300)
    by_name["pages"] = make(4, 1, 640, lengths=[640, 1, 65, 333], page_size=64)
    by_name["many sequences"] = make(150, 1, 200)
    return by_name


def case(B, M, N, device, lengths=None, left_padding=None, page_size=None):
    """Normal numbers in bfloat16; NaN in the cache where no query may look."""
    g = torch.Generator().manual_seed(N)

    def draw(*sizes):
        return torch.randn(*sizes, generator=g).bfloat16()

    q, q_rope, rows, w_v = draw(B, M, H, R), draw(B, M, H, P), draw(B, N, R + P), draw(H, V, R)
    which = {"lengths": lengths, "left_padding": left_padding}
    which = {name: torch.tensor(x) for name, x in which.items() if x is not None}
    for i in range(B):
        rows[i, N if lengths is None else lengths[i] :] = math.nan
        rows[i, : 0 if left_padding is None else left_padding[i]] = math.nan
    if page_size is not None:
        order = torch.randperm(B * N // page_size, generator=g)
        rows = rows.view(-1, page_size, R + P)[order.argsort()]
        which["block_table"] = order.view(B, -1).int()
    rows = rows.to(device)
    tensors = (q.to(device), q_rope.to(device), rows[..., :R], rows[..., R:], w_v.to(device))
    return tensors, {name: x.to(device) for name, x in which.items()}


@torch.no_grad()
def time_shape(shape, device, wrong):
    """Prints a line for `mla_decode`, and for each variant that is not wrong: calls, replays."""
    *inputs, w_v, scale = make_inputs((*shape, *DEEPSEEK_V3), "bfloat16", device)
    console().print(f"{shape[0]} × {shape[1]} tokens, {H} heads")
    runs = {"mla_decode": partial(mla_decode, *inputs, None, w_v, scale=scale)}
    runs |= {
        name: partial(in_clusters, *inputs, w_v, scale, **variant)
        for name, variant in VARIANTS.items()
        if name not in wrong
    }
    for name, run in runs.items():
        times = timing.device_times(run, device)
        spread = f"{1000 * times.p20_ms:.1f} … {1000 * times.p80_ms:.1f}"
        console().print(f"  {name}: {1000 * times.median_ms:.1f} µs ({spread})")
