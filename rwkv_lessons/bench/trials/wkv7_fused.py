"""RWKV-7's forward pass in one launch: every variant compiled, then checked and timed on a GPU.

    python -m rwkv_lessons.bench wkv7-fused            all of it; about two minutes on a Hopper GPU
    python -m rwkv_lessons.bench wkv7-fused --quick    compiles, and checks, but times nothing

Without a Hopper GPU it compiles for one and prints registers, spills and shared memory. On one, it
compares each variant with float64 at lengths around a tile and at decays from none to total, the
first one also with each option, and calls it ten times to see whether the bits stay the same. What
passes is timed beside `wkv7_chunked` in the same process.
"""

import math
from functools import partial

import torch

from rwkv_lessons.bench import timing
from rwkv_lessons.bench.measure import relative_error
from rwkv_lessons.bench.show import console
from rwkv_lessons.bench.trials.variants import machine_code_of, repeated, try_all
from rwkv_lessons.inputs import rwkv7_inputs
from rwkv_lessons.operations.wkv7 import least_wkv7
from rwkv_lessons.wkv7 import wkv7_chunked, wkv7_reference, wkv7_wy
from rwkv_lessons.wkv7.calls import delta_rule
from rwkv_lessons.wkv7.options import CLAMP

VARIANTS = {
    "in one launch": {},
    "in one launch, states kept every 64 tokens": {"keep": True},
}
LIMIT = 5e-3  # of o and s1: what `wkv7_chunked` promises in bfloat16
SHAPES = ((8, 4096, 64), (4, 4096, 64), (1, 4096, 64), (1, 32768, 64))  # B, T, H of heads of 64
CHECKED = 2  # heads of the first sequence of a timed shape that float64 computes too
COPY = 4.3e9  # bytes a millisecond of a plain copy on an H200


def command(options):
    """`python -m rwkv_lessons.bench wkv7-fused`."""

    def errors_of(variant, device):  # each option is another compilation
        return errors(variant, device, with_options=not variant)

    try_all(options, VARIANTS, SHAPES, LIMIT, compiled_as, errors_of, time_shape)


def compiled_as(variant):
    """What a variant is compiled to, for Hopper, in a sentence; its machine code is looked at."""
    x = delta_rule(8, 4096, 64, 64, torch.bfloat16)
    return machine_code_of(partial(fused, *x, variant=variant))


def fused(r, w, k, v, a, b, s0=None, *, variant, cu_seqlens=None, scale=1.0, decay="log"):
    from rwkv_lessons.wkv7.chunked.hopper.forward import forward

    keep = variant.get("keep", False)
    return forward(r, w, k, v, a, b, s0, cu_seqlens, scale, decay, keep)


@torch.no_grad()
def errors(variant, device, with_options=True):
    """(what is looked at, the larger error of o and s1) of each case; NaN if the bits change."""
    for name, (x, options) in cases(device).items():
        if options and not with_options:
            continue
        run = partial(fused, *x, variant=variant, **options)
        results, fault = repeated(name, run)
        if fault:
            yield fault
            continue
        o, s1 = results[:2]
        in_float64 = [None if y is None else y.double() for y in x]
        want = wkv7_reference(*in_float64, **options)
        yield name, max(relative_error(a, b) for a, b in zip((o, s1), want, strict=True))


def cases(device):
    """{name: (r, w, k, v, a, b and s0, options)}."""
    make = partial(inputs, device=device)
    ends = torch.tensor([0, 70, 70, 71, 300, 512], dtype=torch.int32, device=device)
    by_name = {f"{T} tokens": (make(T), {}) for T in (1, 15, 16, 17, 63, 64, 65, 1000)}
    by_name |= {f"w = {w}": (make(200, w), {}) for w in (0.0, -0.5, -3.0, -3.8, -math.inf)}
    by_name["strong among mild"] = make(400), {}
    by_name["strong among mild"][0][1][:, 70:80, :, ::3] = -math.inf
    by_name["a scale"] = make(200), {"scale": 0.3}
    by_name["packed"] = make(512, sequences=5, B=1), {"cu_seqlens": ends}
    by_name |= {decay: (make(200, 0.5), {"decay": decay}) for decay in ("raw", "clamp")}
    by_name["many heads"] = make(100, B=4, H=70), {}
    return by_name


def inputs(T, w=None, B=2, H=3, sequences=None, device="cpu"):
    """Normal numbers as r, w, k, v, a, b in bfloat16, and s0.

    a and b are as a model has them, from a unit vector. w is the same everywhere if it is given,
    and else that of RWKV-7's models.
    """
    generator = torch.Generator().manual_seed(T)
    r, x, k, v, y, rate = torch.randn(6, B, T, H, 64, generator=generator)
    w = CLAMP * -x.sigmoid() if w is None else torch.full_like(x, w)
    y = torch.nn.functional.normalize(y, dim=-1)
    s0 = torch.randn(sequences or B, H, 64, 64, generator=generator)
    tokens = (r, w, k / 8, v, -y, y * rate.sigmoid())
    return [*(z.bfloat16().to(device) for z in tokens), s0.to(device)]


@torch.no_grad()
def time_shape(shape, device, wrong):
    """Prints a line for `wkv7_chunked`, and for each variant that is not wrong."""
    B, T, H = shape
    x = rwkv7_inputs(*shape, 64, dtype=torch.bfloat16, device=device)
    floor = least_wkv7(B, T, H, 64, 2).bytes / COPY
    console().print(f"B={B} T={T} H={H} N=64, {floor:.3f} ms at a copy's rate")
    few = [y[:1, :, :CHECKED].double() for y in x]
    want, _ = wkv7_wy(*few)
    runs = {"wkv7_chunked": partial(wkv7_chunked, *x)}
    runs |= {n: partial(fused, *x, variant=v) for n, v in VARIANTS.items() if n not in wrong}
    for name, run in runs.items():
        error = relative_error(run()[0][:1, :, :CHECKED], want)
        times = timing.device_times(run, device)
        spread = f"{times.p20_ms:.3f} … {times.p80_ms:.3f}"
        share = f"{times.median_ms / floor:.2f} × the floor"
        console().print(f"  {name}: {times.median_ms:.3f} ms ({spread}), {share}, {error:.2g}")
